"""A histogram of values from 0 to infinity with bins of equal relative width: quantiles of any number of values in 512 KB.

A bin holds the values whose float32 form shares sign, exponent and the first seven bits of the mantissa, so a quantile
is known to 1 part in 128, and never reported below the truth.
"""

import math

import numpy as np

from evalrig.analysis.arrays import FloatArray

_DROPPED_BITS = 16
_BINS = 1 << 15


class LogHistogram:
    """Counts and sums by bin. Values below 0 count as 0; NaN must be left out before."""

    def __init__(self) -> None:
        self.counts = np.zeros(_BINS, dtype=np.int64)
        self.sums = np.zeros(_BINS)
        """Of finite values."""
        self.largest = 0.0
        """Exact."""

    def add(self, values: FloatArray) -> None:
        """Count more values [n]."""
        if not values.size:
            return
        clipped = np.maximum(values, 0.0)
        bins = clipped.astype(np.float32).view(np.uint32) >> _DROPPED_BITS
        self.counts += np.bincount(bins, minlength=_BINS)
        self.sums += np.bincount(bins, weights=np.where(np.isposinf(clipped), 0.0, clipped), minlength=_BINS)
        self.largest = max(self.largest, float(clipped.max()))

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    def quantile(self, level: float) -> float:
        """The order statistic that `numpy.quantile(..., method="higher")` names, rounded up within its bin."""
        return self._top(self._bin(level))

    def winsorised_mean(self, level: float) -> float:
        """Mean with every value above `quantile(level)` set to it."""
        cut = self._bin(level)
        at, above = self._top(cut), int(self.counts[cut + 1 :].sum())
        if math.isinf(at):
            return math.inf
        return float(self.sums[: cut + 1].sum() + above * at) / self.total

    def top_share(self, share: float) -> float:
        """Share of the sum of all values that lies in the `share` largest, at least one; 1 with an infinite value."""
        total = float(self.sums.sum())
        if math.isinf(self.largest):
            return 1.0
        if total <= 0:
            return 0.0
        left, found = max(1, math.ceil(share * self.total)), 0.0
        for at in np.flatnonzero(self.counts)[::-1]:
            taken = min(left, int(self.counts[at]))
            found += float(self.sums[at]) * taken / int(self.counts[at])
            left -= taken
            if not left:
                break
        return found / total

    def _bin(self, level: float) -> int:
        if not self.total:
            raise ValueError("`histogram`: no values; a quantile of nothing is not 0")
        rank = math.ceil(level * (self.total - 1))
        return int(np.searchsorted(np.cumsum(self.counts), rank, side="right"))

    def _top(self, at: int) -> float:
        """Upper edge of a bin, at most the largest value; the first bin holds 0 and what float32 cannot tell from it."""
        if at == 0:
            return 0.0
        edge = np.uint32((at + 1) << _DROPPED_BITS).view(np.float32)
        return min(float(edge), self.largest) if math.isfinite(edge) else self.largest
