"""Does the candidate answer enough requests within the limits of time that were promised? Its own share, not a comparison.

The margin is the share that may lie outside: 0.01 is "99 % within". Or `attainment: 0.99`, with `margin: 0`.
"""

import math
from dataclasses import dataclass

from evalrig.analysis.attainment import Attained
from evalrig.errors import UsageError
from evalrig.gate import Evidence, outcome_of
from evalrig.levels import ATTAINMENT, attained_by
from evalrig.loads import Load
from evalrig.plan import GatePlan
from evalrig.speed import Judged, SpeedGate, Where, margin_or
from evalrig.types import REFERENCE, CheckOutcome, Estimate, Metric


@dataclass(kw_only=True)
class SloOptions(Where):
    """Keys of `gates.<name>.options`."""

    attainment: float = 0.0
    """With `margin: 0`: least share of requests within the limits; 0: 0.99, or 1 - `margin` where that is written."""


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
        margin_or(plan, "attainment", options.attainment)
        if not 0 <= options.attainment < 1:
            raise UsageError(f"{where}.options.attainment is {options.attainment}; a share below 1: 0.99")
        return plan.margin or round(1 - (options.attainment or ATTAINMENT), 12)

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """No metric: it counts requests. One of a load may be named all the same."""
        return metric is None or metric.kind == "ratio"

    def judge(self, load: Load, evidence: Evidence) -> Judged:
        """See `SpeedGate.judge`."""
        found = attained_by(load, evidence.candidate)
        if found is None:
            return self.nothing("no request was held against limits of time; set `slo` in the suite's options")
        wanted, alpha = 1 - self.plan.margin, evidence.alpha
        p_go, p_nogo, low, high = found.p_below(wanted), found.p_above(wanted), found.low(alpha), found.high(alpha)
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

    def _words(self, outcome: CheckOutcome, found: Attained, low: float, high: float) -> str:
        wanted = f"{100 * (1 - self.plan.margin):.4g} %"
        seen = f"{found.within:,.0f} of {found.all:,.0f} requests"
        if outcome is CheckOutcome.PASSED:
            return f"at least {wanted} of requests are within the SLO: {seen}, not below {100 * low:.4g} %"
        if outcome is CheckOutcome.FAILED:
            return f"fewer than {wanted} of requests are within the SLO: {seen}, not above {100 * high:.4g} %"
        return f"cannot tell here whether {wanted} of requests are within the SLO: {seen}, {100 * low:.4g} to {100 * high:.4g} %"


def _beside(load: Load) -> str:
    reference = attained_by(load, REFERENCE)
    return f"; the reference: {100 * reference.value:.4g} %" if reference else ""


def _spread(found: Attained) -> str:
    """Said only where it changes something."""
    if math.isclose(found.effect, 1.0):
        return ""
    return f"; rounds differ by more than chance, so that requests count {1 / found.effect:.2g} each"
