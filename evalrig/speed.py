"""What the gates on rounds of load share: nothing gates where the engine's speed is no evidence, nothing is claimed from too
few rounds, and no claim counts that the reference's second run could make against the reference."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from evalrig.analysis.load_floor import Claim
from evalrig.analysis.load_ratio import Ratio
from evalrig.errors import UsageError
from evalrig.gate import Evidence, Gate
from evalrig.levels import at_level, at_slo, concurrency_of, level_name, levels_in, lost, over_levels
from evalrig.loads import Load, Rounds
from evalrig.plan import GatePlan, SuitePlan
from evalrig.types import REFERENCE, Check, CheckOutcome, Estimate

EMULATION = "emulated formats: speed is not evidence"
MOST_LOST = 1 / 3
"""Share of rounds without both halves above which the rest is no fair draw of them."""
DECIDED = (CheckOutcome.PASSED, CheckOutcome.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a gate found of a load, before it is a check."""

    outcome: CheckOutcome
    reason: str
    estimate: Estimate | None = None
    needed: int | None = None
    p_go: float = 1.0
    p_nogo: float = 1.0


@dataclass(kw_only=True)
class Where:
    """Key of `gates.<name>.options` of gates on suites with several concurrencies."""

    concurrency: int = 0
    """Judge the rounds of this one alone; 0: all of them, a round as one."""


@dataclass(kw_only=True)
class Place(Where):
    """Keys of those that compare both arms."""

    at_slo: bool = False
    """Judge each arm at the most load at which it is shown to keep the suite's `slo`."""


class SpeedGate(Gate):
    """A gate on rounds of load. Speed says nothing of answers: in a run that also measures answers its pass earns no GO."""

    earns: ClassVar[bool] = False
    timed: ClassVar[bool] = True
    """False: it judges what is as true of emulated formats, such as memory."""

    def check(self, evidence: Evidence) -> Check:
        """See `Gate.check`."""
        load = evidence.loads.get(self.plan.suite)
        if load is None:
            return self.undecided("no round of load was run")
        found = self._found(load, evidence)
        decided = found.outcome in DECIDED
        check = Check(
            gate=self.plan.name,
            suite=self.plan.suite,
            outcome=found.outcome,
            reason=found.reason,
            estimate=found.estimate,
            needed=None if decided else found.needed,
            gating=self.plan.gating,
            p_go=found.p_go if decided else 1.0,  # whatever held a check back must not decide elsewhere
            p_nogo=found.p_nogo if decided else 1.0,
        )
        if not (self.timed and load.emulated):
            return check
        return replace(check, gating=False, reason=f"{EMULATION} ({load.emulated}); never gates: {check.reason}")

    @classmethod
    def unfit(cls, options: Any, suite: SuitePlan) -> str:
        """See `Gate.unfit`."""
        if not isinstance(options, Where):
            return ""
        at_slo = isinstance(options, Place) and options.at_slo
        if options.concurrency and at_slo:
            return "options: both `concurrency` and `at_slo`; give one"
        if at_slo and "goodput" not in {metric.name for metric in suite.metrics}:
            return f"options.at_slo: suites.{suite.name}.options.slo has no limit; set one"
        levels = levels_in(suite.samples)
        if options.concurrency and level_name(options.concurrency) not in levels:
            known = ", ".join(str(concurrency_of(level)) for level in levels if level)
            known = f"known: {known}" if known else f"{suite.name} has one alone; leave it out"
            return f"options.concurrency: {options.concurrency} is none of the suite's; {known}"
        return ""

    def _found(self, load: Load, evidence: Evidence) -> Judged:
        """Of the rounds that the options choose, and said of which."""
        if isinstance(self.options, Place) and self.options.at_slo:
            return self._at_slo(load, evidence)
        if isinstance(self.options, Where) and (lanes := self.options.concurrency):
            found = self._part(at_level(load, level_name(lanes)), evidence)
            return replace(found, reason=f"{found.reason}; at {lanes} requests at once")
        return self._part(load, evidence)

    def _at_slo(self, load: Load, evidence: Evidence) -> Judged:
        points = at_slo(load, evidence.candidate, evidence.alpha)
        if isinstance(points, str):
            return self.nothing(f"cannot tell here: {points}")
        found = self._part(points.seen, evidence)
        if not points.sure and found.outcome in DECIDED:
            passed = found.outcome is CheckOutcome.PASSED
            worst = self._part(points.against_candidate if passed else points.for_candidate, evidence)
            if worst.outcome is found.outcome:
                found = worst
            else:
                words = f"cannot tell here: the SLO points are not sure, and it rests on them: {found.reason}"
                found = self.nothing(words, estimate=found.estimate)
        return replace(found, reason=f"{found.reason}; {points.where}")

    def _part(self, load: Load, evidence: Evidence) -> Judged:
        lacking = _too_many_lost(load, evidence.candidate) if self.timed else None
        return lacking or self.judge(load, evidence)

    def rounds(self, load: Load) -> Rounds | None:
        """Of the gate's metric, a round as one; None: no round was run."""
        found = over_levels(load).get(self.plan.metric)
        return found if found is not None and found.names else None

    def thin(self, n: int, load: Load) -> str:
        """Why so many rounds with the metric are too few of those that were run; empty: they are not."""
        planned = lost(load, REFERENCE)[1]
        if n >= (1 - MOST_LOST) * planned:
            return ""
        return f"only {n} of {planned} rounds have {self.plan.metric} in both arms; the rest is no fair draw of them"

    def judge(self, load: Load, evidence: Evidence) -> Judged:
        """What the rounds say."""
        raise NotImplementedError

    def nothing(self, reason: str, **more: Any) -> Judged:
        """No judgement, and why."""
        return Judged(outcome=CheckOutcome.UNDECIDED, reason=reason, **more)


def margin_or(plan: GatePlan, key: str, instead: float) -> bool:
    """Whether the margin stands as written; False: `instead`, the option `key`, says it.

    Raises:
        UsageError: both are given.
    """
    if plan.margin and instead:
        raise UsageError(f"gates.{plan.name}: both `margin` and `options.{key}`; give one, the other 0")
    return bool(plan.margin)


def _too_many_lost(load: Load, candidate: str) -> Judged | None:
    gone, planned = lost(load, candidate)
    if planned and gone <= MOST_LOST * planned:
        return None
    reasons = list(dict.fromkeys(line for lines in load.void.values() for line in lines))
    first = f", such as {reasons[0]}" if reasons else ""
    return Judged(
        outcome=CheckOutcome.UNDECIDED,
        reason=f"{gone} of {planned} rounds lack a half that counts; the rest is no fair draw of them{first}",
    )


def refusal(claim: Claim, margin: float, outcome: CheckOutcome, less: bool) -> str:
    """Why a claim that the numbers make must not be made; empty: it may.

    That something is gained, or lost, is a claim of a difference: it must lie beyond the noise floor. That no more than the
    margin is lost must be shown of the reference's second run too, unless a gain is beyond doubt. And every claim must be
    further from its bound than the reference is from itself, for it could be off by as much.
    """
    if outcome not in DECIDED:
        return ""
    floor = claim.floor
    if floor is None or not floor.interval:
        return "no A/A interval: what no difference looks like here is not known; raise `again` or the rounds"
    bound = math.log1p(-margin)
    value = math.log(claim.ratio.value) * (-1.0 if less else 1.0)
    difference = bound >= 0 if outcome is CheckOutcome.PASSED else bound <= 0
    if difference and not claim.resolved:
        return "not beyond what the reference differs from itself"
    worst = -math.log(floor.high) if less else math.log(floor.low)
    if outcome is CheckOutcome.PASSED and not difference and not (claim.resolved and value > 0) and worst <= bound:
        return "the same cannot be shown of the reference's own second run; more rounds would"
    if abs(value - bound) <= abs(math.log(floor.value)):
        return "nearer to its bound than the reference is to itself"
    return ""


def beside(ratio: Ratio, floor: Ratio | None, alpha: float) -> str:
    """The ratio with its interval, and A/A beside it."""
    shown = f"candidate / reference {ratio.value:.4g}"
    if ratio.interval:
        shown += f", {100 * (1 - 2 * alpha):g} % interval {ratio.low:.4g} to {ratio.high:.4g}"
    counted = f", {ratio.n} {'round' if ratio.n == 1 else 'rounds'}"
    if floor is None:
        return f"{shown}{counted}; no A/A rounds"
    again = f" ({floor.low:.4g} to {floor.high:.4g})" if floor.interval else f" ({floor.method})"
    return f"{shown}{counted}; A/A {floor.value:.4g}{again}"


def estimate_of(ratio: Ratio) -> Estimate:
    """As a check holds it."""
    return Estimate(
        value=ratio.value if math.isfinite(ratio.value) else None,
        low=ratio.low if ratio.interval else None,
        high=ratio.high if ratio.interval else None,
        n=ratio.n,
        method=ratio.method,
        units="candidate / reference",
    )
