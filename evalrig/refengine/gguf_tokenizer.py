"""The tokenizer that a GGUF file's metadata describes, built anew for the `tokenizers` library."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import PreTokenizer

from evalrig.errors import UsageError
from evalrig.refengine.gguf_file import GgufFile
from evalrig.refengine.tokenizer import Tokenizer, Vocabulary

_CONTROL, _USER_DEFINED = 3, 4
"""`tokenizer.ggml.token_type`: a token that steers the model, and one the model's authors added; both are found in text
before BPE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How text is cut before the byte-pair merges."""

    pattern: str = ""
    """Each match is a piece of its own; empty: GPT-2's rule."""
    digits: bool = False
    """Each digit is a piece of its own."""
    nfc: bool = False
    """Composed characters, as the model's own tokenizer has it. llama.cpp leaves them as they are."""
    whole_words: bool = False
    """A piece that is a token is taken as it is, without merging."""
    bos: bool = False
    """A text gets a BOS where the file does not say."""


def _words(digits: str) -> str:
    """The rule that Llama 3 and Qwen share but for the length of runs of digits."""
    endings = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    return rf"{endings}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


PRE_TOKENIZERS = {
    "smollm": Splitting(digits=True),
    "gpt-2": Splitting(),
    "llama-bpe": Splitting(pattern=_words(r"\p{N}{1,3}"), whole_words=True, bos=True),
    "qwen2": Splitting(pattern=_words(r"\p{N}"), nfc=True),
}
"""By `tokenizer.ggml.pre`."""


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """Reads the vocabulary. UsageError for a kind of tokenizer that this engine does not build."""
    kind, pre = str(file.require("tokenizer.ggml.model")), str(file.metadata.get("tokenizer.ggml.pre", "default"))
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        known = ", ".join(f"gpt2/{name}" for name in PRE_TOKENIZERS)
        raise UsageError(f"{file.path}: tokenizer {kind}/{pre} is not supported; refengine builds {known}")
    if file.metadata.get("tokenizer.ggml.add_eos_token", False):
        raise UsageError(f"{file.path}: a tokenizer that ends every text with a token is not supported")
    tokens, merges = list(file.require("tokenizer.ggml.tokens")), list(file.require("tokenizer.ggml.merges"))
    types = [int(value) for value in file.require("tokenizer.ggml.token_type")]
    if len(types) != len(tokens):
        raise UsageError(f"{file.path}: {len(tokens)} tokens with {len(types)} types; convert the model again")
    adds_bos = bool(file.metadata.get("tokenizer.ggml.add_bos_token", PRE_TOKENIZERS[pre].bos))
    vocabulary = Vocabulary(
        tokens=tokens,
        special=frozenset(index for index, value in enumerate(types) if value == _CONTROL),
        written_out=frozenset(index for index, value in enumerate(types) if value in (_CONTROL, _USER_DEFINED)),
        end_ids=_end_ids(file, tokens),
        sha256=hashlib.sha256(msgspec.json.encode([kind, pre, tokens, types, merges, adds_bos])).hexdigest(),
    )
    fast = _build(tokens, types, [_pair(merge) for merge in merges], PRE_TOKENIZERS[pre])
    return Tokenizer(vocabulary, fast, int(file.metadata.get("tokenizer.ggml.bos_token_id", 0)) if adds_bos else None)


def _end_ids(file: GgufFile, tokens: Sequence[str]) -> tuple[int, ...]:
    named = [file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    return tuple(dict.fromkeys(int(i) for i in named if i is not None and 0 <= int(i) < len(tokens)))


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _build(
    tokens: Sequence[str], types: Sequence[int], merges: list[tuple[str, str]], splitting: Splitting
) -> FastTokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = BPE(vocab=vocabulary, merges=merges, fuse_unk=False, ignore_merges=splitting.whole_words)
    fast = FastTokenizer(model)
    if splitting.nfc:
        fast.normalizer = normalizers.NFC()
    cuts: list[PreTokenizer] = [pre_tokenizers.Digits(individual_digits=True)] if splitting.digits else []
    if splitting.pattern:
        cuts.append(pre_tokenizers.Split(Regex(splitting.pattern), behavior="isolated"))
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splitting.pattern))
    fast.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    fast.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types, strict=True):
        if kind == _CONTROL:
            fast.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            fast.add_tokens([AddedToken(token, normalized=False)])
    return fast
