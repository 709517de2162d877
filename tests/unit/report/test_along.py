"""Along the steps: tables, curves and sentences from records of both arms; nothing where there are no steps."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.nouns import run_config, samples, small_plan
from toys.walks import attempt, drawn

from evalrig.config.load import dump
from evalrig.config.schema import SuiteConfig
from evalrig.evidence import Gathered
from evalrig.plan import Plan
from evalrig.records import RunFolder
from evalrig.report.along import NOISE
from evalrig.report.html import html
from evalrig.report.markdown import markdown
from evalrig.report.shown import Page
from evalrig.report.shown_steps import StepsView
from evalrig.report.view import page
from evalrig.types import AGAIN, REFERENCE, Record, State, Trajectory
from evalrig.verdict import judge

COUNT = 60


def folder_of(output: Path, arms: Mapping[str, list[Record]], **options: Any) -> RunFolder:
    given = {"quiz": [replace(one, id=f"s-{n:04d}") for n, one in enumerate(samples(COUNT))]}
    plan: Plan = small_plan(run_config(quiz=SuiteConfig(kind="quiz", again=0.5)), given)
    plan = replace(plan, config={"suites": {"quiz": {"options": options}}}) if options else plan
    folder = RunFolder.create(output, plan, dump(run_config()), {}, given)
    again = set(plan.suite("quiz").again)
    for name, records in arms.items():
        for record in records:
            if name != AGAIN or record.sample in again:
                folder.append(record)
    folder.close()
    return folder


def three_arms(hazards: Mapping[str, float]) -> dict[str, list[Record]]:
    rng = np.random.default_rng(5)
    lengths = rng.integers(5, 41, COUNT).tolist()
    return {name: drawn(rng, lengths, hazard, name) for name, hazard in hazards.items()}


def shown(folder: RunFolder) -> Page:
    return page(folder, judge(folder))


def steps_of(found: Page) -> StepsView:
    view = found.suites[0].steps
    assert view is not None
    return view


ARMS = {REFERENCE: 0.02, "cheap": 0.1, AGAIN: 0.02}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Page]:
    folder = folder_of(tmp_path_factory.mktemp("steps"), three_arms(ARMS))
    return folder, shown(folder)


def test_rates_are_those_of_the_records(found: tuple[RunFolder, Page]) -> None:
    folder, shown_page = found
    walked = Gathered(folder).horizon(folder.plan().suite("quiz"), "cheap")
    assert walked is not None
    ours, theirs = walked.reference.tally("any"), walked.candidate.tally("any")
    row = steps_of(shown_page).hazards.rows[0]
    assert (row.label, row.cells[0]) == ("cheap", "any error")
    assert row.cells[1] == f"{ours.errors.sum():.0f} in {ours.steps.sum():,.0f}"
    assert row.cells[3] == f"{100 * theirs.rate:.2f} %"
    assert row.cells[6] == f"{theirs.rate / ours.rate:.2f}"


def test_every_arm_has_its_curve_and_the_reference_stands_for_itself(found: tuple[RunFolder, Page]) -> None:
    wrong, apart = steps_of(found[1]).survival
    assert [(curve.arm, curve.kind) for curve in wrong.curves] == [
        (REFERENCE, "reference"),
        ("cheap", "candidate"),
        (NOISE, "noise"),
    ]
    assert [curve.arm for curve in apart.curves] == ["cheap", NOISE]
    for curve in (*wrong.curves, *apart.curves):
        assert list(curve.shares) == sorted(curve.shares, reverse=True)
        assert all(0 <= a <= b <= c <= 1 for a, b, c in zip(curve.lows, curve.shares, curve.highs, strict=True))
    assert wrong.table.rows[1].cells[0].endswith(f"({COUNT})")


def test_sentences_tell_growth_and_what_errors_compound_to(found: tuple[RunFolder, Page]) -> None:
    lines = steps_of(found[1]).lines
    assert lines[0].startswith("cheap: errors are not shown to grow faster: over ten steps their odds change × ")
    assert "if errors fell independently" in lines[1]
    assert len(lines) == 2, "recovery is told of free runs alone"
    assert "Along the steps, quiz: cheap: if errors fell" in markdown(found[1])


def test_the_page_has_a_section_with_a_plot_a_curve_a_table(found: tuple[RunFolder, Page]) -> None:
    text = html(found[1])
    assert '<section id="steps"' in text
    assert text.count('class="plot"') >= 3
    assert 'id="survival0-title"' in text
    assert 'id="survival1-title"' in text
    assert " style=" not in text


def test_a_page_without_steps_has_no_such_section(make: Callable[..., RunFolder]) -> None:
    found = shown(make())
    assert all(suite.steps is None for suite in found.suites)
    assert 'id="steps"' not in html(found)
    assert "#steps" not in html(found)


def test_attempts_that_were_lost_are_told(tmp_path: Path) -> None:
    arms = three_arms(ARMS)
    arms["cheap"][3] = replace(arms["cheap"][3], state=State.INFRA, scores={}, trajectory=Trajectory())
    note = steps_of(shown(folder_of(tmp_path, arms))).note
    assert f"cheap: {COUNT - 1} attempts in both arms (lost: 1 here, 0 of the reference)" in note


def test_the_protocol_and_steps_that_were_drawn_are_told(tmp_path: Path) -> None:
    """Of drawn steps the first is no first step of a task: a reader of the curves must know."""
    arms = three_arms(ARMS)
    whole = steps_of(shown(folder_of(tmp_path / "whole", arms))).note
    assert "protocol" not in whole
    assert "of those" not in whole
    spoken = {
        name: [replace(one, trajectory=replace(one.trajectory, protocol="text")) for one in records]
        for name, records in arms.items()
    }
    some = steps_of(shown(folder_of(tmp_path / "some", spoken, steps=2))).note
    assert "Tools were offered by the protocol text. Some steps of an attempt were followed: step 1 is" in some
    chosen = steps_of(shown(folder_of(tmp_path / "chosen", spoken, scoring="choice"))).note
    assert "the first of those, not of the task" in chosen


def test_free_runs_tell_recovery_and_hostile_words_stay_words(tmp_path: Path) -> None:
    """An error is a word of the suite's: a page that is signed must hold whatever stands in a record."""
    evil = "<script>alert(1)</script>"
    arms: dict[str, list[Record]] = {}
    for name in (REFERENCE, "cheap"):
        arms[name] = [
            attempt(["", "wrong_id", ""] if n % 3 else [""] * 4, f"s-{n:04d}", name, forced=False) for n in range(COUNT)
        ]
    step = replace(arms["cheap"][0].trajectory.steps[0], error=evil, said=evil)
    arms["cheap"][0] = replace(arms["cheap"][0], trajectory=Trajectory(steps=(step,)))
    found = shown(folder_of(tmp_path, arms))
    view = steps_of(found)
    assert "went their own way" in view.note
    assert view.lines[2] == (
        "cheap: of the attempts with an error, ended rightly: 2.4 % of 41 (reference: 0.0 % of 40)."
    )
    assert any(evil in row.cells for row in view.errors.rows)
    text = html(found)
    assert evil not in text
    assert "&lt;script&gt;alert(1)" in text


def test_equal_arms_show_no_false_precision(tmp_path: Path) -> None:
    """Pitfall 35: an interval of no width is no certainty."""
    arms = three_arms({REFERENCE: 0.05})
    same = [replace(record, variant="cheap") for record in arms[REFERENCE]]
    view = steps_of(shown(folder_of(tmp_path, {**arms, "cheap": same})))
    assert view.lines[0] == "cheap: whether errors accumulate cannot be told: both arms err at the same steps."
    assert view.errors.rows[0].cells[4] == "–"
    assert view.hazards.rows[0].cells[5] != "0 to 0"
    assert view.hazards.rows[0].cells[7] == "–"
