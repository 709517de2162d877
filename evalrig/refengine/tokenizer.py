"""Text to token ids and back, by the `tokenizers` library, built from a GGUF file's metadata."""

import codecs
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from evalrig.errors import UsageError
from evalrig.refengine.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4
"""`tokenizer.ggml.token_type`: a token that steers the model, and one the model's authors added; both are found in text
before BPE."""


def _smollm() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


PRE_TOKENIZERS = {"smollm": _smollm}
"""By `tokenizer.ggml.pre`: how text is split before the byte-pair merges."""


class Tokenizer:
    """A byte-level BPE vocabulary."""

    def __init__(self, file: GgufFile) -> None:
        """Reads the vocabulary. UsageError for a kind of tokenizer that this engine does not build."""
        kind, pre = str(file.require("tokenizer.ggml.model")), str(file.metadata.get("tokenizer.ggml.pre", "default"))
        if kind != "gpt2" or pre not in PRE_TOKENIZERS:
            known = ", ".join(f"gpt2/{name}" for name in PRE_TOKENIZERS)
            raise UsageError(f"{file.path}: tokenizer {kind}/{pre} is not supported; refengine builds {known}")
        tokens, merges = list(file.require("tokenizer.ggml.tokens")), list(file.require("tokenizer.ggml.merges"))
        types = [int(value) for value in file.require("tokenizer.ggml.token_type")]
        self.special = frozenset(index for index, value in enumerate(types) if value == _CONTROL)
        """Ids of control tokens: left out of decoded text unless asked for."""
        self.end_ids = _end_ids(file, tokens)
        """Ids that end an answer."""
        self.add_bos = bool(file.metadata.get("tokenizer.ggml.add_bos_token", False))
        self.bos_id = int(file.metadata.get("tokenizer.ggml.bos_token_id", 0))
        self.sha256 = hashlib.sha256(msgspec.json.encode([kind, pre, tokens, types, merges, self.add_bos])).hexdigest()
        """Digest over everything that decides ids."""
        self._tokens = tokens
        self._fast = _build(tokens, types, [tuple(merge.split(" ")) for merge in merges], pre)
        self._bytes = [
            _token_bytes(token, value in (_CONTROL, _USER_DEFINED)) for token, value in zip(tokens, types, strict=True)
        ]

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""
        return len(self._tokens)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written out in it are recognised. `add_special`: a BOS if the model wants
        one."""
        ids = self._fast.encode(text, add_special_tokens=False).ids
        return [self.bos_id, *ids] if add_special and self.add_bos else ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; ids outside the vocabulary give nothing, bytes that are no UTF-8 give U+FFFD."""
        return b"".join(self.token_bytes(i) for i in ids if not (skip_special and i in self.special)).decode(
            errors="replace"
        )

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` stands for; empty outside the vocabulary."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""

    def token(self, token: int) -> str:
        """The raw vocabulary entry of `token`."""
        return self._tokens[token]


class TextStream:
    """Decodes one answer token by token; bytes of an unfinished character are held back until it is complete."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool) -> None:
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that became complete with `token`."""
        if self._skip_special and token in self._tokenizer.special:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """What is left: a U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def _end_ids(file: GgufFile, tokens: Sequence[str]) -> tuple[int, ...]:
    named = [file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    return tuple(dict.fromkeys(int(i) for i in named if i is not None and 0 <= int(i) < len(tokens)))


def _build(tokens: Sequence[str], types: Sequence[int], merges: list[Any], pre: str) -> FastTokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    fast = FastTokenizer(BPE(vocab=vocabulary, merges=merges, fuse_unk=False))
    fast.pre_tokenizer = PRE_TOKENIZERS[pre]()
    fast.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types, strict=True):
        if kind == _CONTROL:
            fast.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            fast.add_tokens([AddedToken(token, normalized=False)])
    return fast


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each of the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(rest)}


_ALPHABET = _byte_alphabet()


def _token_bytes(token: str, written_out: bool) -> bytes:
    if written_out or any(letter not in _ALPHABET for letter in token):
        return token.encode()
    return bytes(_ALPHABET[letter] for letter in token)
