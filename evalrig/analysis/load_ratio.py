"""Ratios of a metric of load, candidate over reference, from rounds in which both had the same schedule (stats.md, section 4).

The unit is the round: l = ln(candidate / reference). Within a round drift of the machine is nearly the same for both; across
rounds it is not, so two runs one after the other see a difference where there is none in half of all cases.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from evalrig.analysis.arrays import FloatArray

MOST_ROUNDS = 10_000
"""A study of more is not feasible: `rounds_for` then says None."""
LEAST_FOR_BOOTSTRAP = 12
CORRELATED = 0.2
"""Lag-1 correlation of the rounds from which on they are not taken as independent."""
RESAMPLES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Candidate over reference, with limits at 1 - alpha on each side. None: cannot be given."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    """Rounds in which both arms have a number."""
    method: str
    sd: float | None
    """Of l, between rounds."""
    p_go: float = 1.0
    """Of "the loss is the margin or more": small excludes such a loss."""
    p_nogo: float = 1.0
    """Of "the loss is the margin or less": small shows a larger one."""
    needed: int | None = None
    """Rounds that would settle the margin at what was seen, with 80 % power; None: none would, or more than are feasible."""

    @property
    def moved(self) -> bool:
        """The interval excludes 1. Of reference against itself: drift, or an effect of the order."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


def ratio_of(
    reference: ArrayLike, candidate: ArrayLike, *, alpha: float, margin: float = 0.0, less: bool = False, seed: int = 0
) -> Ratio:
    """Compare two arms round by round. NaN: no block, or a void one; such a round drops out.

    Args:
        reference: shape [rounds], positive.
        candidate: shape [rounds], positive.
        alpha: one-sided.
        margin: largest tolerated loss as a share, 0.01 for one percent; negative: a gain that must be reached, -0.2 for 1.2 times.
            A loss is a ratio below 1 - margin, where `less` is better one above 1 / (1 - margin).
        seed: of the bootstrap.

    Raises:
        ValueError: a number that is not positive, or a margin of 1 or more.
    """
    if margin >= 1:
        raise ValueError(f"margin {margin}: below 1")
    logs = _logs(reference, candidate)
    gain = -logs if less else logs
    n, bound = len(gain), math.log1p(-margin)
    if n < 2:
        value = float(np.exp(logs[0])) if n else None
        return Ratio(value=value, low=None, high=None, n=n, method="needs two rounds", sd=None)
    mean, sd = float(gain.mean()), float(gain.std(ddof=1))
    if sd <= 1e-12 * max(1.0, abs(mean)):
        low = high = mean
        p_go, p_nogo = (_all_on_one_side(mean - bound, n), _all_on_one_side(bound - mean, n))
        method = "the same ratio in every round; sign test"
    elif n >= LEAST_FOR_BOOTSTRAP and lag_one(gain) > CORRELATED:
        low, high, p_go, p_nogo = _block_bootstrap(gain, bound, alpha, seed)
        method = f"bootstrap over blocks of {_block_length(n)} rounds"
    else:
        error = sd / math.sqrt(n)
        half = float(stats.t.ppf(1 - alpha, n - 1)) * error
        low, high = mean - half, mean + half
        p_go, p_nogo = (float(stats.t.sf(sign * (mean - bound) / error, n - 1)) for sign in (1, -1))
        method = "t over rounds"
    ends = sorted(math.exp(-x if less else x) for x in (low, high))
    return Ratio(
        value=math.exp(-mean if less else mean),
        low=ends[0],
        high=ends[1],
        n=n,
        method=method,
        sd=sd,
        p_go=p_go,
        p_nogo=p_nogo,
        needed=rounds_for(sd, abs(mean - bound), alpha),
    )


def _logs(reference: ArrayLike, candidate: ArrayLike) -> FloatArray:
    ours, theirs = np.asarray(reference, np.float64), np.asarray(candidate, np.float64)
    both = ~(np.isnan(ours) | np.isnan(theirs))
    ours, theirs = ours[both], theirs[both]
    if not ((ours > 0) & (theirs > 0) & np.isfinite(ours) & np.isfinite(theirs)).all():
        raise ValueError("a metric of load must be positive and finite")
    return np.log(theirs / ours)


def lag_one(values: FloatArray) -> float:
    """Correlation of neighbouring rounds; 0 where there is no spread."""
    left = values - values.mean()
    spread = float(left @ left)
    return float(left[1:] @ left[:-1]) / spread if spread else 0.0


def _all_on_one_side(gap: float, n: int) -> float:
    """Of n rounds that all lie on one side, by a fair coin: no spread was seen, which does not mean that there is none."""
    return 0.5**n if gap > 0 else 1.0


def _block_length(n: int) -> int:
    return math.ceil(math.sqrt(n))


def _block_bootstrap(gain: FloatArray, bound: float, alpha: float, seed: int) -> tuple[float, float, float, float]:
    """Moving blocks of rounds: limits of the mean, and both p-values from its distribution about itself."""
    n, length = len(gain), _block_length(len(gain))
    starts = np.random.default_rng(seed).integers(0, n - length + 1, size=(RESAMPLES, math.ceil(n / length)))
    rows = (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :n]
    mean = float(gain.mean())
    means = gain[rows].mean(axis=1)
    about = (means - means.mean()) * math.sqrt(n / (n - 1))
    low, high = mean - np.quantile(about, 1 - alpha), mean - np.quantile(about, alpha)
    p_go = (1 + int((about >= mean - bound).sum())) / (RESAMPLES + 1)
    p_nogo = (1 + int((about <= mean - bound).sum())) / (RESAMPLES + 1)
    return float(low), float(high), p_go, p_nogo


def power_of(n: int, sd: float, gap: float, alpha: float) -> float:
    """Chance that n rounds settle a margin which the truth lies `gap` away from (both in logs), by the t test."""
    if n < 2:
        return 0.0
    critical = stats.t.ppf(1 - alpha, n - 1)
    return float(stats.nct.sf(critical, n - 1, gap * math.sqrt(n) / sd))


def rounds_for(sd: float, gap: float, alpha: float, power: float = 0.8) -> int | None:
    """Fewest rounds with that power; None: more than are feasible."""
    if sd <= 0:
        return 2
    if gap <= 0 or power_of(MOST_ROUNDS, sd, gap, alpha) < power:
        return None
    low, high = 1, MOST_ROUNDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle, sd, gap, alpha) >= power else (middle, high)
    return high


def resolvable(sd: float, n: int, alpha: float, power: float = 0.8) -> float | None:
    """Smallest loss, as a share, that n rounds tell from none with that power; None: even half is too small for them."""
    if n < 2:
        return None
    if sd <= 0:
        return 0.0
    low, high = 0.0, math.log(2)
    if power_of(n, sd, high, alpha) < power:
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(n, sd, middle, alpha) >= power else (middle, high)
    return -math.expm1(-high)


def iso_ratio(
    reference: tuple[FloatArray, FloatArray], candidate: tuple[FloatArray, FloatArray], at: float
) -> FloatArray:
    """Throughput of the candidate over that of the reference at an equal speed for each user, round by round.

    Args:
        reference: tokens/s for a user and tokens/s for a GPU, shape [rounds, points] each, one point a concurrency.
        candidate: the same.
        at: tokens/s for a user, where both are compared.

    Returns:
        Shape [rounds]; NaN where `at` lies outside what an arm was measured at: nothing is extrapolated.
    """
    rows = zip(*reference, *candidate, strict=True)
    return np.array([_read_off(c, d, at) / _read_off(a, b, at) for a, b, c, d in rows])


def _read_off(users: FloatArray, gpus: FloatArray, at: float) -> float:
    """On the straight lines between the points, both axes in logs."""
    there = ~(np.isnan(users) | np.isnan(gpus))
    order = np.argsort(users[there])
    x, y = np.log(users[there][order]), np.log(gpus[there][order])
    if len(x) < 2 or not x[0] <= math.log(at) <= x[-1]:
        return math.nan
    return float(np.exp(np.interp(math.log(at), x, y)))
