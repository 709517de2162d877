"""How many requests kept an SLO, with exact bounds, and the SLO point: how much load a variant bears and keeps it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import probability, vector

FEWEST = 3
"""Rounds from which on it is asked whether they differ by more than chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained:
    """Requests within the limits of time, pooled over rounds."""

    within: float
    all: float
    effect: float
    """By how much rounds differ more than chance would have them; 1: not at all. Requests then count for so many fewer."""

    @property
    def value(self) -> float:
        """The share within."""
        return self.within / self.all

    def low(self, alpha: float) -> float:
        """One-sided lower limit of the true share at 1 - alpha (Clopper and Pearson)."""
        within, outside = self._counts()
        return float(special.betaincinv(within, outside + 1, alpha)) if within else 0.0

    def high(self, alpha: float) -> float:
        """The upper one."""
        within, outside = self._counts()
        return float(special.betaincinv(within + 1, outside, 1 - alpha)) if outside else 1.0

    def p_below(self, share: float) -> float:
        """p-value of "the true share is `share` or less"; small shows that it is more."""
        return _upper(*self._counts(), share)

    def p_above(self, share: float) -> float:
        """p-value of "the true share is `share` or more"."""
        within, outside = self._counts()
        return 1.0 - _upper(within + 1, outside - 1, share) if outside > 0 else 1.0

    def _counts(self) -> tuple[float, float]:
        return self.within / self.effect, (self.all - self.within) / self.effect


def attained(within: ArrayLike, everything: ArrayLike) -> Attained | None:
    """From the counts of each round, [rounds] each, NaN where a round tells nothing. None: no round tells of a request."""
    kept, asked = vector(within, "within"), vector(everything, "everything")
    here = np.isfinite(kept) & np.isfinite(asked) & (asked > 0)
    if not here.any():
        return None
    kept, asked = kept[here], asked[here]
    total, share = float(asked.sum()), float(kept.sum() / asked.sum())
    effect = 1.0
    if kept.size >= FEWEST and 0 < share < 1:
        chi = float(np.sum((kept - asked * share) ** 2 / (asked * share * (1 - share))))
        effect = max(1.0, chi / (kept.size - 1))
    return Attained(within=float(kept.sum()), all=total, effect=effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloPoint:
    """The most load at which a variant keeps its SLO, as places in a list of levels; -1: none."""

    shown: int
    """Up to here each level is shown to keep it: its lower limit is not below what is asked."""
    possible: int
    """Up to here none is shown to miss it. The true point may lie anywhere from `shown` to here."""
    why: str
    """Why even the lightest level is not shown to keep it; empty where it is."""


def slo_point(levels: Sequence[Attained | None], attainment: float, alpha: float = 0.05) -> SloPoint:
    """From levels in order of load, and the share `attainment` of requests that is asked; limits are one-sided at 1 - alpha."""
    probability(attainment, "attainment")
    shown, possible, why = -1, -1, "nothing was held against limits of time"
    for place, one in enumerate(levels):
        if one is None or one.high(alpha) < attainment:
            break
        possible = place
    for place, one in enumerate(levels):
        if one is None or one.low(alpha) < attainment:
            why = why if one is None else _short(one, attainment, alpha)
            break
        shown = place
    return SloPoint(shown=shown, possible=max(shown, possible), why="" if shown >= 0 else why)


def requests_needed(attainment: float, alpha: float = 0.05) -> int:
    """Requests that show a share of at least `attainment` if all of them are within: 299 of 99 % at .05."""
    return math.ceil(math.log(alpha) / math.log(attainment))


def _short(one: Attained, attainment: float, alpha: float) -> str:
    seen = f"{one.within:,.0f} of {one.all:,.0f} requests within it"
    if one.value < attainment:
        return f"the lightest load misses it: {seen}"
    return f"too few requests to show {100 * attainment:.4g} %: {seen}; {requests_needed(attainment, alpha)} of as many would"


def _upper(within: float, outside: float, share: float) -> float:
    """P(as many within, or more) if `share` is true: the binomial tail, also for counts that are no whole numbers."""
    if within <= 0:
        return 1.0
    return float(special.betainc(within, outside + 1, share)) if outside > -1 else 0.0
