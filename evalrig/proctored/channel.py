"""Two pipes between the test process and the program's: messages with their length before them."""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 64 << 20
"""Bytes of one message."""


class Gone(EOFError):
    """The other side has closed its end."""


class TooLong(ValueError):
    """A message over the limit."""


class Channel:
    """One side's two ends."""

    def __init__(self, reads: int, writes: int) -> None:
        self.reads = reads
        self.writes = writes

    def send(self, message: bytes) -> None:
        """Whole; waits for the other side.

        Raises:
            TooLong, OSError: nobody reads.
        """
        if len(message) > LONGEST:
            raise TooLong
        left = memoryview(len(message).to_bytes(8, "big") + message)
        while left:
            left = left[os.write(self.writes, left) :]

    def receive(self, watch: Callable[[], None] | None = None) -> bytes:
        """The next message. `watch` is called ten times a second while nothing comes.

        Raises:
            Gone, TooLong: see there.
        """
        length = int.from_bytes(self._take(8, watch), "big")
        if length > LONGEST:
            raise TooLong
        return self._take(length, watch)

    def waiting(self) -> bool:
        """Something can be read, or the other side is gone."""
        return bool(select.select([self.reads], [], [], 0)[0])

    def _take(self, count: int, watch: Callable[[], None] | None) -> bytes:
        parts: list[bytes] = []
        while count:
            while watch and not select.select([self.reads], [], [], 0.1)[0]:
                watch()
            part = os.read(self.reads, min(count, 1 << 20))
            if not part:
                raise Gone
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def pair() -> tuple[Channel, Channel]:
    """Both sides of a new one."""
    there, back = os.pipe(), os.pipe()
    return Channel(back[0], there[1]), Channel(there[0], back[1])
