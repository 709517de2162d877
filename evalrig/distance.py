"""What two arms say of the same tokens, attempt by attempt, and what one pass over all of it finds."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.aligned import TopK
from evalrig.analysis.kl import Audit, audit
from evalrig.analysis.kl_stream import Chunk, summed
from evalrig.gate import Distances
from evalrig.tokens import Columns

ROUNDING = 1e-3
"""What rounding can do: a logprob above this is none, and probabilities further apart are not the same one."""
CHUNK = 16_384
"""Positions that are measured as one; about 13 MB with 50 a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """One attempt as two arms scored it: columns of n rows `token`, `logprob`, `top_ids` and `top_logprobs` [n, K]."""

    sample: str
    epoch: int
    cluster: str
    reference: Columns
    candidate: Columns


def measured(joined: Iterable[Joined], prompts: Mapping[str, int], alpha: float) -> Distances | None:
    """One pass over all attempts, nothing kept of them; `prompts` numbers the clusters. None: there was no attempt."""
    same = [True]

    def watched() -> Iterator[Joined]:
        for both in joined:
            same[0] = same[0] and np.array_equal(both.reference["logprob"], both.candidate["logprob"])
            yield both

    sums = summed(chunks(watched(), prompts), max(len(prompts), 1))
    if not sums.rows:
        return None
    return Distances(
        found=sums.result((), alpha) if sums.rows > sums.broken else None,
        by_prompt=sums.by_prompt(),
        tokens=sums.rows,
        broken=sums.broken,
        same=same[0],
    )


def chunks(joined: Iterable[Joined], prompts: Mapping[str, int]) -> Iterator[Chunk]:
    """Attempts put together until they are worth a processor's while. Positions count in the response, from 1."""
    held: list[Joined] = []
    for both in joined:
        if held and (_widths(both) != _widths(held[0]) or sum(map(_rows, held)) + _rows(both) > CHUNK):
            yield _chunk(held, prompts)
            held = []
        held.append(both)
    if held:
        yield _chunk(held, prompts)


def _chunk(held: list[Joined], prompts: Mapping[str, int]) -> Chunk:
    sides = [_side([getattr(both, side) for both in held]) for side in ("reference", "candidate")]
    (reference, reference_logprob), (candidate, candidate_logprob) = sides
    sizes = [_rows(both) for both in held]
    return Chunk(
        reference=reference,
        candidate=candidate,
        prompt=np.repeat([prompts[both.cluster] for both in held], sizes),
        position=np.concatenate([np.arange(1, n + 1) for n in sizes]),
        reference_logprob=reference_logprob,
        candidate_logprob=candidate_logprob,
    )


def _side(parts: list[Columns]) -> tuple[TopK, NDArray[np.float32]]:
    """Rows that cannot be read keep their place without a number: validity counts them, nothing hides them."""
    logprob, ids, top = (
        np.concatenate([part[name] for part in parts]) for name in ("logprob", "top_ids", "top_logprobs")
    )
    unclear = ambiguous(ids)
    if unclear.any():
        ids[unclear] = np.arange(ids.shape[1])
        logprob[unclear] = np.nan
    logprob[logprob > ROUNDING] = np.nan
    return TopK(ids=ids, logprobs=top), logprob


def _rows(both: Joined) -> int:
    return len(both.reference["token"])


def _widths(both: Joined) -> tuple[int, int]:
    return both.reference["top_ids"].shape[1], both.candidate["top_ids"].shape[1]


def ambiguous(ids: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Rows [n] of top-K lists [n, K] that name a token twice, or what is no token."""
    ordered = np.sort(ids, axis=1)
    return (ordered[:, 1:] == ordered[:, :-1]).any(axis=1) | (ordered < 0).any(axis=1)


def misplaced(columns: Columns) -> int:
    """Rows whose list gives their token another logprob, or leaves it out though it belongs there: lists of elsewhere."""
    given, listed = columns["logprob"][:, None], columns["top_logprobs"]
    whole = np.isfinite(given) & (listed < np.inf).all(axis=1, keepdims=True)
    named = columns["top_ids"] == columns["token"][:, None]
    p, q = (np.exp(np.minimum(side, 0.0)) for side in (listed, given))
    unlike = named & (np.abs(p - q) > ROUNDING)
    absent = ~named.any(axis=1, keepdims=True) & (given > listed.min(axis=1, keepdims=True) + ROUNDING)
    return int((whole & (unlike.any(axis=1, keepdims=True) | absent)).sum())


def lost(parts: Iterable[tuple[Columns, Columns, int]]) -> Audit | None:
    """What lists of so many entries lose, from attempts' rows over the whole vocabulary, both arms, one after the other.

    None where there is no row, or where one is broken.
    """
    rows, full, merged = 0, 0.0, 0.0
    for reference, candidate, listed in parts:
        left, right = reference["vocabulary"], candidate["vocabulary"]
        if not all((side <= ROUNDING).all() for side in (left, right)):
            return None
        part = audit(left, right, min(listed, left.shape[1]))
        rows += part.rows
        full += part.rows * part.kl_full_mean
        merged += part.rows * part.kl_merged_mean
    if not rows:
        return None
    share = 1 - merged / full if 0.0 < full < np.inf else None
    return Audit(rows=rows, kl_full_mean=full / rows, kl_merged_mean=merged / rows, lost_share=share)
