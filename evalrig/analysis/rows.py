"""Sums over each row of a block, of log-probabilities and of ratios, and the one bucket for what a list leaves out."""

import numpy as np

from evalrig.analysis.arrays import FloatArray

TAIL_RESOLUTION = 1e-6
"""Added to both tail masses: about what float32 log-probabilities of a whole list resolve of 1 - sum(p)."""


def weighted(p: FloatArray, log_ratio: FloatArray) -> FloatArray:
    """Sum of p ln(p/q) over each row [n] of [n, K]; what p rules out weighs nothing, whatever its ratio."""
    with np.errstate(invalid="ignore"):
        found = (p * log_ratio).sum(axis=1)
        if (odd := ~np.isfinite(found)).any():  # a ratio in such a row is infinite
            found[odd] = np.where(p[odd] == 0, 0.0, p[odd] * log_ratio[odd]).sum(axis=1)
    return found


def bucket(tail_p: FloatArray, tail_q: FloatArray) -> FloatArray:
    """What the rest adds to KL [n], taken as one outcome."""
    smooth_p, smooth_q = tail_p + TAIL_RESOLUTION, tail_q + TAIL_RESOLUTION
    return smooth_p * np.log(smooth_p / smooth_q)


def entropy(p: FloatArray, log_p: FloatArray) -> FloatArray:
    """Entropy of each row [n] from below, nats: one bucket for what the list [n, K] does not name."""
    tail = np.maximum(1 - p.sum(axis=1), TAIL_RESOLUTION)
    return -weighted(p, log_p) - tail * np.log(tail)
