"""How answers failed, in words: each way of failing, how often in each arm, and whether that moved."""

import numpy as np

from evalrig.analysis.drift import Drift, drift
from evalrig.evidence import Gathered
from evalrig.gate import Pairs
from evalrig.plan import GatePlan, Plan, SuitePlan
from evalrig.report.shown import FailureRow, FailureView, SuiteView
from evalrig.report.words import NOTHING, amount, count, interval, listed, p_value, percent, short
from evalrig.types import AGAIN, Metric

KIND = "failure_drift"
NOT_FAILED = "did not fail"
SHOWN = 0.05
"""Margin of a table without a gate: only its intervals are shown, which do not depend on it."""
READINGS = {"pass": "an excess of the margin is excluded", "fail": "an excess beyond the margin is shown"}
POINTS = Metric(name="failures", kind="binary", units="points", scale=100.0)


def failing(gathered: Gathered, suite: SuitePlan) -> tuple[FailureView, ...]:
    """A table for each candidate, for a suite that tells how its attempts fail."""
    return tuple(_view(gathered, suite, name) for name in gathered.plan.candidates) if suite.failures else ()


def gate_on(plan: Plan, suite: str) -> GatePlan | None:
    """The gate that judges how a suite's attempts fail; a gating one before a diagnostic one."""
    gates = [gate for gate in plan.gates if (gate.suite, gate.kind) == (suite, KIND)]
    return min(gates, key=lambda gate: not gate.gating, default=None)


def _view(gathered: Gathered, suite: SuitePlan, candidate: str) -> FailureView:
    gate = None if gathered.plan.header.rehearsal else gate_on(gathered.plan, suite.name)
    pairs = {word: gathered.failing(suite, word, candidate, suite.samples) for word in suite.failures}
    again = {word: gathered.failing(suite, word, AGAIN, suite.again) for word in suite.failures}
    alpha = gathered.plan.header.alpha
    judged = _judged(gate, suite)
    found = {one.word: one for one in _drifts({word: pairs[word] for word in judged}, gate, alpha)}
    found |= {one.word: one for one in _drifts({w: one for w, one in pairs.items() if w not in judged}, None, alpha)}
    noise = {one.word: one for one in _drifts(again, None, alpha)}
    rows = [_row(found[word], noise.get(word), gate if word in judged else None, alpha) for word in found]
    return FailureView(
        candidate=candidate,
        role=_role(gate),
        rows=(*(row for word in suite.failures for row in rows if row.word == word), _rest(pairs, again)),
        note=_note(suite, next(iter(pairs.values()))),
        summary=_summary(candidate, suite, list(found.values())),
    )


def _judged(gate: GatePlan | None, suite: SuitePlan) -> tuple[str, ...]:
    own = tuple(gate.options.get("words", ())) if gate else ()
    return own or suite.failures


def _drifts(pairs: dict[str, Pairs], gate: GatePlan | None, alpha: float) -> list[Drift]:
    """None where no sample was measured in both arms."""
    first = next(iter(pairs.values()), None)
    if first is None or not (np.isfinite(first.reference) & np.isfinite(first.candidate)).any():
        return []
    cluster = first.clusters if first.clustered else None
    shares = {word: (one.reference, one.candidate) for word, one in pairs.items()}
    return drift(shares, gate.margin if gate else SHOWN, cluster, alpha)


def _row(one: Drift, noise: Drift | None, gate: GatePlan | None, alpha: float) -> FailureRow:
    excess = one.excess
    return FailureRow(
        word=one.word,
        reference=percent(one.reference),
        candidate=percent(one.candidate),
        estimate=amount(excess.value, POINTS),
        interval=interval(excess.low, excess.high, POINTS),
        reading=_reading(one, alpha) if gate else "shown only",
        p_below=p_value(excess.p_below) if gate else NOTHING,
        p_above=p_value(excess.p_above) if gate else NOTHING,
        noise=_noise(noise),
    )


def _reading(one: Drift, alpha: float) -> str:
    words = READINGS.get(one.decision(alpha), "undecided")
    if one.missing == "ok":
        return f"{words}; more frequent" if words == READINGS["pass"] and one.excess.low > 0 else words
    return f"undecided: missing attempts ({one.missing.replace('_', ' ')})"


def _noise(noise: Drift | None) -> str:
    """What the same table says of the reference against itself."""
    if noise is None:
        return "not measured"
    seen = f"{percent(noise.reference)} to {percent(noise.candidate)}"
    return f"{seen}: {amount(noise.excess.value, POINTS)} ({interval(noise.excess.low, noise.excess.high, POINTS)})"


def _rest(pairs: dict[str, Pairs], again: dict[str, Pairs]) -> FailureRow:
    """What makes the shares add up."""
    sides = [_remainder(pairs, "reference"), _remainder(pairs, "candidate")]
    noise = [_remainder(again, "reference"), _remainder(again, "candidate")]
    blank = {key: NOTHING for key in ("estimate", "interval", "p_below", "p_above", "reading")}
    repeated = NOTHING if np.isnan(noise).any() else f"{percent(noise[0])} to {percent(noise[1])}"
    return FailureRow(
        word=NOT_FAILED, reference=percent(sides[0]), candidate=percent(sides[1]), noise=repeated, **blank
    )


def _remainder(pairs: dict[str, Pairs], side: str) -> float:
    shares = np.array([getattr(one, side) for one in pairs.values()])
    there = shares[:, np.isfinite(shares).all(0)]
    return 1 - float(there.mean(1).sum()) if there.size else float("nan")


def _role(gate: GatePlan | None) -> str:
    if gate is None:
        return "No gate: shown only, never changes the verdict."
    margin = f"margin {short(100 * gate.margin)} points more of any (gate {gate.name})"
    return (
        f"Gating, a pass is no reason for GO: {margin}."
        if gate.gating
        else f"Diagnostic, never changes the verdict: {margin}."
    )


def _note(suite: SuitePlan, pairs: Pairs) -> str:
    lost = [int((~np.isfinite(side)).sum()) for side in (pairs.candidate, pairs.reference)]
    times = f", {suite.epochs} times each" if suite.epochs > 1 else ""
    base = (
        f"Shares of {count(len(pairs.samples), 'sample')}{times}; a plus means that the candidate fails so more often"
    )
    if not any(lost):
        return f"{base}."
    return (
        f"{base}. Missing: {lost[0]} of the candidate, {lost[1]} of the reference; left out of the shares, and in the "
        "difference counted as failed so in its own arm."
    )


def _summary(candidate: str, suite: SuitePlan, found: list[Drift]) -> str:
    """One line: what moved."""
    start = f"How answers failed, {candidate} on {suite.name}"
    if not found:
        return f"{start}: not measured in both arms"
    if found[0].missing in ("differential", "too_many"):
        return f"{start}: attempts are missing ({found[0].missing.replace('_', ' ')}), so nothing is said of it"
    moved = [one for one in found if one.excess.low > 0 or one.excess.high < 0]
    shown = [f"{one.word} {amount(one.excess.value, POINTS)} points" for one in moved]
    seen = f"{listed(shown)} (interval without 0)" if shown else f"no change shows in {count(len(found), 'way')}"
    return f"{start}: {seen}"


def summed_up(views: tuple[SuiteView, ...]) -> list[str]:
    """A line for each candidate and suite."""
    return [view.summary for suite in views for view in suite.failures]
