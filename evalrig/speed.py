"""What the gates on rounds of load share: nothing gates where the engine's speed is no evidence, nothing is claimed from too
few rounds, and no claim counts that the reference's second run could make against the reference."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from evalrig.analysis.load_floor import Claim
from evalrig.analysis.load_ratio import Ratio
from evalrig.gate import Evidence, Gate
from evalrig.loads import Load
from evalrig.types import Check, CheckOutcome, Estimate

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
        found = _too_many_lost(load, evidence.candidate) if self.timed else None
        found = found or self.judge(load, evidence)
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

    def judge(self, load: Load, evidence: Evidence) -> Judged:
        """What the rounds say."""
        raise NotImplementedError

    def nothing(self, reason: str, **more: Any) -> Judged:
        """No judgement, and why."""
        return Judged(outcome=CheckOutcome.UNDECIDED, reason=reason, **more)


def _too_many_lost(load: Load, candidate: str) -> Judged | None:
    planned, lost = len(load.names), load.lost(candidate)
    if planned and lost <= MOST_LOST * planned:
        return None
    reasons = list(dict.fromkeys(line for lines in load.void.values() for line in lines))
    first = f", such as {reasons[0]}" if reasons else ""
    return Judged(
        outcome=CheckOutcome.UNDECIDED,
        reason=f"{lost} of {planned} rounds lack a half that counts; the rest is no fair draw of them{first}",
    )


def refusal(claim: Claim, margin: float, outcome: CheckOutcome, less: bool) -> str:
    """Why a claim that the numbers make must not be made; empty: it may.

    That something is gained, or lost, is a claim of a difference: it must lie beyond the noise floor. And every claim must
    be further from its bound than the reference is from itself, for it could be off by as much.
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
