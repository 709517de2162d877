"""The connections of one block, and the way of one request over them."""

import asyncio
import contextlib
import errno
import socket
from dataclasses import dataclass

import numpy as np

from evalrig.errors import ClientError, EngineError
from evalrig.loadgen.block import OVER, Exchange, Sent
from evalrig.loadgen.clock import now, offset
from evalrig.loadgen.connection import Answer, Connection, Lost, ask_for_stamps, said
from evalrig.loadgen.schedule import Address
from evalrig.loadgen.tls import TlsConnection, greet, trust

WARM_SECONDS = 2.0
"""For connections that are opened ahead of need."""
_SECOND = 1_000_000_000
Place = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One request to be sent, and until when its answer is waited for (monotonic nanoseconds)."""

    index: int
    body: bytes
    due: int
    until: int
    last: bool = False
    """`until` is the end of the block, not the request's own bound."""


class Pool:
    """Kept-alive connections to one address. One that the server has closed meanwhile is replaced."""

    def __init__(self, address: Address, places: list[Place]) -> None:
        self.offset = offset()
        self._address = address
        self._places = places
        self._trust = trust() if address.tls else None
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self.waits: list[float] = []
        """Seconds for which requests waited for their connections; those that found an idle one are not in it."""
        self._waiting: set[Answer] = set()
        self._came = 0
        self._head = _head(address)
        # The kernel begins to stamp a moment after the first socket has asked, and ends with the last one.
        try:
            self._asking = socket.socket()
        except OSError as error:
            raise ClientError(f"load: the client cannot open a socket: {said(error)}") from error
        ask_for_stamps(self._asking)

    @classmethod
    async def open(cls, address: Address) -> "Pool":
        """A pool without connections.

        Raises:
            EngineError: the name of the host cannot be resolved.
            ClientError: this process can open no socket.
        """
        return cls(address, await places(address))

    def launch(self, wish: Wish) -> asyncio.Task[Exchange]:
        """Send at the due time, which is now or so near that the wait is burnt. Where a connection is idle the request leaves before
        this returns. What fails is told in `Sent.error`."""
        loop = asyncio.get_running_loop()
        answer = Answer(loop.create_future())
        request = b"%b%d\r\n\r\n%b" % (self._head, len(wish.body), wish.body)
        connection = self._idle.pop() if self._idle else None
        if connection is not None:
            connection.begin(answer, request, wish.due)
        return loop.create_task(self._carry(wish, answer, request, connection))

    @property
    def waiting(self) -> int:
        """Requests whose answers have not ended."""
        return len(self._waiting)

    @property
    def came(self) -> int:
        """Reads so far that brought bytes of answers."""
        return self._came + sum(len(answer.at) for answer in self._waiting)

    async def warm(self, count: int) -> None:
        """Have up to `count` idle connections; what cannot be opened is left to the requests to tell."""
        with contextlib.suppress(OSError):  # a timeout is one
            async with asyncio.timeout(WARM_SECONDS):
                while len(self._idle) < count:
                    self._idle.insert(
                        0, await self._connect()
                    )  # used in the order of opening, as a server takes them up

    def refill(self, count: int) -> None:
        """See to it that the next requests find up to `count` idle connections. Two more at a time: a server that takes none is not
        asked for all of them with every request."""
        for _ in range(min(2, count - len(self._idle) - len(self._opening))):
            task = asyncio.create_task(self._add())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _add(self) -> None:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(WARM_SECONDS):
                self._idle.insert(0, await self._connect())

    async def close(self) -> None:
        """Close all connections."""
        for task in tuple(self._opening):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for connection in tuple(self._all):
            connection.close()
        self._all.clear()
        self._idle.clear()
        self._asking.close()

    async def _carry(self, wish: Wish, answer: Answer, request: bytes, connection: Connection | None) -> Exchange:
        error, reused = "", connection is not None
        self._waiting.add(answer)
        try:
            async with asyncio.timeout_at(wish.until / _SECOND):
                if connection is None:
                    asked = now()
                    connection = await self._connect()
                    self.waits.append((now() - asked) / _SECOND)
                    connection.begin(answer, request, wish.due)
                try:
                    await answer.done
                except Lost:
                    if answer.heard or not reused:
                        raise
                    # It was idle, and the server closed it while the request was on its way: nobody has read it.
                    answer.done = asyncio.get_running_loop().create_future()
                    connection = await self._connect()
                    connection.begin(answer, request)
                    await answer.done
        except TimeoutError:
            waited = (wish.until - (answer.sent or wish.due)) / _SECOND
            error = (
                f"no end of the answer {waited:.1f} s after it was sent"
                if answer.sent
                else f"no connection in {waited:.1f} s"
            )
            error += f": {OVER}" if wish.last else ""
        except OSError as failure:
            error = said(failure)
        finally:
            self._waiting.discard(answer)
            self._came += len(answer.at)
            if not answer.ended and connection is not None:
                self._drop(connection)
        return _exchange(wish, answer, error)

    async def _connect(self) -> Connection:
        failure: OSError | None = None
        for family, place in self._places:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ask_for_stamps(sock)
                await asyncio.get_running_loop().sock_connect(sock, place)
                return await self._made(sock)
            except OSError as error:
                sock.close()
                if failure is None or failure.errno == errno.EADDRNOTAVAIL:  # a server that answers tells more
                    failure = error
            except BaseException:
                sock.close()
                raise
        raise failure or OSError("no address")

    async def _made(self, sock: socket.socket) -> Connection:
        if self._trust is None:
            made = Connection(sock, self.offset, self._free)
        else:
            session = await greet(sock, self._trust, self._address.server_name or self._address.host)
            made = TlsConnection(sock, self.offset, self._free)
            made.session = session
        self._all.add(made)
        return made

    def _free(self, connection: Connection, keep: bool) -> None:
        if keep:
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


async def places(address: Address) -> list[Place]:
    """Where a host is reached.

    Raises:
        EngineError: its name cannot be resolved.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise EngineError(f"load: {address.host}: cannot be resolved: {error.strerror}") from error
    return [(family, place) for family, _, _, _, place in found]


def _head(address: Address) -> bytes:
    """The request up to the number of bytes of its body."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [f"POST {address.path} HTTP/1.1", f"Host: {host}:{address.port}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in address.headers]
    return "\r\n".join([*lines, "Content-Length: "]).encode()


def _exchange(wish: Wish, answer: Answer, error: str) -> Exchange:
    return Exchange(
        sent=Sent(
            index=wish.index,
            due=wish.due,
            sent=answer.sent,
            ended=answer.ended or now(),
            status=answer.status,
            error=error,
        ),
        body=bytes(answer.body),
        ends=np.array(answer.ends, np.int64),
        at=np.array(answer.at, np.int64),
        lag=np.array(answer.lag, np.int64),
        kernel=answer.kernel and bool(answer.at),
    )


def never_sent(index: int, due: int, error: str) -> Exchange:
    """The exchange of a call that was not launched."""
    nothing = np.empty(0, np.int64)
    sent = Sent(index=index, due=due, sent=0, ended=now(), status=0, error=error)
    return Exchange(sent=sent, body=b"", ends=nothing, at=nothing, lag=nothing, kernel=False)
