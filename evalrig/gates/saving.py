"""Does the candidate save enough of a cost? The margin is the least saving as a share: 0.2 is "at least 20 % cheaper"."""

from dataclasses import dataclass

from evalrig.analysis.cost import least_as_margin, saved
from evalrig.analysis.load_floor import beside_floor
from evalrig.analysis.load_ratio import cannot_tell
from evalrig.errors import UsageError
from evalrig.gate import Evidence, outcome_of
from evalrig.loads import Load
from evalrig.plan import GatePlan
from evalrig.speed import Judged, Place, SpeedGate, beside, estimate_of, refusal
from evalrig.types import CheckOutcome, Metric

COST = "usd"
"""How the name of a cost begins."""


@dataclass(kw_only=True)
class SavingOptions(Place):
    """Keys of `gates.<name>.options`."""


class Saving(SpeedGate):
    """Lower limit of the saving over paired rounds against a declared minimum."""

    Options = SavingOptions

    def __init__(self, plan: GatePlan, options: SavingOptions) -> None:
        super().__init__(plan, options)
        if not 0 < plan.margin < 1:
            raise UsageError(f"gates.{plan.name}.margin is {plan.margin}; the least saving, above 0 and below 1")

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """Costs of a load."""
        return metric is not None and metric.kind == "ratio" and metric.less and metric.name.startswith(COST)

    def judge(self, load: Load, evidence: Evidence) -> Judged:
        """See `SpeedGate.judge`."""
        rounds, alpha = self.rounds(load), evidence.alpha
        if rounds is None:
            return self.nothing("no round of load was run")
        margin = least_as_margin(self.plan.margin)
        claim = beside_floor(rounds.reference, rounds.candidate, rounds.again, margin, alpha, less=True)
        costs, estimate = claim.ratio, estimate_of(claim.ratio)
        if not costs.n:
            return self.nothing(
                "no round has a cost on both sides; set a price in the suite's options", estimate=estimate
            )
        if why := self.thin(costs.n, load):
            return self.nothing(f"cannot tell here: {why}", estimate=estimate)
        if not costs.interval:
            return self.nothing(f"cannot tell here: {costs.method}", estimate=estimate)
        found, least = saved(costs), f"{100 * self.plan.margin:.3g} %"
        numbers = (
            f"{100 * found.value:.3g} % saved, {100 * (1 - 2 * alpha):g} % interval {100 * found.low:.3g} to "
            f"{100 * found.high:.3g} %; {beside(costs, claim.floor, alpha)}"
        )
        outcome = outcome_of(costs.p_go, costs.p_nogo, alpha)
        if outcome is CheckOutcome.UNDECIDED:
            words = cannot_tell(costs, margin, alpha)
            return self.nothing(f"{words} (a saving of {least}): {numbers}", estimate=estimate, needed=costs.needed)
        if why := refusal(claim, margin, outcome, less=True):
            return self.nothing(f"cannot tell here: {why}: {numbers}", estimate=estimate)
        words = f"saves at least {least}" if outcome is CheckOutcome.PASSED else f"does not save {least}"
        reason = f"{words} of {self.plan.metric}: {numbers}"
        return Judged(outcome=outcome, reason=reason, estimate=estimate, p_go=costs.p_go, p_nogo=costs.p_nogo)
