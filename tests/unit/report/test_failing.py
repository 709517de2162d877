"""How answers failed, as shown: shares that add up to the plan, each arm, the noise, and nothing hostile."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toys.runs import carry_out, run_file

from evalrig.report.failing import NOT_FAILED
from evalrig.report.html import html
from evalrig.report.markdown import markdown
from evalrig.report.shown import Page
from evalrig.report.text import ending, planned
from evalrig.report.view import page
from evalrig.run import Finished

GATES: dict[str, Any] = {
    "solved": {"kind": "noninferior", "suite": "code", "metric": "solved", "margin": 0.1},
    "drift": {"kind": "failure_drift", "suite": "code", "margin": 0.05, "gating": False},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    options = {"slow": {"late": 0.6}, "silent": {"late": 150}}
    path = run_file(
        tmp_path_factory.mktemp("failing"),
        {"late": {"noise": 0.02}, "quiet": {"noise": 0.02}},
        suites={"code": {"kind": "toys.coding", "options": options, "again": 0.5}},
        gates=GATES,
    )
    return carry_out(path)


@pytest.fixture(scope="module")
def shown(finished: Finished) -> Page:
    return page(finished.folder, finished.verdict)


def number(text: str) -> float:
    return float(text.removesuffix(" %").replace("−", "-"))


def test_the_shares_of_each_arm_add_up_and_agree_with_the_accounting(shown: Page, finished: Finished) -> None:
    [suite] = shown.suites
    for view in suite.failures:
        assert [row.word for row in view.rows] == [
            "syntax_error", "wrong_answer", "timeout", "truncated", NOT_FAILED,
        ]  # fmt: skip
        for side in ("reference", "candidate"):
            assert sum(number(getattr(row, side)) for row in view.rows) == pytest.approx(100, abs=0.3)
        cut = next(row for row in view.rows if row.word == "truncated")
        [arm] = [row for row in finished.verdict.accounting if row.variant == view.candidate]
        measured = arm.planned - arm.states.get("infra", 0)
        assert number(cut.candidate) == pytest.approx(100 * arm.states["truncated"] / measured, abs=0.05)


def test_a_flip_says_how_each_side_failed(tmp_path: Path) -> None:
    coding = {"kind": "toys.coding", "options": {"problems": 40, "broken": {"worse": 0.5}}}
    done = carry_out(run_file(tmp_path, {"worse": {"noise": 0.02}}, suites={"code": coding}, gates=GATES))
    [group] = page(done.folder, done.verdict).flips
    assert group.items
    for flip in group.items:
        assert [side.state for side in flip.sides] == ["", "wrong answer"]


def test_each_word_has_its_difference_its_reading_and_the_noise(shown: Page) -> None:
    late, quiet = shown.suites[0].failures
    rows = {row.word: row for row in late.rows}
    assert rows["timeout"].reference == "0.0 %"
    assert rows["timeout"].reading == "an excess beyond the margin is shown"
    assert rows["timeout"].estimate.startswith("+")
    assert rows["wrong_answer"].estimate.startswith("−")
    assert rows["timeout"].noise == "0.0 % to 0.0 %: 0.0 (−2.6 to +2.6)"
    assert late.role == "Diagnostic, never changes the verdict: margin 5 points more of any (gate drift)."
    assert "Missing: 2 of the candidate, 0 of the reference" in late.note
    assert {row.reading for row in quiet.rows[:-1]} == {"an excess of the margin is excluded"}
    assert "Missing" not in quiet.note


def test_page_summary_and_terminal_say_what_moved(shown: Page, finished: Finished) -> None:
    whole = html(shown)
    assert '<h2 id="h-failures">How answers failed</h2>' in whole
    assert "how late failed on code" in whole.lower()
    summary = markdown(shown)
    assert "- How answers failed, late on code: syntax\\_error" in summary
    assert "- How answers failed, quiet on code: no change shows in 4 ways" in summary
    said = ending(finished.folder, finished.verdict, "")
    assert "drift, late: answers fail otherwise, by more than 5 points: timeout +" in said
    assert "drift, quiet" not in said


def test_the_plan_says_what_the_gate_can_decide(finished: Finished) -> None:
    plan = finished.folder.plan()
    assert "drift: margin 5 points" not in planned(plan, ""), "as other diagnostic gates"
    gates = tuple(replace(gate, gating=True) for gate in plan.gates)
    assert "drift: margin 5 points, n=200\n\ndiscordance" in planned(replace(plan, gates=gates), "")


def test_no_table_where_no_suite_tells_how_answers_fail(tmp_path: Path) -> None:
    done = carry_out(run_file(tmp_path, {"quiet": {"noise": 0.02}}))
    plain = page(done.folder, done.verdict)
    assert all(not suite.failures for suite in plain.suites)
    assert "How answers failed" not in html(plain)


def test_where_attempts_are_missing_no_change_is_not_claimed(tmp_path: Path) -> None:
    """Seen with a sandbox that held no exam: nearly all was missing, and the summary said that no change shows."""
    suites = {"code": {"kind": "toys.coding", "options": {"silent": {"lame": 2}}}}
    done = carry_out(run_file(tmp_path, {"lame": {"noise": 0.02}}, suites=suites, gates=GATES))
    [view] = page(done.folder, done.verdict).suites[0].failures
    assert (
        view.summary
        == "How answers failed, lame on code: attempts are missing (differential), so nothing is said of it"
    )
    assert {row.reading for row in view.rows[:-1]} == {"undecided: missing attempts (differential)"}
