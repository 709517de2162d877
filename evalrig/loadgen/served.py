"""A block after parsing: one row a request, one row an event. Times are seconds after the block's start, float64."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Shape [n] each, in the order of the schedule. NaN: it did not happen."""

    ok: NDArray[np.bool_]
    """Status 200, no error, and at least one token of content."""
    due: Floats
    sent: Floats
    first: Floats
    """First event with content (text, reasoning or a tool call): not a role or an empty one."""
    last: Floats
    """Last event with content."""
    prompt_tokens: NDArray[np.int64]
    """From `usage`; -1: not told."""
    cached_tokens: NDArray[np.int64]
    """Of the prompt, from `usage`; -1: not told."""
    tokens: NDArray[np.int64]
    """Generated, from `usage`; -1: not told. Never the number asked for, never counted from events."""
    error: tuple[str, ...]
    """Empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Shape [m] each: events with content, by request and then by time."""

    request: NDArray[np.int64]
    """Row in `Requests`."""
    at: Floats
    exact: NDArray[np.bool_]
    """It was the last event of its read: the time is its own. Else it is an upper bound."""
    tokens: Floats
    """Tokens generated up to and with it: from continuous usage where the engine sends it, else spread evenly over the events
    so that the last has all of `usage`; NaN where usage is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """All that was served in one block."""

    requests: Requests
    events: Events
    seconds: float
    """From the block's start to its last event."""
