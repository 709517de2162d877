"""Percentiles that say whether the sample can bear them: MLPerf's rule for early stopping (LoadGen)."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

CONFIDENCE = 0.99
"""One-sided, of LoadGen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile:
    """A percentile of a sample and the bound that it stays under."""

    value: float
    """Of the sample, in its unit; linear between neighbours."""
    bound: float
    """One-sided: the percentile of all that could have been measured lies below it with `CONFIDENCE`."""
    n: int


def percentile(values: ArrayLike, p: float, confidence: float = CONFIDENCE) -> Percentile | None:
    """The percentile p (0..1) of values that are lower when better. NaN are left out. None: too few values.

    With n values and X of them above the true percentile, X is Binomial(n, 1 - p). If P(X <= t) <= 1 - confidence, more than
    t lie above it with that confidence, and so it lies below the (t + 1)-th largest.
    """
    sample = np.sort(np.asarray(values, float))
    sample = sample[~np.isnan(sample)]
    allowed = _above(len(sample), p, confidence)
    if allowed < 1:
        return None
    return Percentile(
        value=float(np.quantile(sample, p)), bound=float(sample[len(sample) - 1 - allowed]), n=len(sample)
    )


@cache
def least(p: float, confidence: float = CONFIDENCE) -> int:
    """Values that the percentile p needs: 662 of p99 and 64 of p90 at 99 %. One may lie above the bound: else the bound would
    be whatever the slowest request took."""
    high = 2
    while _above(high, p, confidence) < 1:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _above(middle, p, confidence) >= 1 else (middle, high)
    return high


def _above(n: int, p: float, confidence: float) -> int:
    """The most values that may lie above a bound of the percentile p; -1: no value can be a bound."""
    if n < 1:
        return -1
    most = int(stats.binom.ppf(1 - confidence, n, 1 - p))
    while most >= 0 and stats.binom.cdf(most, n, 1 - p) > 1 - confidence:
        most -= 1
    return most
