"""What an engine is: a process that is started, watched, read back and stopped, and that answers HTTP."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from evalrig.types import Capacity, Completion, Fingerprint, Message, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do. A suite that needs more is refused before anything starts."""

    prompt_logprobs: bool = False
    top_logprobs: int = 0
    """Largest K per position; -1: the whole vocabulary."""
    seed: bool = False
    """The same seed gives the same tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Explicit on every request: an engine's defaults may differ between checkpoints."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Logprobs of given tokens (teacher forcing). Natural log, float32 as the engine gave them.

    Row i belongs to `token_ids[i]` and is conditional on every token before it.
    """

    token_ids: NDArray[np.int32]
    """Shape [n]."""
    logprobs: NDArray[np.float32]
    """Shape [n]: of the actual token."""
    top_ids: NDArray[np.int32]
    """Shape [n, K], by falling logprob; K = 0 where not asked for."""
    top_logprobs: NDArray[np.float32]
    """Shape [n, K]."""
    seconds: float = 0.0
    retries: int = 0


def _silent(line: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Where one engine process is started, and how long it may take."""

    log: Path
    start_seconds: float
    request_seconds: float
    connections: int = 64
    """Calls in flight at most."""
    say: Callable[[str], None] = _silent
    """Tells the person what takes long before the engine itself is started."""


class Engine(ABC):
    """One running engine of one variant. Errors of the engine are `EngineError`, never a score."""

    Options: ClassVar[type]
    """Dataclass of the kind's own keys."""
    capabilities: ClassVar[Capabilities]

    def __init__(self, variant: Variant, options: Any, launch: Launch) -> None:
        self.variant = variant
        self.options = options
        self.launch = launch

    @classmethod
    def content(cls, variant: Variant) -> tuple[str, ...]:
        """Fetched models the variant names, by card name."""
        return ()

    @classmethod
    def resolve(cls, variant: Variant, options: Any, where: str) -> None:
        """Look up what the variant names (weights, files) before anything starts; `where` leads the error.

        Raises:
            UsageError: something is not there, or the options do not go together.
        """
        return  # some kinds look nothing up

    @abstractmethod
    async def start(self) -> None:
        """Start and wait for readiness. Raises `EngineError` with the reason from the log."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the whole process group, within 10 s. Harmless when not started."""

    @abstractmethod
    def alive(self) -> bool:
        """False once the engine is gone: calls then fail for a reason that no retry mends."""

    @abstractmethod
    async def fingerprint(self) -> Fingerprint:
        """What the engine says it is."""

    @abstractmethod
    async def capacity(self) -> Capacity:
        """What it holds and costs, in its own words."""

    @abstractmethod
    async def tokenize(self, prompt: str | Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a text, or of a conversation through the engine's own chat template (ready for an answer)."""

    @abstractmethod
    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """Continue token ids."""

    @abstractmethod
    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """Logprobs of `ids[start:]`, each given all before it; `start` >= 1; top_k -1: the whole vocabulary."""
