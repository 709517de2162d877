"""Can any success rate of these prompts have changed by more than the margin? A bound for every grader at once.

The margin is a fraction: 0.05 is five points. A pass claims that no event of the measured tokens changes its
probability by more; a failure claims that some event does, which need not be one that anybody grades. So it never
earns a GO. Long answers move too far for it: they are undecided, which says nothing about the candidate.
"""

from dataclasses import dataclass

from evalrig.analysis.certificate import Certificate as Bound
from evalrig.analysis.paired import MIN_CLUSTERS
from evalrig.analysis.responses import BEGINNING, Parts, Responses, sampled_kl, sequence_certificate, tv_against
from evalrig.errors import UsageError
from evalrig.gate import Evidence, Gate, outcome_of
from evalrig.plan import GatePlan
from evalrig.types import Check, CheckOutcome, Estimate, Metric

PARTS = {
    "response": "whole responses, as far as they were measured",
    "beginning": f"the first {BEGINNING} tokens of responses",
    "call": "single tool calls",
}


@dataclass(kw_only=True)
class CertificateOptions:
    """Keys of `gates.<name>.options`."""

    part: str = "response"
    """`response`; `beginning`: answers that its first tokens decide; `call`: one tool call."""


class Certificate(Gate):
    """Upper limit of the total variation between both sides' responses, by bets over prompts."""

    Options = CertificateOptions
    earns = False

    def __init__(self, plan: GatePlan, options: CertificateOptions) -> None:
        super().__init__(plan, options)
        if options.part not in PARTS:
            raise UsageError(f"gates.{plan.name}.options.part: no part {options.part!r}; give {', '.join(PARTS)}")
        if not 0 < plan.margin < 1:
            raise UsageError(f"gates.{plan.name}.margin is {plan.margin}; a fraction between 0 and 1: 0.05 is 5 points")
        self.options: CertificateOptions = options

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """Distances."""
        return metric is not None and metric.kind == "distance"

    def check(self, evidence: Evidence) -> Check:
        """See `Gate.check`."""
        answers = evidence.answers.get(self.plan.suite)
        if answers is None:
            return self.undecided("no response was scored in both arms")
        found = answers.responses
        parts = _parts(found, self.options.part)
        if reason := _refusal(found, parts, PARTS[self.options.part]):
            return self.undecided(reason)
        bound = sequence_certificate(found, parts, evidence.alpha)
        below, above = tv_against(parts, self.plan.margin)
        outcome = outcome_of(below, above, evidence.alpha)
        reason = f"{self._words(bound, outcome)}{self._limits(found, parts)}"
        doubtful = bound.assumptions if outcome is CheckOutcome.PASSED else _unlike(found, evidence.alpha)
        if doubtful and outcome is not CheckOutcome.UNDECIDED:
            outcome, below, above = CheckOutcome.UNDECIDED, 1.0, 1.0
            reason = f"held back, it would rest on this: {'; '.join(doubtful)} ({reason})"
        return Check(
            gate=self.plan.name,
            suite=self.plan.suite,
            outcome=outcome,
            reason=reason,
            estimate=Estimate(
                value=bound.estimate,
                low=None,
                high=bound.bound,
                n=bound.prompts,
                method=bound.method,
                units="total variation",
            ),
            gating=self.plan.gating,
            p_go=below,
            p_nogo=above,
        )

    def _words(self, bound: Bound, outcome: CheckOutcome) -> str:
        where = f"{PARTS[self.options.part]}; {bound.prompts} prompts, estimate {100 * bound.estimate:.2g} points"
        points = f"{100 * bound.bound:.3g} points"
        margin = f"{100 * self.plan.margin:.3g} points"
        if outcome is CheckOutcome.PASSED:
            return f"no success rate of these prompts can change by more than {points} ({where})"
        if outcome is CheckOutcome.FAILED:
            return f"some event of the responses changes by more than {margin}, though perhaps none that is graded ({where})"
        empty = ", which is vacuous: too far for a bound, and no sign of a loss" if bound.status == "vacuous" else ""
        return f"cannot certify {margin}: the bound is {points}{empty} ({where})"

    def _limits(self, found: Responses, parts: Parts) -> str:
        """What the bound does not speak of."""
        cut = found.cut if self.options.part == "response" else 0
        words = f"; {cut} of them were cut: said of the first {int(parts.tokens.max())} tokens only" if cut else ""
        return words + (f"; {found.given} given streams left out" if found.given else "")


def _parts(found: Responses, part: str) -> Parts:
    return {"response": found.whole, "beginning": found.beginning, "call": found.calls}[part]


def _unlike(found: Responses, alpha: float) -> tuple[str, ...]:
    """Why a failure may be that of the log-probabilities. By token: far models keep whole responses from the mean of 1."""
    k3 = sampled_kl(found, alpha)
    if k3.consistent:
        return ()
    return (f"the mean of q/p over tokens is {k3.mean_ratio:.3g} and not 1, yet the logprobs are those drawn from",)


def _refusal(found: Responses, parts: Parts, words: str) -> str:
    """Why nothing can be said; empty where something can."""
    prompts = len(set(parts.prompt.tolist()))
    if found.broken:
        return f"{found.broken} responses hold a log-probability that is none"
    if reason := found.drawn.refusal():
        return reason
    if prompts < MIN_CLUSTERS:
        return f"{words} of {prompts} prompts were drawn from the reference; at least {MIN_CLUSTERS} are needed"
    return ""
