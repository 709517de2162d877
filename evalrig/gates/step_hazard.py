"""Do steps go wrong more often than the reference's, by more than a margin that a whole task can bear?

The margin is in errors per step: 0.002 is 0.2 points. Or it is derived, before the run, from what a task may lose. A veto: it sees
small damage long before whole tasks fail, but not how a model recovers, so that only a score can earn a GO.
"""

from dataclasses import dataclass, replace

from evalrig.analysis.hazard import Excess, Tally, excess_hazard, margin_per_step
from evalrig.analysis.missing import DIFFERENTIAL_BELOW
from evalrig.errors import UsageError
from evalrig.gate import Evidence, Gate, outcome_of
from evalrig.horizon import Of
from evalrig.plan import GatePlan
from evalrig.types import Check, CheckOutcome, Estimate, Metric

CEILING = 0.9
"""A reference that errs in more steps than this leaves no room to err more."""
NAMES: dict[Of, str] = {"any": "errors", "invalid": "invalid calls", "divergence": "steps unlike the reference's"}


@dataclass(kw_only=True)
class StepHazardOptions:
    """Keys of `gates.<name>.options`."""

    of: str = "any"
    """What counts: `any` error, `invalid` calls (no JSON, no such tool, not its schema), or `divergence` from the reference
    beyond that of its own second run."""
    task_margin: float = 0.0
    """With `margin: 0`: what the success rate of a task may lose, as a fraction; the margin per step follows from it."""
    reference_success: float = 0.6
    """Success rate of the reference that is assumed for that."""
    horizon: int = 30
    """Steps of such a task."""
    max_missing: float = 0.05
    """Largest share of attempts that an arm may lose."""


class StepHazard(Gate):
    """Excess errors per step over paired attempts: cluster-robust t, or exact bounds where errors are few."""

    Options = StepHazardOptions
    earns = False

    def __init__(self, plan: GatePlan, options: StepHazardOptions) -> None:
        super().__init__(plan, options)
        where = f"gates.{plan.name}.options"
        if options.of not in NAMES:
            raise UsageError(f"{where}.of is {options.of!r}; one of {', '.join(NAMES)}")
        if not 0 < plan.margin < 1:
            raise UsageError(f"gates.{plan.name}.margin is {plan.margin}; errors per step, above 0 and below 1")
        if not 0 <= options.max_missing < 1:
            raise UsageError(f"{where}.max_missing is {options.max_missing}; a share, 0 or more and below 1")
        self.of: Of = next(name for name in NAMES if name == options.of)

    @classmethod
    def margin_of(cls, plan: GatePlan, options: StepHazardOptions) -> float:
        """-ln(1 - task_margin / reference_success) / horizon where 0 is written."""
        if plan.margin and options.task_margin:
            raise UsageError(f"gates.{plan.name}: both `margin` and `options.task_margin`; give one, the other 0")
        if plan.margin:
            return plan.margin
        try:
            return margin_per_step(options.task_margin, options.reference_success, options.horizon)
        except ValueError as error:
            raise UsageError(
                f"gates.{plan.name}.options: {error}; give a `task_margin` above 0 and below `reference_success`"
            ) from error

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """No metric: it reads the steps. One may be named all the same, if it is a score."""
        return metric is None or metric.kind in ("binary", "continuous")

    def check(self, evidence: Evidence) -> Check:
        """See `Gate.check`."""
        found = evidence.horizons.get(self.plan.suite)
        if found is None:
            return self.undecided("no attempt that both arms ended has steps: there is nothing to judge along the way")
        arms = found.sides(self.of)
        if arms is None:
            return self.undecided("the reference was not run again, so nothing tells how far it parts from itself")
        reference, candidate, cluster = arms
        if not (reference.steps.sum() and candidate.steps.sum()):
            return self.undecided("an arm has no step")
        test = excess_hazard(reference, candidate, self.plan.margin, cluster, evidence.alpha)
        outcome = outcome_of(test.p_go, test.p_nogo, evidence.alpha)
        lost = found.lost
        gone = f"attempts lost: {lost.reference} of the reference, {lost.candidate} of the candidate, of {lost.planned}"
        if lost.p < DIFFERENTIAL_BELOW:
            reason = f"{gone}; the arms lose attempts unequally (p = {lost.p:.2g}): stability, not accuracy"
            return self._check(test, CheckOutcome.INVALID, reason, len(reference.steps))
        if lost.share > self.options.max_missing:
            reason = f"{gone}; more than {self.options.max_missing:.3g} of them"
            return self._check(test, CheckOutcome.UNDECIDED, reason, len(reference.steps))
        if test.reference > CEILING and outcome is not CheckOutcome.FAILED:
            reason = f"no assay sensitivity: {test.reference:.1%} of the reference's own steps are {NAMES[self.of]}"
            check = self._check(test, CheckOutcome.UNDECIDED, reason, len(reference.steps))
            return replace(check, needed=None)  # more of the same would not help
        words = self._words(test, outcome, evidence.alpha, reference, candidate)
        return self._check(test, outcome, words, len(reference.steps))

    def _words(self, test: Excess, outcome: CheckOutcome, alpha: float, reference: Tally, candidate: Tally) -> str:
        own = "reference against itself" if self.of == "divergence" else "reference"
        seen = (
            f"{100 * test.value:+.2g} points per step, {100 * (1 - 2 * alpha):g} % interval {100 * test.low:+.2g} to "
            f"{100 * test.high:+.2g}; {own} {reference.errors.sum():.0f} in {reference.steps.sum():,.0f} steps, "
            f"candidate {candidate.errors.sum():.0f} in {candidate.steps.sum():,.0f}, {len(reference.steps)} attempts"
        )
        margin = f"{100 * self.plan.margin:.3g} points per step"
        if outcome is CheckOutcome.PASSED:
            return f"an excess of {NAMES[self.of]} of {margin} is excluded: {seen}"
        if outcome is CheckOutcome.FAILED:
            return f"more {NAMES[self.of]} than the reference by over {margin} are shown: {seen}"
        need = f"; needs about {test.needed:,} attempts" if test.needed else ""
        return f"cannot decide an excess of {NAMES[self.of]} of {margin}: {seen}{need}"

    def _check(self, test: Excess, outcome: CheckOutcome, reason: str, attempts: int) -> Check:
        decided = outcome in (CheckOutcome.PASSED, CheckOutcome.FAILED)
        return Check(
            gate=self.plan.name,
            suite=self.plan.suite,
            outcome=outcome,
            reason=reason,
            estimate=Estimate(
                value=test.value, low=test.low, high=test.high, n=attempts, method=test.method, units="errors per step"
            ),
            needed=test.needed if outcome is CheckOutcome.UNDECIDED else None,
            gating=self.plan.gating,
            p_go=test.p_go if decided else 1.0,  # whatever held a check back must not decide elsewhere
            p_nogo=test.p_nogo if decided else 1.0,
        )
