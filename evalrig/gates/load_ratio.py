"""Does the candidate serve as fast as is asked? The ratio of one metric, round by round, against a bound fixed before the run.

The margin is the largest tolerated loss as a share: 0.01 is "at most 1 % worse". Or `min_ratio`, with `margin: 0`, is the gain
that must be reached: 1.2 is "at least 1.2 times as good". Of a time, less is better: the bound is the inverse.
"""

import math
from dataclasses import dataclass

from evalrig.analysis.load_floor import beside_floor
from evalrig.analysis.load_ratio import cannot_tell
from evalrig.errors import UsageError
from evalrig.gate import Evidence, outcome_of
from evalrig.loads import Load
from evalrig.plan import GatePlan
from evalrig.speed import Judged, Place, SpeedGate, beside, estimate_of, margin_or, refusal
from evalrig.types import CheckOutcome, Metric


@dataclass(kw_only=True)
class LoadRatioOptions(Place):
    """Keys of `gates.<name>.options`."""

    min_ratio: float = 0.0
    """With `margin: 0`: how many times as good the candidate must be; 0: `margin` says what it may lose."""


class LoadRatio(SpeedGate):
    """One-sided tests of log ratios over paired rounds, with the reference's second run beside them."""

    Options = LoadRatioOptions

    def __init__(self, plan: GatePlan, options: LoadRatioOptions) -> None:
        super().__init__(plan, options)
        if not plan.margin < 1:
            raise UsageError(f"gates.{plan.name}.margin is {plan.margin}; a share below 1: 0.01 is 1 % worse")

    @classmethod
    def margin_of(cls, plan: GatePlan, options: LoadRatioOptions) -> float:
        """1 - `min_ratio`, a negative loss, where 0 is written."""
        if margin_or(plan, "min_ratio", options.min_ratio):
            return plan.margin
        if not 1 <= options.min_ratio < math.inf:
            raise UsageError(
                f"gates.{plan.name}.options.min_ratio is {options.min_ratio}; a gain of 1 or more (a loss is a `margin`)"
            )
        return round(1 - options.min_ratio, 12)

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """Numbers of a block of load."""
        return metric is not None and metric.kind == "ratio"

    def judge(self, load: Load, evidence: Evidence) -> Judged:
        """See `SpeedGate.judge`."""
        rounds, alpha, margin = self.rounds(load), evidence.alpha, self.plan.margin
        if rounds is None:
            return self.nothing("no round of load was run")
        less = rounds.metric.less
        claim = beside_floor(rounds.reference, rounds.candidate, rounds.again, margin, alpha, less)
        ratio = claim.ratio
        numbers = beside(ratio, claim.floor, alpha)
        estimate = estimate_of(ratio)
        if why := self.thin(ratio.n, load):
            return self.nothing(f"cannot tell here: {why}", estimate=estimate)
        if not ratio.interval:
            return self.nothing(f"cannot tell here: {ratio.method}", estimate=estimate)
        outcome = outcome_of(ratio.p_go, ratio.p_nogo, alpha)
        if outcome is CheckOutcome.UNDECIDED:
            words = cannot_tell(ratio, margin, alpha)
            return self.nothing(f"{words}: {numbers}", estimate=estimate, needed=ratio.needed)
        if why := refusal(claim, margin, outcome, less):
            return self.nothing(f"cannot tell here: {why}: {numbers}", estimate=estimate)
        reason = f"{self._words(outcome)}: {numbers}"
        return Judged(outcome=outcome, reason=reason, estimate=estimate, p_go=ratio.p_go, p_nogo=ratio.p_nogo)

    def _words(self, outcome: CheckOutcome) -> str:
        metric, margin, passed = self.plan.metric, self.plan.margin, outcome is CheckOutcome.PASSED
        if margin < 0:
            gain = f"{1 - margin:.4g} times as good"
            return f"{metric} is at least {gain}" if passed else f"{metric} is not {gain}"
        loss = f"{100 * margin:.3g} %"
        return f"{metric}: a loss of {loss} is excluded" if passed else f"{metric}: a loss above {loss} is shown"
