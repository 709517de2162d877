"""Bounds: between which values the distances of two distributions lie, of which only two top-K lists are known.

Notation: S the ids that both sides name, P and Q the masses outside S. All values in nats or fractions, per position.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalrig.analysis.aligned import (
    LIST_ENTRIES,
    Aligned,
    Alone,
    Logprobs,
    TopK,
    align,
    blocks,
    check_pair,
    checked,
)
from evalrig.analysis.arrays import BoolArray, FloatArray
from evalrig.analysis.kl import merged_kl, truncate
from evalrig.analysis.rows import TAIL_RESOLUTION, bucket, entropy, weighted

LN2 = math.log(2)

GRID = 33
REACH = 8.0
"""The dual bound looks for ln r this far around ln(P/Q), on `GRID` points, then three times closer around the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBounds:
    """n positions; every array has shape [n]. Rounding of float32 lists moves any of them by about 1e-6."""

    kl_low: FloatArray
    """KL(reference || candidate), one bucket for the rest; see `kl.merged_bucket`. Never above the truth."""
    kl_high: FloatArray
    """Infinite unless a tail assumption was given, or every id of the vocabulary is named on both sides."""
    reverse_low: FloatArray
    """KL(candidate || reference), one bucket."""
    tv_low: FloatArray
    """Total variation, 0..1; both ends hold without any assumption."""
    tv_high: FloatArray
    js_low: FloatArray
    """Jensen-Shannon divergence, 0..ln 2; both ends hold without any assumption."""
    js_high: FloatArray
    tail_reference: FloatArray
    """P."""
    tail_candidate: FloatArray


def bounds(reference: TopK, candidate: TopK, assumed: float | None = None, vocabulary: int | None = None) -> RowBounds:
    """Bounds of each position from what both sides say of it; K may differ between them.

    KL has no upper bound without further knowledge: a single tail token that the candidate rules out makes it
    infinite. `assumed` is such knowledge, |ln p/q| <= `assumed` for every id outside S, to be calibrated on positions
    whose whole vocabulary is known (`largest_tail_ratio`), and to be printed beside the bound as an assumption. Where
    P and Q themselves contradict it, the bound is infinite. `vocabulary` is the number of ids there are: rows with
    all of them in S have empty tails. Raises ValueError on malformed lists, NaN or +inf.
    """
    if assumed is not None and not 0.0 <= assumed < math.inf:
        raise ValueError(f"`assumed`: {assumed!r} bounds no log-ratio")
    check_pair(reference, candidate)
    names = RowBounds.__slots__
    out = {name: np.zeros(len(reference)) for name in names}
    for rows in blocks(len(reference), reference.width + candidate.width, LIST_ENTRIES):
        found = aligned_bounds(align(reference.block(rows), candidate.block(rows)), assumed, vocabulary)
        for name in names:
            out[name][rows] = getattr(found, name)
    return RowBounds(**out)


def aligned_bounds(pair: Aligned, assumed: float | None = None, vocabulary: int | None = None) -> RowBounds:
    """`bounds` of a block that is side by side already."""
    whole = np.zeros(len(pair.p), dtype=np.bool_) if vocabulary is None else pair.shared == vocabulary
    core, back = weighted(pair.p, pair.log_ratio), -weighted(pair.q, pair.log_ratio)
    tail_p, tail_q = np.where(whole, 0.0, pair.tail_p), np.where(whole, 0.0, pair.tail_q)
    tv_low, tv_high = _total_variation(pair, tail_p, tail_q)
    js_low, js_high = _jensen_shannon(pair, tail_p, tail_q)
    return RowBounds(
        kl_low=np.where(whole, core, core + bucket(pair.tail_p, pair.tail_q)),
        kl_high=np.where(whole, core, np.inf if assumed is None else _kl_high(pair, core, assumed)),
        reverse_low=np.where(whole, back, back + bucket(pair.tail_q, pair.tail_p)),
        tv_low=tv_low,
        tv_high=tv_high,
        js_low=js_low,
        js_high=js_high,
        tail_reference=tail_p,
        tail_candidate=tail_q,
    )


def _total_variation(pair: Aligned, tail_p: FloatArray, tail_q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Half the sum of |p - q|, which is also the sum of the positive parts, and of the negative ones.

    Low: S and one bucket; or the positive parts on S and what a listed id has above the most that the other side,
    which does not list it, can give it. High: the positive parts on S and the whole of one tail.
    """
    gap = pair.p - pair.q
    net = gap.sum(axis=1)
    lost = np.maximum(gap, 0.0, out=gap).sum(axis=1)
    gained = lost - net
    merged = 0.5 * (lost + gained + np.abs(tail_p - tail_q))
    alone_p, alone_q = (
        alone.sums(np.maximum(alone.p - cap[alone.row], 0.0), len(lost))
        for alone, cap in ((pair.p_alone, pair.caps[1]), (pair.q_alone, pair.caps[0]))
    )
    low = np.maximum(merged, np.maximum(lost + alone_p, gained + alone_q))
    high = np.minimum(lost + tail_p, gained + tail_q)
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


def _jensen_shannon(pair: Aligned, tail_p: FloatArray, tail_q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Low: S and one bucket. High: S and tails that share no id."""
    core = js_terms(pair.p, pair.q).sum(axis=1)
    low, high = core + js_terms(tail_p, tail_q), core + 0.5 * (tail_p + tail_q) * LN2
    return np.clip(low, 0.0, LN2), np.clip(high, 0.0, LN2)


def js_terms(p: FloatArray, q: FloatArray) -> FloatArray:
    """Half of p ln(p/m) + q ln(q/m) with m = (p+q)/2, element by element; 0 where both are 0, never negative.

    Written in x = (p-q)/(p+q), because p ln(p/m) and q ln(q/m) nearly cancel for near distributions: the sum is
    m/2 ((1+x) ln(1+x) + (1-x) ln(1-x)).
    """
    total = p + q
    x = p - q
    x /= np.maximum(total, _TINY)
    square = x * x
    unlike = square * _SERIES[0]
    for term in _SERIES[1:]:
        unlike += term
        unlike *= square
    far = np.flatnonzero(square > 0.04)  # below, what the series leaves out is less than 1e-10 of the whole
    y = np.abs(x.ravel()[far])
    unlike.ravel()[far] = (1 + y) * np.log1p(y) + special.xlog1py(1 - y, -y)
    unlike *= total
    unlike *= 0.25
    return unlike


_SERIES = [1 / 66, 1 / 45, 1 / 28, 1 / 15, 1 / 6, 1.0]
"""1 / (k (2k - 1)), the coefficients of x^2k in (1+x) ln(1+x) + (1-x) ln(1-x), from k = 6 down."""

_TINY = np.finfo(np.float64).tiny
"""A total below is as good as none."""


def _kl_high(pair: Aligned, core: FloatArray, assumed: float) -> FloatArray:
    """S exactly, plus the most that tails of masses P and Q can differ within e^-M <= p/q <= e^M.

    p ln(p/q) is convex, so the worst tail has p/q at the two ends only: P M (2w - 1), with w the share of P at the
    upper end, w = (e^M - Q/P) / (e^M - e^-M).
    """
    p, q = pair.tail_p + TAIL_RESOLUTION, pair.tail_q + TAIL_RESOLUTION
    most = math.exp(assumed)
    contradicted = np.maximum(p - q * most, q - p * most) > 2 * TAIL_RESOLUTION
    share = np.clip((most - q / p) / max(most - 1 / most, 1e-300), 0.0, 1.0)
    return np.where(contradicted, np.inf, core + p * assumed * (2 * share - 1))


def dual_low(reference: TopK, candidate: TopK) -> FloatArray:
    """Lower bound of KL(reference || candidate) [n] that also uses how little an unlisted id can have.

    An id that only one side lists has, on the other, at most that list's smallest probability. For every r > 0, weak
    duality (multipliers 1 + ln r and r for the two unlisted masses, x ln x >= x - 1 for what nobody lists) gives
    a bound; the best r is searched for on a grid, so the result is valid though perhaps not the sharpest. Never
    below the merged bucket. Costs some hundred passes over the ids that only one side lists: meant for the audit sample.
    """
    check_pair(reference, candidate)
    out = np.zeros(len(reference))
    for rows in blocks(len(reference), reference.width + candidate.width, LIST_ENTRIES // 4):
        pair = align(reference.block(rows), candidate.block(rows))
        merged = np.maximum(merged_kl(pair), 0.0)
        unlike = np.isfinite(merged)
        unlike[unlike] = np.isin(np.flatnonzero(unlike), np.append(pair.p_alone.row, pair.q_alone.row))
        merged[unlike] = np.maximum(merged[unlike], _best_dual(_Unlisted.of(pair, unlike)))
        out[rows] = merged
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unlisted:
    """What the dual bound needs of the rows whose lists differ."""

    core: FloatArray
    """Sum of p ln(p/q) over S."""
    p_alone: Alone
    q_alone: Alone
    cap_p: FloatArray
    """[m of q_alone], most that the reference can give each id that only the candidate lists."""
    cap_q: FloatArray
    tail_p: FloatArray
    """What neither side names of the reference's mass."""
    tail_q: FloatArray
    begin: FloatArray
    """ln(P/Q), where the search for r begins."""

    @classmethod
    def of(cls, pair: Aligned, rows: BoolArray) -> "_Unlisted":
        alone_p, alone_q = pair.p_alone.only(rows), pair.q_alone.only(rows)
        tail_p, tail_q = pair.tail_p[rows] + TAIL_RESOLUTION, pair.tail_q[rows] + TAIL_RESOLUTION
        n = len(tail_p)
        return cls(
            core=weighted(pair.p[rows], pair.log_ratio[rows]),
            p_alone=alone_p,
            q_alone=alone_q,
            cap_p=pair.caps[0][rows][alone_q.row],
            cap_q=pair.caps[1][rows][alone_p.row],
            tail_p=np.maximum(tail_p - alone_p.sums(alone_p.p, n), 0.0),
            tail_q=np.maximum(tail_q - alone_q.sums(alone_q.p, n), 0.0),
            begin=np.log(tail_p / tail_q),
        )

    def at(self, log_r: FloatArray) -> FloatArray:
        """The bound at one ln r per row [n]."""
        r, slope = np.exp(log_r), 1 + log_r
        p, q = self.p_alone.p, self.q_alone.p
        r_p, slope_p, r_q, slope_q = (
            r[self.p_alone.row],
            slope[self.p_alone.row],
            r[self.q_alone.row],
            slope[self.q_alone.row],
        )
        capped_p = special.xlogy(p, p / self.cap_q) + r_p * self.cap_q
        capped_q = self.cap_p * (np.log(self.cap_p / np.maximum(q, 1e-300)) - slope_q)
        only_p = np.where(p <= r_p * self.cap_q, p * slope_p, capped_p)
        only_q = np.where(r_q * q <= self.cap_p, -r_q * q, capped_q)
        tails = self.tail_p * slope - r * self.tail_q
        return self.core + tails + self.p_alone.sums(only_p, len(r)) + self.q_alone.sums(only_q, len(r))


def _best_dual(rows: _Unlisted) -> FloatArray:
    best_at = rows.begin
    best, step = rows.at(best_at), REACH
    for _ in range(3):
        center = best_at
        for offset in np.linspace(-step, step, GRID):
            value = rows.at(center + offset)
            better = value > best
            best, best_at = np.where(better, value, best), np.where(better, center + offset, best_at)
        step *= 2 / (GRID - 1)
    return best


def largest_tail_ratio(reference_full: Logprobs, candidate_full: Logprobs, k: int, factor: float = 1.5) -> float:
    """`factor` times the largest |ln p/q| outside S, on rows whose whole vocabulary is known [n, V], n >= 1.

    For the `assumed` of `bounds`, with lists of `k`. Infinite where one side rules out what the other does not.
    """
    if reference_full.shape != candidate_full.shape or not len(reference_full):
        raise ValueError("`reference_full`, `candidate_full`: expected the same rows of both sides, and some")
    largest = 0.0
    for p, q in zip(reference_full, candidate_full, strict=True):
        named = np.intersect1d(truncate(p[None], k)[0], truncate(q[None], k)[0])
        with np.errstate(invalid="ignore"):
            ratio = np.abs(p.astype(np.float64) - q)
        ratio[named] = 0.0
        largest = max(largest, float(np.nanmax(ratio)))  # NaN: both rule the id out, which is no difference
    return factor * largest


def list_entropy(side: TopK) -> FloatArray:
    """Entropy of each position [n] in nats, from below: one bucket for what the list does not name.

    Merging outcomes never raises entropy, so the truth lies between this and this plus tail times ln(V - K).
    """
    out = np.zeros(len(side))
    for rows in blocks(len(side), side.ids.shape[1], LIST_ENTRIES):
        log_p = checked(side.logprobs[rows], "side")
        out[rows] = entropy(np.exp(log_p), log_p)
    return out
