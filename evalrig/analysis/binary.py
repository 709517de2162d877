"""Paired right/wrong answers: the score test of the difference of two proportions, exactly and for display.

`losses`: reference right and candidate wrong; `gains`: the reverse; `n`: all pairs. The difference is
(gains - losses) / n, negative when the candidate is worse.
"""

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from evalrig.analysis.arrays import FloatArray, IntArray, probability

Side: TypeAlias = Literal["greater", "less"]
"""The alternative: "greater" tests against "at most", "less" against "at least"."""


def tango_z(losses: ArrayLike, gains: ArrayLike, n: ArrayLike, difference: ArrayLike) -> FloatArray:
    """Score statistic of the hypothesis that the true difference is `difference`; broadcasts, falls in `difference`.

    Source: Tango 1998, Statistics in Medicine 17:891. At 0 it is McNemar's statistic.
    """
    b, c, items, d = (np.asarray(x, dtype=np.float64) for x in (losses, gains, n, difference))
    linear = -(b + c) + (2 * items - c + b) * d
    constant = -b * d * (1 - d)
    root = np.sqrt(np.maximum(linear**2 - 8 * items * constant, 0.0))
    loss_rate = (root - linear) / (4 * items)  # restricted maximum likelihood under the hypothesis
    variance = items * (2 * loss_rate + d * (1 - d))
    distance = c - b - items * d
    scale = np.sqrt(np.maximum(variance, 1e-300))
    z = np.where(variance > 1e-15, distance / scale, np.copysign(np.inf, distance))
    return np.where(distance == 0, 0.0, z)


def tango_interval(losses: int, gains: int, n: int, alpha: float = 0.05) -> tuple[float, float]:
    """One-sided limits at 1 - alpha each, within +-1; never of width 0: no discordant pair gives +-z^2/(n+z^2)."""
    _check_counts(losses, gains, n)
    z = -float(special.ndtri(probability(alpha, "alpha")))
    edge = 1 - 1e-12
    observed = (gains - losses) / n
    estimate = min(max(observed, -edge), edge)
    low = _crossing(lambda d: float(tango_z(losses, gains, n, d)) - z, -edge, estimate)
    high = _crossing(lambda d: float(tango_z(losses, gains, n, d)) + z, estimate, edge)
    return min(low, observed), max(high, observed)


def _crossing(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses 0, by bisection; an end of the range when it does not."""
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return 0.5 * (low + high)


def exact_pvalue(losses: int, gains: int, n: int, difference: float, side: Side) -> float:
    """Exact unconditional p-value, ordered by the score statistic, maximised over the unknown discordance.

    side "greater": the hypothesis is "true difference <= `difference`" (a small value means GO at -margin);
    side "less": ">= `difference`" (a small value means NO-GO). The size never exceeds the level, at any n.
    The maximum is taken on a grid of 80 discordances and refined around the best one.
    Source: Hsueh, Liu and Chen 2001, Biometrics 57:478.
    """
    _check_counts(losses, gains, n)
    if not -1.0 < difference < 1.0:
        raise ValueError(f"`difference`: {difference!r} does not lie between -1 and 1")
    observed = float(tango_z(losses, gains, n, difference))
    critical = _critical_gains(n, difference, observed, side)
    tail = _tail_of_discordance(n, difference, critical, side)
    low = max(abs(difference), 1e-6)
    grid = np.unique(np.concatenate([np.geomspace(low, 1.0, 60), np.linspace(low, 1.0, 20)]))
    values = [tail(float(rate)) for rate in grid]
    best = int(np.argmax(values))
    bounds = (float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)]))
    refined = optimize.minimize_scalar(
        lambda rate: -tail(float(rate)), bounds=bounds, method="bounded", options={"xatol": 1e-6}
    )
    return min(1.0, max(values[best], -float(refined.fun)))


def _critical_gains(n: int, difference: float, observed: float, side: Side) -> IntArray:
    """For every total 0..n of discordant pairs, the number of gains from which on (greater) or up to which (less)
    an outcome is as extreme as the observed one. For a given total the statistic rises with the gains."""
    total = np.arange(n + 1)
    low, high = np.full(n + 1, -1), total + 1
    for _ in range(math.ceil(math.log2(n + 2)) + 1):
        middle = (low + high) // 2
        gains = np.clip(middle, 0, total)
        z = tango_z(total - gains, gains, n, difference)
        beyond = z >= observed - 1e-9 if side == "greater" else z > observed + 1e-9
        is_open = high - low > 1
        high = np.where(is_open & beyond, middle, high)
        low = np.where(is_open & ~beyond, middle, low)
    return high if side == "greater" else high - 1


def _tail_of_discordance(n: int, difference: float, critical: IntArray, side: Side) -> Callable[[float], float]:
    """Probability of an outcome as extreme, as a function of the discordance: binomial total, binomial gains in it."""
    total = np.arange(n + 1)
    log_choose = special.gammaln(n + 1) - special.gammaln(total + 1) - special.gammaln(n - total + 1)

    def tail(discordance: float) -> float:
        gain_share = min(max((discordance + difference) / (2 * discordance), 0.0), 1.0)
        logs = log_choose + special.xlogy(total, discordance) + special.xlog1py(n - total, -discordance)
        weights = np.exp(logs)
        kept = weights > 1e-13
        m, at = total[kept], critical[kept]
        first = at if side == "greater" else at + 1
        inside = np.clip(first, 1, np.maximum(m, 1))
        at_least = special.betainc(inside, np.maximum(m, 1) - inside + 1, gain_share)  # P(gains >= first)
        at_least = np.where(first <= 0, 1.0, np.where(first > m, 0.0, at_least))
        return float(np.dot(weights[kept], at_least if side == "greater" else 1 - at_least))

    return tail


def mcnemar_midp(losses: int, gains: int) -> float:
    """Two-sided mid-p McNemar test of "no change at all"; 1 without discordant pairs. Never a reason for GO.

    Source: Fagerland, Lydersen and Laake 2013, BMC Medical Research Methodology 13:91.
    """
    total, fewer = losses + gains, min(losses, gains)
    if fewer < 0:
        raise ValueError(f"`losses`, `gains`: {losses}, {gains} are not counts")
    if total == 0:
        return 1.0
    point = math.exp(math.lgamma(total + 1) - math.lgamma(fewer + 1) - math.lgamma(total - fewer + 1)) * 0.5**total
    if losses == gains:
        return 1.0 - 0.5 * point
    return min(1.0, 2 * float(special.bdtr(fewer, total, 0.5)) - point)


def _check_counts(losses: int, gains: int, n: int) -> None:
    if min(losses, gains) < 0 or losses + gains > n or n < 1:
        raise ValueError(f"`losses`, `gains`, `n`: {losses}, {gains}, {n} are not counts of {n} pairs")
