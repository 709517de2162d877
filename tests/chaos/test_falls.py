"""Whole runs of SGLang's and vLLM's kinds on a program that dies, hangs and complains: nothing lost, nothing twice, nothing left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toys import container
from toys.fleet import KINDS, PROGRAM, fleet_file, left_running, pids, starts
from toys.runs import Silent, carry_out

from evalrig.records import RunFolder
from evalrig.types import REFERENCE, Finding, Outcome

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="process groups and parent-death signals as on Linux"),
    pytest.mark.parametrize("kind", KINDS),
]
DEADLINE = 200.0
JUDGED = {Outcome.GO, Outcome.INCONCLUSIVE}
"""Few samples seldom decide: what counts here is that the measurement stands."""


def made(folder: RunFolder, variant: str) -> list[tuple[str, str, int]]:
    suites = [suite.name for suite in folder.plan().suites]
    return sorted((r.suite, r.sample, r.epoch) for suite in suites for r in folder.records(variant, suite))


def owed(folder: RunFolder, variant: str) -> list[tuple[str, str, int]]:
    cells = [cell for cell in folder.plan().cells if cell.stage == "attempt" and cell.variant == variant]
    return sorted((cell.suite, sample, cell.epoch) for cell in cells for sample in cell.samples)


def stability(finished: Any) -> list[Finding]:
    return [found for found in finished.verdict.validity if found.rule == "stability"]


def test_a_crash_midway_is_restarted_once_and_is_evidence(kind: str, tmp_path: Path) -> None:
    """vLLM's server says "error" in a 200 and ends with code 0; SGLang's answers nothing and is killed (wire/INDEX.md)."""
    progress = Silent()
    finished = carry_out(fleet_file(tmp_path, kind, {"falls": "die@40;"}), progress=progress)
    assert starts(tmp_path, "falls") == 2
    assert made(finished.folder, "falls") == owed(finished.folder, "falls")
    assert {r.state for suite in ("kl", "piqa") for r in finished.folder.records("falls", suite)} == {"scored"}
    assert finished.verdict.candidates["falls"].outcome in JUDGED
    [said] = stability(finished)
    assert (said.level, said.candidate) == ("warn", "falls")
    cause = {"sglang": "killed: Subprocess scheduler_0", "vllm": "EngineDeadError: EngineCore encountered an issue."}[
        kind
    ]
    assert "its engine crashed once while it worked; it was started again once; " in said.text
    assert f"its log says: {cause}" in said.text.replace("vllm.v1.engine.exceptions.", "")
    assert [line for line in progress.lines if "it is started again (1 of 1)" in line]
    assert not left_running(tmp_path, 0)


def test_a_crash_more_often_than_allowed_ends_that_candidate_and_the_other_is_judged(kind: str, tmp_path: Path) -> None:
    finished = carry_out(fleet_file(tmp_path, kind, {"falls": "die@25", "good": ""}))
    assert starts(tmp_path, "falls") == 2
    assert finished.verdict.candidates["falls"].outcome is Outcome.INVALID
    assert "; engine.restarts (1) is used up" in finished.verdict.candidates["falls"].reasons[0]
    assert finished.verdict.candidates["good"].outcome in JUDGED
    assert made(finished.folder, "good") == owed(finished.folder, "good")
    [said] = stability(finished)
    assert "its engine crashed 2 times" in said.text
    assert "the reference's did not" in said.text


def test_a_hang_is_seen_ended_and_restarted(kind: str, tmp_path: Path) -> None:
    """It answers no health check either, and ignores SIGTERM."""
    path = fleet_file(tmp_path, kind, {"hangs": "hang@50;"}, request_seconds=4, hang_seconds=5)
    finished = carry_out(path)
    assert starts(tmp_path, "hangs") == 2
    assert made(finished.folder, "hangs") == owed(finished.folder, "hangs")
    assert finished.verdict.candidates["hangs"].outcome in JUDGED
    [said] = stability(finished)
    assert (
        "hangs: its engine hung once while it worked; it was started again once; 4 attempts were cut short" in said.text
    )
    assert "the engine hangs: no answer for " in said.text
    assert not left_running(tmp_path, 0)


def test_a_mismatch_that_only_the_log_tells_is_invalid(kind: str, tmp_path: Path) -> None:
    line = "Detected errors during sampling! NaN in the logits."
    finished = carry_out(fleet_file(tmp_path, kind, {"sick": f"say@20={line}", "good": ""}))
    assert finished.verdict.candidates["sick"].outcome is Outcome.INVALID
    assert finished.verdict.candidates["sick"].reasons == (f"sick: NaN, 1 in its log (reference: 0): {line}",)
    assert finished.verdict.candidates["good"].outcome in JUDGED


# ---- through the command line


def evalrig(*arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "evalrig", *arguments]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=DEADLINE)
    return process.returncode, out + err


def run_of(folder: Path) -> RunFolder:
    return RunFolder.open(next(folder.glob("runs/*/2*/plan.json")).parent)


def kill_at(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not reached():
        assert process.poll() is None, ended(process)
        assert time.monotonic() < end, "the moment did not come"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    ended(process)


def lines(folder: Path, pattern: str) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(pattern))


def test_nothing_is_left_after_sigkill_and_a_resume_makes_the_rest(kind: str, tmp_path: Path) -> None:
    """An engine that crashed before, too: events and restarts of the first half count in the second."""
    path = fleet_file(tmp_path, kind, {"falls": "die@25;"}, env={"FAKE_CHILD": "1"})
    process = evalrig("run", str(path))
    kill_at(process, lambda: lines(tmp_path, "runs/*/2*/variants/falls/records/*.jsonl") >= 12)
    assert starts(tmp_path, "falls") == 2
    assert len(pids(tmp_path)) == 2 * (starts(tmp_path, "falls") + starts(tmp_path, REFERENCE))
    assert not left_running(tmp_path)
    folder = run_of(tmp_path)
    before = [event.kind for event in folder.events("falls")]
    assert before == ["crash", "restart"]
    code, said = ended(evalrig("resume", str(folder.path)))
    assert code in (0, 4), said
    assert made(folder, "falls") == owed(folder, "falls")
    verdict = json.loads((folder.path / "verdict.json").read_bytes())
    assert verdict["candidates"]["falls"]["outcome"] in JUDGED
    assert any(f["rule"] == "stability" and "crashed once" in f["text"] for f in verdict["validity"])
    assert "stability: falls: its engine crashed once" in said.replace("\n", " ")
    assert not left_running(tmp_path)


def test_containers_are_removed_by_name_also_after_sigkill(kind: str, tmp_path: Path) -> None:
    """Killing `docker run` leaves the container: only the stop command ends it, and the guard gives it."""
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    client = [sys.executable, "-S", str(Path(container.__file__)), str(boxes)]
    program = {"command": [*client, "run", "{name}", *PROGRAM], "stop_command": [*client, "rm", "{name}"]}
    path = fleet_file(tmp_path, kind, {"good": ""}, program=program)
    process = evalrig("run", str(path))
    kill_at(process, lambda: lines(tmp_path, "runs/*/2*/variants/good/records/*.jsonl") >= 5)
    assert not left_running(tmp_path), "a container outlived a killed evalrig"
    names = sorted(file.stem for file in boxes.glob("*.pid") if not file.stem.endswith("help"))
    assert [name.rpartition("-")[0] for name in names] == ["evalrig-good", "evalrig-reference"]
    end = time.monotonic() + 10
    while lines(boxes, "removed") < 2 and time.monotonic() < end:
        time.sleep(0.02)
    assert sorted(set((boxes / "removed").read_text().split())) == names


def test_a_wrong_expectation_is_invalid_and_names_key_wanted_and_found(kind: str, tmp_path: Path) -> None:
    path = fleet_file(tmp_path, kind, {"claims": "", "good": ""})
    code, said = ended(evalrig("run", str(path), "candidates.claims.expect.kv_cache=fp8_e4m3"))
    assert code == 3, said
    verdict = json.loads((run_of(tmp_path).path / "verdict.json").read_bytes())
    assert verdict["outcome"] == "INVALID"
    assert verdict["candidates"]["claims"]["reasons"] == ["claims: kv_cache is bf16, expected fp8_e4m3"]
    assert verdict["candidates"]["good"]["outcome"] in JUDGED
    assert made(run_of(tmp_path), "claims") == [], "it is refused before its first attempt"
