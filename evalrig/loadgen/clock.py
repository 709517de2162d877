"""The clocks of the load client: what the kernel stamps, against the monotonic clock that all times are told in, and a timer
that is on time to some microseconds."""

import asyncio
import contextlib
import ctypes
import heapq
import os
import socket
import struct
import sys
import time
from functools import cache
from typing import Final

now = time.monotonic_ns
"""Nanoseconds."""
SO_TIMESTAMPNS: Final = 35
"""Linux, 64 bits: the kernel tells when the last bytes of a read arrived, as CLOCK_REALTIME."""
ANCILLARY: Final = 64
"""Bytes that its answer takes, and to spare."""
EARLY: Final = 150_000
"""Nanoseconds by which the timer wakes before a due time; the rest is waited for on the processor."""
_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_ABSTIME, _MONOTONIC = 0o4000, 0o2000000, 1, 1


def offset() -> int:
    """CLOCK_REALTIME less the monotonic clock, nanoseconds: of some readings the one that was least disturbed."""
    readings: list[tuple[int, int]] = []
    for _ in range(9):
        before, real, after = now(), time.time_ns(), now()
        readings.append((after - before, real - (before + after) // 2))
    return min(readings)[1]


def stamps(sock: socket.socket) -> None:
    """Ask the kernel for times of arrival, where it can."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def stamped(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """The kernel's time of a read, CLOCK_REALTIME nanoseconds; None: it told none."""
    for _, kind, content in ancillary:
        if kind == SO_TIMESTAMPNS and len(content) >= 16:
            seconds, nanoseconds = struct.unpack_from("qq", content)
            return seconds * 1_000_000_000 + nanoseconds
    return None


class Timer:
    """Waits until monotonic times, any number at once. asyncio's own sleep is late by up to a millisecond: epoll counts in those."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = _timer_fd()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap; the number keeps futures from being compared."""
        self._count = 0
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._ring)

    async def until(self, due: int) -> None:
        """Return at `due`, or at once where it is over."""
        if due - now() > EARLY:
            if self._fd is None:
                await asyncio.sleep(max(0.0, (due - now()) / 1e9 - 0.002))
            else:
                await self._rung(due - EARLY)
        while now() < due:
            pass

    async def _rung(self, when: int) -> None:
        rung: asyncio.Future[None] = self._loop.create_future()
        self._count += 1
        heapq.heappush(self._waiting, (when, self._count, rung))
        if self._waiting[0][2] is rung:
            self._set(when)
        await rung

    def _ring(self) -> None:
        assert self._fd is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        while self._waiting and (self._waiting[0][0] <= now() or self._waiting[0][2].done()):
            rung = heapq.heappop(self._waiting)[2]
            if not rung.done():
                rung.set_result(None)
        if self._waiting:
            self._set(self._waiting[0][0])

    def _set(self, due: int) -> None:
        assert self._fd is not None
        when = struct.pack("qqqq", 0, 0, *divmod(due, 1_000_000_000))
        if _libc().timerfd_settime(self._fd, _TFD_ABSTIME, when, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Give the timer back."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _timer_fd() -> int | None:
    """A timerfd; None: this system has none (Python tells of them from 3.13 on)."""
    if sys.platform != "linux":
        return None
    fd = _libc().timerfd_create(_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
    return fd if fd >= 0 else None
