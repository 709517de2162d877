"""One connection of the load client, and all that is done while bytes arrive: read, take the kernel's time, cut the frame, append.

Nothing is parsed, decoded or counted here. On Linux the kernel says when it got the bytes (SO_TIMESTAMPNS), so a loop that comes
late to read them moves no measured time.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import sys
from collections.abc import Callable

import httptools

from evalrig.loadgen.clock import now

READ_BYTES = 65536
"""Of one read: small enough for the allocator's heap. A larger buffer is mapped and unmapped at every read."""
STAMP = 35
"""SO_TIMESTAMPNS of Linux, and the type of the message that comes with the bytes; Python does not name it."""
ROOM = socket.CMSG_SPACE(16)
"""For that message."""
_TIMESPEC = struct.Struct("qq").unpack_from


class Lost(ConnectionError):
    """The connection ended before the answer did."""


class Answer:
    """What has come back for one request so far."""

    __slots__ = ("at", "body", "done", "ended", "ends", "heard", "kernel", "lag", "sent", "status")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.body = bytearray()
        self.ends: list[int] = []
        self.at: list[int] = []
        self.lag: list[int] = []
        self.kernel = True
        self.heard = False
        self.sent = 0
        self.ended = 0
        self.status = 0


def ask_for_stamps(sock: socket.socket) -> None:
    """Ask the kernel to say when bytes arrive, where it can."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, STAMP, 1)


class Connection:
    """A connected socket that carries one request at a time. It is also the sink of its HTTP parser."""

    def __init__(self, sock: socket.socket, offset: int, free: Callable[["Connection", bool], None]) -> None:
        """`offset`: of the kernel's clock. `free` is called with whether it can be used again, when its answer has ended or when
        it was lost without one."""
        self.on_body: Callable[[bytes], object] = bytes
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._offset = offset
        self._free = free
        self._answer: Answer | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._unsent = b""
        self._keep = False
        self._loop.add_reader(sock.fileno(), self._readable)

    def begin(self, answer: Answer, request: bytes, at: int = 0) -> None:
        """Send `request`, not before `at`; what comes back goes to `answer`, whose `done` tells the end.

        The last of the wait is burnt here, when all that has to be made for the request is made.
        """
        self._answer = answer
        self.on_body = answer.body.extend  # httptools looks it up once, so each read costs one call into C
        self._parser = httptools.HttpResponseParser(self)
        while now() < at:
            pass
        answer.sent = answer.sent or now()
        self._write(request)

    def close(self) -> None:
        """Close the socket, whatever it carries. May be called twice."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
        self._answer = self._parser = None
        self.on_body = bytes

    def on_headers_complete(self) -> None:
        """Of httptools."""
        if self._answer is not None and self._parser is not None:
            self._answer.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        """Of httptools. The parser forgets after it whether the connection may be kept."""
        if self._parser is not None:
            self._keep = self._parser.should_keep_alive()
            self._parser = None

    def _take(self, came: bytes) -> None:
        """Hand on bytes as they came from the socket."""
        self._feed(came)

    def _feed(self, plain: bytes) -> None:
        if self._parser is None:
            raise Lost("the server sent bytes that nobody asked for")
        self._parser.feed_data(plain)

    def _readable(self) -> None:
        try:
            came, told, _, _ = self._socket.recvmsg(READ_BYTES, ROOM)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(Lost(said(error)))
            return
        read = now()
        answer = self._answer
        if not came or answer is None:
            self._unasked(came)
            return
        answer.heard = True
        try:
            self._take(came)
        except (httptools.HttpParserError, OSError) as error:  # `Lost` is an OSError
            self._lose(Lost(f"no HTTP answer: {said(error)}"))
            return
        at = stamp(told, self._offset)
        if len(answer.body) > (answer.ends[-1] if answer.ends else 0):
            answer.ends.append(len(answer.body))
            answer.at.append(at or read)
            answer.lag.append(read - at if at else 0)
            answer.kernel &= at > 0
        if self._parser is None:
            self._complete(answer, at or read)

    def _unasked(self, came: bytes) -> None:
        """The end of the connection, or bytes while nothing was asked."""
        if came:
            self._idle(came)
        else:
            self._lose(Lost("the server closed the connection before the answer ended"))

    def _idle(self, came: bytes) -> None:
        """Bytes while nothing was asked: no state to send a request in."""
        self._lose(Lost(f"{len(came)} bytes came unasked"))

    def _complete(self, answer: Answer, at: int) -> None:
        answer.ended = at
        self._answer = None
        self.on_body = bytes
        if not answer.done.done():
            answer.done.set_result(None)
        self._free(self, self._keep and not self._unsent)

    def _lose(self, error: Lost) -> None:
        answer = self._answer
        self.close()
        if answer is not None and not answer.done.done():
            answer.done.set_exception(error)
        self._free(self, False)

    def _write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            gone = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            gone = 0
        except OSError as error:
            self._lose(Lost(said(error)))
            return
        if gone < len(data):
            self._unsent = data[gone:]
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        data, self._unsent = self._unsent, b""
        self._loop.remove_writer(self._socket.fileno())
        self._write(data)


def stamp(told: list[tuple[int, int, bytes]], offset: int) -> int:
    """When the last of the bytes arrived, monotonic nanoseconds; 0: the kernel did not say."""
    for _, kind, value in told:
        if kind == STAMP:
            seconds, rest = _TIMESPEC(value)
            return seconds * 1_000_000_000 + rest - offset
    return 0


def said(error: Exception) -> str:
    """An error in the words of the system; without the port and the address, which differ from run to run."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
