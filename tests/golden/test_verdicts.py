"""Records to verdict, byte for byte: one case an outcome, each from a whole run of the toy engine.

Paths in the run files are relative and the toy's numbers lie on a grid, so the bytes are the same on every machine.
"""

from pathlib import Path

import pytest
from toys.rounds import load_folder
from toys.runs import Silent, carry_out, run_file

from evalrig.records import RunFolder, encode
from evalrig.report.text import ending
from evalrig.report.view import page
from evalrig.verdict import judge, to_json

CASES = {
    "same": {"copy": {}},
    "harmless": {"quiet": {"noise": 0.02}},
    "worse": {"damaged": {"noise": 1.0, "seed": 3}, "quiet": {"noise": 0.02}},
    "noisy": {"doubtful": {"noise": 0.4, "seed": 5}},
    "broken": {"nan": {"noise": 0.02, "nan_every": 40}, "flaky": {"noise": 0.02, "refuse_every": 9}},
    "lost": {"absent": {"fail_start": "out of memory"}, "quiet": {"noise": 0.02}},
}
OUTCOMES = {
    "same": "INVALID",
    "harmless": "GO",
    "worse": "NO-GO",
    "noisy": "INCONCLUSIVE",
    "broken": "INVALID",
    "lost": "INVALID",
}
CODING = {
    "suites": {"code": {"kind": "toys.coding", "options": {"slow": {"late": 0.6}, "silent": {"late": 199}}}},
    "gates": {
        "solved": {"kind": "noninferior", "suite": "code", "metric": "solved", "margin": 0.1},
        "failures": {"kind": "failure_drift", "suite": "code", "margin": 0.05},
    },
}
"""Two candidates that solve what the reference solves; one of them runs into the time limit where the reference is wrong."""


@pytest.mark.parametrize("case", CASES)
def test_records_give_the_golden_verdict(case, golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one_lane = {"engines": 1, "concurrency": 1}  # faults by count then hit the same attempts in every run
    path = run_file(Path(), CASES[case], runner=one_lane, name=f"golden-{case}")
    finished = carry_out(path, progress=Silent())
    assert finished.verdict.outcome == OUTCOMES[case]
    golden(f"{case}.verdict.json", (finished.folder.path / "verdict.json").read_bytes())
    golden(f"{case}.junit.xml", (finished.folder.path / "junit.xml").read_bytes())


def test_equal_scores_that_fail_otherwise(golden, tmp_path, monkeypatch):
    """The verdict, and what the report shows of how answers failed."""
    monkeypatch.chdir(tmp_path)
    candidates = {"late": {"noise": 0.02}, "quiet": {"noise": 0.02}}
    path = run_file(Path(), candidates, name="golden-failing", runner={"engines": 1, "concurrency": 1}, **CODING)
    finished = carry_out(path, progress=Silent())
    assert {name: one.outcome for name, one in finished.verdict.candidates.items()} == {"late": "NO-GO", "quiet": "GO"}
    golden("failing.verdict.json", (finished.folder.path / "verdict.json").read_bytes())
    golden("failing.junit.xml", (finished.folder.path / "junit.xml").read_bytes())
    [suite] = page(finished.folder, finished.verdict).suites
    golden("failing.view.json", encode(suite.failures))


STEPPED = {
    "suites": {
        "walk": {"kind": "toys.stepped", "again": 0.5},
        "free": {"kind": "toys.stepped", "options": {"free": True}},
    },
    "gates": {
        "success": {"kind": "noninferior", "suite": "walk", "metric": "success", "margin": 0.2},
        "steps": {"kind": "step_hazard", "suite": "walk", "margin": 0.05},
        "derived": {
            "kind": "step_hazard",
            "suite": "free",
            "metric": "success",
            "margin": 0,
            "gating": False,
            "options": {"task_margin": 0.02},
        },
        "invalid": {
            "kind": "step_hazard",
            "suite": "walk",
            "metric": "success",
            "margin": 0.002,
            "options": {"of": "invalid"},
        },
    },
}
"""Attempts with steps: one suite from given histories, one that goes its own way; one margin written as what a task may lose."""


def test_what_the_report_shows_along_the_steps(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    candidates = {"damaged": {"noise": 1.0, "seed": 3}, "quiet": {"noise": 0.02}}
    one_lane = {"engines": 1, "concurrency": 1}
    finished = carry_out(run_file(Path(), candidates, runner=one_lane, name="golden-stepped", **STEPPED))
    assert finished.verdict.outcome == "NO-GO"
    golden("stepped.verdict.json", (finished.folder.path / "verdict.json").read_bytes())
    shown = page(RunFolder.open(finished.folder.path), finished.verdict)
    golden("stepped.suites.json", encode({"cards": shown.cards, "suites": shown.suites}))


LOAD_GATES = {
    "speed": {"kind": "load_ratio", "metric": "output_tokens_per_second", "margin": 0.01},
    "faster": {"kind": "load_ratio", "metric": "tpot_p50", "margin": -0.3, "gating": False},
    "cheaper": {"kind": "saving", "metric": "usd_per_million_output", "margin": 0.1},
    "promised": {"kind": "slo", "margin": 0.01},
    "held": {"kind": "kv_capacity", "margin": -0.9},
}
"""Margins below 0 are gains, as `min_ratio` derives them."""


@pytest.mark.parametrize(
    ("case", "emulation", "outcome"), [("loaded", "", "GO"), ("emulated", "in f32", "INCONCLUSIVE")]
)
def test_rounds_of_load_give_the_golden_verdict_and_report(case, emulation, outcome, golden, tmp_path):
    """Records made by hand, one block void; where speed is an emulation's, only capacity is judged, and earns nothing."""
    folder = load_folder(tmp_path, LOAD_GATES, emulation, void={("cheap", 4): "requests left 3 ms late"})
    verdict = judge(folder)
    golden(f"{case}.verdict.json", to_json(verdict))
    shown = page(RunFolder.open(folder.path), verdict)
    golden(f"{case}.view.json", encode({"cards": shown.cards, "suites": shown.suites}))
    assert verdict.outcome == outcome


def test_judging_again_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished = carry_out(run_file(Path(), CASES["worse"]))
    first = (finished.folder.path / "verdict.json").read_bytes()
    assert to_json(judge(RunFolder.open(finished.folder.path))) == first


def test_the_ending_names_every_candidate_and_the_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished = carry_out(run_file(Path(), CASES["worse"]))
    said = ending(finished.folder, finished.verdict, "")
    assert "damaged" in said
    assert "quiet" in said
    assert said.rstrip().endswith("verdict: NO-GO (exit code 1)")


def test_what_the_report_shows(golden, tmp_path, monkeypatch):
    """The view model, not the HTML: that changes with every plotting library."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "evalrig.run.environment", lambda *_: {"python": "as pinned", "packages": {"numpy": "as pinned"}}
    )
    finished = carry_out(run_file(Path(), CASES["worse"], runner={"engines": 1, "concurrency": 1}))
    pinned = finished.folder.path.rename(finished.folder.path.with_name("as-pinned"))
    golden("worse.view.json", encode(page(RunFolder.open(pinned), finished.verdict)))
