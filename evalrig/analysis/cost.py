"""Cost: dollars per million tokens and per solved task, and what a candidate saves of it, with intervals.

A cost is no measurement of its own. At one price it is the inverse of a rate, so a saving has the interval of the ratio of
the rates.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import FloatArray, finite, probability, sums_by
from evalrig.analysis.clusters import cluster_index
from evalrig.analysis.load_ratio import Ratio, ratio_of

MILLION = 1e6
HOUR = 3600.0
FEWEST_SOLVED = 10
"""Solved tasks in either arm below which a ratio per solved task has no interval."""
DRAWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """1 - candidate's cost / reference's; 0.3 is 30 % cheaper, negative is dearer."""

    value: float
    low: float
    high: float
    """One-sided limits at 1 - alpha each; minus infinity and 1 where there is no interval."""
    ratio: Ratio
    """Of the costs, tested against 1 - `least`: `p_go` small shows that at least so much is saved."""


def usd_per_million(price_hour: float, gpus: float, tokens_per_second: float) -> float:
    """Dollars per million tokens at a rate; `price_hour` in dollars per GPU and hour. 2.5 dollars, 8 GPUs, 5,000 tokens/s:
    1.1111. ValueError where one of them is not positive."""
    if not (price_hour > 0 and gpus > 0 and tokens_per_second > 0):
        raise ValueError(f"{price_hour!r} dollars an hour, {gpus!r} GPUs, {tokens_per_second!r} tokens/s: no cost")
    return price_hour * gpus * MILLION / (HOUR * tokens_per_second)


def saving(reference: ArrayLike, candidate: ArrayLike, least: float = 0.0, alpha: float = 0.05) -> Saving:
    """What is saved, from the costs of each round [rounds], NaN where missing; tested against `least` < 1.

    Raises ValueError as `ratio_of` does.
    """
    return saved(ratio_of(reference, candidate, least_as_margin(least), alpha, less=True))


def least_as_margin(least: float) -> float:
    """The margin with which `ratio_of(..., less=True)` tests that at least the share `least` < 1 of a cost is saved."""
    if not -math.inf < least < 1.0:
        raise ValueError(f"`least`: {least!r}; no more than all can be saved")
    return -least / (1.0 - least)


def saved(costs: Ratio) -> Saving:
    """A ratio of costs as a saving."""
    return Saving(value=1.0 - costs.value, low=1.0 - costs.high, high=1.0 - costs.low, ratio=costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """What each of n tasks took of both arms, [n] each; a task tried several times has several entries, or sums."""

    reference_tokens: ArrayLike
    reference_solved: ArrayLike
    """0 or 1, or a number of successes."""
    candidate_tokens: ArrayLike
    candidate_solved: ArrayLike
    cluster: ArrayLike | None = None
    """Label of what stands or falls together; None: each entry by itself."""


def tokens_per_solved(tasks: Tasks, margin: float = 0.0, alpha: float = 0.05, seed: int = 0) -> Ratio:
    """candidate / reference in tokens spent per task solved: a ratio of ratios of sums; less is better.

    Failed tasks cost tokens and solve nothing. Interval and p-values: bootstrap of clusters, both arms together, 2,000
    draws from `seed`, percentiles of the logarithm. No interval where an arm has solved fewer than 10. `n` counts clusters,
    `sd_log` is the bootstrap's error x sqrt n; `needed` is None: more rounds do not help, more tasks would.
    Raises ValueError on non-finite or negative numbers, and on arms that spent nothing.
    """
    probability(alpha, "alpha")
    if not -math.inf < margin < 1.0:
        raise ValueError(f"`margin`: {margin!r} is no tolerable loss; expected below 1")
    sums = _task_sums(tasks)
    totals, clusters = sums.sum(axis=1), sums.shape[1]
    if not totals[0] or not totals[2]:
        raise ValueError("`tokens`: an arm spent none")
    fewest = int(min(totals[1], totals[3]))
    value = float(np.exp(_log_per_solved(totals))) if fewest else math.nan
    if fewest < FEWEST_SOLVED or clusters < FEWEST_SOLVED:
        why = f"{fewest} tasks solved, {clusters} clusters; an interval needs {FEWEST_SOLVED} of both"
        return _ratio(value, (0.0, math.inf), (clusters, why, math.nan), (1.0, 1.0))
    drawn = _log_per_solved(_resampled(sums, seed))
    bound = -math.log1p(-margin)
    low, high = np.exp(np.quantile(drawn, (alpha, 1.0 - alpha)))
    worse, better = float((drawn >= bound).sum()), float((drawn <= bound).sum())
    method = f"bootstrap of {clusters} clusters, {DRAWS} draws"
    spread = float(np.std(drawn, ddof=1)) * math.sqrt(clusters)
    return _ratio(
        value,
        (float(low), float(high)),
        (clusters, method, spread),
        ((1.0 + worse) / (DRAWS + 1.0), (1.0 + better) / (DRAWS + 1.0)),
    )


def product(costs: Ratio, tokens: Ratio, least: float = 0.0, alpha: float = 0.05) -> Ratio:
    """Cost per solved task: ratio of the dollars per token x ratio of the tokens per solved task; less is better.

    The two come from different measurements and are taken as independent; their intervals are joined as squares of the
    distances from the estimate to each limit (Zou and Donner 2008, Statistics in Medicine 27:1693). The p-values belong to
    that interval: below alpha exactly where it excludes 1 - `least`.
    """
    probability(alpha, "alpha")
    if not (costs.interval and tokens.interval):
        part = tokens if costs.interval else costs
        why = (min(costs.n, tokens.n), f"no interval: {part.method}", math.nan)
        return _ratio(costs.value * tokens.value, (0.0, math.inf), why, (1.0, 1.0))
    logs = [[math.log(x) for x in (part.low, part.value, part.high)] for part in (costs, tokens)]
    middle = logs[0][1] + logs[1][1]
    down, up = (math.hypot(*(part[1] - part[end] for part in logs)) for end in (0, 2))
    away = middle - math.log1p(-least)
    reach = up if away < 0 else down
    z = -float(special.ndtri(alpha)) * away / reach if reach else math.copysign(math.inf, away) if away else 0.0
    method = f"joined of: {costs.method}; {tokens.method}"
    return _ratio(
        math.exp(middle),
        (math.exp(middle - down), math.exp(middle + up)),
        (min(costs.n, tokens.n), method, math.nan),
        (float(special.ndtr(z)), float(special.ndtr(-z))),
    )


def _ratio(
    value: float, limits: tuple[float, float], told: tuple[int, str, float], pvalues: tuple[float, float]
) -> Ratio:
    return Ratio(
        value=value,
        low=limits[0],
        high=limits[1],
        n=told[0],
        method=told[1],
        sd_log=told[2],
        p_go=pvalues[0],
        p_nogo=pvalues[1],
        needed=None,
    )


def _task_sums(tasks: Tasks) -> FloatArray:
    """Shape [4, clusters]: reference's tokens and solved, candidate's tokens and solved."""
    parts = [
        finite(tasks.reference_tokens, "reference_tokens"),
        finite(tasks.reference_solved, "reference_solved"),
        finite(tasks.candidate_tokens, "candidate_tokens"),
        finite(tasks.candidate_solved, "candidate_solved"),
    ]
    if len({part.size for part in parts}) > 1 or min(float(part.min()) for part in parts) < 0:
        raise ValueError("`tasks`: arrays of different length, or negative numbers")
    index = cluster_index(tasks.cluster, parts[0].size)
    return np.stack([sums_by(index, part) for part in parts])


def _resampled(sums: FloatArray, seed: int) -> FloatArray:
    """Shape [4, draws]: sums over clusters drawn with replacement."""
    clusters = sums.shape[1]
    times = np.random.default_rng(seed).multinomial(clusters, np.full(clusters, 1.0 / clusters), size=DRAWS)
    return sums @ times.T.astype(np.float64)


def _log_per_solved(sums: FloatArray) -> FloatArray:
    """ln of (candidate's tokens / solved) / (reference's tokens / solved), for [4, ...]; a draw without one solved counts
    half."""
    solved = np.maximum(sums[[1, 3]], 0.5)
    return np.asarray(np.log(sums[2] / solved[1]) - np.log(sums[0] / solved[0]))
