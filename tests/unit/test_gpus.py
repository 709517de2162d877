"""Waiting for the GPUs' memory, on a stand-in for `nvidia-ml-py`: bounded, of the visible ones alone, silent where nothing is told."""

import asyncio
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from evalrig import gpus


class Nvml:
    """Four GPUs of 100 bytes. `used` is read at each look; an entry that is None does not tell."""

    class NVMLError(Exception):
        pass

    def __init__(self, *looks: list[int | None], driver: bool = True) -> None:
        self.looks = list(looks)
        self.driver = driver
        self.seen = 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError
        self.used = self.looks[min(self.seen, len(self.looks) - 1)]
        self.seen += 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.used)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, index: int) -> str:
        return f"GPU-{index}abc"

    def nvmlDeviceGetMemoryInfo(self, index: int) -> Any:
        if (used := self.used[index]) is None:
            raise self.NVMLError
        return SimpleNamespace(used=used, total=100)


def waited(monkeypatch: pytest.MonkeyPatch, nvml: Nvml | None, **env: str) -> list[str]:
    def found(name: str) -> Any:
        assert name == "pynvml"
        if nvml is None:
            raise ImportError(name)
        return nvml

    monkeypatch.setattr(gpus, "importlib", SimpleNamespace(import_module=found))
    monkeypatch.setattr(gpus, "POLL", 0.01)
    monkeypatch.setattr(gpus, "SECONDS", 0.2)
    said: list[str] = []
    began = time.monotonic()
    asyncio.run(gpus.wait_until_free(env, said.append))
    assert time.monotonic() - began < 10, "bounded"
    return said


def in_use(*which: int) -> list[str]:
    names = ", ".join(map(str, which))
    return [f"GPU {names}: memory in use by another program; a start may fail for want of it"]


def test_memory_that_becomes_free_is_waited_for_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml([90, 0], [90, 0], [5, 0])
    assert waited(monkeypatch, nvml) == []
    assert nvml.seen == 3


def test_memory_that_stays_in_use_is_said_after_a_bounded_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml([90, 0, 11, 10])
    assert waited(monkeypatch, nvml) == in_use(0, 2)
    assert nvml.seen > 2


@pytest.mark.parametrize(
    ("visible", "said"), [("1", []), ("1,2", in_use(2)), ("GPU-2abc", in_use(2)), ("GPU-1", []), ("", in_use(0, 2))]
)
def test_only_visible_gpus_are_waited_for(monkeypatch: pytest.MonkeyPatch, visible: str, said: list[str]) -> None:
    assert waited(monkeypatch, Nvml([90, 0, 90]), CUDA_VISIBLE_DEVICES=visible) == said


def test_the_environment_of_the_harness_counts_where_the_engine_s_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert waited(monkeypatch, Nvml([90, 0])) == []
    assert waited(monkeypatch, Nvml([90, 0]), CUDA_VISIBLE_DEVICES="0") == in_use(0)


def test_a_gpu_that_does_not_tell_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fell off the bus, or has no memory of its own: not a crash of the run."""
    assert waited(monkeypatch, Nvml([None, 90])) == in_use(1)


@pytest.mark.parametrize("nvml", [None, Nvml([90], driver=False)])
def test_without_the_package_or_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch, nvml: Nvml | None) -> None:
    assert waited(monkeypatch, nvml) == []


def test_memory_in_use_is_of_the_visible_gpus_that_tell_and_unknown_is_not_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def held(nvml: Nvml | None, **env: str) -> float:
        waited(monkeypatch, nvml)
        return gpus.memory_in_use(env)

    assert held(Nvml([90, None, 7, 0])) == 97
    assert held(Nvml([90, None, 7, 0]), CUDA_VISIBLE_DEVICES="2,3") == 7
    assert math.isnan(held(None))
    assert math.isnan(held(Nvml([None])))
    assert math.isnan(held(Nvml([90], driver=False)))
