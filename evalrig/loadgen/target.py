"""What the load client must know of a running engine, and what the engine tells of itself while it is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from evalrig.loadgen.schedule import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a running engine is loaded, through the routes that users call."""

    completions: Address
    """Takes token ids as the prompt (`/v1/completions`)."""
    chat: Address | None = None
    """Takes conversations; None: it has no such route."""
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Laid over every request: the model's name, `ignore_eos` where it has that, the usage asked for."""
    fixed_length: bool = False
    """`ignore_eos` works: every answer is as long as asked."""
    usage: Literal["continuous", "final", "none"] = "final"
    """What its streams tell of tokens: with every event, at the end, or nothing."""
    flushes: bool = False
    """`Engine.flush` empties its prefix cache."""
    gpus: int = 1
    """Devices that it takes; of a CPU engine 1, the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """One reading of an engine's own metrics. NaN: it does not tell."""

    at: float
    """Monotonic seconds."""
    running: float = float("nan")
    waiting: float = float("nan")
    kv_usage: float = float("nan")
    """Share of the KV pool in use, 0..1."""
    preemptions: float = float("nan")
    """Since its start: requests put back or retracted for lack of KV memory."""
    prompt_tokens: float = float("nan")
    generated_tokens: float = float("nan")
    """Both since its start."""
    gpu_bytes: float = float("nan")
    """Memory in use on its GPUs, by whomever (NVML)."""
    phases: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """(sum of seconds, count) since its start of `queue`, `prefill`, `decode`, `first_token`, `request`, as far as it tells."""
