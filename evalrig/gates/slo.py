"""Does the candidate answer enough requests within the limits of time that were promised? Its own share, not a comparison.

The margin is the share that may lie outside: 0.01 is "99 % within". Or `attainment: 0.99`, with `margin: 0`.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalrig.analysis.arrays import FloatArray
from evalrig.errors import UsageError
from evalrig.gate import Evidence, outcome_of
from evalrig.loads import Load
from evalrig.plan import GatePlan
from evalrig.speed import Judged, SpeedGate
from evalrig.types import REFERENCE, CheckOutcome, Estimate, Metric

WITHIN, ALL = "slo_ok", "slo_n"
"""Scores of a block: requests within the limits, and all requests."""
ATTAINMENT = 0.99
FEWEST = 3
"""Rounds from which on it is asked whether they differ by more than chance."""


@dataclass(kw_only=True)
class SloOptions:
    """Keys of `gates.<name>.options`."""

    attainment: float = 0.0
    """With `margin: 0`: least share of requests within the limits; 0: 0.99, or 1 - `margin` where that is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """Requests within the limits, pooled over rounds."""

    within: float
    all: float
    effect: float
    """By how much rounds differ more than chance would have them; 1: not at all. Requests then count for so many fewer."""

    @property
    def value(self) -> float:
        return self.within / self.all


class Slo(SpeedGate):
    """Exact one-sided binomial bound on the share of requests within the limits, pooled over rounds."""

    Options = SloOptions

    def __init__(self, plan: GatePlan, options: SloOptions) -> None:
        super().__init__(plan, options)
        if not 0 < plan.margin < 1:
            raise UsageError(f"gates.{plan.name}.margin is {plan.margin}; the share outside, above 0 and below 1")

    @classmethod
    def margin_of(cls, plan: GatePlan, options: SloOptions) -> float:
        """1 - `attainment` where 0 is written."""
        where = f"gates.{plan.name}"
        if plan.margin and options.attainment:
            raise UsageError(f"{where}: both `margin` and `options.attainment`; give one, the other 0")
        if not 0 <= options.attainment < 1:
            raise UsageError(f"{where}.options.attainment is {options.attainment}; a share below 1: 0.99")
        return plan.margin or round(1 - (options.attainment or ATTAINMENT), 12)

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """No metric: it counts requests. One of a load may be named all the same."""
        return metric is None or metric.kind == "ratio"

    def judge(self, load: Load, evidence: Evidence) -> Judged:
        """See `SpeedGate.judge`."""
        found = _share(load, evidence.candidate)
        if found is None:
            return self.nothing("no request was held against limits of time; set `slo` in the suite's options")
        wanted, alpha = 1 - self.plan.margin, evidence.alpha
        within, outside = found.within / found.effect, (found.all - found.within) / found.effect
        p_go = _upper(within, outside, wanted)
        p_nogo = 1.0 - _upper(within + 1, outside - 1, wanted) if outside > 0 else 1.0
        low = float(special.betaincinv(within, outside + 1, alpha)) if within else 0.0
        high = float(special.betaincinv(within + 1, outside, 1 - alpha)) if outside else 1.0
        estimate = Estimate(
            value=found.value,
            low=low,
            high=high,
            n=round(found.all),
            method=f"exact binomial, pooled over rounds{_spread(found)}",
            units="share of requests within the SLO",
        )
        outcome = outcome_of(p_go, p_nogo, alpha)
        reason = f"{self._words(outcome, found, low, high)}{_beside(load)}{_spread(found)}"
        if outcome is CheckOutcome.UNDECIDED:
            return self.nothing(reason, estimate=estimate)
        return Judged(outcome=outcome, reason=reason, estimate=estimate, p_go=p_go, p_nogo=p_nogo)

    def _words(self, outcome: CheckOutcome, found: _Share, low: float, high: float) -> str:
        wanted = f"{100 * (1 - self.plan.margin):.4g} %"
        seen = f"{found.within:,.0f} of {found.all:,.0f} requests"
        if outcome is CheckOutcome.PASSED:
            return f"at least {wanted} of requests are within the SLO: {seen}, not below {100 * low:.4g} %"
        if outcome is CheckOutcome.FAILED:
            return f"fewer than {wanted} of requests are within the SLO: {seen}, not above {100 * high:.4g} %"
        return f"cannot tell here whether {wanted} of requests are within the SLO: {seen}, {100 * low:.4g} to {100 * high:.4g} %"


def _share(load: Load, arm: str) -> _Share | None:
    """None: no round tells of limits."""
    told = load.told.get(arm, {})
    if WITHIN not in told or ALL not in told:
        return None
    within, everything = told[WITHIN], told[ALL]
    here = np.isfinite(within) & np.isfinite(everything) & (everything > 0)
    if not here.any():
        return None
    return _Share(
        within=float(within[here].sum()),
        all=float(everything[here].sum()),
        effect=_effect(within[here], everything[here]),
    )


def _effect(within: FloatArray, everything: FloatArray) -> float:
    """Variance of the rounds' shares over the binomial one, at least 1: a round that went badly went badly as a whole."""
    share = float(within.sum() / everything.sum())
    if within.size < FEWEST or not 0 < share < 1:
        return 1.0
    chi = float(np.sum((within - everything * share) ** 2 / (everything * share * (1 - share))))
    return max(1.0, chi / (within.size - 1))


def _upper(within: float, outside: float, share: float) -> float:
    """P(as many within, or more) if `share` is true: the binomial tail, also for counts that are no whole numbers."""
    if within <= 0:
        return 1.0
    return float(special.betainc(within, outside + 1, share)) if outside > -1 else 0.0


def _beside(load: Load) -> str:
    reference = _share(load, REFERENCE)
    return f"; the reference: {100 * reference.value:.4g} %" if reference else ""


def _spread(found: _Share) -> str:
    """Said only where it changes something."""
    if math.isclose(found.effect, 1.0):
        return ""
    return f"; rounds differ by more than chance, so that requests count {1 / found.effect:.2g} each"
