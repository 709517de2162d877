"""Faults: off unless asked for, told everywhere, and wrong in just the way that was asked."""

import asyncio
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.engine_rows import started
from toys.gguf_model import tiny_model

from evalrig.engine import Launch
from evalrig.engines.refengine import Refengine, RefengineOptions
from evalrig.errors import UsageError
from evalrig.likeness import alone
from evalrig.proof import Preflight
from evalrig.refengine.faults import LogitNoise, fault_of
from evalrig.types import Capacity, Fingerprint, Level, Variant
from evalrig.validity import expected

NOISE = LogitNoise(sigma=0.1, seed=7)
TEXT = list(range(3, 43))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def test_noise_is_normal_and_follows_from_seed_and_tokens() -> None:
    row = np.linspace(-3, 3, 50_000, dtype=np.float32)
    draws = NOISE.onto(row, TEXT) - row
    assert draws.mean() == pytest.approx(0, abs=0.002)
    assert draws.std() == pytest.approx(0.1, rel=0.02)
    assert np.array_equal(NOISE.onto(row, TEXT), NOISE.onto(row, tuple(TEXT)))
    for other in (NOISE.onto(row, TEXT[:-1]), LogitNoise(sigma=0.1, seed=8).onto(row, TEXT)):
        assert abs(np.corrcoef(draws, other - row)[0, 1]) < 0.02


def test_an_engine_with_noise_repeats_itself_and_decodes_what_it_scores(tiny: Path) -> None:
    with started(tiny) as plain, started(tiny, fault=NOISE) as noisy:
        first, [again, short] = noisy.rows([TEXT])[0], noisy.rows([TEXT, TEXT[:20]])
        # to rounding: not every BLAS kernel gives a row the same bits in every batch
        assert np.abs(first - again).max() < 2e-5
        assert np.abs(first[:19] - short).max() < 2e-5
        assert 0.05 < np.abs(first - plain.rows([TEXT])[0]).mean() < 0.2
        [(ids, decoded)] = noisy.draw([TEXT[:20]], tokens=12, seed=3)
        assert decoded == pytest.approx(noisy.chosen([TEXT[:20] + ids], start=20)[0], abs=1e-5)
        assert plain.told["faults"] == []
        assert noisy.told["faults"] == ["logit_noise=0.1:7"]


@pytest.mark.parametrize(
    "text",
    ["", "logit_noise", "logit_noise=0.1", "logit_noise=0:1", "logit_noise=nan:1", "logit_noise=0.1:-1", "x=1:1"],
)
def test_a_fault_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"here: no fault {text!r}; known: logit_noise=SIGMA:SEED")):
        fault_of(text, "here")


def test_a_fault_that_is_none_is_refused_before_anything_starts(tiny: Path) -> None:
    variant = Variant(name="cheap", role="candidate", engine="refengine", weights=str(tiny))
    with pytest.raises(UsageError, match=r"candidates\.cheap\.args\.fault: no fault 'nan'"):
        Refengine.resolve(variant, RefengineOptions(fault="nan"), "candidates.cheap")
    Refengine.resolve(variant, RefengineOptions(fault=str(NOISE)), "candidates.cheap")
    argv = [sys.executable, "-m", "evalrig.refengine", "--model", str(tiny), "--port", "0", "--fault", "nan"]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stderr.count("\n")) == (2, 1)
    assert "--fault: no fault 'nan'" in said.stderr


def test_a_fault_is_in_log_and_fingerprint_of_a_process(tiny: Path, tmp_path: Path) -> None:
    variant = Variant(name="cheap", role="candidate", engine="refengine", weights=str(tiny))
    launch = Launch(log=tmp_path / "log", start_seconds=60, request_seconds=30)

    async def flags(fault: str) -> dict[str, Any]:
        engine = Refengine(variant, RefengineOptions(kv_pool_mb=4, fault=fault), launch)
        try:
            await engine.start()
            return dict((await engine.fingerprint()).flags)
        finally:
            await engine.stop()

    assert asyncio.run(flags(str(NOISE)))["faults"] == "logit_noise=0.1:7"
    assert "FAULT switched on: logit_noise=0.1:7" in (tmp_path / "log").read_text()
    assert "faults" not in asyncio.run(flags(""))


def test_no_run_passes_with_a_fault() -> None:
    sound = Fingerprint(engine="refengine", version="1", weights="bf16", kv_cache="bf16")
    wrong = replace(sound, flags={"faults": "logit_noise=0.1:7"})
    capacity = Capacity()
    for variant, scope in (("cheap", "cheap"), ("reference", "")):
        proved = Preflight(variant=variant, expect={}, fingerprint=wrong, capacity=capacity)
        [found] = [finding for finding in expected(proved) if finding.rule == "fault"]
        assert (found.level, found.candidate) == (Level.INVALID, scope)
        assert found.text.startswith(f"{variant}: its engine is wrong on purpose (logit_noise=0.1:7)")
        assert not list(alone(replace(proved, fingerprint=sound)))
