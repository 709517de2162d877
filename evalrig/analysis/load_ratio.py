"""The ratio of two variants under load, from rounds in which both ran the same schedule, one after the other.

The unit is the round. All is done on l = ln(candidate / reference), round by round: what slows the machine down for a
while slows both and cancels. Two runs, first one variant and then the other, do not cancel it.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import BoolArray, FloatArray, probability, vector
from evalrig.analysis.load_power import resolvable_effect, rounds_needed

BLOCKS_FROM = 12
"""Rounds from which on it is asked whether neighbours go together."""
CORRELATED = 0.2
"""Lag-1 correlation of l above which rounds are no longer taken as independent."""
ROUNDING = 1e-12
"""A spread of l below it is rounding: the rounds are identical."""
ALIKE_FROM = 3
"""Identical rounds from which on "it does not vary" is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """candidate / reference, never turned round: of a latency, less than 1 is better. The p-values are oriented: `p_go`
    small is good for the candidate, whatever the metric."""

    value: float
    """Geometric mean over rounds; NaN: no round has both sides, or one holds a zero."""
    low: float
    high: float
    """One-sided limits at 1 - alpha each; 0 and infinity where no interval can be given."""
    n: int
    """Rounds with both sides."""
    method: str
    """How the interval came about, or why there is none."""
    sd_log: float
    """Of l over rounds, 0.01 is about 1 %; NaN below 2 rounds. Where rounds go together it is what independent rounds
    would need to have to give the same interval."""
    p_go: float
    """p-value of "worse than 1 - margin (for `less`: than 1 / (1 - margin)), or exactly that"; 1 where nothing can be said."""
    p_nogo: float
    """p-value of "better than that, or exactly that"."""
    needed: int | None
    """Rounds that would settle an undecided ratio with 80 % power: if truly nothing is lost, or, where that would not do or
    so many were seen already, if the ratio seen is the true one. None: decided, or no number helps."""

    @property
    def interval(self) -> bool:
        """Whether there is one."""
        return self.low > 0.0 and self.high < math.inf

    @property
    def differs(self) -> bool:
        """The interval excludes 1, by more than rounding."""
        return self.interval and not self.low - ROUNDING <= 1.0 <= self.high + ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean of log ratios and what its error is taken to be."""

    estimate: float
    se: float
    df: float
    method: str


def ratio_of(
    reference: ArrayLike,
    candidate: ArrayLike,
    margin: float = 0.01,
    alpha: float = 0.05,
    less: bool = False,
) -> Ratio:
    """Ratio of two [rounds] of positive numbers in the order in which they were run, NaN where a block is missing or void.

    Tests whether more than `margin` is lost: candidate / reference against 1 - margin, or, where `less` is better, against
    1 / (1 - margin), so that a time and the rate that is its inverse are judged alike. A negative margin asks for a gain:
    1 - margin is then the least ratio. alpha is one-sided. A round counts if both sides are there. Raises ValueError on
    other shapes, negative or infinite numbers, and a margin of 1 or more.
    """
    probability(alpha, "alpha")
    if not -math.inf < margin < 1.0:
        raise ValueError(f"`margin`: {margin!r} is no tolerable loss; expected below 1")
    ours, theirs = _paired(reference, candidate)
    if not ours.size:
        return _nothing("no round has both sides", math.nan, 0)
    if not (ours.all() and theirs.all()):
        zeros = int(((ours == 0) | (theirs == 0)).sum())
        return _nothing(f"{zeros} of {ours.size} rounds hold a zero, which has no ratio", math.nan, ours.size)
    logs = np.log(theirs) - np.log(ours)
    return _judged(logs, math.log1p(-margin), alpha, -1.0 if less else 1.0)


def mean_log(logs: FloatArray) -> Mean | None:
    """Mean of l [n] in the order of the rounds with its standard error; None below 2 rounds, or where 2 are identical.

    From 3 identical rounds on the error is 0 and the interval a point (a deterministic engine); the tests are then the sign
    test, because no spread seen is not no spread: 5 rounds are the fewest that decide at .05.
    The t interval over rounds. Where there are 12 rounds and more and the lag-1 correlation is above 0.2, the error is that
    of a moving-block bootstrap of blocks of ceil(sqrt n), taken in closed form (all overlapping blocks, as infinitely many
    draws would give it), corrected for its bias, never below the plain one, with its own degrees of freedom 1.5 (n/L - 1).
    Sources: Kuensch 1989, Annals of Statistics 17:1217; Meketon and Schmeiser 1984, Winter Simulation Conference.
    """
    n = logs.size
    if n < 2:
        return None
    estimate, sd = float(logs.mean()), float(logs.std(ddof=1))
    if float(np.ptp(logs)) <= ROUNDING:
        method = f"identical in all {n} rounds: no spread, sign test"
        return Mean(estimate=estimate, se=0.0, df=n - 1.0, method=method) if n >= ALIKE_FROM else None
    plain = Mean(estimate=estimate, se=sd / math.sqrt(n), df=n - 1.0, method=f"t over {n} rounds")
    together = lag_one(logs)
    if n < BLOCKS_FROM or together <= CORRELATED:
        return plain
    length = math.ceil(math.sqrt(n))
    sums = np.concatenate(([0.0], np.cumsum(logs - estimate)))
    means = (sums[length:] - sums[:-length]) / length
    variance = length * float(np.sum(means**2)) / ((n - length + 1) * (n - length))
    method = f"moving blocks of {length} over {n} rounds (lag-1 correlation {together:.2f})"
    return Mean(estimate=estimate, se=max(math.sqrt(variance), plain.se), df=1.5 * (n / length - 1), method=method)


def lag_one(logs: FloatArray) -> float:
    """Correlation of neighbours in an ordered [n]; 0 where it does not vary."""
    centred = logs - logs.mean()
    total = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / total if total > 0.0 else 0.0


def cannot_tell(ratio: Ratio, margin: float, alpha: float = 0.05) -> str:
    """The reason of an undecided check: what these rounds resolve, and how many would settle it."""
    if not ratio.interval:
        return f"cannot tell here: {ratio.method}"
    if ratio.sd_log == 0.0:
        return f"cannot tell here: {ratio.method}; {f'would need {ratio.needed} pairs' if ratio.needed else 'the ratio is the bound'}"
    resolved = 100 * resolvable_effect(ratio.n, ratio.sd_log, alpha)
    seen = f"{ratio.n} pairs with a noise of {100 * ratio.sd_log:.2g} % a pair resolve {resolved:.2g} %"
    bound = f"a loss of {100 * margin:.3g} %" if margin >= 0 else f"a gain of {-100 * margin:.3g} %"
    if ratio.needed is None:
        return f"cannot tell here: {seen}; the ratio lies too near {bound} itself for more pairs to help"
    return f"cannot tell here: would need {ratio.needed} pairs for {bound}; {seen}"


def _judged(logs: FloatArray, bound: float, alpha: float, sign: float) -> Ratio:
    """`sign` -1: less is better; l and its bound change their signs for the tests."""
    found = mean_log(logs)
    n, value = logs.size, math.exp(float(logs.mean()))
    if found is None:
        return _nothing("2 identical rounds: no interval" if n == 2 else "1 round: no interval", value, n)
    away = sign * found.estimate - bound
    if found.se == 0.0:
        p_go, p_nogo = (0.5**n if side else 1.0 for side in (away > ROUNDING, away < -ROUNDING))
        reach = 0.0
    else:
        p_go = float(special.stdtr(found.df, -away / found.se))
        p_nogo = float(special.stdtr(found.df, away / found.se))
        reach = -float(special.stdtrit(found.df, alpha)) * found.se
    sd = found.se * math.sqrt(n)
    return Ratio(
        value=value,
        low=math.exp(found.estimate - reach),
        high=math.exp(found.estimate + reach),
        n=n,
        method=found.method,
        sd_log=sd,
        p_go=p_go,
        p_nogo=p_nogo,
        needed=None if min(p_go, p_nogo) <= alpha else _settling(n, sd, bound, sign * found.estimate, alpha),
    )


def _settling(n: int, sd: float, bound: float, seen: float, alpha: float) -> int | None:
    if sd == 0.0:
        return math.ceil(math.log(alpha) / math.log(0.5)) if abs(seen - bound) > ROUNDING else None
    margin = -math.expm1(bound)
    planned = rounds_needed(sd, margin, 1.0, alpha) if bound < 0.0 else None
    if planned is not None and planned > n:
        return planned
    settled = rounds_needed(sd, margin, math.exp(seen), alpha)
    return settled if settled is not None and settled > n else None


def _paired(reference: ArrayLike, candidate: ArrayLike) -> tuple[FloatArray, FloatArray]:
    ours, theirs = vector(reference, "reference"), vector(candidate, "candidate")
    if ours.size != theirs.size:
        raise ValueError(f"`reference`, `candidate`: {ours.size} and {theirs.size} rounds; expected as many")
    both: BoolArray = ~(np.isnan(ours) | np.isnan(theirs))
    ours, theirs = ours[both], theirs[both]
    if np.isinf(ours).any() or np.isinf(theirs).any() or (ours < 0).any() or (theirs < 0).any():
        raise ValueError("`reference`, `candidate`: negative or infinite; expected positive numbers, NaN where missing")
    return ours, theirs


def _nothing(why: str, value: float, n: int) -> Ratio:
    return Ratio(
        value=value, low=0.0, high=math.inf, n=n, method=why, sd_log=math.nan, p_go=1.0, p_nogo=1.0, needed=None
    )
