"""The tokenizer and the chat template of a checkpoint folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from evalrig import checkpoint
from evalrig.checkpoint import CheckpointError
from evalrig.errors import UsageError
from evalrig.refengine.chat_template import NO_TEMPLATE, ChatTemplate
from evalrig.refengine.tokenizer import Tokenizer, Vocabulary


def folder_tokenizer(folder: Path, config: Mapping[str, Any], size: int) -> Tokenizer:
    """From tokenizer.json, over the `size` ids that the model has.

    UsageError: there is none, it is broken, it is no byte-level BPE, or it has ids that the model has not.
    """
    path = folder / "tokenizer.json"
    whole = _object(path)
    if not whole:
        raise UsageError(f"{path}: no such file; refengine takes its tokens from it")
    model, decoder = whole.get("model") or {}, whole.get("decoder") or {}
    if model.get("type") != "BPE" or not any(kind == "ByteLevel" for kind in _kinds(decoder)):
        raise UsageError(
            f"{path}: a {model.get('type')} tokenizer with the decoder {decoder.get('type')} is not supported; "
            "refengine reads byte-level BPE (model BPE, decoder ByteLevel)"
        )
    try:
        fast = FastTokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"{path}: the tokenizers library cannot read it: {error}; fetch it again") from error
    # What a training script cut or filled texts to must not happen to a prompt.
    fast.no_truncation()
    fast.no_padding()
    ids = fast.get_vocab(with_added_tokens=True)
    if (largest := max(ids.values(), default=-1)) >= size:
        raise UsageError(f"{path}: it has the id {largest}, the model only {size} tokens; fetch both again")
    tokens = [""] * size
    for token, index in ids.items():
        tokens[index] = token
    added = fast.get_added_tokens_decoder()
    vocabulary = Vocabulary(
        tokens=tokens,
        special=frozenset(index for index, token in added.items() if token.special),
        written_out=frozenset(added),
        end_ids=_end_ids(folder, config, ids),
        sha256=checkpoint.tokenizer(folder),
    )
    return Tokenizer(vocabulary, fast)


def folder_template(folder: Path) -> ChatTemplate:
    """The chat template, wherever the folder keeps it; of several named ones the default."""
    try:
        found = checkpoint.template_of(folder)
    except (CheckpointError, UnicodeDecodeError) as error:
        raise UsageError(f"{folder}: its chat template cannot be read: {error}; fetch it again") from error
    if isinstance(found, list):
        found = {str(each.get("name")): each.get("template") for each in found}.get("default")
    special = {
        key: text
        for key, value in _object(folder / "tokenizer_config.json").items()
        if key.endswith("_token") and (text := _text(value))
    }
    return ChatTemplate(NO_TEMPLATE if found is None else str(found), special_tokens=special)


def _kinds(decoder: Mapping[str, Any]) -> Iterator[str]:
    yield str(decoder.get("type"))
    for inner in decoder.get("decoders") or ():
        yield from _kinds(inner)


def _end_ids(folder: Path, config: Mapping[str, Any], ids: Mapping[str, int]) -> tuple[int, ...]:
    """What generation_config.json names (else config.json), and the tokenizer's own end."""
    named = _object(folder / "generation_config.json").get("eos_token_id")
    named = config.get("eos_token_id") if named is None else named
    listed = list(named) if isinstance(named, list) else [named]
    own = _text(_object(folder / "tokenizer_config.json").get("eos_token"))
    return tuple(dict.fromkeys(i for i in [*listed, ids.get(own)] if isinstance(i, int) and i >= 0))


def _text(token: Any) -> str:
    """A token is written as a text, or as an object with its content."""
    return str(token.get("content", "")) if isinstance(token, dict) else token if isinstance(token, str) else ""


def _object(path: Path) -> dict[str, Any]:
    try:
        return checkpoint.json_object(path)
    except CheckpointError as error:
        raise UsageError(f"{path.parent}: {error}; fetch it again") from error
