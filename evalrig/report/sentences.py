"""The sentence a reviewer signs, one for each candidate, made from the checks and the margins registered for them."""

from collections.abc import Mapping, Sequence

from evalrig.plan import GatePlan, Plan
from evalrig.report.words import amount, count, interval, level, listed, margin_words, short, significant, units
from evalrig.types import CandidateVerdict, Check, CheckOutcome, Estimate, Metric, Outcome

MOST_REASONS = 4

OWN: Mapping[str, Metric] = {
    "position_growth": Metric(name="growth", kind="distance", units="% per doubling", scale=100.0),
    "step_hazard": Metric(name="step errors", kind="distance", units="points per step", scale=100.0),
    "certificate": Metric(name="certificate", kind="distance", units="points", scale=100.0),
    "failure_drift": Metric(name="failures", kind="binary", units="points", scale=100.0),
    "load_ratio": Metric(name="speed", kind="ratio", units="%", scale=100.0),
    "saving": Metric(name="saving", kind="ratio", units="%", scale=100.0),
    "slo": Metric(name="requests outside the SLO", kind="ratio", units="%", scale=100.0),
    "kv_capacity": Metric(name="KV tokens", kind="ratio", units="%", scale=100.0),
}
"""Kinds of gates whose margin is not in the units of the metric that they are named with."""

MEANING = {
    Outcome.GO: "every gating check excludes a loss as large as its margin",
    Outcome.NO_GO: "at least one gating check shows a loss beyond its margin",
    Outcome.INCONCLUSIVE: "the data cannot decide; this blocks a release like NO-GO, and asks for more data",
    Outcome.INVALID: "the measurement cannot be trusted, so it says nothing about the candidate",
    Outcome.REHEARSAL: "every step was gone through with few samples; nothing is said about the candidate",
}


def title(outcome: Outcome, rehearsal: bool) -> str:
    """The outcome of a run where nothing stands beside it."""
    if not rehearsal:
        return outcome
    return "REHEARSAL (no verdict)" if outcome is Outcome.REHEARSAL else f"REHEARSAL: {outcome}"


def headline(name: str, verdict: CandidateVerdict, plan: Plan) -> str:
    """Verdict and grounds in one sentence."""
    if verdict.outcome is Outcome.GO:
        return f"GO: {name} {listed(_claims(verdict, plan, CheckOutcome.PASSED))}"
    if verdict.outcome is Outcome.NO_GO:
        parts = [f"NO-GO: {name} {listed(_claims(verdict, plan, CheckOutcome.FAILED))}"]
        return "; ".join([*parts, *_others(verdict, plan)])
    words = list(verdict.reasons[:MOST_REASONS])
    if (more := len(verdict.reasons) - len(words)) > 0:
        words.append(f"and {count(more, 'further reason')}")
    others = _others(verdict, plan) if verdict.outcome is Outcome.INCONCLUSIVE else []
    first = words[0] if words else "no reason was given"
    subject = "" if first.startswith(name) else f"{name}: "
    return "; ".join([f"{verdict.outcome}: {subject}{first}", *words[1:], *others])


def metric_of(gate: GatePlan | None, plan: Plan) -> Metric | None:
    """The metric a gate judges, in whose units its margin is; None for a gate that names none, or is not of this plan."""
    if gate and gate.kind in OWN:
        return OWN[gate.kind]
    suite = next((suite for suite in plan.suites if gate and suite.name == gate.suite), None)
    return next((metric for metric in suite.metrics if gate and metric.name == gate.metric), None) if suite else None


def gate_of(check: Check, plan: Plan) -> GatePlan | None:
    """The registered gate behind a check."""
    return next((gate for gate in plan.gates if gate.name == check.gate), None)


def _claims(verdict: CandidateVerdict, plan: Plan, outcome: CheckOutcome) -> list[str]:
    """What the gating checks of one outcome found; scores before distances, as people ask."""
    found = [(check, gate_of(check, plan)) for check in verdict.checks if check.gating and check.outcome is outcome]
    known = [(check, gate, metric_of(gate, plan)) for check, gate in found]
    known.sort(key=lambda one: one[2] is not None and one[2].kind == "distance")
    claims = [_claim(check, gate, metric, plan.header.alpha) for check, gate, metric in known]
    return claims or list(verdict.reasons) or ["has no gating check"]


def _claim(check: Check, gate: GatePlan | None, metric: Metric | None, alpha: float) -> str:
    """A phrase that follows the candidate's name."""
    if gate is None or metric is None or check.estimate is None or gate.kind in OWN:
        return f"on {check.suite}: {check.reason}"
    margin, passed = margin_words(gate.margin, metric), check.outcome is CheckOutcome.PASSED
    value = check.estimate.value
    if metric.kind == "distance":
        if passed:
            return f"stays below the veto on distance ({_above(value)} of {margin})"
        return f"moves the token distribution by {_above(value)} {units(metric)} above the noise floor, veto at {short(gate.margin)}"
    words = "loses no more than" if passed else "loses more than"
    return f"{words} {margin} on {check.suite} ({_numbers(check.estimate, metric, alpha)})"


def _others(verdict: CandidateVerdict, plan: Plan) -> list[str]:
    """What the gating checks that did not decide say, so that a NO-GO is not read as bad everywhere."""
    phrases: list[str] = []
    for check in verdict.checks:
        if not check.gating or check.outcome in (CheckOutcome.FAILED, CheckOutcome.INVALID):
            continue
        gate = gate_of(check, plan)
        if check.outcome is CheckOutcome.PASSED:
            phrases.append(_beside(check, gate, metric_of(gate, plan), plan.header.alpha))
        elif verdict.outcome is Outcome.NO_GO:
            phrases.append(f"{check.suite}: {check.reason}")
    return phrases


def _beside(check: Check, gate: GatePlan | None, metric: Metric | None, alpha: float) -> str:
    """A pass, told where something else decided."""
    estimate = check.estimate
    if gate is None or metric is None or estimate is None or gate.kind in OWN:
        return f"{check.suite}: {check.reason}"
    margin = margin_words(gate.margin, metric)
    if metric.kind == "distance":
        return f"the distance stays below the veto ({_above(estimate.value)} of {margin})"
    if estimate.high is not None and estimate.high < 0:
        return f"on {check.suite} the loss is real but below {margin} ({_numbers(estimate, metric, alpha)})"
    seen = f"{amount(estimate.value, metric)}, {level(alpha)} interval {interval(estimate.low, estimate.high, metric)}"
    return f"on {check.suite} no loss is visible ({seen}); {count(estimate.n, 'sample')} can see {margin}"


def remarks(verdict: CandidateVerdict, plan: Plan) -> list[str]:
    """Diagnostic checks that saw a loss, also one within the margin: said, and without effect on the verdict."""
    return [
        _remark(check, plan)
        for check in verdict.checks
        if not check.gating and (check.outcome is CheckOutcome.FAILED or _degraded(check, plan))
    ]


def _degraded(check: Check, plan: Plan) -> bool:
    """The whole interval is a loss; a distance cannot be a gain."""
    gate = gate_of(check, plan)
    metric = metric_of(gate, plan)
    high = check.estimate.high if check.estimate else None
    if gate is None or metric is None or high is None or metric.kind == "distance" or gate.kind in OWN:
        return False
    other = plan.suite(check.suite).metrics  # beside a distance, a lower logprob is that distance once more
    return high < 0 and all(one.kind != "distance" for one in other)


def _remark(check: Check, plan: Plan) -> str:
    gate = gate_of(check, plan)
    metric = metric_of(gate, plan)
    if gate is None or metric is None or check.estimate is None or metric.kind == "distance" or gate.kind in OWN:
        return f"{check.gate} ({check.suite}): {check.reason}"
    size = {
        CheckOutcome.FAILED: "a loss beyond its margin of {} is shown",
        CheckOutcome.PASSED: "the loss is real, but below its margin of {}",
    }.get(check.outcome, "the loss is real, whether it exceeds its margin of {} is undecided")
    numbers = _numbers(check.estimate, metric, plan.header.alpha)
    return f"{metric.name} on {check.suite}: {size.format(margin_words(gate.margin, metric))} ({numbers})"


def overall(outcome: Outcome, outcomes: Sequence[Outcome], exit_code: int) -> str:
    """How the run's verdict follows from the candidates'."""
    if not outcomes:
        return f"no candidate was judged, so the run is {outcome} (exit code {exit_code})"
    if outcome is Outcome.REHEARSAL:
        return f"every step of the run was gone through, and nothing is decided (exit code {exit_code})"
    if len(outcomes) == 1:
        return f"one candidate (exit code {exit_code})"
    tally = [f"{outcomes.count(one)} {one}" for one in dict.fromkeys(outcomes)]
    return f"of {len(outcomes)} candidates the worst counts: {listed(tally)} (exit code {exit_code})"


def _numbers(estimate: Estimate, metric: Metric, alpha: float) -> str:
    limits = interval(estimate.low, estimate.high, metric)
    return f"{amount(estimate.value, metric)}, {level(alpha)} interval {limits}, {count(estimate.n, 'sample')}"


def _above(value: float | None) -> str:
    """An excess over the floor: below it, rounding and luck are all that is left."""
    return "∞" if value is None else significant(value, 2)
