"""Paired differences as shown: every candidate against the reference, and the reference against itself, on each metric."""

import numpy as np

from evalrig.analysis.paired import PairedTest, flags, noninferiority
from evalrig.evidence import Gathered
from evalrig.gate import Pairs
from evalrig.plan import GatePlan, Plan, SuitePlan
from evalrig.report.along import steps_view
from evalrig.report.failing import failing
from evalrig.report.loaded import load_view
from evalrig.report.sentences import OWN
from evalrig.report.shown import Bar, DifferenceRow, Forest, MetricView, SuiteView
from evalrig.report.words import NOISE, NOTHING, amount, count, interval, listed, margin_words, minus, p_value, units
from evalrig.types import AGAIN, Check, CheckOutcome, Metric, Verdict

READINGS = {
    CheckOutcome.PASSED: "a loss of the margin is excluded",
    CheckOutcome.FAILED: "a loss beyond the margin is shown",
    CheckOutcome.UNDECIDED: "undecided",
    CheckOutcome.INVALID: "invalid",
    CheckOutcome.EXERCISED: "exercised, no reading",
}


def suites(gathered: Gathered, verdict: Verdict) -> tuple[SuiteView, ...]:
    """All suites, in the order of the run file."""
    return tuple(_suite(gathered, verdict, suite) for suite in gathered.plan.suites)


def _suite(gathered: Gathered, verdict: Verdict, suite: SuitePlan) -> SuiteView:
    epochs = f", {suite.epochs} times each" if suite.epochs > 1 else ""
    unit = "round" if suite.blocks else "sample"
    return SuiteView(
        name=suite.name,
        family=suite.family,
        size=f"{count(len(suite.samples), unit)}{epochs}, {len(suite.again):,} of them repeated for A/A",
        metrics=tuple(
            _metric(gathered, verdict, suite, metric)
            for metric in suite.metrics
            if metric.kind not in ("distance", "ratio")
        ),
        failures=failing(gathered, suite),
        steps=steps_view(gathered, suite),
        load=load_view(gathered, verdict, suite),
    )


def gate_on(plan: Plan, suite: str, metric: str) -> GatePlan | None:
    """The gate that judges a metric; a gating one before a diagnostic one."""
    gates = [gate for gate in plan.gates if (gate.suite, gate.metric) == (suite, metric) and gate.kind not in OWN]
    return min(gates, key=lambda gate: not gate.gating, default=None)


def role(gate: GatePlan | None, metric: Metric) -> str:
    """What a metric can do to the verdict."""
    if gate is None:
        return "No gate: shown only, never changes the verdict."
    margin = f"margin {margin_words(gate.margin, metric)} (gate {gate.name})"
    return f"Gating: {margin}." if gate.gating else f"Diagnostic, never changes the verdict: {margin}."


def _metric(gathered: Gathered, verdict: Verdict, suite: SuitePlan, metric: Metric) -> MetricView:
    gate = gate_on(gathered.plan, suite.name, metric.name)
    alpha = gathered.plan.header.alpha
    rows: list[DifferenceRow] = []
    bars: list[Bar] = []
    for arm in (*gathered.plan.candidates, AGAIN):
        ids = suite.again if arm == AGAIN else suite.samples
        pairs = gathered.pairs(suite, metric, arm, ids)
        test = compare(pairs, gate, alpha)
        check = _check(verdict, arm, gate)
        name = NOISE if arm == AGAIN else arm
        rows.append(_row(name, pairs, test, gate, check))
        bars.append(_bar(name, arm == AGAIN, test, metric))
    return MetricView(
        name=metric.name,
        binary=metric.kind == "binary",
        role=role(gate, metric),
        units=metric.units,
        rows=tuple(rows),
        forest=_forest(suite, metric, gate, bars, rows),
    )


def compare(pairs: Pairs, gate: GatePlan | None, alpha: float) -> PairedTest | None:
    """As the gates do it: a missing right-or-wrong score counts 0 in its own arm. None: no pair has a score."""
    both = np.isfinite(pairs.reference) & np.isfinite(pairs.candidate)
    binary = pairs.metric.kind == "binary"
    if int(both.sum()) < (1 if binary else 2):
        return None
    margin = gate.margin if gate else 0.5  # without a gate only the interval is shown, which does not depend on it
    if binary:
        difference = np.nan_to_num(pairs.candidate) - np.nan_to_num(pairs.reference)
        cluster = pairs.clusters if pairs.clustered else None
    else:
        difference = (pairs.candidate - pairs.reference)[both]
        cluster = pairs.clusters[both] if pairs.clustered else None
    return noninferiority(difference, margin, cluster, alpha, bounded=binary)


def _check(verdict: Verdict, arm: str, gate: GatePlan | None) -> Check | None:
    checks = verdict.candidates[arm].checks if arm in verdict.candidates else ()
    return next((check for check in checks if gate and check.gate == gate.name), None)


def _row(name: str, pairs: Pairs, test: PairedTest | None, gate: GatePlan | None, check: Check | None) -> DifferenceRow:
    metric = pairs.metric
    if test is None:
        blank = {key: NOTHING for key in ("counts", "estimate", "interval", "p_go", "p_nogo", "method")}
        return DifferenceRow(arm=name, n="0", reading="no pairs were measured", **blank)
    counts, judged = NOTHING, check is not None and check.outcome is not CheckOutcome.EXERCISED
    if metric.kind == "binary":
        difference = np.nan_to_num(pairs.candidate) - np.nan_to_num(pairs.reference)
        counts = f"{int((difference < 0).sum())} / {int((difference > 0).sum())}"
    return DifferenceRow(
        arm=name,
        counts=counts,
        estimate=amount(test.estimate, metric),
        interval=interval(test.low, test.high, metric),
        n=f"{test.n:,}",
        reading=_reading(pairs, test, gate, check, name == NOISE),
        p_go=p_value(test.p_go) if judged else NOTHING,
        p_nogo=p_value(test.p_nogo) if judged else NOTHING,
        method=test.method,
    )


def _reading(pairs: Pairs, test: PairedTest, gate: GatePlan | None, check: Check | None, noise: bool) -> str:
    parts = [READINGS[check.outcome] if check else "noise floor" if noise else "shown only"]
    if gate and check and check.outcome is not CheckOutcome.EXERCISED:
        seen = flags(test, gate.margin)
        if seen.degraded and check.outcome is CheckOutcome.PASSED:
            parts.append("yet some loss is real")
        if seen.suspicious_gain:
            parts.append("suspiciously large gain: look for a mismatch")
    lost = int((~np.isfinite(pairs.candidate)).sum()), int((~np.isfinite(pairs.reference)).sum())
    if any(lost):
        fate = "counted as 0 in its own arm" if pairs.metric.kind == "binary" else "left out"
        parts.append(f"missing: {lost[0]} here, {lost[1]} of the reference, {fate}")
    return "; ".join(parts)


def _bar(name: str, noise: bool, test: PairedTest | None, metric: Metric) -> Bar:
    if test is None:
        return Bar(arm=name, noise=noise, value=None, low=None, high=None)
    value, low, high = (
        round(metric.scale * x, 6) if np.isfinite(x) else None for x in (test.estimate, test.low, test.high)
    )
    return Bar(arm=name, noise=noise, value=value, low=low, high=high)


def _forest(
    suite: SuitePlan, metric: Metric, gate: GatePlan | None, bars: list[Bar], rows: list[DifferenceRow]
) -> Forest:
    seen = [
        f"{row.arm} {row.estimate} ({row.interval})" if row.estimate != NOTHING else f"{row.arm}: no pairs"
        for row in rows
    ]
    margin = f" The margin lies at {minus('-')}{margin_words(gate.margin, metric)}." if gate else ""
    return Forest(
        title=f"{suite.name}: difference in {metric.name} from the reference",
        axis=f"{metric.name}, candidate minus reference ({units(metric)}); left is worse",
        margin=round(-metric.scale * gate.margin, 6) if gate else None,
        bars=tuple(bars),
        description=f"Estimates with intervals, in {units(metric)}: {listed(seen)}.{margin}",
    )
