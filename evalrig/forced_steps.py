"""Step by step along a given trajectory: at each step the model sees the given history, and its next act is compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalrig.dialect import Dialect
from evalrig.engine import Engine, Sampling
from evalrig.types import Completion, Message, Step, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a given trajectory: what was seen before it, and what was done."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    due: tuple[tuple[str, Mapping[str, Any]], ...]
    """Calls with their arguments; empty: an answer in words."""
    text: str = ""
    """The words, where the act was an answer."""


async def follow(
    engine: Engine, stages: Sequence[Stage], dialect: Dialect, sampling: Sampling
) -> tuple[tuple[Completion, ...], tuple[Step, ...]]:
    """Every step by itself, each from the given history."""
    raise NotImplementedError
