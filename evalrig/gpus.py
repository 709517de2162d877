"""Is the memory of the GPUs free again? A killed engine can hold it for a while; the next would then fail, or size its KV pool by it."""

import asyncio
import importlib
from collections.abc import Callable, Mapping
from typing import Any

SECONDS = 30.0
SHARE = 0.1
"""Of a GPU's memory, that may be in use."""


async def wait_until_free(env: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Wait, at most half a minute, until the visible GPUs are free; without the `nvidia-ml-py` package nothing is known."""
    end = asyncio.get_running_loop().time() + SECONDS
    while (busy := _busy(env.get("CUDA_VISIBLE_DEVICES", ""))) and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(1.0)
    if busy:
        say(f"GPU {', '.join(map(str, busy))}: memory in use by another program; a start may fail for want of it")


def _busy(visible: str) -> list[int]:
    """Indices of visible GPUs whose memory is in use."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver here
        return []
    wanted = {int(part) for part in visible.split(",") if part.strip().isdigit()}
    busy: list[int] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index))
        if (not wanted or index in wanted) and memory.used > SHARE * memory.total:
            busy.append(index)
    return busy
