"""Run files for SGLang and vLLM on the fake server, with the faults a test asks for, and what is left of such a run."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toys import fake_server
from toys.checkpoints import checkpoint
from toys.engine import VOCABULARY, table
from toys.launched import all_flags
from toys.runs import run_file

PROGRAM = [sys.executable, "-S", str(Path(fake_server.__file__))]
KINDS = ("sglang", "vllm")


def fleet_file(
    folder: Path,
    kind: str,
    faults: Mapping[str, str],
    program: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    **engine: Any,
) -> Path:
    """A small run of both suites on `kind`. `faults` by variant name (`reference` among them): see fake_server.

    Every candidate named in `faults` is there, a little noisy; `engine` and `program` are laid over those keys.
    A candidate makes about 70 to 80 calls for tokens: 8 of preflight, 20 of `kl` (vLLM 32: it gives whole rows one by one), 40 of `piqa`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = str(checkpoint(folder / "model", vocab_size=VOCABULARY))
    candidates: dict[str, Any] = {
        name: {"program": {"env": _env(folder, name, 0.02, faults[name])}} for name in faults if name != "reference"
    }
    common = {"FAKE_KIND": kind, "FAKE_FLAGS": all_flags(kind), **(env or {})}
    options = {"program": {"command": PROGRAM, "env": common, **(program or {})}}
    reference = {
        "weights": weights,
        "expect": {"weights": "bf16", "kv_cache": "bf16"},
        "args": {"program": {"env": _env(folder, "reference", 0.0, faults.get("reference", ""))}},
    }
    chosen = {
        "kind": kind,
        "start_seconds": 60,
        "request_seconds": 20,
        "hang_seconds": 25,
        "options": options,
        **engine,
    }
    suites = {
        "kl": {**_options(folder, "prompts"), "kind": "kl", "samples": 6},
        "piqa": {**_options(folder, "path"), "kind": "piqa", "samples": 20},
    }
    one = {"engines": 1, "concurrency": 4}
    return run_file(folder, candidates, engine=chosen, reference=reference, suites=suites, runner=one, name=kind)


def _options(folder: Path, key: str) -> dict[str, Any]:
    """Of a suite: the files that `run_file` writes."""
    if key == "path":
        return {"options": {"path": str(folder / "piqa.jsonl")}}
    return {"options": {"prompts": str(folder / "prompts.jsonl"), "tokens": 12, "top_k": 20}}


def _env(folder: Path, name: str, noise: float, faults: str) -> dict[str, str]:
    state = folder / f"state-{name}"
    state.mkdir(exist_ok=True)
    model = folder / f"table-{noise}.json"
    model.write_text(json.dumps(table(noise).tolist()))
    return {"FAKE_STATE": str(state), "FAKE_TABLE": str(model), "FAKE_FAULTS": faults}


def starts(folder: Path, name: str) -> int:
    """How often a variant's program was started."""
    return (folder / f"state-{name}" / "starts").stat().st_size


def pids(folder: Path) -> list[int]:
    """Every process that any start brought."""
    return [int(line) for path in folder.glob("state-*/pids") for line in path.read_text().split()]


def left_running(folder: Path, seconds: float = 15.0) -> list[int]:
    """Those of `pids` that are still there after so long."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids(folder) if _runs(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
