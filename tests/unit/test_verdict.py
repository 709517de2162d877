"""From checks and findings to an outcome: validity first, one failed gate stops, and no checks is not a pass."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.nouns import check, record, small_folder
from toys.runs import carry_out, run_file

from evalrig.records import RunFolder
from evalrig.types import EXIT_CODES, SEVERITY, Check, CheckOutcome, Finding, Level, Outcome
from evalrig.verdict import conclude, correct, hold_back, judge, not_covered, to_json, worst

PASSED, FAILED, UNDECIDED, INVALID = (
    CheckOutcome.PASSED,
    CheckOutcome.FAILED,
    CheckOutcome.UNDECIDED,
    CheckOutcome.INVALID,
)
OUTCOMES = st.sampled_from([PASSED, FAILED, UNDECIDED, INVALID])


def finding(level: Level, suite: str = "") -> Finding:
    return Finding(rule="r", level=level, text=f"{level} of {suite}", suite=suite)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([PASSED, PASSED], Outcome.GO),
        ([PASSED, UNDECIDED], Outcome.INCONCLUSIVE),
        ([PASSED, UNDECIDED, FAILED], Outcome.NO_GO),
        ([FAILED, INVALID], Outcome.INVALID),
        ([], Outcome.INCONCLUSIVE),
    ],
)
def test_every_gate_has_to_pass(outcomes: list[CheckOutcome], expected: Outcome) -> None:
    assert conclude([check(outcome) for outcome in outcomes], []) is expected


@settings(deadline=None, derandomize=True)
@given(st.lists(OUTCOMES, max_size=5), st.lists(OUTCOMES, max_size=5))
def test_a_diagnostic_gate_never_changes_a_verdict(gating: list[CheckOutcome], diagnostic: list[CheckOutcome]) -> None:
    alone = [check(outcome, f"g{n}") for n, outcome in enumerate(gating)]
    extra = [check(outcome, f"d{n}", gating=False) for n, outcome in enumerate(diagnostic)]
    assert conclude(correct([*alone, *extra], 0.05), []) is conclude(correct(alone, 0.05), [])


@settings(deadline=None, derandomize=True)
@given(st.lists(OUTCOMES, max_size=5))
def test_go_needs_all_and_at_least_one(gating: list[CheckOutcome]) -> None:
    go = conclude([check(outcome) for outcome in gating], []) is Outcome.GO
    assert go == (bool(gating) and set(gating) == {PASSED})


def test_validity_comes_first() -> None:
    for level, expected in (
        (Level.OK, Outcome.GO),
        (Level.WARN, Outcome.GO),
        (Level.UNDECIDED, Outcome.INCONCLUSIVE),
        (Level.INVALID, Outcome.INVALID),
    ):
        assert conclude([check(PASSED)], [finding(level)]) is expected
    assert conclude([check(FAILED)], [finding(Level.INVALID)]) is Outcome.INVALID


def test_a_suite_that_cannot_count_decides_nothing_in_either_direction() -> None:
    for outcome in (PASSED, FAILED, UNDECIDED):
        held = hold_back(check(outcome), [finding(Level.UNDECIDED, "quiz")])
        assert (held.outcome, held.p_go, held.p_nogo) == (UNDECIDED, 1.0, 1.0)
        assert held.reason == f"held back: undecided of quiz (else: {outcome}: g says {outcome})"
        assert hold_back(check(outcome), [finding(Level.UNDECIDED, "other")]) == check(outcome)
        assert hold_back(check(outcome), [finding(Level.WARN, "quiz")]) == check(outcome)
    assert hold_back(check(INVALID), [finding(Level.UNDECIDED, "quiz")]) == check(INVALID)


def p(name: str, value: float, gating: bool = True) -> Check:
    outcome = FAILED if value <= 0.05 else UNDECIDED
    return check(outcome, name, gating, p_nogo=value)


def test_no_go_claims_are_corrected_over_the_gating_gates_only() -> None:
    assert [c.outcome for c in correct([p("a", 0.04)], 0.05)] == [FAILED]
    assert [c.outcome for c in correct([p("a", 0.04), p("d", 0.9, gating=False)], 0.05)] == [FAILED, UNDECIDED]
    corrected = correct([p("a", 0.04), p("b", 0.9)], 0.05)
    assert [c.outcome for c in corrected] == [UNDECIDED, UNDECIDED]
    assert corrected[0].reason == "fails alone, but not after correction for 2 gates (p = 0.08): a says fail"
    assert [c.outcome for c in correct([p("a", 0.02), p("b", 0.04)], 0.05)] == [FAILED, FAILED], "Holm, not Bonferroni"
    assert correct([], 0.05) == []


def test_a_pass_needs_no_correction() -> None:
    checks = [check(PASSED, f"g{n}", p_go=0.05) for n in range(6)]
    assert correct(checks, 0.05) == checks


def test_the_worst_candidate_counts() -> None:
    assert SEVERITY == (Outcome.INVALID, Outcome.REHEARSAL, Outcome.NO_GO, Outcome.INCONCLUSIVE, Outcome.GO)
    for size in (1, 2, 3, 4):
        for outcomes in itertools.product(SEVERITY, repeat=size):
            assert worst(outcomes) is min(outcomes, key=SEVERITY.index)
    assert worst([]) is Outcome.INVALID


def test_exit_codes() -> None:
    codes = {Outcome.GO: 0, Outcome.NO_GO: 1, Outcome.INVALID: 3, Outcome.INCONCLUSIVE: 4, Outcome.REHEARSAL: 5}
    assert codes == EXIT_CODES


# ---- a whole run


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    path = run_file(tmp_path_factory.mktemp("run"), {"near": {"noise": 0.02}, "far": {"noise": 1.0}})
    return carry_out(path).folder


def test_a_distance_alone_never_earns_a_go(tmp_path: Path) -> None:
    path = run_file(tmp_path, {"near": {"noise": 0.02}, "far": {"noise": 1.0}})
    tree = yaml.safe_load(path.read_text())
    del tree["suites"]["piqa"], tree["gates"]["accuracy"], tree["gates"]["lead"]
    path.write_text(yaml.safe_dump(tree))
    near, far = (carry_out(path).verdict.candidates[name] for name in ("near", "far"))
    assert [check.outcome for check in near.checks] == [PASSED]
    assert (near.outcome, far.outcome) == (Outcome.INCONCLUSIVE, Outcome.NO_GO)
    assert near.reasons[0].startswith("no veto stops it, and a veto never earns a GO")


def test_judging_twice_gives_the_same_bytes(ran: RunFolder) -> None:
    written = (ran.path / "verdict.json").read_bytes()
    assert to_json(judge(RunFolder.open(ran.path))) == written
    assert to_json(judge(ran)) == written


def test_the_verdict_file_is_strict_and_names_each_candidate(ran: RunFolder) -> None:
    tree = json.loads((ran.path / "verdict.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert (tree["schema"], tree["outcome"], tree["exit_code"]) == (2, "NO-GO", 1)
    assert {name: one["outcome"] for name, one in tree["candidates"].items()} == {"near": "GO", "far": "NO-GO"}
    assert tree["config_sha256"] == ran.plan().config_sha256
    [first, *_] = tree["candidates"]["near"]["checks"]
    assert {"gate", "suite", "outcome", "reason", "estimate", "needed"} <= set(first)
    assert set(first["estimate"]) == {"value", "low", "high", "n", "method", "units"}
    assert tree["accounting"]["near"]["piqa"] == {
        "planned": 120, "scored": 120, "unscored": 0, "infra": 0, "refused": 0, "truncated": 0, "absent": 0
    }  # fmt: skip


def test_what_is_not_covered_is_said(ran: RunFolder) -> None:
    scope = judge(ran).candidates["near"].scope
    assert "not covered: coding, tool calls, long context, serving load" in scope


def test_what_no_gating_gate_judges_is_not_covered(ran: RunFolder) -> None:
    plan = ran.plan()
    shown = tuple(replace(gate, gating=gate.suite != "piqa") for gate in plan.gates)
    assert "knowledge" not in not_covered(plan)
    assert not_covered(replace(plan, gates=shown))[0] == "knowledge (measured, and judged by no gating gate)"


def test_attempts_never_planned_do_not_hide_absent_ones(tmp_path: Path) -> None:
    folder = small_folder(tmp_path)
    folder.append(record("s-000"))
    folder.append(record("never-planned"))
    folder.close()
    [row] = [row for row in judge(folder).accounting if row.variant == "cheap"]
    assert (row.planned, row.absent) == (12, 11)
