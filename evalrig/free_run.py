"""One attempt in an arena, freely: the model calls tools until it answers in words, or a limit ends it. Every end has a reason."""

from dataclasses import dataclass

from evalrig.arena import Arena
from evalrig.dialect import Dialect
from evalrig.engine import Engine, Sampling
from evalrig.types import Completion, Step

ENDS = ("answered", "step_limit", "loop", "truncated", "gave_up")
"""Why it ended. `gave_up`: an answer in words before anything was reached that the goal needs is the suite's to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one attempt."""

    steps: int
    """Turns of the model over all of the user's requests."""
    repeats: int = 3
    """The same calls with the same results so often in a row are a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ride:
    """What one attempt was."""

    turns: tuple[Completion, ...]
    steps: tuple[Step, ...]
    end: str
    answer: str
    success: bool
    detail: str = ""


async def ride(engine: Engine, arena: Arena, dialect: Dialect, sampling: Sampling, limits: Limits) -> Ride:
    """Let a model work in an arena. An `EngineError` passes through: it is no end of the model's."""
    raise NotImplementedError
