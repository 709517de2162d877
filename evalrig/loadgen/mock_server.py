"""A server that answers like an engine and keeps a log of when it sent each event: what the load client is checked against.

`python -m evalrig.loadgen.mock_server '{"step": 0.02}'` prints its port and serves on 127.0.0.1 until its input ends or its
time is over. Every answer is an OpenAI stream of as many tokens as asked. `GET /log` gives, for the name in a request's field
`user`, the monotonic nanoseconds at which it came and those of every event before it was handed to the kernel.
"""

import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

now = time.monotonic_ns
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
OPENING = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}


class Behaviour(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the server does, right or wrong. Times in seconds."""

    first: float = 0.02
    """From a request to its first token."""
    step: float = 0.02
    """Between the tokens of a stream."""
    aligned: bool = False
    """All streams get their tokens at the same moments, as from an engine's steps."""
    tokens_per_event: int = 1
    role_first: bool = False
    """An event with a role and empty content comes at once."""
    reasoning: int = 0
    """Tokens that come as reasoning, before content."""
    usage: Literal["none", "final", "continuous"] = "final"
    bytewise: int = 0
    """Events are sent in pieces of so many bytes; 0: whole."""
    stall: tuple[float, float] = (0.0, 0.0)
    """(from, to) since the start: nothing is sent."""
    slower: float = 1.0
    """Factor on `first` and `step`: a known difference between two servers."""
    status: int = 200
    hang_after: int = -1
    """Tokens after which a stream says nothing more; -1: none does."""
    reset_after: int = -1
    """Tokens after which the connection is reset; -1: never."""
    close_idle: bool = False
    """Every connection is closed after its answer, without a word of it."""
    seconds: float = 120.0
    """The server's life."""


@dataclass(slots=True)
class Stream:
    """One request being answered."""

    connection: "Connection"
    name: str
    tokens: int
    chat: bool
    came: int
    next: int
    made: int = 0
    sent: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class Connection:
    """One client."""

    sock: socket.socket
    read: bytearray = field(default_factory=bytearray)
    queue: bytearray = field(default_factory=bytearray)
    """What the kernel has not taken yet."""


class Server:
    """One process, one thread, one loop."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.does = behaviour
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.listening.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listening, selectors.EVENT_READ, self._accept)
        self.streams: list[Stream] = []
        self.log: dict[str, dict[str, Any]] = {}
        self.began = now()
        self.grid = self.began
        self.open = True

    @property
    def port(self) -> int:
        """Chosen by the system."""
        return self.listening.getsockname()[1]

    def serve(self, until: int | None = None) -> None:
        """To the end of standard input, or of its time. `until`: a descriptor that is readable then."""
        if until is not None:
            self.selector.register(until, selectors.EVENT_READ, self._end)
        end = self.began + int(self.does.seconds * 1e9)
        while self.open and now() < end:
            for key, _ in self.selector.select(self._patience()):
                key.data(key.fileobj)
            self._send_due()

    def _patience(self) -> float:
        due = min((stream.next for stream in self.streams), default=now() + 200_000_000)
        left = due - now()
        return (
            0.0 if left < 1_500_000 else left / 1e9 - 0.001
        )  # the rest is waited for awake: epoll counts milliseconds

    def _end(self, source: Any) -> None:
        self.open = False

    def _accept(self, source: Any) -> None:
        sock, _ = self.listening.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(sock)
        self.selector.register(sock, selectors.EVENT_READ, lambda _: self._read(connection))

    def _read(self, connection: Connection) -> None:
        try:
            part = connection.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._close(connection)
            return
        connection.read += part
        while request := _request(connection.read):
            self._answer(connection, *request)

    def _close(self, connection: Connection) -> None:
        self.streams = [stream for stream in self.streams if stream.connection is not connection]
        self.selector.unregister(connection.sock)
        connection.sock.close()

    def _answer(self, connection: Connection, line: bytes, body: bytes) -> None:
        came = now()
        if line.startswith(b"GET"):
            self._plain(connection, 200, json.dumps(self.log).encode())
            return
        if self.does.status != 200:
            self._plain(connection, self.does.status, b'{"error": {"message": "told to fail"}}')
            return
        asked = json.loads(body)
        prompt = asked.get("prompt") or asked.get("messages") or ""
        stream = Stream(
            connection,
            str(asked.get("user", len(self.log))),
            int(asked.get("max_tokens", 16)),
            b"chat" in line,
            came,
            self._first(came),
        )
        self.log[stream.name] = {"came": came, "sent": stream.sent, "prompt_tokens": len(prompt)}
        self._write(connection, HEAD)
        if self.does.role_first:
            self._write(connection, _chunk(OPENING))
        self.streams.append(stream)

    def _first(self, came: int) -> int:
        due = came + int(self.does.first * self.does.slower * 1e9)
        if not self.does.aligned:
            return due
        step = int(self.does.step * self.does.slower * 1e9)
        return self.grid + -(-(due - self.grid) // step) * step

    def _send_due(self) -> None:
        t = now()
        lo, hi = (self.began + int(x * 1e9) for x in self.does.stall)
        if lo <= t < hi:
            return
        for stream in [stream for stream in self.streams if stream.next <= t]:
            self._event(stream)

    def _event(self, stream: Stream) -> None:
        does = self.does
        if 0 <= does.hang_after <= stream.made:
            stream.next = now() + 3_600_000_000_000
            return
        if 0 <= does.reset_after <= stream.made:
            stream.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            self._close(stream.connection)
            return
        count = min(does.tokens_per_event, stream.tokens - stream.made)
        before, stream.made = stream.made, stream.made + count
        last = stream.made >= stream.tokens
        event = self._content(stream, before, last)
        stream.sent.append(now())
        self._write(stream.connection, _chunk(event))
        stream.next += int(does.step * does.slower * 1e9) * count
        if last:
            for extra in self._closing(stream):
                self._write(stream.connection, extra)
            self.streams.remove(stream)
            if does.close_idle:
                self._close(stream.connection)

    def _content(self, stream: Stream, before: int, last: bool) -> dict[str, Any]:
        words = "".join(f" w{n % 100:02d}" for n in range(before, stream.made))
        key = "reasoning_content" if before < self.does.reasoning else "content"
        finish = {"finish_reason": "length" if last else None}
        choice = {"index": 0, "delta": {key: words}, **finish} if stream.chat else {"index": 0, "text": words, **finish}
        event: dict[str, Any] = {"id": "mock", "object": "chunk", "created": 0, "model": "mock", "choices": [choice]}
        if self.does.usage == "continuous":
            event["usage"] = self._usage(stream)
        return event

    def _closing(self, stream: Stream) -> Iterator[bytes]:
        if self.does.usage != "none":
            yield _chunk({"id": "mock", "choices": [], "usage": self._usage(stream)})
        yield _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    def _usage(self, stream: Stream) -> dict[str, Any]:
        return {"prompt_tokens": self.log[stream.name]["prompt_tokens"], "completion_tokens": stream.made}

    def _plain(self, connection: Connection, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} Mock\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._write(connection, head.encode() + body)

    def _write(self, connection: Connection, content: bytes) -> None:
        size = self.does.bytewise or len(content)
        for at in range(0, len(content), size):
            connection.queue += content[at : at + size]
            try:
                while connection.queue:
                    del connection.queue[: connection.sock.send(connection.queue)]
            except BlockingIOError:
                continue  # goes with the next write
            except OSError:
                connection.queue.clear()


def _request(read: bytearray) -> tuple[bytes, bytes] | None:
    """The first whole request of what was read, taken from it: its line and its body."""
    end = read.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(read[:end])
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    if len(read) < end + 4 + length:
        return None
    body = bytes(read[end + 4 : end + 4 + length])
    del read[: end + 4 + length]
    return head.split(b"\r\n")[0], body


def _chunk(event: dict[str, Any]) -> bytes:
    return _framed(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")


def _framed(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def main() -> None:
    """Serve as the first argument says."""
    server = Server(msgspec.json.decode(sys.argv[1] if len(sys.argv) > 1 else "{}", type=Behaviour))
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve(until=os.dup(0))


if __name__ == "__main__":
    main()
