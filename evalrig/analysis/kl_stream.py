"""Distances of any number of positions in one pass: chunks in, estimates out, nothing kept per position.

What is kept: sums by prompt (and by prompt and octave, class, entropy, step), a histogram, the ten worst tokens. So memory
grows with the number of prompts, about 4 KB each, and not with the number of positions. The results are those of
`kl_summary`, `growth` and `kl_map` on all positions at once, but for quantiles, which are up to 0.8 % high
(`histogram`), and for the entropy quartiles, whose borders lie on a fixed grid.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.aligned import LIST_ENTRIES, TopK, align, blocks, check_pair, ends, same_top
from evalrig.analysis.arrays import BoolArray, FloatArray, IntArray
from evalrig.analysis.kl_sums import FROM_LISTS, MEASURES, StreamResult, StreamSums
from evalrig.analysis.topk_bounds import aligned_bounds

__all__ = ["MEASURES", "Chunk", "Measured", "StreamResult", "StreamSums", "analyse", "measure", "summed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """n positions, as many as are convenient; 10,000 to 100,000 keep two cores busy."""

    reference: TopK
    candidate: TopK
    prompt: NDArray[np.integer]
    """[n], number of the prompt, 0..G-1; the unit taken as independent."""
    position: NDArray[np.integer]
    """[n], from 1."""
    token_class: NDArray[np.integer] | None = None
    """[n], index into the names given to `analyse`, -1 for none."""
    reference_logprob: NDArray[np.floating] | None = None
    """[n], of the given token; for Δp."""
    candidate_logprob: NDArray[np.floating] | None = None
    call_step: NDArray[np.integer] | None = None
    """[n], step of the conversation, from 1, of positions in a tool call; 0: in none, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The readable positions of one chunk, measured."""

    values: FloatArray
    """[measures, m], see `MEASURES`; without the last two where the chunk has no given logprobs."""
    prompt: IntArray
    position: FloatArray
    token_class: IntArray
    call_step: IntArray
    row: IntArray
    """[m], place in the chunk."""
    rows: int
    """Positions of the chunk, the broken ones included."""


def analyse(
    chunks: Iterable[Chunk], prompts: int, names: Sequence[str] = (), alpha: float = 0.05, workers: int = 2
) -> StreamResult:
    """Measure all chunks and sum up. At most `workers` + 1 chunks are held at a time; their order is kept.

    Positions with NaN, with +inf, or with no finite entry on one side are left out and counted (`broken`). Malformed
    chunks, and no readable position at all, raise ValueError.
    """
    return summed(chunks, prompts, len(names), workers).result(names, alpha)


def summed(chunks: Iterable[Chunk], prompts: int, classes: int = 0, workers: int = 2) -> StreamSums:
    """`analyse` up to the sums, of which results are made; here no readable position is no error."""
    sums = StreamSums(prompts, classes)
    waiting: deque[Future[Measured]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for chunk in chunks:
                waiting.append(pool.submit(measure, chunk, prompts, classes))
                if len(waiting) > workers:
                    _add(sums, waiting.popleft().result())
            while waiting:
                _add(sums, waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()
    return sums


def _add(sums: StreamSums, found: Measured) -> None:
    sums.add(found.values, found.prompt, found.position, found.token_class, found.call_step)
    sums.keep_worst(found.values[0], found.prompt, found.position, found.row)
    sums.count(found.rows, len(found.row))


def measure(chunk: Chunk, prompts: int, classes: int) -> Measured:
    """All measures of one chunk; pure, so that several chunks can be measured at once."""
    check_pair(chunk.reference, chunk.candidate)
    _check_labels(chunk, prompts, classes)
    n = len(chunk.reference)
    kept = np.flatnonzero(_readable(chunk))
    whole = len(kept) == n
    reference, candidate = (side if whole else side.block(kept) for side in (chunk.reference, chunk.candidate))
    given = chunk.reference_logprob is not None and chunk.candidate_logprob is not None
    values = np.zeros((len(MEASURES) if given else FROM_LISTS, len(kept)))
    for rows in blocks(len(kept), reference.width + candidate.width, LIST_ENTRIES):
        left, right = reference.block(rows), candidate.block(rows)
        pair = align(left, right)
        found = aligned_bounds(pair)
        for at, name in enumerate(MEASURES[:8]):
            values[at, rows] = getattr(found, name)
        values[8, rows] = same_top(left, right)
        values[9, rows] = pair.entropy
    if chunk.reference_logprob is not None and chunk.candidate_logprob is not None:
        p, q = (np.exp(x[kept].astype(np.float64)) for x in (chunk.reference_logprob, chunk.candidate_logprob))
        values[10] = q - p
        values[11] = values[10] ** 2
    group = np.full(n, -1) if chunk.token_class is None else chunk.token_class
    step = np.zeros(n) if chunk.call_step is None else chunk.call_step
    return Measured(
        values=values,
        prompt=chunk.prompt[kept].astype(np.int64),
        position=chunk.position[kept].astype(np.float64),
        token_class=group[kept].astype(np.int64),
        call_step=step[kept].astype(np.int64),
        row=kept,
        rows=n,
    )


def _readable(chunk: Chunk) -> BoolArray:
    good = np.ones(len(chunk.reference), dtype=np.bool_)
    for side in (chunk.reference, chunk.candidate):
        largest = ends(side.logprobs)[0]
        good &= (largest < np.inf) & (largest > -np.inf)
        if side.extra_logprobs is not None:
            good &= (side.extra_logprobs < np.inf).all(axis=1)
    for given in (chunk.reference_logprob, chunk.candidate_logprob):
        if given is not None:
            good &= given < np.inf
    return good


def _check_labels(chunk: Chunk, prompts: int, classes: int) -> None:
    n = len(chunk.reference)
    groups = chunk.token_class
    for name, labels, least, most in (
        ("prompt", chunk.prompt, 0, prompts - 1),
        ("position", chunk.position, 1, 1 << 40),
        ("token_class", groups, -1, classes - 1),
        ("call_step", chunk.call_step, 0, 1 << 40),
    ):
        if labels is not None and (labels.shape != (n,) or (n and not least <= labels.min() <= labels.max() <= most)):
            raise ValueError(f"`{name}`: expected one number from {least} to {most} for each of {n} positions")
    for given in (chunk.reference_logprob, chunk.candidate_logprob):
        if given is not None and given.shape != (n,):
            raise ValueError(f"`logprob`: expected one for each of {n} positions")
