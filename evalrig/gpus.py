"""Is the memory of the GPUs free again? A killed engine can hold it for a while; the next would then fail, or size its KV pool by it."""

import asyncio
import importlib
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

SECONDS = 30.0
POLL = 1.0
SHARE = 0.1
"""Of a GPU's memory, that may be in use."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


async def wait_until_free(env: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Wait, at most half a minute, until the visible GPUs are free; without the `nvidia-ml-py` package nothing is known.

    `env` is laid over this process's environment, as it is for the engine.
    """
    visible = env.get(VISIBLE, os.environ.get(VISIBLE, ""))
    end = asyncio.get_running_loop().time() + SECONDS
    while (busy := await asyncio.to_thread(_busy, visible)) and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(POLL)
    if busy:
        say(f"GPU {', '.join(map(str, busy))}: memory in use by another program; a start may fail for want of it")


def memory_in_use(env: Mapping[str, str]) -> float:
    """Bytes in use on the visible GPUs together, by whomever; NaN: nothing is known of them."""
    told = _memory(env.get(VISIBLE, os.environ.get(VISIBLE, "")))
    return float(sum(used for _, used, _ in told)) if told else math.nan


def _busy(visible: str) -> list[int]:
    """Indices of visible GPUs whose memory is in use. What a GPU does not tell is not waited for."""
    return [index for index, used, total in _memory(visible) if used > SHARE * total]


def _memory(visible: str) -> list[tuple[int, int, int]]:
    """Index, bytes in use and bytes of the visible GPUs that tell."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return []
    try:
        nvml.nvmlInit()
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:  # no driver here
        return []
    wanted = [part.strip() for part in visible.split(",") if part.strip()]
    found: list[tuple[int, int, int]] = []
    for index in range(count):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
            name = str(nvml.nvmlDeviceGetUUID(gpu))
        except nvml.NVMLError:  # fallen off the bus, or no memory of its own
            continue
        ours = not wanted or str(index) in wanted or any(name.startswith(part) for part in wanted)
        if ours:
            found.append((index, int(memory.used), int(memory.total)))
    return found
