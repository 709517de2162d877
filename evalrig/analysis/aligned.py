"""Two top-K lists of the same position, laid side by side: what both sides say of the ids that both name."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.arrays import BoolArray, FloatArray, IntArray, sums_by
from evalrig.analysis.rows import entropy

Logprobs: TypeAlias = NDArray[np.floating[Any]]
Ids: TypeAlias = NDArray[np.integer[Any]]

NOBODY = -1
"""Stands in `extra_ids` where a position has no such id."""

NEAR = 4
"""Places by which an id may move between the lists and still be found by shifting; the few others are sorted."""

CAP_FLOOR = 1e-6
"""A list's smallest probability caps what it does not name, but below this float32 lists promise nothing."""

BLOCK_ENTRIES = 1 << 20
"""Of whole vocabularies; 8 MB of float64."""

LIST_ENTRIES = 1 << 17
"""Of top-K lists, which are gone over many times: a block should stay in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """What one side says of n positions: its K most probable ids [n, K], and perhaps ids asked for besides [n, E].

    Log-probabilities are natural, of the full softmax at temperature 1; -inf is a probability of 0. `extra_ids` holds
    `NOBODY` where there is none; an id that the list names already counts once, with the list's value.
    """

    ids: Ids
    logprobs: Logprobs
    extra_ids: Ids | None = None
    extra_logprobs: Logprobs | None = None
    distinct: bool = False
    """It was checked already that no list names an id twice."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        """Columns, the extra ones included."""
        return self.ids.shape[1] + (0 if self.extra_ids is None else self.extra_ids.shape[1])

    def block(self, rows: slice | IntArray) -> "TopK":
        """The positions `rows`."""
        ids, logprobs = self.ids[rows], self.logprobs[rows]
        if self.extra_ids is None or self.extra_logprobs is None:
            return TopK(ids=ids, logprobs=logprobs, distinct=self.distinct)
        extra_ids, extra = self.extra_ids[rows], self.extra_logprobs[rows]
        return TopK(ids=ids, logprobs=logprobs, extra_ids=extra_ids, extra_logprobs=extra, distinct=self.distinct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The m ids of a block that only one side names, row by row."""

    row: IntArray
    """[m], rising."""
    p: FloatArray
    """[m], their probabilities on that side."""

    def sums(self, values: FloatArray, rows: int) -> FloatArray:
        """`values` [m] summed by row [rows]."""
        return sums_by(self.row, values, rows)

    def only(self, rows: BoolArray) -> "Alone":
        """Those of the chosen rows [n], which are counted anew."""
        kept, number = rows[self.row], np.cumsum(rows) - 1
        return Alone(row=number[self.row[kept]], p=self.p[kept])


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """A block of n positions. p is the reference, q the candidate; [n, K] follows the reference's places."""

    p: FloatArray
    """[n, K], 0 where the candidate does not name the id."""
    q: FloatArray
    """[n, K], of the same ids, 0 where `p` is not shared."""
    log_ratio: FloatArray
    """[n, K], ln(p/q) of shared ids, else 0; +-inf where one side is 0, 0 where both are."""
    p_alone: Alone
    """Ids that only the reference names."""
    q_alone: Alone
    tail_p: FloatArray
    """[n], mass outside the shared ids."""
    tail_q: FloatArray
    entropy: FloatArray
    """[n], of the reference, from its list alone: a lower bound, nats."""
    caps: FloatArray
    """[2, n], the most that reference and candidate can give an id that their own list does not name."""

    @property
    def shared(self) -> IntArray:
        """[n], number of ids that both sides name."""
        rows, width = self.p.shape
        return width - np.bincount(self.p_alone.row, minlength=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partners:
    """Which ids of one array [n, K] stand in the same row of another [n, L]. Places count through a whole array."""

    place: IntArray
    """[n, K], where the id stands in the other; of no meaning for `unfound`."""
    unfound: IntArray
    """[m], places of ids that are not in the other, rising."""
    untaken: IntArray
    """Places in the other of ids that nobody sought, rising."""


def align(reference: TopK, candidate: TopK) -> Aligned:
    """Lay a block side by side; no copy of it is kept, so the caller chooses its size (see `blocks`)."""
    left_ids, log_p = _known(reference, "reference", NOBODY)
    right_ids, log_q = _known(candidate, "candidate", NOBODY - 1)
    found = partners(left_ids, right_ids)
    shared_q = log_q.ravel().take(found.place, mode="clip")
    shared_q.ravel()[found.unfound] = -np.inf
    p, q = np.exp(log_p), np.exp(shared_q)
    listed = slice(reference.ids.shape[1])
    broad = entropy(p[:, listed], log_p[:, listed])
    with np.errstate(invalid="ignore"):
        log_ratio = np.subtract(log_p, shared_q, out=shared_q)
    log_ratio.ravel()[found.unfound] = 0.0
    if log_p.size and log_p.min() == -np.inf:
        log_ratio[np.isnan(log_ratio)] = 0.0  # neither side gives it any probability
    p_alone = Alone(row=found.unfound // log_p.shape[1], p=p.ravel()[found.unfound])
    p.ravel()[found.unfound] = 0.0
    return Aligned(
        p=p,
        q=q,
        log_ratio=log_ratio,
        p_alone=p_alone,
        q_alone=Alone(row=found.untaken // log_q.shape[1], p=np.exp(log_q.ravel()[found.untaken])),
        tail_p=np.maximum(1 - p.sum(axis=1), 0.0),
        tail_q=np.maximum(1 - q.sum(axis=1), 0.0),
        entropy=broad,
        caps=np.maximum(
            np.exp([ends(side.logprobs)[1] for side in (reference, candidate)], dtype=np.float64), CAP_FLOOR
        ),
    )


def partners(left: Ids, right: Ids) -> Partners:
    """For each id of `left` [n, K] its place in `right` [n, L].

    No row may name an id twice. Lists of near models hold the same ids a few places apart: those are found by
    comparing shifted lists, several times faster than sorting; negative ids are never sought beyond that.
    """
    width = max(left.shape[1], right.shape[1]) + NEAR  # room at the end of a row: a shift never reaches the next one
    sought, offered = _padded(left, width, NOBODY), _padded(right, width, NOBODY - 1)
    code = np.zeros(sought.size, dtype=np.int8)
    taken = np.zeros(offered.size, dtype=np.bool_)
    for shift in range(-NEAR, NEAR + 1):
        here, there = slice(max(0, -shift), len(code) - max(0, shift)), slice(max(0, shift), len(code) - max(0, -shift))
        equal = sought[here] == offered[there]
        taken[there] |= equal
        code[here] |= equal.view(np.int8) * np.int8(shift + NEAR + 1)
    code = code.reshape(len(left), width)[:, : left.shape[1]]
    taken = taken.reshape(len(right), width)[:, : right.shape[1]]
    place = np.arange(0, right.size, right.shape[1])[:, None] + np.arange(-NEAR - 1, left.shape[1] - NEAR - 1)
    place += code
    near = Partners(place=place, unfound=np.flatnonzero(code == 0), untaken=np.flatnonzero(~taken))
    return _with_far(left, right, near)


def _padded(ids: Ids, width: int, filler: int) -> NDArray[np.int32]:
    out = np.full((len(ids), width), filler, dtype=np.int32)
    out[:, : ids.shape[1]] = ids
    return out.reshape(-1)


def _with_far(left: Ids, right: Ids, near: Partners) -> Partners:
    """Those that lie further apart found as well; `near.place` is written to."""
    which, sought = _by_row(left, near.unfound)
    other, offered = _by_row(right, near.untaken)
    if not (len(sought) and len(offered)):
        return near
    _, i, j = np.intersect1d(sought, offered, assume_unique=True, return_indices=True)
    i, j = which[i], other[j]
    near.place.ravel()[near.unfound[i]] = near.untaken[j]
    return Partners(place=near.place, unfound=np.delete(near.unfound, i), untaken=np.delete(near.untaken, j))


def _by_row(ids: Ids, places: IntArray) -> tuple[IntArray, IntArray]:
    """Which of `places` hold a token, and row and id of each as one number."""
    named = ids.ravel()[places].astype(np.int64)
    which = np.flatnonzero(named >= 0)
    return which, (places[which] // ids.shape[1]) << 32 | named[which]


def falls(logprobs: Logprobs) -> bool:
    """Does every list of a block [n, K] begin with its most probable id and fall from there on, as engines give them?"""
    return bool((logprobs[:, 1:] <= logprobs[:, :-1]).all())


def ends(logprobs: Logprobs) -> tuple[Logprobs, Logprobs]:
    """Largest and smallest of each row [n] of [n, K]; NaN where a row holds one."""
    if falls(logprobs):
        return logprobs[:, 0], logprobs[:, -1]
    return logprobs.max(axis=1), logprobs.min(axis=1)


def same_top(reference: TopK, candidate: TopK) -> BoolArray:
    """Whether both lists have the same most probable id [n]; the smallest of equally probable ids counts as the top."""
    return _top(reference.ids, reference.logprobs) == _top(candidate.ids, candidate.logprobs)


def _top(ids: Ids, logprobs: Logprobs) -> IntArray:
    found = ids[:, 0].astype(np.int64)
    first_of_some = logprobs[:, 1:2] == logprobs[:, :1]
    other = first_of_some.any(axis=1) if falls(logprobs) else np.ones(len(ids), dtype=np.bool_)
    if other.any():
        some = logprobs[other]
        at_top = some == some.max(axis=1, keepdims=True)
        found[other] = np.where(at_top, ids[other].astype(np.int64), np.iinfo(np.int64).max).min(axis=1)
    return found


def blocks(rows: int, width: int, entries: int) -> Iterator[slice]:
    """Slices of `rows` rows, `width` wide, of about `entries` entries each."""
    step = max(1, entries // max(width, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def checked(logprobs: Logprobs, name: str) -> FloatArray:
    """As float64, row by row in memory; NaN and +inf raise ValueError."""
    block = logprobs.astype(np.float64, order="C")
    if block.size and not block.max() < np.inf:  # of NaN, too, the largest is NaN
        raise ValueError(f"`{name}`: log-probabilities hold NaN or +inf")
    return block


def check_lists(ids: Ids, logprobs: Logprobs, name: str) -> None:
    """ValueError unless ids and logprobs are [n, K] with K >= 1 and no id is negative or beyond 31 bits."""
    if ids.ndim != 2 or ids.shape != logprobs.shape or ids.shape[1] < 1:
        raise ValueError(f"`{name}`: ids of shape {ids.shape} do not go with logprobs of shape {logprobs.shape}")
    if ids.size and int(ids.min()) < 0:
        raise ValueError(f"`{name}`: negative ids; leave positions without a full list out")
    if ids.size and int(ids.max()) >= 1 << 31:
        raise ValueError(f"`{name}`: an id of {int(ids.max())} is no token")


def check_pair(reference: TopK, candidate: TopK) -> None:
    """ValueError unless both sides are well-formed and speak of equally many positions."""
    for side, name in ((reference, "reference"), (candidate, "candidate")):
        check_lists(side.ids, side.logprobs, name)
        _check_extra(side, name)
    if len(candidate) != len(reference):
        raise ValueError(f"`candidate_ids`: {len(candidate)} rows for {len(reference)} of the reference")


def _check_extra(side: TopK, name: str) -> None:
    if (side.extra_ids is None) != (side.extra_logprobs is None):
        raise ValueError(f"`{name}`: extra ids without their logprobs, or the reverse")
    if side.extra_ids is None or side.extra_logprobs is None:
        return
    if (
        side.extra_ids.ndim != 2
        or side.extra_ids.shape != side.extra_logprobs.shape
        or len(side.extra_ids) != len(side)
    ):
        raise ValueError(f"`{name}`: extra ids of shape {side.extra_ids.shape} do not go with the list and logprobs")


def _known(side: TopK, name: str, nobody: int) -> tuple[Ids, FloatArray]:
    """Ids and log-probabilities of list and extra columns; an extra one that says nothing new gets the id `nobody`.

    The two sides use different negative ids for it, so that nothing matches.
    """
    log_p = checked(side.logprobs, name)
    if not side.distinct:
        _refuse_repeated(side.ids)
    if side.extra_ids is None or side.extra_logprobs is None:
        return side.ids, log_p
    fillers = -np.arange(1, side.extra_ids.shape[1] + 1)
    extra = np.where(side.extra_ids < 0, fillers, side.extra_ids.astype(np.int64))
    _refuse_repeated(extra)
    empty = np.ones(extra.shape, dtype=np.bool_)
    empty.ravel()[partners(extra, side.ids).unfound] = False
    empty |= extra < 0
    log_extra = np.where(empty, -np.inf, side.extra_logprobs)
    ids = np.concatenate([side.ids.astype(np.int64), np.where(empty, nobody, extra)], axis=1)
    return ids, np.concatenate([log_p, checked(log_extra, name)], axis=1)


def repeated(ids: Ids) -> BoolArray:
    """Rows [n] of lists [n, K] that name an id twice."""
    ordered = np.sort(ids, axis=1)
    alike = ordered[:, 1:] == ordered[:, :-1]
    return alike.any(axis=1) if alike.any() else np.zeros(len(ids), dtype=np.bool_)


def _refuse_repeated(ids: Ids) -> None:
    if rows := int(repeated(ids).sum()):
        raise ValueError(f"`ids`: {rows} rows name the same id twice")
