"""Distances of two distributions whose whole vocabulary is known: no bounds, the thing itself."""

from dataclasses import dataclass

import numpy as np

from evalrig.analysis.aligned import BLOCK_ENTRIES, Logprobs, blocks, checked
from evalrig.analysis.arrays import BoolArray, FloatArray
from evalrig.analysis.rows import weighted
from evalrig.analysis.topk_bounds import js_terms


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTruth:
    """n positions; every array has shape [n]."""

    kl: FloatArray
    """KL(reference || candidate), nats; +inf where the candidate rules out what may come."""
    reverse: FloatArray
    """KL(candidate || reference), nats."""
    js: FloatArray
    """Jensen-Shannon divergence, 0..ln 2, nats."""
    tv: FloatArray
    """Total variation, 0..1: the largest change of any event's probability at this token."""
    top1_same: BoolArray
    """Same most probable id; the smallest of equally probable ids counts as the top."""
    entropy: FloatArray
    """Of the reference, nats."""


def full_distances(reference_logprobs: Logprobs, candidate_logprobs: Logprobs) -> RowTruth:
    """All distances of each row, from log-probabilities [n, V] that sum to 1; see `kl.row_faults` for rows that don't.

    -inf is a probability of 0. NaN, +inf and different shapes (vocabularies) raise ValueError.
    """
    if reference_logprobs.shape != candidate_logprobs.shape or reference_logprobs.ndim != 2:
        raise ValueError(
            f"`candidate_logprobs`: shape {candidate_logprobs.shape}, the reference's is {reference_logprobs.shape}"
        )
    n, vocabulary = reference_logprobs.shape
    kl, reverse, js, tv, entropy = (np.zeros(n) for _ in range(5))
    same = np.zeros(n, dtype=np.bool_)
    for rows in blocks(n, vocabulary, BLOCK_ENTRIES):
        log_p, log_q = checked(reference_logprobs[rows], "reference"), checked(candidate_logprobs[rows], "candidate")
        p, q = np.exp(log_p), np.exp(log_q)
        with np.errstate(invalid="ignore"):
            ratio = log_p - log_q
        kl[rows], reverse[rows] = weighted(p, ratio), weighted(q, -ratio)
        js[rows] = js_terms(p, q).sum(axis=1)
        tv[rows] = 0.5 * np.abs(p - q).sum(axis=1)
        entropy[rows] = weighted(p, -log_p)
        same[rows] = log_p.argmax(axis=1) == log_q.argmax(axis=1)
    return RowTruth(kl=kl, reverse=reverse, js=js, tv=tv, top1_same=same, entropy=entropy)
