"""Percentiles that are certified: with too few samples there is none (MLPerf LoadGen's rule, load.md section 1)."""

from functools import cache

import numpy as np
from scipy import stats

from evalrig.analysis.arrays import FloatArray

CONFIDENCE = 0.99


@cache
def rank(n: int, share: float) -> int | None:
    """Which of n sorted samples, from 1, lies above the percentile with 99 % confidence; None: too few samples.

    The largest alone certifies nothing: one stray sample would be the percentile. So p99 needs 662 samples, p90 64.
    """
    if n < 2 or stats.binom.cdf(n - 2, n, share) < CONFIDENCE:
        return None
    return int(stats.binom.ppf(CONFIDENCE, n, share)) + 1


def least(share: float) -> int:
    """Fewest samples that certify a percentile."""
    n = 2
    while rank(n, share) is None:
        n += 1
    return n


def certified(values: FloatArray, share: float) -> tuple[float, float] | None:
    """The percentile of the samples [n], and a bound above the true one that holds with 99 % confidence; None: too few."""
    place = rank(len(values), share)
    if place is None:
        return None
    return float(np.quantile(values, share)), float(np.sort(values)[place - 1])
