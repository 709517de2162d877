"""Writes files as `llama-perplexity --kl-divergence-base` does: 16-bit log-probabilities of a range of 16."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray


def write_logits(path: Path, tokens: ArrayLike, logits: NDArray[np.floating]) -> Path:
    """`tokens` [chunks, context]; `logits` [chunks, context, vocabulary], of which the second half is used."""
    ids, scores = np.asarray(tokens, dtype="<i4"), logits.astype(np.float64)
    chunks, context, vocabulary = scores.shape
    assert ids.shape == (chunks, context)
    with path.open("wb") as out:
        out.write(b"_logits_" + np.array([context, vocabulary, chunks], "<i4").tobytes() + ids.tobytes())
        for row in scores[:, context // 2 : -1].reshape(-1, vocabulary):
            highest = row.max()
            lowest = max(row.min(), highest - 16)
            step = (highest - lowest) / 65535
            least = lowest - highest - np.log(np.exp(row - highest).sum())
            numbers = np.rint((np.maximum(row, lowest) - lowest) / step) if step else np.zeros(vocabulary)
            out.write(np.array([step, least], "<f4").tobytes())
            out.write(np.pad(numbers, (0, vocabulary % 2)).astype("<u2").tobytes())
    return path
