"""The hot path: one request over one connection. Per read: recvmsg, one look at the clock, framing, three appends; no JSON, no text.

Linux tells when bytes arrived in the kernel (SO_TIMESTAMPNS), so that a late event loop moves no time. Several events in one
read have the time of the last of them: parsing marks the earlier ones as upper bounds (load.md, section 2).
"""

import asyncio
import contextlib
import socket
import ssl
from typing import Any, TypeAlias

import httptools
import numpy as np

from evalrig.loadgen.block import Exchange, Sent
from evalrig.loadgen.clock import ANCILLARY, now, stamped, stamps
from evalrig.loadgen.schedule import Address

READ = 1 << 16
"""Bytes of one read: asyncio's own 256 KiB costs page faults at each."""


Place: TypeAlias = tuple[int, int, int, Any]
"""Family, kind, protocol and address of a socket."""


class Lost(ConnectionError):
    """The server closed a kept connection before a byte of the answer came: the request may go over another one."""


class Answer:
    """What comes back for one request, as it comes."""

    __slots__ = (
        "at",
        "body",
        "due",
        "ended",
        "ends",
        "error",
        "framed",
        "index",
        "keep",
        "kernel",
        "lag",
        "sent",
        "status",
    )

    def __init__(self, index: int, due: int) -> None:
        self.index, self.due = index, due
        self.sent = self.ended = self.status = 0
        self.error = ""
        self.body = bytearray()
        self.ends: list[int] = []
        self.at: list[int] = []
        self.lag: list[int] = []
        self.kernel = self.keep = True
        self.framed = False

    def exchange(self) -> Exchange:
        """As it is kept."""
        return Exchange(
            sent=Sent(
                index=self.index,
                due=self.due,
                sent=self.sent,
                ended=self.ended,
                status=self.status,
                error=self.error,
            ),
            body=bytes(self.body),
            ends=np.array(self.ends, np.int64),
            at=np.array(self.at, np.int64),
            lag=np.array(self.lag, np.int64),
            kernel=self.kernel,
        )


class Connections:
    """Kept connections to one address. `offset`: CLOCK_REALTIME less the monotonic clock."""

    def __init__(self, address: Address, offset: int) -> None:
        self.address, self.offset = address, offset
        self._loop = asyncio.get_running_loop()
        self._idle: list[Line] = []
        self._place: Place | None = None
        """Looked up once: a look-up at each connection would be a part of that request's time."""
        lines = (
            f"POST {address.path} HTTP/1.1",
            f"Host: {address.host}:{address.port}",
            "Content-Type: application/json",
        )
        self._head = "".join(f"{line}\r\n" for line in (*lines, *(f"{k}: {v}" for k, v in address.headers)))
        self._tls = ssl.create_default_context() if address.tls else None

    async def ask(self, body: bytes, answer: Answer) -> None:
        """Send one request and take all that comes back; what goes wrong stands in `answer.error`."""
        request = f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        try:
            for again in (False, True):
                line = await self._line(fresh=again)
                try:
                    await line.talk(request, answer)
                    break
                except Lost:
                    line.close()
                    if again:
                        raise
                except BaseException:
                    line.close()
                    raise
            if answer.keep:
                self._idle.append(line)
            else:
                line.close()
        except (OSError, ssl.SSLError, httptools.HttpParserError) as error:
            answer.error = answer.error or f"{type(error).__name__}: {error}"
        finally:
            answer.ended = now()

    async def _line(self, fresh: bool) -> "Line":
        while self._idle and not fresh:
            line = self._idle.pop()
            if line.open():
                line.used = True
                return line
            line.close()
        line = Line(self._loop, self.offset)
        try:
            self._place = self._place or await _found(self._loop, self.address)
            await line.connect(self._place, self.address, self._tls)
        except BaseException:
            line.close()
            raise
        return line

    def close(self) -> None:
        """Close what is kept."""
        while self._idle:
            self._idle.pop().close()


async def _found(loop: asyncio.AbstractEventLoop, address: Address) -> Place:
    family, kind, protocol, _, where = (await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))[0]
    return family, kind, protocol, where


class Line:
    """One connection. Calls of the parser come in while a read is fed to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, offset: int) -> None:
        self._loop, self._offset = loop, offset
        self._sock: socket.socket | None = None
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.used = False
        """It has carried a request before."""

    async def connect(self, place: Place, address: Address, tls: ssl.SSLContext | None) -> None:
        """Connect, and shake hands."""
        family, kind, protocol, where = place
        sock = self._sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stamps(sock)
        await self._loop.sock_connect(sock, where)
        if tls is None:
            return
        self._tls = tls.wrap_bio(self._incoming, self._outgoing, server_hostname=address.server_name or address.host)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not (read := await self._loop.sock_recv(sock, READ)):
                    raise ConnectionResetError("closed while shaking hands") from None
                self._incoming.write(read)
            else:
                await self._flush()
                return

    async def _flush(self) -> None:
        assert self._sock is not None
        if self._outgoing.pending:
            await self._loop.sock_sendall(self._sock, self._outgoing.read())

    def open(self) -> bool:
        """Nothing came and nobody hung up while it was kept."""
        assert self._sock is not None
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return False  # an end, or bytes that nobody asked for

    async def talk(self, request: bytes, answer: Answer) -> None:
        """One request and its answer."""
        assert self._sock is not None
        done: asyncio.Future[None] = self._loop.create_future()
        reading = Reading(self._sock, self._offset, answer, done, self._tls, self._incoming)
        self._loop.add_reader(self._sock.fileno(), reading.readable)
        try:
            answer.sent = answer.sent or now()
            if self._tls is None:
                await self._loop.sock_sendall(self._sock, request)
            else:
                self._tls.write(request)
                await self._flush()
            await done
        except ConnectionError as error:
            if self.used and not answer.at:
                raise Lost(str(error)) from error
            raise
        finally:
            self._loop.remove_reader(self._sock.fileno())

    def close(self) -> None:
        """Hang up."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.close()
            self._sock = None


class Reading:
    """The reads of one answer, and what the parser makes of them."""

    __slots__ = ("_answer", "_done", "_incoming", "_offset", "_parser", "_sock", "_tls")

    def __init__(
        self,
        sock: socket.socket,
        offset: int,
        answer: Answer,
        done: asyncio.Future[None],
        tls: ssl.SSLObject | None,
        incoming: ssl.MemoryBIO,
    ) -> None:
        self._sock, self._offset, self._answer, self._done = sock, offset, answer, done
        self._tls, self._incoming = tls, incoming
        self._parser: Any = httptools.HttpResponseParser(self)

    def readable(self) -> None:
        """Bytes are there."""
        try:
            read, ancillary, _, _ = self._sock.recvmsg(READ, ANCILLARY)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error)
            return
        t = now()
        real = stamped(ancillary)
        answer = self._answer
        if not read:
            self._end()
            return
        at = t if real is None else real - self._offset
        answer.kernel = answer.kernel and real is not None
        try:
            before = len(answer.body)
            self._parser.feed_data(read if self._tls is None else self._plain(read))
        except (httptools.HttpParserError, ssl.SSLError) as error:
            self._fail(error)
            return
        if len(answer.body) > before:
            answer.at.append(at)
            answer.lag.append(max(0, t - at))
            answer.ends.append(len(answer.body))

    def _plain(self, read: bytes) -> bytes:
        assert self._tls is not None
        self._incoming.write(read)
        plain = bytearray()
        with contextlib.suppress(ssl.SSLWantReadError):
            while part := self._tls.read(READ):
                plain += part
        return bytes(plain)

    def _end(self) -> None:
        """The server hung up: the end of an answer that has no length, else a loss."""
        self._answer.keep = False
        if self._answer.status and not self._answer.framed:
            self._finish()
        else:
            self._fail(ConnectionResetError("the server closed the connection before the answer was whole"))

    def _fail(self, error: BaseException) -> None:
        self._answer.keep = False
        if not self._done.done():
            self._done.set_exception(error)

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    # what the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._answer.framed = True

    def on_headers_complete(self) -> None:
        """The body comes next."""
        self._answer.status = self._parser.get_status_code()

    def on_body(self, part: bytes) -> None:
        """A part of the body, chunks undone."""
        self._answer.body += part

    def on_message_complete(self) -> None:
        """The answer is whole."""
        self._answer.keep = self._answer.keep and self._parser.should_keep_alive()
        self._finish()
