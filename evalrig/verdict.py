"""From records and gates to a verdict. Pure: the same run folder gives the same verdict, byte for byte."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from evalrig.analysis.clusters import holm
from evalrig.evidence import Gathered
from evalrig.gate import Evidence, Gate
from evalrig.loads import emulated
from evalrig.plan import GatePlan, Plan
from evalrig.plugins import find, make
from evalrig.reach import may_differ, way_of
from evalrig.records import RunFolder, encode
from evalrig.speed import EMULATION
from evalrig.types import (
    EXIT_CODES,
    SEVERITY,
    Accounting,
    CandidateVerdict,
    Check,
    CheckOutcome,
    Finding,
    Level,
    Outcome,
    State,
    Verdict,
)
from evalrig.validity import ABSENT, findings

SCHEMA = 2
"""Of verdict.json. History: 1, the first; 2, `rehearsal`, with outcome REHEARSAL and checks that were `exercised`."""

FAMILIES = ("knowledge", "coding", "tool calls", "long context", "token distribution", "serving load")
"""What a release reviewer asks about; a family without a suite is named as not covered."""


VETOES_ONLY = "no veto stops it, and a veto never earns a GO: add a suite whose gating gate judges a score"
SPEED_ONLY = (
    "its load is served as asked, which says nothing of its answers: add a suite whose gating gate judges a score"
)


def judge(folder: RunFolder, gathered: Gathered | None = None) -> Verdict:
    """Judge a run from its records alone; `gathered`, where they were read already."""
    gathered = gathered or Gathered(folder)
    plan = gathered.plan
    gates = [build(gate) for gate in plan.gates]
    evidence = [gathered.evidence(candidate) for candidate in plan.candidates]
    found = findings(gathered, evidence)
    scope = _scope(gathered)
    candidates = {arm.candidate: _judge_one(arm, gates, found, scope) for arm in evidence}
    if plan.header.rehearsal:
        candidates = {name: exercised(one) for name, one in candidates.items()}
    outcome = worst([verdict.outcome for verdict in candidates.values()])
    return Verdict(
        run=plan.header.run,
        config_sha256=plan.config_sha256,
        outcome=outcome,
        exit_code=EXIT_CODES[outcome],
        candidates=candidates,
        validity=tuple(found),
        accounting=tuple(_accounting(gathered)),
        rehearsal=plan.header.rehearsal,
    )


def build(gate: GatePlan) -> Gate:
    """The gate of a plan; its options were checked when the plan was made."""
    kind = find("gates", gate.kind, Gate, f"gates.{gate.name}.kind")
    return make(kind, gate, msgspec.convert(dict(gate.options), kind.Options))


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """INVALID > NO-GO > INCONCLUSIVE > GO (a rehearsal has none of the last three); of no candidates: INVALID."""
    return next((outcome for outcome in SEVERITY if outcome in outcomes), Outcome.INVALID)


def to_json(verdict: Verdict) -> bytes:
    """verdict.json: versioned, strict, floats rounded to 12 digits."""
    accounting: dict[str, dict[str, Any]] = {}
    for row in verdict.accounting:
        states = {state.value: row.states.get(state.value, 0) for state in State}
        accounting.setdefault(row.variant, {})[row.suite] = {"planned": row.planned, **states, "absent": row.absent}
    tree = {"schema": SCHEMA, **msgspec.to_builtins(verdict), "accounting": accounting}
    return encode(tree)


def _judge_one(arm: Evidence, gates: Sequence[Gate], found: Sequence[Finding], scope: str) -> CandidateVerdict:
    own = [finding for finding in found if finding.candidate in ("", arm.candidate)]
    checks = correct([hold_back(gate.check(arm), own) for gate in gates], arm.alpha)
    outcome = conclude(checks, own)
    reasons = _reasons(outcome, checks, own)
    if outcome is Outcome.GO and (unearned := _unearned(gates, checks, arm)):
        outcome, reasons = Outcome.INCONCLUSIVE, [unearned]
    return CandidateVerdict(outcome=outcome, scope=scope, reasons=tuple(reasons), checks=tuple(checks))


def _unearned(gates: Sequence[Gate], checks: Sequence[Check], arm: Evidence) -> str:
    """Why passes alone are no GO; empty: they are. A run of nothing but load asks about speed alone, and may be answered."""
    gating = [gate for gate, check in zip(gates, checks, strict=True) if check.gating]
    if any(gate.earns for gate in gating):
        return ""
    judged = [gate for gate in gating if gate.plan.suite in arm.loads]
    if not judged:
        return VETOES_ONLY
    return SPEED_ONLY if arm.pairs or arm.distances or arm.failures else ""


def exercised(one: CandidateVerdict) -> CandidateVerdict:
    """What a rehearsal says of a candidate: that its checks ran. INVALID stays: something would stop the run as well."""
    checks = tuple(
        check
        if check.outcome is CheckOutcome.INVALID
        else replace(
            check,
            outcome=CheckOutcome.EXERCISED,
            reason=f"exercised, decides nothing: {check.reason}",
            needed=None,
            p_go=1.0,
            p_nogo=1.0,
        )
        for check in one.checks
    )
    if one.outcome is Outcome.INVALID:
        return replace(one, checks=checks)
    words = f"no verdict; exercised: {', '.join(f'{check.gate} ({check.suite})' for check in checks) or 'no check'}"
    return replace(one, outcome=Outcome.REHEARSAL, reasons=(words,), checks=checks)


def hold_back(check: Check, found: Sequence[Finding]) -> Check:
    """A suite that cannot count decides nothing, in neither direction."""
    held = [f.text for f in found if f.level is Level.UNDECIDED and f.suite in ("", check.suite)]
    if not held or check.outcome is CheckOutcome.INVALID:
        return check
    reason = f"held back: {'; '.join(held)} (else: {check.outcome}: {check.reason})"
    return replace(check, outcome=CheckOutcome.UNDECIDED, reason=reason, p_go=1.0, p_nogo=1.0)


def correct(checks: Sequence[Check], alpha: float) -> list[Check]:
    """NO-GO claims that some suite lost, which gives many chances: Holm over the gating checks. GO needs no correction."""
    gating = [check for check in checks if check.gating]
    adjusted = dict(zip((check.gate for check in gating), holm([check.p_nogo for check in gating]), strict=True))
    corrected: list[Check] = []
    for check in checks:
        if check.gating and check.outcome is CheckOutcome.FAILED and adjusted[check.gate] > alpha:
            reason = f"fails alone, but not after correction for {len(gating)} gates (p = {adjusted[check.gate]:.2g}): {check.reason}"
            check = replace(check, outcome=CheckOutcome.UNDECIDED, reason=reason)
        corrected.append(check)
    return corrected


def conclude(checks: Sequence[Check], found: Sequence[Finding]) -> Outcome:
    """Validity first; then one failed gate stops; GO needs every gate to pass, and at least one gate."""
    gating = [check.outcome for check in checks if check.gating]
    if CheckOutcome.INVALID in gating or any(finding.level is Level.INVALID for finding in found):
        return Outcome.INVALID
    if CheckOutcome.FAILED in gating:
        return Outcome.NO_GO
    passed = bool(gating) and all(outcome is CheckOutcome.PASSED for outcome in gating)
    held = any(finding.level is Level.UNDECIDED and not finding.suite for finding in found)
    return Outcome.GO if passed and not held else Outcome.INCONCLUSIVE


def _reasons(outcome: Outcome, checks: Sequence[Check], found: Sequence[Finding]) -> list[str]:
    """What decided, in the order it was found."""
    if outcome is Outcome.INVALID:
        faults = [finding for finding in found if finding.level is Level.INVALID]
        roots = [
            finding for finding in faults if finding.rule != ABSENT
        ] or faults  # what is absent follows from a root
        voids = [f"{c.suite}: {c.reason}" for c in checks if c.gating and c.outcome is CheckOutcome.INVALID]
        return [finding.text for finding in roots] or voids
    deciding = {
        Outcome.GO: CheckOutcome.PASSED,
        Outcome.NO_GO: CheckOutcome.FAILED,
        Outcome.INCONCLUSIVE: CheckOutcome.UNDECIDED,
    }[outcome]
    reasons = [f"{c.suite}: {c.reason}" for c in checks if c.gating and c.outcome is deciding]
    return reasons or ["no gating gate judged this candidate; no checks is not a pass"]


def _scope(gathered: Gathered) -> str:
    """What the verdict speaks for, and what it does not."""
    plan = gathered.plan
    suites = ", ".join(f"{suite.name} ({len(suite.samples)} samples)" for suite in plan.suites)
    if plan.header.rehearsal:
        return f"REHEARSAL: speaks for no model; gone through: {suites}"
    longest = max((_tokens(record) for rows in gathered.records.values() for record in rows), default=0)
    context = f"{_ways(gathered)}; contexts up to {longest} tokens were measured"
    if plan.header.max_context > longest:
        context += f", of {plan.header.max_context} in the scope"
    missing = not_covered(plan, emulated(gathered.folder.preflight(variant.name) for variant in plan.variants))
    parts = [
        f"speaks for {plan.header.model or 'this model'} only, on {suites}{context}",
        f"not covered: {', '.join(missing)}" if missing else "",
        plan.header.note,
    ]
    return "; ".join(filter(None, parts))


def _ways(gathered: Gathered) -> str:
    """How the tokens of each distance were scored."""
    words = ""
    for suite in gathered.plan.suites:
        if any(metric.kind == "distance" for metric in suite.metrics):
            differs = ": decoding may differ" if may_differ(gathered, suite) else ""
            words += f", {suite.name} scored {way_of(gathered, suite)}{differs}"
    return words


def not_covered(plan: Plan, emulation: str = "") -> list[str]:
    """Families a reviewer asks about that no suite of this run measures, or no gating gate judges. `emulation`: why the
    engines' speed is no evidence, so that no gate judges it."""
    judged = {plan.suite(gate.suite).family for gate in plan.gates if gate.gating}
    measured = {suite.family for suite in plan.suites}
    shown = " (measured, and judged by no gating gate)"
    missing = [f"{family}{shown if family in measured else ''}" for family in FAMILIES if family not in judged]
    if emulation and (loaded := {suite.family for suite in plan.suites if suite.blocks} & judged):
        missing += [f"speed of {family} ({EMULATION})" for family in sorted(loaded)]
    return missing


def _tokens(record: Any) -> int:
    return max(
        (turn.prompt_tokens + max(turn.completion_tokens, len(turn.token_ids)) for turn in record.trajectory.turns),
        default=0,
    )


def _accounting(gathered: Gathered) -> list[Accounting]:
    rows: list[Accounting] = []
    for variant in gathered.plan.variants:
        for suite in gathered.plan.suites:
            records = gathered.records[variant.name, suite.name]
            states = Counter(record.state.value for record in records)
            rows.append(
                Accounting(
                    variant=variant.name,
                    suite=suite.name,
                    planned=len(gathered.planned(variant.name, suite)),
                    states=dict(states),
                    absent=gathered.absent(variant.name, suite),
                )
            )
    return rows
