"""Keeps what the test process knows from the program: its memory and files closed, its input gone, and no process left behind."""

from __future__ import annotations

import _ctypes  # ctypes itself takes longer to import than the rest of an exam's start
import os
import stat
import time

_DUMPABLE, _SUBREAPER = 4, 36
_SIGKILL = 9


class Unshielded(RuntimeError):
    """The program could read what it must not."""


def close_memory() -> None:
    """No process of the same user may read the memory, files or environment of this one and of those that it forks; and what those
    leave over becomes its child.

    Raises:
        Unshielded: the kernel said no.
    """
    loaded = _ctypes.dlopen(None, 2)  # pyright: ignore[reportArgumentType]  the C library is loaded already
    prctl = _ctypes.dlsym(loaded, "prctl")
    if _ctypes.call_function(prctl, (_DUMPABLE, 0, 0, 0, 0)):
        raise Unshielded("its memory cannot be closed to the program")
    _ctypes.call_function(prctl, (_SUBREAPER, 1, 0, 0, 0))


def drain() -> bytes:
    """All of standard input."""
    parts: list[bytes] = []
    while part := os.read(0, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def empty_input() -> None:
    """Nobody can read standard input a second time: the sandbox's own first process has it open too.

    Raises:
        Unshielded: it is a file that cannot be emptied.
    """
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        try:
            os.ftruncate(0, 0)
        except OSError as error:
            raise Unshielded(f"standard input cannot be emptied: {error.strerror}") from None


def silence(*files: int) -> None:
    """Read nothing from them, and write nowhere."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for file in files:
        os.dup2(nowhere, file)
    os.close(nowhere)


def end_children(spared: int = 0) -> None:
    """Kill all that descends from this process, but one child and what is below it.

    Where the sandbox forbids it or hides them, its end does that.
    """
    until = time.monotonic() + 2
    try:
        while time.monotonic() < until:
            pids = [pid for pid in _children() if pid != spared]
            if not pids:
                return
            for pid in pids:
                os.kill(pid, _SIGKILL)
                os.waitpid(pid, 0)
    except OSError:
        return


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:  # noqa: PTH123  pathlib is slow to import
        return [int(pid) for pid in file.read().split()]
