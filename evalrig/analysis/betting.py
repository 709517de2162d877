"""A bet against the hypothesis: a test of a bounded mean that is valid with any number of clusters, even two.

Each cluster multiplies a stake; under the hypothesis the stake does not grow on average, so a stake of 20 has
probability at most 1/20. Conservative (about half the power of a t test), hence the fallback and not the rule.
Source: Waudby-Smith and Ramdas 2024, arXiv 2010.09686.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evalrig.analysis.arrays import FloatArray, finite, probability
from evalrig.analysis.binary import Side
from evalrig.analysis.clusters import cluster_sums

STAKES: FloatArray = np.concatenate([np.geomspace(0.02, 0.6, 12), [0.75, 0.9, 0.98]])
"""Shares of the largest safe stake, mixed with equal weight; fixed before any data are seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bets:
    """Clusters with equal sum and size folded together: the stake does not depend on their order."""

    sums: FloatArray
    sizes: FloatArray
    counts: FloatArray
    largest: float

    def log_e(self, difference: float, side: Side) -> float:
        """Log of the final stake against "mean <= difference" (greater) or ">= difference" (less), within +-1."""
        steps = (self.sums - difference * self.sizes) / self.largest
        if side == "less":
            steps, worst = -steps, 1.0 - difference
        else:
            worst = 1.0 + difference
        growth = np.log1p(np.outer(steps / worst, STAKES))
        return float(np.logaddexp.reduce(self.counts @ growth)) - math.log(len(STAKES))


def _bets(differences: ArrayLike, cluster: ArrayLike | None) -> _Bets:
    array = finite(differences, "differences")
    if float(np.abs(array).max()) > 1 + 1e-9:
        raise ValueError("`differences`: a bet needs differences between -1 and 1")
    pairs = np.stack(cluster_sums(array, cluster), axis=1)
    folded, counts = np.unique(pairs, axis=0, return_counts=True)
    return _Bets(
        sums=folded[:, 0], sizes=folded[:, 1], counts=counts.astype(np.float64), largest=float(folded[:, 1].max())
    )


def e_pvalue(differences: ArrayLike, margin: float, cluster: ArrayLike | None, side: Side) -> float:
    """min(1, 1 / final stake) for "theta <= -margin" (side "greater", GO) or "theta >= -margin" ("less", NO-GO).

    The final stake and not its running maximum: it does not depend on the order or the names of the clusters.
    300 zeros, margin .01: a stake of 4.58107.
    """
    return min(1.0, math.exp(-_bets(differences, cluster).log_e(-_inside(margin), side)))


def betting_interval(differences: ArrayLike, cluster: ArrayLike | None, alpha: float = 0.05) -> tuple[float, float]:
    """All means that the bet does not reject, one-sided at 1 - alpha each: agrees with `e_pvalue` at every margin."""
    bets = _bets(differences, cluster)
    needed = -math.log(probability(alpha, "alpha"))
    estimate = float(bets.counts @ bets.sums / (bets.counts @ bets.sizes))
    low = _limit(bets, needed, estimate, "greater")
    high = _limit(bets, needed, estimate, "less")
    return low, high


def _limit(bets: _Bets, needed: float, estimate: float, side: Side) -> float:
    """The stake falls as the tested mean comes nearer to the estimate, so bisection finds where it loses `needed`."""
    edge = -1.0 if side == "greater" else 1.0
    rejected, kept = edge * (1 - 1e-9), estimate
    if abs(estimate) >= 1 - 1e-9:
        kept = math.copysign(1 - 1e-9, estimate)
    if bets.log_e(rejected, side) < needed:
        return edge
    for _ in range(60):
        middle = 0.5 * (rejected + kept)
        rejected, kept = (middle, kept) if bets.log_e(middle, side) >= needed else (rejected, middle)
    return kept


def _inside(margin: float) -> float:
    if not -1.0 < margin < 1.0:
        raise ValueError(f"`margin`: {margin!r} does not lie between -1 and 1")
    return margin
