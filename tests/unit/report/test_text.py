"""What terminals show."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from toys.rounds import load_folder

from evalrig.records import RunFolder
from evalrig.report.text import ending, planned
from evalrig.types import Outcome
from evalrig.verdict import judge

Make = Callable[..., RunFolder]


def test_the_ending_tells_verdicts_grounds_report_and_code(make: Make) -> None:
    folder = make()
    lines = ending(folder, judge(folder), "").splitlines()
    assert lines[0].split() == ["candidate", "verdict", "grounds"]
    assert lines[1].startswith("fp8kv      GO       fp8kv loses no more than 5 points on piqa")
    assert any(line.startswith("int4       NO-GO    int4 moves the token distribution by 0.3") for line in lines)
    assert lines[-2] == f"report: {folder.path}/report.html"
    assert lines[-1] == "verdict: NO-GO (exit code 1)"
    assert max(map(len, lines[:6])) <= 100


def test_captured_output_has_no_colour_and_only_ascii(make: Make) -> None:
    folder = make()
    text = ending(folder, judge(folder), "")
    assert "\x1b" not in text
    assert text.isascii()


def test_a_stopped_run_says_how_to_go_on(make: Make) -> None:
    folder = make()
    verdict = replace(judge(folder), outcome=Outcome.INVALID, exit_code=3)
    lines = ending(folder, verdict, "interrupted by SIGTERM").splitlines()
    assert "stopped: interrupted by SIGTERM" in lines
    assert f"go on with: evalrig resume {folder.path}" in lines
    assert lines[-1] == "verdict: INVALID (exit code 3)"


def test_a_run_that_lost_an_engine_says_how_to_go_on(make_own: Make) -> None:
    folder = make_own()
    records = folder.records_path("int4", "piqa")
    records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:9]))
    on = f"go on with: evalrig resume {folder.path}"
    assert on not in ending(folder, judge(folder), "").splitlines()
    folder.set_failed("int4", "int4: out of memory")
    assert on in ending(folder, judge(folder), "").splitlines()


def test_a_hostile_reason_cannot_drive_the_terminal(make: Make) -> None:
    folder = make()
    verdict = judge(folder)
    one = replace(verdict.candidates["int4"], outcome=Outcome.INVALID, reasons=("\x1b[2J[red]gone\u202e",))
    text = ending(folder, replace(verdict, candidates={"int4": one}), "\x1b[2J")
    assert "\x1b" not in text
    assert "␛[2J[red]gone⟨U+202E⟩" in text


def test_planned_names_everything_and_what_it_can_decide(make: Make) -> None:
    plan = make().plan()
    text = planned(plan, "name: made-up\n")
    assert text.startswith("name: made-up\n\n# the plan\n")
    for word in ("reference_again", "kl_veto", "piqa_accuracy", "diagnostic", "gating", "5 points"):
        assert word in text
    assert "# what it can decide (80 % power; 90 % for each of 2 gating suites, no true loss)" in text
    assert 'suite "piqa" (n=120, discordance 10.0%) cannot decide 5 pt: needs about 343 items' in text, (
        "248 if it were the only suite"
    )
    assert "kl_veto: margin 0.05 nats per token; what 24 samples decide depends on the spread" in text


def test_planned_names_gates_that_do_not_apply(make: Make) -> None:
    assert "gates not applied, their suite is not in this run: kl_veto" in planned(make(kl=False).plan(), "")


def test_planned_says_when_nothing_gates(make: Make) -> None:
    assert "no checks is not a pass" in planned(make(gating=False).plan(), "")


def test_planned_counts_the_clusters_of_a_suite_and_not_its_samples(make: Make) -> None:
    plan = make().plan()
    halved = tuple(replace(suite, clusters=60) if suite.name == "piqa" else suite for suite in plan.suites)
    text = planned(replace(plan, suites=halved), "")
    assert 'suite "piqa" (n=60, discordance 10.0%) cannot decide 5 pt' in text
    assert "margin 5 points, n=60: clusters of 120 samples, which may move as one" in text
    assert "clusters needed" in text
    assert "clusters of" not in planned(plan, "")


def test_a_plan_with_load_says_at_which_noise_its_rounds_decide(tmp_path: Path) -> None:
    """Known answers: at 80 % power a margin of 1 % takes 8 rounds where the noise of one is 1 % (docs/load.md)."""
    gates = {
        "speed": {"kind": "load_ratio", "metric": "output_tokens_per_second", "margin": 0.01},
        "cheaper": {"kind": "saving", "metric": "usd_per_million_output", "margin": 0.2},
        "held": {"kind": "kv_capacity", "margin": -0.9},
        "slo": {"kind": "slo", "margin": 0.01},
    }
    plan = load_folder(tmp_path, gates, rounds=8).plan()
    shown = planned(plan, "").partition("what it can decide")[2]
    speed, _, rest = shown.partition("cheaper:")
    assert "speed: margin 1 %, 8 rounds" in speed
    assert re.search(r"1\.0 % +8 +\S+ % +yes", speed)
    assert re.search(r"3\.0 % +\d+ +\S+ % +no", speed)
    assert "a gain must exceed what is asked by" in rest
    assert "99 % within the SLO takes 299 requests of which none misses it; 512 are hardly enough" in rest
    assert "held: margin at least × 1.9; is read back from the engines, not sampled" in rest
