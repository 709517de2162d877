"""The file that `llama-perplexity --kl-divergence-base` writes: log-probabilities of the whole vocabulary in 16 bits.

Little-endian. Eight letters `_logits_`; int32 tokens a chunk, vocabulary, chunks; then the token ids of all chunks. Then,
chunk by chunk, a row for each position of the second half but the last: float32 step and least log-probability, and an
unsigned 16-bit number an id, padded to an even count. A log-probability is number x step + least. What lies more than 16
below the largest is lifted to 16 below, and the step is up to 16/65535, so an entry is off by up to 1.2e-4.
evalrig reads such files and stores none.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evalrig.errors import UsageError

MARK: Final = b"_logits_"
HEADER: Final = 20
"""Bytes before the token ids."""
LEAST_CONTEXT: Final = 4
SLACK: Final = 0.1
"""By which a row may miss a sum of 1: lifted tails of a quarter of a million ids add 0.03 at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsFile:
    """An open file; rows stay on the disk until they are asked for."""

    path: Path
    context: int
    """Tokens a chunk."""
    vocabulary: int
    tokens: NDArray[np.int32]
    """[chunks, context]"""
    _stored: NDArray[Any]
    """[rows], of fields `step`, `least` and `numbers`; mapped."""

    def __len__(self) -> int:
        """Rows."""
        return len(self._stored)

    @property
    def followed_by(self) -> NDArray[np.int64]:
        """The token that stands after each row's position [rows]."""
        return self.tokens[:, self.context // 2 + 1 :].reshape(-1).astype(np.int64)

    def rows(self, block: slice) -> NDArray[np.float64]:
        """Log-probabilities [n, vocabulary] of some rows. UsageError where they are no distributions."""
        stored = self._stored[block]
        step, least = (stored[name].astype(np.float64)[:, None] for name in ("step", "least"))
        found = stored["numbers"][:, : self.vocabulary] * step + least
        with np.errstate(over="ignore", invalid="ignore"):
            broken = ~(np.abs(np.exp(found).sum(axis=1) - 1) <= SLACK)
        if broken.any():
            at = range(len(self))[block][int(broken.argmax())]
            raise UsageError(f"{self.path}: row {at} is no distribution over the vocabulary; write the file anew")
        return found


def open_logits(path: Path) -> LogitsFile:
    """Opens a file and checks that it is whole. UsageError says what is wrong with it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            mark, head = stream.read(len(MARK)), stream.read(HEADER - len(MARK))
            if mark != MARK or len(head) != HEADER - len(MARK):
                raise UsageError(
                    f"{path}: no file of log-probabilities; give one of llama-perplexity's --kl-divergence-base"
                )
            context, vocabulary, chunks = (int(number) for number in np.frombuffer(head, "<i4"))
            if context < LEAST_CONTEXT or vocabulary < 1 or chunks < 1:
                raise UsageError(f"{path}: {chunks} chunks of {context} tokens, {vocabulary} ids: nothing to read")
            row = np.dtype([("step", "<f4"), ("least", "<f4"), ("numbers", "<u2", (vocabulary + vocabulary % 2,))])
            count, begin = chunks * (context - 1 - context // 2), HEADER + 4 * context * chunks
            if size != begin + count * row.itemsize:
                wanted = begin + count * row.itemsize
                raise UsageError(f"{path}: {size} bytes, its head promises {wanted}: cut short, or of another format")
            tokens = np.frombuffer(stream.read(4 * context * chunks), "<i4").reshape(chunks, context)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; give a file") from error
    if not 0 <= tokens.min() <= tokens.max() < vocabulary:
        raise UsageError(f"{path}: token ids outside its vocabulary of {vocabulary}")
    stored = np.memmap(path, dtype=row, mode="r", offset=begin, shape=(count,))
    return LogitsFile(path=path, context=context, vocabulary=vocabulary, tokens=tokens, _stored=stored)
