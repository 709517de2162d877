"""Text to token ids and back, by the `tokenizers` library: a byte-level BPE vocabulary, wherever it was read from."""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as FastTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What the tokens are."""

    tokens: Sequence[str]
    """As stored, by id; empty where no token has the id."""
    special: frozenset[int]
    """Ids of control tokens: left out of decoded text unless asked for."""
    written_out: frozenset[int]
    """Ids that stand for their own text rather than for GPT-2's letters of bytes."""
    end_ids: tuple[int, ...]
    """Ids that end an answer."""
    sha256: str
    """Digest over everything that decides ids."""


class Tokenizer:
    """A byte-level BPE vocabulary."""

    def __init__(self, vocabulary: Vocabulary, fast: FastTokenizer, bos: int | None = None) -> None:
        """`bos` goes before every text, where `fast` does not add one itself."""
        self.special, self.end_ids, self.sha256 = vocabulary.special, vocabulary.end_ids, vocabulary.sha256
        self._tokens, self._fast, self._bos = vocabulary.tokens, fast, bos
        self._bytes = [_token_bytes(token, i in vocabulary.written_out) for i, token in enumerate(vocabulary.tokens)]

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""
        return len(self._tokens)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written out in it are recognised. `add_special`: a BOS if the model wants
        one."""
        ids = self._fast.encode(text, add_special_tokens=add_special).ids
        return [self._bos, *ids] if add_special and self._bos is not None else ids

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
