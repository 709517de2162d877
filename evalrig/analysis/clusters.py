"""A cluster: values that stand or fall together (one prompt, one source passage), the unit taken as independent."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import FloatArray, IntArray, finite, probability, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterT:
    """A mean with its cluster-robust t interval."""

    estimate: float
    """Mean over values, not over clusters: each value has weight 1."""
    se: float
    """Standard error; exactly 0 when the clusters do not vary, infinite with a single cluster."""
    df: int
    low: float
    high: float
    """One-sided limits at 1 - alpha each."""
    clusters: int
    informative: int
    """Clusters that carry evidence of variation: their sum is not 0, or, when more than half the clusters
    share one mean, their mean is another one."""

    @property
    def varies(self) -> bool:
        """Whether the standard error can be used at all."""
        return 0.0 < self.se < math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSums:
    """What is left of values once they are summed by cluster 0..G-1; enough for every mean and its error."""

    sums: FloatArray
    """[G], of the finite values."""
    sizes: FloatArray
    """[G], values, the infinite ones included; 0: nothing of that cluster was measured."""
    infinite: FloatArray
    """[G], values that are +inf."""
    largest: float
    """Largest finite |value|, which infinite ones count as."""

    @property
    def filled(self) -> FloatArray:
        """[G], sums with each infinite value set to `largest`."""
        return self.sums + self.infinite * self.largest


def cluster_index(cluster: ArrayLike | None, size: int) -> IntArray:
    """Number the clusters 0..G-1, one number per value; without labels each value is its own cluster."""
    if cluster is None:
        return np.arange(size, dtype=np.int64)
    labels = np.asarray(cluster)
    if labels.shape != (size,):
        raise ValueError(f"`cluster`: shape {labels.shape}, expected one label for each of {size} values")
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def cluster_sums(values: ArrayLike, cluster: ArrayLike | None) -> tuple[FloatArray, FloatArray]:
    """Sum and size of every cluster, each of shape [G]."""
    array = vector(values, "values")
    index = cluster_index(cluster, array.size)
    return np.bincount(index, weights=array).astype(np.float64), np.bincount(index).astype(np.float64)


def cluster_t(values: ArrayLike, cluster: ArrayLike | None, alpha: float = 0.05) -> ClusterT:
    """Mean of `values` with a CR1 cluster-robust standard error and t limits on G - 1 degrees of freedom.

    In simulations the percentile and BCa bootstraps miss more often than this at 10 to 60 clusters.
    Source: Cameron and Miller 2015; Miller 2024, arXiv 2411.00640. Raises ValueError on non-finite values.
    """
    array = finite(values, "values")
    sums, sizes = cluster_sums(array, cluster)
    return sums_t(sums, sizes, float(np.abs(array).max()), alpha)


def sums_t(sums: FloatArray, sizes: FloatArray, largest: float, alpha: float = 0.05) -> ClusterT:
    """`cluster_t` from each cluster's sum and size, both [G], sizes above 0; `largest` is the largest |value|."""
    probability(alpha, "alpha")
    clusters, estimate = len(sums), float(sums.sum() / sizes.sum())
    informative = _informative(sums, sizes)
    if clusters < 2:
        return ClusterT(
            estimate=estimate, se=math.inf, df=0, low=-math.inf, high=math.inf, clusters=1, informative=informative
        )
    squares = float(np.sum((sums - estimate * sizes) ** 2))
    se = math.sqrt(clusters / (clusters - 1) * squares) / float(sizes.sum())
    if se <= 1e-12 * largest:
        se = 0.0  # what is left is rounding: equal values must read as "no variation", not as a tiny error
    reach = -float(special.stdtrit(clusters - 1, alpha)) * se
    return ClusterT(
        estimate=estimate,
        se=se,
        df=clusters - 1,
        low=estimate - reach,
        high=estimate + reach,
        clusters=clusters,
        informative=informative,
    )


def _informative(sums: FloatArray, sizes: FloatArray) -> int:
    means = sums / sizes
    tolerance = 1e-12 * float(np.abs(means).max())
    at_median = np.abs(means - np.median(means)) <= tolerance
    if 2 * int(at_median.sum()) > len(means):
        return int((~at_median).sum())
    return int((np.abs(means) > tolerance).sum())


def holm(pvalues: ArrayLike) -> FloatArray:
    """Holm's step-down adjusted p-values, in the order given (Holm 1979)."""
    array = vector(pvalues, "pvalues")
    if not ((array >= 0) & (array <= 1)).all():
        raise ValueError("`pvalues`: every p-value must lie between 0 and 1")
    order = np.argsort(array, kind="stable")
    steps = (array.size - np.arange(array.size)) * array[order]
    adjusted = np.empty_like(array)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted
