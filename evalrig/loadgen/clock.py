"""The one clock of a block: monotonic nanoseconds, the distance of the kernel's clock from it, and an alarm finer than a
selector's milliseconds."""

import asyncio
import ctypes
import heapq
import os
import sys
import time

now = time.monotonic_ns
_LIBC = ctypes.CDLL(None, use_errno=True)
_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_MONOTONIC, _ABSOLUTE = 1, 1
_SECOND = 1_000_000_000


def offset() -> int:
    """Nanoseconds that the wall clock is ahead of the monotonic one; the narrowest of some readings. It moves only when the wall
    clock is set: what slews one slews both."""
    readings: list[tuple[int, int]] = []
    for _ in range(9):
        before, wall, after = now(), time.time_ns(), now()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]


class _Spec(ctypes.Structure):
    _fields_ = (("interval", ctypes.c_long * 2), ("value", ctypes.c_long * 2))


class Timer:
    """A timer of the kernel as a file to select on; `None` from `open` where there is none (not Linux)."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls) -> "Timer | None":
        """A timer that is not set."""
        if sys.platform != "linux":
            return None
        fd = _LIBC.timerfd_create(_MONOTONIC, _FLAGS)
        return cls(fd) if fd >= 0 else None

    def fileno(self) -> int:
        """Readable after the instant."""
        return self._fd

    def set(self, at: int) -> None:
        """Ring at `at`, monotonic nanoseconds; an instant that is past rings at once."""
        spec = _Spec(value=(ctypes.c_long * 2)(*divmod(max(at, 1), _SECOND)))
        if _LIBC.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        """Take note of a ring."""
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        """No more rings."""
        os.close(self._fd)


class Alarm:
    """Wakes coroutines at instants of the monotonic clock. With a kernel timer to about 0.05 ms on a core that is free; without
    one to a selector's millisecond."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0
        self._timer = Timer.open()
        if self._timer is not None:
            self._loop.add_reader(self._timer.fileno(), self._rung)

    async def until(self, at: int) -> None:
        """Return at `at`, monotonic nanoseconds, or soon after."""
        if at <= now():
            return
        waiting = self._loop.create_future()
        self._count += 1
        heapq.heappush(self._waiting, (at, self._count, waiting))
        if self._waiting[0][1] == self._count:
            self._set(at)
        await waiting

    def close(self) -> None:
        """Nobody is woken any more."""
        if self._timer is not None:
            self._loop.remove_reader(self._timer.fileno())
            self._timer.close()

    def _set(self, at: int) -> None:
        if self._timer is not None:
            self._timer.set(at)
        else:
            self._loop.call_at(at / _SECOND, self._rung)

    def _rung(self) -> None:
        if self._timer is not None:
            self._timer.clear()
        while self._waiting and self._waiting[0][0] <= now():
            waiting = heapq.heappop(self._waiting)[2]
            if not waiting.done():  # it may have been cancelled
                waiting.set_result(None)
        if self._waiting:
            self._set(self._waiting[0][0])
