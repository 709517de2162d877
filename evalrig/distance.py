"""What two arms say of the same tokens, attempt by attempt, and what one pass over all of it finds."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.aligned import TopK, repeated
from evalrig.analysis.kl import Audit, audit, truncate
from evalrig.analysis.kl_stream import Chunk, summed
from evalrig.analysis.token_classes import NAMES, TokenClass
from evalrig.analysis.topk_bounds import bounds, dual_low, largest_tail_ratio
from evalrig.gate import Distances
from evalrig.tokens import Columns

ROUNDING = 1e-3
"""What rounding can do: a logprob above this is none, and probabilities further apart are not the same one."""
LEAST_AUDITED = 100
"""Audited rows from which on the largest ratio seen may stand for those not seen: of n like rows one more lies beyond their
largest once in n + 1 times, so from here on about one position in a hundred, and half as much again is allowed for it."""
CALLS = (TokenClass.STRUCTURE, TokenClass.ARGUMENT)
"""Classes of tokens that make a tool call."""
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
    success: float | None = None
    """How right the reference's answer is, 0..1; NaN: its grader cannot tell. None: nobody graded it."""
    step: int = 0
    """Step of a conversation, from 1, that the tokens are; 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What the rows over the whole vocabulary say of the lists."""

    audit: Audit
    dual: float
    """Mean of the sharper lower bound that the same lists give, nats."""
    most: float
    """1.5 times the largest |ln p/q| seen outside the lists; infinite where a side rules out what the other does not."""
    high: float | None
    """Mean of the upper bound if no unlisted token goes beyond `most`; None where that is infinite, or rests on fewer than
    `LEAST_AUDITED` rows."""


Labels = Callable[[Joined], NDArray[np.integer]]
"""Class of each token of an attempt (`token_classes`); empty where it is not told."""


def untold(both: Joined) -> NDArray[np.integer]:
    """No class for any token."""
    return np.zeros(0, np.int8)


def measured(
    joined: Iterable[Joined], prompts: Mapping[str, int], alpha: float, labels: Labels = untold
) -> Distances | None:
    """One pass over all attempts, nothing kept of them; `prompts` numbers the clusters. None: there was no attempt."""
    same = [True]

    def watched() -> Iterator[Joined]:
        for both in joined:
            same[0] = same[0] and np.array_equal(both.reference["logprob"], both.candidate["logprob"])
            yield both

    sums = summed(chunks(watched(), prompts, labels), max(len(prompts), 1), len(NAMES))
    if not sums.rows:
        return None
    return Distances(
        found=sums.result(NAMES, alpha) if sums.rows > sums.broken else None,
        by_prompt=sums.by_prompt(),
        tokens=sums.rows,
        broken=sums.broken,
        same=same[0],
    )


def chunks(joined: Iterable[Joined], prompts: Mapping[str, int], labels: Labels = untold) -> Iterator[Chunk]:
    """Attempts put together until they are worth a processor's while. Positions count in the response, from 1."""
    held: list[Joined] = []
    for both in joined:
        if held and (_widths(both) != _widths(held[0]) or sum(map(_rows, held)) + _rows(both) > CHUNK):
            yield _chunk(held, prompts, labels)
            held = []
        held.append(both)
    if held:
        yield _chunk(held, prompts, labels)


def _chunk(held: list[Joined], prompts: Mapping[str, int], labels: Labels) -> Chunk:
    sides = [_side([getattr(both, side) for both in held]) for side in ("reference", "candidate")]
    (reference, reference_logprob), (candidate, candidate_logprob) = sides
    sizes = [_rows(both) for both in held]
    told = [labels(both) for both in held]
    token_class = np.concatenate(
        [of.astype(np.int64) if len(of) == n else np.full(n, -1) for of, n in zip(told, sizes, strict=True)]
    )
    return Chunk(
        reference=reference,
        candidate=candidate,
        prompt=np.repeat([prompts[both.cluster] for both in held], sizes),
        position=np.concatenate([np.arange(1, n + 1) for n in sizes]),
        token_class=token_class,
        call_step=np.where(np.isin(token_class, CALLS), np.repeat([both.step for both in held], sizes), 0),
        reference_logprob=reference_logprob,
        candidate_logprob=candidate_logprob,
    )


def _side(parts: list[Columns]) -> tuple[TopK, NDArray[np.float32]]:
    """Rows that cannot be read keep their place without a number: validity counts them, nothing hides them."""
    given, ids, top = (
        np.concatenate([part[name] for part in parts]) for name in ("logprob", "top_ids", "top_logprobs")
    )
    unclear = ambiguous(ids)
    if not top.max(initial=-np.inf) <= ROUNDING:  # or NaN
        unclear |= (top > ROUNDING).any(axis=1)
    if unclear.any():
        ids[unclear] = np.arange(ids.shape[1])
        given[unclear] = np.nan
    given[given > ROUNDING] = np.nan
    return TopK(ids=ids, logprobs=top, distinct=True), given


def _rows(both: Joined) -> int:
    return len(both.reference["token"])


def _widths(both: Joined) -> tuple[int, int]:
    return both.reference["top_ids"].shape[1], both.candidate["top_ids"].shape[1]


def ambiguous(ids: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Rows [n] of top-K lists [n, K] that name a token twice, or what is no token."""
    found = repeated(ids)
    if ids.min(initial=0) < 0:
        found |= (ids < 0).any(axis=1)
    return found


def misplaced(columns: Columns) -> int:
    """Rows whose list gives their token another logprob, or leaves it out though it belongs there: lists of elsewhere."""
    given, listed = columns["logprob"][:, None], columns["top_logprobs"]
    whole = np.isfinite(given) & (listed < np.inf).all(axis=1, keepdims=True)
    named = columns["top_ids"] == columns["token"][:, None]
    p, q = (np.exp(np.minimum(side, 0.0)) for side in (listed, given))
    unlike = named & (np.abs(p - q) > ROUNDING)
    absent = ~named.any(axis=1, keepdims=True) & (given > listed.min(axis=1, keepdims=True) + ROUNDING)
    return int((whole & (unlike.any(axis=1, keepdims=True) | absent)).sum())


def audited(parts: Iterable[tuple[Columns, Columns, int]]) -> Audited | None:
    """What lists of so many entries lose, from attempts' rows over the whole vocabulary, both arms, one after the other.

    Of an attempt only its lists are kept. None where there is no row, or where one is broken.
    """
    seen: list[Audit] = []
    lists: list[tuple[TopK, TopK]] = []
    dual = most = 0.0
    for reference, candidate, listed in parts:
        left, right = reference["vocabulary"], candidate["vocabulary"]
        if not all((side <= ROUNDING).all() for side in (left, right)):
            return None
        if not len(left):
            continue
        k = min(listed, left.shape[1])
        pair = _listed(left, k), _listed(right, k)
        seen.append(audit(left, right, k))
        lists.append(pair)
        dual += float(dual_low(*pair).sum())
        most = max(most, largest_tail_ratio(left, right, k))
    if not seen:
        return None
    rows = sum(part.rows for part in seen)
    assumed = math.isfinite(most) and rows >= LEAST_AUDITED
    high = sum(float(bounds(*pair, assumed=most).kl_high.sum()) for pair in lists) if assumed else None
    return Audited(audit=_together(seen), dual=dual / rows, most=most, high=None if high is None else high / rows)


def _listed(rows: NDArray[np.float32], k: int) -> TopK:
    ids, logprobs = truncate(rows, k)
    return TopK(ids=ids, logprobs=logprobs)


def _together(parts: list[Audit]) -> Audit:
    rows = sum(part.rows for part in parts)
    full = sum(part.rows * part.kl_full_mean for part in parts)
    merged = sum(part.rows * part.kl_merged_mean for part in parts)
    share = 1 - merged / full if 0.0 < full < np.inf else None
    return Audit(rows=rows, kl_full_mean=full / rows, kl_merged_mean=merged / rows, lost_share=share)
