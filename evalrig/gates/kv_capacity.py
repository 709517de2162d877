"""Does the candidate hold enough tokens of KV cache? What the engines report, which counts for emulated formats too.

The margin is the largest tolerated loss as a share; or `min_ratio`, with `margin: 0`, is how many times the reference's tokens
it must hold. It is read back, not sampled: there is no interval.
"""

import math
from dataclasses import dataclass

from evalrig.analysis.capacity import capacity_ratio
from evalrig.errors import UsageError
from evalrig.gate import Evidence
from evalrig.loads import Load
from evalrig.plan import GatePlan
from evalrig.speed import Judged, SpeedGate, margin_or
from evalrig.types import REFERENCE, Capacity, CheckOutcome, Estimate, Metric


@dataclass(kw_only=True)
class KvCapacityOptions:
    """Keys of `gates.<name>.options`."""

    min_ratio: float = 0.0
    """With `margin: 0`: how many times the reference's KV tokens; 0: `margin` says what may be lost."""


class KvCapacity(SpeedGate):
    """KV tokens of the candidate over the reference's."""

    Options = KvCapacityOptions
    timed = False

    def __init__(self, plan: GatePlan, options: KvCapacityOptions) -> None:
        super().__init__(plan, options)
        if not plan.margin < 1:
            raise UsageError(f"gates.{plan.name}.margin is {plan.margin}; a share below 1: 0.02 is 2 % fewer tokens")

    @classmethod
    def margin_of(cls, plan: GatePlan, options: KvCapacityOptions) -> float:
        """1 - `min_ratio` where 0 is written."""
        if margin_or(plan, "min_ratio", options.min_ratio):
            return plan.margin
        if not 0 < options.min_ratio < math.inf:
            raise UsageError(f"gates.{plan.name}.options.min_ratio is {options.min_ratio}; above 0: 1.9 is 1.9 times")
        return round(1 - options.min_ratio, 12)

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """No metric: it reads what the engines hold. One of a load may be named all the same."""
        return metric is None or metric.kind == "ratio"

    def judge(self, load: Load, evidence: Evidence) -> Judged:
        """See `SpeedGate.judge`."""
        arms = (load.capacity.get(REFERENCE, Capacity()), load.capacity.get(evidence.candidate, Capacity()))
        found, wanted = capacity_ratio(*arms), 1 - self.plan.margin
        if math.isnan(found.tokens):
            return self.nothing("an engine does not say how many tokens its KV pool holds")
        passed = found.tokens >= wanted
        seen = f"{arms[1].kv_tokens:,} KV tokens, the reference {arms[0].kv_tokens:,}: {found.words}"
        asked = f"{'holds' if passed else 'does not hold'} {wanted:.4g} times the reference's KV tokens"
        return Judged(
            outcome=CheckOutcome.PASSED if passed else CheckOutcome.FAILED,
            reason=f"{asked}: {seen}",
            estimate=Estimate(
                value=found.tokens,
                low=None,
                high=None,
                n=1,
                method="as the engines report",
                units="candidate / reference",
            ),
            p_go=0.0 if passed else 1.0,
            p_nogo=1.0 if passed else 0.0,
        )
