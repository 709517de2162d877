"""A run killed, stopped or raced at bad moments: nothing lost but what was in flight, nothing twice, nothing left running."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from toys.gguf_model import tiny_model
from toys.runs import piqa_file, prompts_file

DEADLINE = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def run_file(tmp_path, model):
    tree = {
        "defaults": ["schema", "_self_"],
        "name": "chaos",
        "question": "Does it survive?",
        "output": str(tmp_path / "runs"),
        "engine": {"kind": "refengine", "options": {"context_length": 512, "kv_pool_mb": 8}},
        "reference": {"weights": str(model), "expect": {"weights": "bf16", "kv_cache": "bf16"}},
        "candidates": {"fp8kv": {"args": {"kv_cache": "fp8_e4m3"}}, "int4": {"args": {"quantize": "int4"}}},
        "suites": {
            "kl": {"kind": "kl", "options": {"prompts": str(prompts_file(tmp_path / "p.jsonl", 24)), "tokens": 24}},
            "piqa": {"kind": "piqa", "options": {"path": str(piqa_file(tmp_path / "q.jsonl", 60))}},
        },
        "gates": {
            "veto": {"kind": "kl_veto", "suite": "kl", "metric": "kl", "margin": 0.05},
            "accuracy": {"kind": "noninferior", "suite": "piqa", "metric": "accuracy", "margin": 0.2},
        },
        "runner": {"engines": 2, "concurrency": 4},
    }
    path = tmp_path / "chaos.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def start(*arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "evalrig", *arguments]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def folder_of(run_file: Path) -> Path | None:
    return next((path.parent for path in (run_file.parent / "runs").glob("chaos/2*/plan.json")), None)


def rows(folder: Path | None, pattern: str) -> list[dict[str, Any]]:
    if folder is None:
        return []
    lines = [line for file in folder.glob(pattern) for line in file.read_bytes().split(b"\n")[:-1]]
    return [json.loads(line) for line in lines]


def attempts(folder: Path | None) -> list[tuple[str, str, str, int]]:
    return sorted(
        (r["variant"], r["suite"], r["sample"], r["epoch"]) for r in rows(folder, "variants/*/records/*.jsonl")
    )


def wait_until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not reached():
        assert process.poll() is None, f"ended with {process.returncode} too early: {process.communicate()}"
        assert time.monotonic() < end, "the moment did not come"
        time.sleep(0.005)


def engines(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def planned(folder: Path) -> list[tuple[str, str, str, int]]:
    cells = json.loads((folder / "plan.json").read_bytes())["plan"]["cells"]
    return sorted(
        (c["variant"], c["suite"], s, c["epoch"]) for c in cells if c["stage"] == "attempt" for s in c["samples"]
    )


MOMENTS: dict[str, Callable[[Path | None], bool]] = {
    "engines-starting": lambda folder: folder is not None and any(folder.glob("variants/*/engine.log")),
    "reference-answering": lambda folder: len(rows(folder, "traces/*.jsonl")) >= 3,
    "attempts-half-done": lambda folder: len(attempts(folder)) >= 100,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_sigkill_then_resume_gives_each_attempt_once(run_file, moment):
    process = start("run", str(run_file))
    wait_until(process, lambda: MOMENTS[moment](folder_of(run_file)))
    left_behind = engines(process)
    process.kill()
    process.wait()
    process.communicate()
    _, alive = psutil.wait_procs(left_behind, timeout=5)
    assert not alive, "an engine outlived a killed evalrig"
    folder = folder_of(run_file)
    assert folder is not None
    before = {
        line for file in folder.glob("variants/*/records/*.jsonl") for line in file.read_bytes().split(b"\n")[:-1]
    }
    resumed = start("resume", str(folder))
    out, err = resumed.communicate(timeout=DEADLINE)
    assert resumed.returncode in (0, 1, 4), out + err
    assert attempts(folder) == planned(folder)
    after = {line for file in folder.glob("variants/*/records/*.jsonl") for line in file.read_bytes().split(b"\n")[:-1]}
    assert before <= after, "what was durable before the kill was changed"
    verdict = (folder / "verdict.json").read_bytes()
    judged = start("judge", str(folder))
    judged.communicate(timeout=DEADLINE)
    assert (folder / "verdict.json").read_bytes() == verdict


def test_sigterm_stops_engines_and_leaves_an_invalid_verdict(run_file):
    process = start("run", str(run_file))
    wait_until(process, lambda: len(attempts(folder_of(run_file))) >= 20)
    children = engines(process)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)  # an impatient supervisor must not cut the stopping short
    out, err = process.communicate(timeout=DEADLINE)
    assert time.monotonic() - began < 10
    assert not psutil.wait_procs(children, timeout=1)[1]
    folder = folder_of(run_file)
    assert folder is not None
    verdict = json.loads((folder / "verdict.json").read_bytes())
    assert process.returncode == verdict["exit_code"] == 3, err
    assert verdict["outcome"] == "INVALID"
    reasons = [reason for candidate in verdict["candidates"].values() for reason in candidate["reasons"]]
    assert any("interrupted by SIGTERM" in reason for reason in reasons)
    assert f"evalrig resume {folder}" in out.replace("\n", " ")
    resumed = start("resume", str(folder))
    out, err = resumed.communicate(timeout=DEADLINE)
    assert resumed.returncode in (0, 1, 4), out + err
    assert "INVALID" not in out
    assert attempts(folder) == planned(folder)


def test_a_second_writer_is_refused(run_file):
    process = start("run", str(run_file))
    wait_until(process, lambda: len(attempts(folder_of(run_file))) >= 1)
    folder = folder_of(run_file)
    second = start("resume", str(folder))
    _, err = second.communicate(timeout=DEADLINE)
    assert second.returncode == 2
    assert err.splitlines()[-1] == f"evalrig: {folder}: another evalrig is writing this run; wait for it or stop it"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 3


def test_a_resumed_run_with_other_weights_is_refused(run_file, model, tmp_path):
    process = start("run", str(run_file), f"reference.weights={tiny_model(tmp_path / 'w.gguf', seed=1)}")
    wait_until(process, lambda: len(attempts(folder_of(run_file))) >= 1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)
    tiny_model(tmp_path / "w.gguf", seed=2)
    resumed = start("resume", str(folder_of(run_file)))
    _, err = resumed.communicate(timeout=DEADLINE)
    assert resumed.returncode == 2
    assert "`weights_digest`" in err.splitlines()[-1]
    assert "start a new run" in err.splitlines()[-1]


def test_a_torn_last_line_is_dropped_and_said(run_file):
    process = start("run", str(run_file))
    wait_until(process, lambda: len(attempts(folder_of(run_file))) >= 10)
    process.kill()
    process.communicate()
    folder = folder_of(run_file)
    assert folder is not None
    torn = next(folder.glob("variants/*/records/*.jsonl"))
    with torn.open("ab") as file:
        file.write(b'{"variant":"reference","suite":"pi')
    resumed = start("resume", str(folder))
    out, err = resumed.communicate(timeout=DEADLINE)
    assert "its end was cut by a kill; dropped" in err
    assert resumed.returncode in (0, 1, 4), out + err
    assert attempts(folder) == planned(folder)


def test_an_unwritable_output_folder_is_one_line(run_file, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    process = start("run", str(run_file), f"output={blocked}")
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith(f"evalrig: {blocked}: cannot make a run folder: ")
    assert "Traceback" not in err
