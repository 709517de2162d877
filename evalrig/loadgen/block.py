"""What a block of load left: for every request the bytes and when they came, and whether the client can be trusted."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

OVER = "the block's time was over"
"""Ends the error of a request that was not sent, or not waited for, because its block was over: a matter of the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """When one request was due, left, and ended. Monotonic nanoseconds of the machine that measured."""

    index: int
    """Of its call in the schedule."""
    due: int
    """Open loop: as scheduled. Closed loop: when its lane was free, or its think time was over."""
    sent: int
    """Before the first byte was handed to the kernel; 0: it never was."""
    ended: int
    status: int
    """Of HTTP; 0: none came."""
    error: str = ""
    """Of the connection; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and all that came back, unparsed. The body is de-chunked; `reads` has one entry for each read that brought
    bytes."""

    sent: Sent
    body: bytes = field(repr=False)
    ends: NDArray[np.int64] = field(repr=False)
    """Shape [reads]: length of the body after each read."""
    at: NDArray[np.int64] = field(repr=False)
    """Shape [reads]: when its last byte arrived, monotonic nanoseconds."""
    lag: NDArray[np.int64] = field(repr=False)
    """Shape [reads]: nanoseconds from arrival in the kernel until it was read; 0 where the user clock is used."""
    kernel: bool = True
    """The kernel told when bytes arrived (SO_TIMESTAMPNS); False: the user clock did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The client's certificate of one block (load.md, section 0, decision 7)."""

    cpu_share: float
    """Of the busiest worker process, 0..1."""
    send_lag_p99: float
    """Seconds by which requests left after they were due."""
    read_lag_p99: float
    """Seconds from arrival in the kernel until read."""
    coalesced: float
    """Share of reads that brought more than one event: the earlier ones are upper bounds."""
    clock_moved: float
    """Seconds by which the offset of the two clocks changed during the block."""
    kernel: bool
    """Every arrival has the kernel's time."""
    cpu_per_event: float
    """Seconds of processor time."""
    workers: int
    void: tuple[str, ...] = ()
    """Why the block must not count; empty: the client can be trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block as it was measured."""

    start: int
    """Monotonic nanoseconds."""
    start_utc: str
    exchanges: tuple[Exchange, ...] = field(
        repr=False
    )  # asyncio prints what a task returned when its loop ends: seconds of work
    health: Health
    schedule_sha256: str
    flushed: bool = False
    """The prefix cache was emptied before."""
    notes: dict[str, Any] | None = None
    """Gauges of the engine before, during and after (`Gauges` as rows), where it tells."""
