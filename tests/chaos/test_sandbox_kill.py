"""A harness that is killed or stopped while programs run: nothing of them lives on, and nobody waits for them."""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from toys.runs import run_file
from toys.walls import alive, gone

HARNESS = """
import sys, threading
from evalrig.plugins import find
from evalrig.sandbox import Limits, Sandbox, probe
sandbox = find("sandboxes", "bwrap", Sandbox, "sandbox")(False)
probe(sandbox)
program, first = sys.argv[1], int(sys.argv[3])
print("ready", flush=True)
def go(slot):
    while True:
        sandbox.run(program, b"", Limits(wall_seconds=float(sys.argv[2])), slot)
threads = [threading.Thread(target=go, args=(slot,)) for slot in range(first, first + 4)]
[thread.start() for thread in threads]
"""
STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/usr/bin/python3", ["python3", "-c", "import time; time.sleep(90) # {tag}"])
    os._exit(0)
os.execv("/usr/bin/python3", ["python3", "-c", "import time; time.sleep(90) # {tag}"])
"""


def harness(program: str, wall: float, first: int = 0) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", HARNESS, program, str(wall), str(first)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def until(reached: object, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < end, "the moment did not come"
        time.sleep(0.02)


def test_a_killed_harness_takes_its_programs_and_their_daemons_along():
    tag = "tag" + secrets.token_hex(8)
    process = harness(STUBBORN.format(tag=tag), 60)
    until(lambda: len([line for line in alive(tag) if line.startswith("python3 -c import")]) == 8)
    kill(process)
    assert gone(tag, 2.0), alive(tag)


def test_a_harness_killed_in_the_middle_of_starts_leaves_nothing():
    """Four starts at once, over and over: between fork and the last set-up step nobody is bound to anybody yet."""
    chance = random.Random(7)
    for _ in range(4):
        first = random.SystemRandom().randrange(100, 990)  # uids that no other test has
        process = harness("import time; time.sleep(0.03)", 60, first)
        time.sleep(chance.uniform(0.0, 0.4))
        started = psutil.Process(process.pid).children(recursive=True)
        kill(process)
        _, left = psutil.wait_procs(started, timeout=3)
        assert not left
        until(lambda first=first: not of_users(range(60000 + first, 60004 + first)), 3)


def of_users(users: range) -> list[int]:
    """Processes of these uids: where we are not root there are none, and only those seen before the kill are looked for."""
    return [one.pid for one in psutil.process_iter(["uids"]) if one.info["uids"] and one.info["uids"].real in users]


def code_run(folder: Path, program: str, **changes: object) -> Path:
    return run_file(
        folder,
        {"cheap": {"noise": 0.02}},
        suites={"programs": {"kind": "toys.programs", "options": {"program": program}}},
        gates={"solved": {"kind": "noninferior", "suite": "programs", "metric": "solved", "margin": 0.3}},
        **changes,
    )


def test_a_stopped_run_waits_for_no_program(tmp_path):
    """The programs have a minute; the verdict and the report are written after they were ended."""
    tag = "tag" + secrets.token_hex(8)
    path = code_run(tmp_path, STUBBORN.format(tag=tag))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "evalrig", "run", str(path)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    until(lambda: alive(f"sleep(90) # {tag}") or process.poll() is not None, 90)
    assert process.poll() is None, process.communicate()
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert gone(f"sleep(90) # {tag}", 8)
    _, err = process.communicate(timeout=50)
    assert time.monotonic() - began < 30
    assert process.returncode == 3, err
    assert "Traceback" not in err
    [verdict] = (tmp_path / "runs").glob("toy/2*/verdict.json")
    assert json.loads(verdict.read_bytes())["outcome"] == "INVALID"
