"""The server as a process: start, ports, errors at start, a client that leaves, SIGTERM, and the death of its parent."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

START_S = 60


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "evalrig.refengine", *map(str, arguments)]


def wait_for(condition: Callable[[], Any], seconds: float) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail(f"not within {seconds} s")


def read_port(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0


def gone(pid: int) -> bool:
    """No such process, or only its entry is left for a parent that does not look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def server(model_path: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a session of its own, and its address."""
    port_file = tmp_path / "port"
    arguments = command("--model", model_path, "--port", 0, "--port-file", port_file, "--context-length", 1024)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(arguments, stderr=log, text=True, start_new_session=True)
        try:
            port = wait_for(lambda: process.poll() is not None or read_port(port_file), START_S)
            assert process.poll() is None, (tmp_path / "log").read_text()
            yield process, f"http://127.0.0.1:{port}"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def test_a_life(server: tuple[subprocess.Popen[str], str]) -> None:
    process, address = server
    with httpx.Client(base_url=address, timeout=30) as http:
        assert http.get("/ready").status_code == 200
        info = http.get("/server_info").json()
        assert info["blas"]["threads"] == 1
        assert info["kv_cache_dtype"] == "bf16"
        assert http.post("/generate", content=b"{", headers={"content-type": "application/json"}).status_code == 400

        long = {"text": "Once", "sampling_params": {"max_new_tokens": 900, "ignore_eos": True}}
        with http.stream("POST", "/generate", json={**long, "stream": True}) as answer:
            assert next(answer.iter_lines()).startswith("data: ")
        wait_for(lambda: used_tokens(http) == 0, 10)
        with pytest.raises(httpx.ReadTimeout):
            http.post("/generate", json=long, timeout=0.5)
        wait_for(lambda: used_tokens(http) == 0, 10)
        assert 'num_aborted_requests_total{model_name="SmolLM2-135M-Instruct.Q4_1"} 2.0' in http.get("/metrics").text

        with http.stream("POST", "/generate", json={**long, "stream": True}) as answer:
            next(answer.iter_lines())
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(3) == 0
            assert time.monotonic() - began < 3


def used_tokens(http: httpx.Client) -> float:
    lines = http.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("sglang:kv_used_tokens{")).rsplit(" ", 1)[1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/nowhere/model.gguf"], "no such model file"),
        (["--model", "TRUNCATED"], "cut short or damaged"),
        (["--model", "MODEL", "--context-length", "9999999"], "--context-length"),
        (["--model", "MODEL", "--kv-pool-bytes", "100"], "--kv-pool-bytes"),
        (["--model", "MODEL", "--chunk", "3"], "--chunk"),
        (["--model", "MODEL", "--host", "203.0.113.7"], "--host"),
    ],
)
def test_what_cannot_start_says_so_in_one_line(
    model_path: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    cut = tmp_path / "cut.gguf"
    with model_path.open("rb") as whole:
        cut.write_bytes(whole.read(5_000_000))
    places = {"MODEL": str(model_path), "TRUNCATED": str(cut)}
    found = subprocess.run(
        command(*(places.get(one, one) for one in arguments), "--port", 0),
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    assert found.returncode == 2
    assert words in found.stderr
    assert "Traceback" not in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_taken_port_is_told_before_the_model_is_loaded(model_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = subprocess.run(
            command("--model", model_path, "--port", port), capture_output=True, text=True, timeout=START_S
        )
    assert found.returncode == 2
    assert f"--port {port}" in found.stderr


def test_it_dies_with_its_parent(model_path: Path, tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    arguments = command("--model", model_path, "--port", 0, "--port-file", port_file)
    parent = (
        "import os, subprocess, sys, threading, time\n"
        f"run = {arguments!r} + ['--parent-pid', str(os.getpid())]\n"
        # Started from a thread that ends at once: the thread's end must not be taken for the parent's.
        "box = []\n"
        "thread = threading.Thread(target=lambda: box.append(subprocess.Popen(run, stderr=subprocess.DEVNULL)))\n"
        "thread.start(); thread.join()\n"
        "print(box[0].pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline())
        try:
            wait_for(lambda: gone(child) or read_port(port_file), START_S)
            assert not gone(child)
        finally:
            starter.kill()
    wait_for(lambda: gone(child), 5)


CHECK = """
import json, sys
from pathlib import Path
from evalrig.refengine.engine import Settings, start_engine
engine = start_engine(Settings(model=Path(sys.argv[1]), pool_bytes=1 << 26))
info = engine.server_info()
print(json.dumps({"exact": info["exact"], "kernel": info["blas"]["kernel"]}))
"""


def test_a_kernel_that_treats_all_rows_alike_is_found_exact(model_path: Path) -> None:
    """OpenBLAS's Sandybridge kernel does; every processor this is likely to run on can be told to use it."""
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Sandybridge", "OPENBLAS_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", CHECK, str(model_path)], env=environment, capture_output=True, text=True, timeout=START_S
    )
    said = json.loads(found.stdout)
    if said["kernel"] == "Sandybridge":
        assert said["exact"] == {"requested": True, "holds": True}
