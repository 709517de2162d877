"""KL(reference || candidate) per token position, in nats, from lists of log-probabilities.

Log-probabilities are natural, of the full softmax at temperature 1, stored as float32 and computed on as float64, in
blocks of rows so that memory stays bounded. `-inf` is a probability of 0; NaN and +inf are broken and raise ValueError.
"""

from dataclasses import dataclass

import numpy as np

from evalrig.analysis.aligned import (
    BLOCK_ENTRIES,
    LIST_ENTRIES,
    Aligned,
    Ids,
    Logprobs,
    TopK,
    align,
    blocks,
    check_pair,
    checked,
    same_top,
)
from evalrig.analysis.arrays import BoolArray, FloatArray, IntArray
from evalrig.analysis.kl_excess import Excess, KlLevels, excess
from evalrig.analysis.kl_summary import KlSummary, KlTail, OctaveRow, by_octave, delta_p, summary
from evalrig.analysis.rows import bucket, weighted

__all__ = [
    "ALARM",
    "Audit",
    "Excess",
    "KlLevels",
    "KlSummary",
    "KlTail",
    "OctaveRow",
    "RowDistances",
    "RowFaults",
    "audit",
    "by_octave",
    "delta_p",
    "excess",
    "full_kl",
    "merged_bucket",
    "row_faults",
    "summary",
    "truncate",
]

ALARM = -1e-4
"""A KL below this is no rounding: the two lists do not belong to the same position, or are not log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDistances:
    """What two top-K lists say about each of n positions; every array has shape [n]."""

    kl: FloatArray
    """Merged-bucket lower bound of KL(reference || candidate), raw: rounding may leave it slightly negative."""
    tail_reference: FloatArray
    """Reference mass outside the ids that both lists name."""
    tail_candidate: FloatArray
    top1_same: BoolArray
    """Same most probable id; the smallest of equally probable ids counts as the top."""
    shared: IntArray
    """Number of ids that both lists name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """How much of the full divergence the top-K lists see, on rows whose whole vocabulary was recorded."""

    rows: int
    kl_full_mean: float
    kl_merged_mean: float
    lost_share: float | None
    """1 - merged / full; None where the full mean is 0 or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFaults:
    """Numbers of broken rows, by fault."""

    non_finite: int
    """Rows with NaN or +inf, or with no finite entry at all; not looked at for the other faults."""
    over_unity: int
    """Rows whose probabilities sum to more than 1, or, for whole vocabularies, not to 1."""
    unsorted: int
    """Lists that do not fall from the most probable id on; not asked of whole vocabularies."""


def merged_bucket(
    reference_ids: Ids, reference_logprobs: Logprobs, candidate_ids: Ids, candidate_logprobs: Logprobs
) -> RowDistances:
    """Lower bound of the KL of each row from two top-K lists [n, K] (K may differ between the arms).

    Sum over the shared ids of p ln(p/q), plus one bucket for all the rest: (P+e) ln((P+e)/(Q+e)), with the masses P, Q
    outside the shared ids and e = `rows.TAIL_RESOLUTION`. Merging outcomes never raises KL (data processing), and neither
    does adding the same e to both sides (log sum inequality), so this stays a lower bound while a tail that rounds to
    nothing cannot make it infinite; float32 storage moves it by about 1e-6 nats a row. Equal lists give exactly 0.
    A shared id to which the candidate gives probability 0 and the reference does not makes it +inf. Order within a
    row does not matter; a repeated id raises ValueError. Source: Cover and Thomas, Elements of Information Theory, 2.
    """
    reference = TopK(ids=reference_ids, logprobs=reference_logprobs)
    candidate = TopK(ids=candidate_ids, logprobs=candidate_logprobs)
    check_pair(reference, candidate)
    n = len(reference)
    out = RowDistances(
        kl=np.zeros(n),
        tail_reference=np.zeros(n),
        tail_candidate=np.zeros(n),
        top1_same=np.zeros(n, dtype=np.bool_),
        shared=np.zeros(n, dtype=np.int64),
    )
    for rows in blocks(n, reference.width + candidate.width, LIST_ENTRIES):
        pair = align(reference.block(rows), candidate.block(rows))
        out.kl[rows] = merged_kl(pair)
        out.tail_reference[rows], out.tail_candidate[rows] = pair.tail_p, pair.tail_q
        out.shared[rows] = pair.shared
        out.top1_same[rows] = same_top(reference.block(rows), candidate.block(rows))
    return out


def merged_kl(pair: Aligned) -> FloatArray:
    """`merged_bucket` of lists that are side by side already [n]."""
    return weighted(pair.p, pair.log_ratio) + bucket(pair.tail_p, pair.tail_q)


def full_kl(reference_logprobs: Logprobs, candidate_logprobs: Logprobs) -> FloatArray:
    """Exact KL of each row [n] from whole vocabularies [n, V]; +inf where the candidate rules out what may come."""
    if reference_logprobs.shape != candidate_logprobs.shape or reference_logprobs.ndim != 2:
        raise ValueError(
            f"`candidate_logprobs`: shape {candidate_logprobs.shape}, the reference's is {reference_logprobs.shape}"
        )
    n, vocabulary = reference_logprobs.shape
    out = np.zeros(n)
    for rows in blocks(n, vocabulary, BLOCK_ENTRIES):
        lp, lq = checked(reference_logprobs[rows], "reference"), checked(candidate_logprobs[rows], "candidate")
        p = np.exp(lp)
        with np.errstate(invalid="ignore"):
            out[rows] = np.where(p > 0, p * (lp - lq), 0.0).sum(axis=1)
    return out


def truncate(logprobs: Logprobs, k: int) -> tuple[IntArray, Logprobs]:
    """The k most probable ids [n, k] of whole vocabularies [n, V], most probable first, and their log-probabilities."""
    n, vocabulary = logprobs.shape
    if not 1 <= k <= vocabulary:
        raise ValueError(f"`k`: {k!r}, expected 1 to {vocabulary}")
    ids = np.empty((n, k), dtype=np.int64)
    for rows in blocks(n, vocabulary, BLOCK_ENTRIES):
        block = -logprobs[rows]
        some = np.argpartition(block, k - 1, axis=1)[:, :k]
        order = np.argsort(np.take_along_axis(block, some, axis=1), axis=1, kind="stable")
        ids[rows] = np.take_along_axis(some, order, axis=1)
    return ids, np.take_along_axis(logprobs, ids, axis=1)


def audit(reference_full: Logprobs, candidate_full: Logprobs, k: int) -> Audit:
    """Compare the exact KL with the merged bucket of each arm's own top k, on the same rows [n, V], n >= 1."""
    exact = full_kl(reference_full, candidate_full)
    if not len(exact):
        raise ValueError("`reference_full`: no rows; an audit of nothing is not a pass")
    merged = merged_bucket(*truncate(reference_full, k), *truncate(candidate_full, k)).kl
    full_mean, merged_mean = float(exact.mean()), float(merged.mean())
    known = 0.0 < full_mean < np.inf
    return Audit(
        rows=len(exact),
        kl_full_mean=full_mean,
        kl_merged_mean=merged_mean,
        lost_share=1 - merged_mean / full_mean if known else None,
    )


def row_faults(logprobs: Logprobs, full: bool, tolerance: float = 1e-3) -> RowFaults:
    """Count broken rows of top-K lists [n, K], or of whole vocabularies [n, V] with `full`. Raises nothing on them."""
    non_finite = over_unity = unsorted = 0
    for rows in blocks(len(logprobs), logprobs.shape[1], BLOCK_ENTRIES):
        block = logprobs[rows].astype(np.float64)
        readable = (block < np.inf).all(axis=1) & np.isfinite(block).any(axis=1)
        block = block[readable]
        mass = np.exp(np.minimum(block, 700.0)).sum(axis=1)
        beyond = np.abs(mass - 1) > tolerance if full else mass > 1 + tolerance
        non_finite += int((~readable).sum())
        over_unity += int(beyond.sum())
        if not full:
            unsorted += int((block[:, 1:] > block[:, :-1]).any(axis=1).sum())
    return RowFaults(non_finite=non_finite, over_unity=over_unity, unsorted=unsorted)
