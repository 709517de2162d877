"""A paired test: is the candidate's loss against the reference, on the very same items, smaller than the margin?

theta = candidate - reference, negative when the candidate is worse; alpha is one-sided everywhere.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import FloatArray, finite, probability
from evalrig.analysis.betting import betting_interval, e_pvalue
from evalrig.analysis.binary import exact_pvalue, mcnemar_midp, tango_interval, tango_z
from evalrig.analysis.clusters import ClusterT, cluster_index, cluster_sums, cluster_t, holm
from evalrig.analysis.power import n_needed, resolvable_margin

__all__ = [
    "ClusterT",
    "Decision",
    "Flags",
    "PairedTest",
    "cluster_sums",
    "cluster_t",
    "decision",
    "e_pvalue",
    "exact_pvalue",
    "flags",
    "holm",
    "mcnemar_midp",
    "n_needed",
    "noninferiority",
    "resolvable_margin",
    "tango_interval",
    "tango_z",
    "two_sided_p",
]

MIN_CLUSTERS = 20
MIN_INFORMATIVE = 10
"""Below either of these the t distribution cannot be trusted (false GO up to .072 at a nominal .05)."""

Decision: TypeAlias = Literal["pass", "fail", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """One paired comparison against one margin. The p-values decide; the interval is for the eye."""

    estimate: float
    """Mean of candidate - reference, in the unit of the differences."""
    low: float
    high: float
    """One-sided limits at 1 - alpha each; infinite where no valid limit exists."""
    p_go: float
    """p-value of "the loss is the margin or more"."""
    p_nogo: float
    """p-value of "the loss is the margin or less"."""
    n: int
    clusters: int
    method: str
    n_needed: int | None
    """Items that would settle an undecided test with 80 % power: if there is no true loss, or, when that many have
    been seen already, if the true difference is the observed one. None when decided, or when no number helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Remarks on a test; none of them is a verdict."""

    degraded: bool
    """A loss is real, though perhaps within the margin."""
    equivalent: bool
    suspicious_gain: bool
    """A gain beyond the margin: nearly always a difference of configuration."""
    superior: bool


def noninferiority(
    differences: ArrayLike,
    margin: float,
    cluster: ArrayLike | None = None,
    alpha: float = 0.05,
    bounded: bool = True,
) -> PairedTest:
    """Test per-item differences [n] against `margin` > 0 (same unit); one label per item in `cluster`.

    Right/wrong items that are each their own cluster: Tango's interval and the exact unconditional test. Otherwise the
    cluster-robust t test, if there are 20 clusters, 10 of them informative, and they vary. If not: a bet when
    `bounded` (every difference within +-1), else no claim at all (both p-values 1).
    Raises ValueError on non-finite differences, or on differences beyond +-1 when `bounded`.
    """
    array = finite(differences, "differences")
    probability(alpha, "alpha")
    if not (0.0 < margin < (1.0 if bounded else math.inf)):
        raise ValueError(f"`margin`: {margin!r} is no tolerable loss")
    if bounded and float(np.abs(array).max()) > 1 + 1e-9:
        raise ValueError("`differences`: beyond 1; scores lie in 0..1, or say `bounded=False`")
    if bounded and _is_binary(array) and int(cluster_index(cluster, array.size).max()) + 1 == array.size:
        return _exact(array, margin, alpha)
    over_clusters = cluster_t(array, cluster, alpha)
    enough = over_clusters.clusters >= MIN_CLUSTERS and over_clusters.informative >= MIN_INFORMATIVE
    if enough and over_clusters.varies:
        return _robust(over_clusters, array.size, margin, alpha)
    return _scarce(array, cluster, over_clusters, margin, alpha if bounded else None)


def _exact(array: FloatArray, margin: float, alpha: float) -> PairedTest:
    losses, gains, n = int((array < 0).sum()), int((array > 0).sum()), array.size
    low, high = tango_interval(losses, gains, n, alpha)
    p_go = exact_pvalue(losses, gains, n, -margin, "greater")
    p_nogo = exact_pvalue(losses, gains, n, -margin, "less")
    discordance = max(losses + gains, 1) / n  # none seen is not none possible
    needed = None
    if min(p_go, p_nogo) > alpha:
        needed = _settling(n, margin, (gains - losses) / n, lambda at: n_needed(margin, discordance, at, alpha))
    return PairedTest(
        estimate=(gains - losses) / n,
        low=low,
        high=high,
        p_go=p_go,
        p_nogo=p_nogo,
        n=n,
        clusters=n,
        method="exact unconditional score test, Tango interval",
        n_needed=needed,
    )


def _robust(t: ClusterT, n: int, margin: float, alpha: float) -> PairedTest:
    z = (t.estimate + margin) / t.se
    p_go, p_nogo = float(special.stdtr(t.df, -z)), float(special.stdtr(t.df, z))
    return PairedTest(
        estimate=t.estimate,
        low=t.low,
        high=t.high,
        p_go=p_go,
        p_nogo=p_nogo,
        n=n,
        clusters=t.clusters,
        method=f"cluster-robust t over {t.clusters} clusters",
        n_needed=_clustered_need(t, n, margin, alpha) if min(p_go, p_nogo) > alpha else None,
    )


def _scarce(
    array: FloatArray, cluster: ArrayLike | None, t: ClusterT, margin: float, bet_at: float | None
) -> PairedTest:
    """Too few clusters for t: a bet at level `bet_at`, or no claim when the differences have no bound (None)."""
    counted = f"{t.clusters} clusters, {t.informative} of them informative"
    low, high, p_go, p_nogo, method = -math.inf, math.inf, 1.0, 1.0, f"too few clusters for a t test: {counted}"
    if bet_at is not None:
        low, high = betting_interval(array, cluster, bet_at)
        p_go, p_nogo = e_pvalue(array, margin, cluster, "greater"), e_pvalue(array, margin, cluster, "less")
        method = f"betting, too few clusters for a t test: {counted}"
    alpha = bet_at or 0.05
    return PairedTest(
        estimate=t.estimate,
        low=low,
        high=high,
        p_go=p_go,
        p_nogo=p_nogo,
        n=array.size,
        clusters=t.clusters,
        method=method,
        n_needed=_clustered_need(t, array.size, margin, alpha) if min(p_go, p_nogo) > alpha else None,
    )


def _clustered_need(t: ClusterT, n: int, margin: float, alpha: float) -> int | None:
    """Items, at the present items per cluster, with which the t test would have 80 % power."""
    if not math.isfinite(t.se):
        return math.ceil(MIN_CLUSTERS * n / t.clusters)
    variance = t.clusters * t.se**2  # of one cluster's contribution
    z = float(special.ndtri(1 - alpha) + special.ndtri(0.8))
    least = max(MIN_CLUSTERS, math.ceil(MIN_INFORMATIVE * (t.clusters + 1) / (t.informative + 1)))

    def items(theta: float) -> int:
        clusters = max(math.ceil(z * z * variance / (theta + margin) ** 2), least)
        return math.ceil(clusters * n / t.clusters)

    return _settling(n, margin, t.estimate, items)


def _settling(n: int, margin: float, estimate: float, needed_at: Callable[[float], int]) -> int | None:
    """See `PairedTest.n_needed`; beyond a thousand times the present size no number is worth naming."""
    without_loss = needed_at(0.0)
    if without_loss > n:
        return without_loss
    if abs(estimate + margin) < 1e-3 * margin:
        return None
    as_observed = max(needed_at(estimate), n + 1)
    return as_observed if as_observed <= 1000 * n else None


def _is_binary(array: FloatArray) -> bool:
    return bool(np.isin(array, (-1.0, 0.0, 1.0)).all())


def decision(test: PairedTest, alpha: float = 0.05) -> Decision:
    """pass when a loss of the margin is excluded, fail when a smaller one is, undecided when neither.

    The two regions do not overlap: a value cannot be significantly above and below the same margin.
    """
    if test.p_go <= alpha:
        return "pass"
    return "fail" if test.p_nogo <= alpha else "undecided"


def flags(test: PairedTest, margin: float) -> Flags:
    """Read the interval of `test` against 0 and +-`margin`."""
    return Flags(
        degraded=test.high < 0.0,
        equivalent=test.low > -margin and test.high < margin,
        suspicious_gain=test.low > margin,
        superior=test.low > 0.0,
    )


def two_sided_p(differences: ArrayLike, cluster: ArrayLike | None, binary: bool) -> float:
    """p-value of "no difference at all", for the reference against itself; 1 for all zeros or fewer than 2 clusters.

    `binary` and each item its own cluster: McNemar mid-p. Otherwise t over clusters; where all clusters agree on one
    value other than 0, the exact sign test over clusters, because a standard error of 0 proves nothing.
    """
    array = finite(differences, "differences")
    groups = int(cluster_index(cluster, array.size).max()) + 1
    if not array.any() or groups < 2:
        return 1.0
    if binary and groups == array.size:
        if not _is_binary(array):
            raise ValueError("`differences`: not all -1, 0 or 1, yet said to be binary")
        return mcnemar_midp(int((array < 0).sum()), int((array > 0).sum()))
    t = cluster_t(array, cluster)
    if not t.varies:
        return min(1.0, 2.0 ** (1 - t.clusters))
    return min(1.0, 2 * float(special.stdtr(t.df, -abs(t.estimate / t.se))))
