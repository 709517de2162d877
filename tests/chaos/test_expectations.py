"""A variant that is not what the run file expects of it, on a real llama.cpp server."""

import json
import subprocess
import sys
from pathlib import Path

from toys.gguf_model import tiny_model
from toys.runs import run_file


def test_a_wrong_expectation_is_invalid_and_names_key_wanted_and_found(tmp_path: Path) -> None:
    weights = str(tiny_model(tmp_path / "tiny.gguf"))
    options = {"cache_type_k": "bf16", "cache_type_v": "bf16", "parallel": 2, "context_length": 512}
    path = run_file(
        tmp_path,
        {"claims": {}},
        engine={"kind": "llama_cpp", "options": options},
        reference={"weights": weights, "expect": {"kv_cache": "bf16"}},
    )
    small = ["suites.kl.samples=2", "suites.piqa.samples=2", "suites.kl.options.tokens=4"]
    wrong = ["candidates.claims.expect.weights=''", "candidates.claims.expect.kv_cache=q8_0"]
    argv = [sys.executable, "-m", "evalrig", "run", str(path), *small, *wrong]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    [file] = tmp_path.glob("runs/toy/2*/verdict.json")
    verdict = json.loads(file.read_bytes())
    assert verdict["outcome"] == "INVALID"
    assert "claims: kv_cache is bf16, expected q8_0" in verdict["candidates"]["claims"]["reasons"]
