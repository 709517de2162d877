"""Does the distance grow along the answer, as an error that accumulates in the KV cache would make it?

The margin is relative growth per doubling of the position: 0.05 is 5 %. Growth below it is what unequal texts show as well;
at 5 % the distance at token 65,536 is 1.6 times that at token 64. A veto: that nothing grows is no reason for GO.
"""

import math
from dataclasses import dataclass

from evalrig.analysis.growth import FIRST_POSITION, Growth, growth_against
from evalrig.analysis.paired import MIN_CLUSTERS
from evalrig.gate import Evidence, Gate, outcome_of
from evalrig.types import Check, CheckOutcome, Estimate, Metric


@dataclass(kw_only=True)
class PositionGrowthOptions:
    """Keys of `gates.<name>.options`: none."""


class PositionGrowth(Gate):
    """Slope of the logarithm of KL on that of the position in each answer, t over prompts."""

    Options = PositionGrowthOptions
    earns = False

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """Distances."""
        return metric is not None and metric.kind == "distance"

    def check(self, evidence: Evidence) -> Check:
        """See `Gate.check`."""
        answers = evidence.answers.get(self.plan.suite)
        found = answers.growth if answers else None
        if found is None:
            return self.undecided(
                f"no answer holds two tokens beyond position {FIRST_POSITION:.0f}, where growth is looked for; raise the suite's `tokens`"
            )
        if found.prompts < MIN_CLUSTERS:
            return self.undecided(f"{found.prompts} prompts reach far enough; at least {MIN_CLUSTERS} are needed")
        below, above = growth_against(found, self.plan.margin, evidence.alpha)
        outcome = outcome_of(below, above, evidence.alpha)
        return Check(
            gate=self.plan.name,
            suite=self.plan.suite,
            outcome=outcome,
            reason=self._words(found, outcome, evidence.alpha),
            estimate=Estimate(
                value=found.per_doubling,
                low=_finite(found.low),
                high=_finite(found.high),
                n=found.prompts,
                method="slope of ln KL on log2 of the position, t over prompts",
                units="per doubling of the position",
            ),
            gating=self.plan.gating,
            p_go=below,
            p_nogo=above,
        )

    def _words(self, found: Growth, outcome: CheckOutcome, alpha: float) -> str:
        seen = (
            f"{found.per_doubling:+.1%} per doubling of the position ({100 * (1 - 2 * alpha):g} % interval "
            f"{found.low:+.1%} to {found.high:+.1%}), {found.prompts} prompts"
        )
        margin = f"{100 * self.plan.margin:.3g} %"
        if outcome is CheckOutcome.FAILED:
            return f"the distance grows along the answer by more than {margin} per doubling: {seen}"
        if outcome is CheckOutcome.PASSED:
            return f"growth of {margin} per doubling is excluded: {seen}"
        return f"cannot tell whether the distance grows by {margin} per doubling: {seen}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
