"""A mock engine that streams like a real one and keeps a log of when it sent what: the truth against which the client is tested.

All streams get their next event in the same step, as from an engine that batches. One process, one selector, no threads.
"""

import json
import selectors
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import httptools

from evalrig.loadgen.clock import Timer, now, offset
from evalrig.loadgen.connection import READ_BYTES, ROOM, ask_for_stamps, stamp

_SECOND = 1_000_000_000
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n%b\r\n"
_LAST = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When it sends. Seconds."""

    step: float = 0.02
    """Every stream gets its next event at each step; steps lie on one grid from the server's start."""
    first: float = 0.0
    """From a request's last byte until its first event may go with a step."""
    stall_at: float = -1.0
    """After the first request came: nothing is sent from then on, for `stall`; what was due follows at the next step."""
    stall: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What it sends."""

    tokens: int = 0
    """Length of every answer; 0: as long as asked (`max_tokens`, 16 if nothing is asked)."""
    per_event: int = 1
    """Tokens of one event; the last may hold fewer."""
    role_first: bool = False
    """A chat begins with an event that holds only the role."""
    reasoning: bool = False
    """Chats stream reasoning and no content."""
    split: bool = False
    """One byte a send."""
    usage: Literal["none", "final", "continuous"] = "final"
    """What the stream tells of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong."""

    kind: Literal["none", "500", "hang", "reset", "cut", "silent close"] = "none"
    """`hang`: never answers. `reset`, `cut`: after two events the connection is reset, or closed. `silent close`: each connection is
    closed after its answer though nothing announced it."""
    every: int = 1
    """Only each so-many-th request, from the first."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One request in the log. Monotonic nanoseconds."""

    order: int
    path: str
    request: str
    """The request's `request_id`, else its user; to find it again."""
    received: int
    """Its last byte arrived; by the kernel's time where it tells (not over TLS)."""
    sent: list[int]
    """Before each event that holds tokens was handed to the kernel."""
    ended: int = 0


class Stream:
    """One connection and the answer that it carries."""

    def __init__(self, sock: socket.socket, server: "MockServer") -> None:
        self.sock = sock
        self.server = server
        self.path = b""
        self.body = bytearray()
        self.parser = httptools.HttpRequestParser(self)
        self.entry: Entry | None = None
        self.tokens = self.left = self.prompt = self.ready = 0
        self.fault = "none"
        self.closing = False
        self.arrived = 0

    def on_url(self, url: bytes) -> None:
        """Of httptools."""
        self.path = url

    def on_body(self, came: bytes) -> None:
        """Of httptools."""
        self.body += came

    def on_message_complete(self) -> None:
        """Of httptools."""
        asked = bytes(self.body)
        self.body.clear()
        self.server.asked(self, asked)


class MockServer:
    """Serves until told to stop. `port` is known after `__init__`."""

    def __init__(self, pace: Pace, shape: Shape, fault: Fault, certificate: str = "") -> None:
        """`certificate`: file with a key and a certificate; then it speaks TLS."""
        self.pace, self.shape, self.fault = pace, shape, fault
        self.log: list[Entry] = []
        self._context: ssl.SSLContext | None = None
        if certificate:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listening.setblocking(False)
        ask_for_stamps(self._listening)  # so that the kernel stamps before the first connection
        self._offset = offset()
        self.port: int = self._listening.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._timer = Timer.open()
        if self._timer is not None:
            self._selector.register(self._timer, selectors.EVENT_READ)
        self._live: dict[Stream, None] = {}
        self._step = int(pace.step * _SECOND)
        self._next = now() + self._step
        self._began = 0

    def serve(self, seconds: float) -> None:
        """Serve for at most `seconds`."""
        end = now() + int(seconds * _SECOND)
        self._set()
        while now() < end:
            wait = min(end, self._next) - now() if self._timer is None else end - now()
            for key, _ in self._selector.select(max(0.0, wait / _SECOND)):
                if key.fileobj is self._listening:
                    self._accept()
                elif self._timer is not None and key.fileobj is self._timer:
                    self._timer.clear()
                else:
                    self._read(key.data)
            if now() >= self._next:
                self._tick()

    def close(self) -> None:
        """Close all connections."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        if self._timer is not None:
            self._timer.close()

    def asked(self, stream: Stream, body: bytes) -> None:
        """A whole request has come."""
        if stream.path == b"/log":
            answer = json.dumps([asdict(entry) for entry in self.log]).encode()
            self._put(stream, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
            return
        received = stream.arrived or now()
        self._began = self._began or received
        wish = json.loads(body)
        entry = Entry(
            order=len(self.log),
            path=stream.path.decode(),
            request=str(wish.get("request_id", "")),
            received=received,
            sent=[],
        )
        stream.fault = self.fault.kind if entry.order % self.fault.every == 0 else "none"
        self.log.append(entry)
        if stream.fault == "500":
            self._put(stream, b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 16\r\n\r\n" + b'{"error":"mock"}')
        elif stream.fault != "hang":
            stream.entry, stream.tokens = entry, self.shape.tokens or int(wish.get("max_tokens") or 16)
            stream.left, stream.prompt = stream.tokens, _prompt_tokens(wish)
            stream.ready = received + int(self.pace.first * _SECOND)
            self._put(stream, _HEAD % b"")
            if self.shape.role_first and b"chat" in stream.path:
                self._put(stream, _framed(_event(stream.path, {"role": "assistant", "content": ""}, None, None)))
            self._live[stream] = None

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except BlockingIOError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(sock)
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, Stream(sock, self))

    def _read(self, stream: Stream) -> None:
        try:
            while not stream.closing:
                came = self._receive(stream)
                if not came:
                    raise ConnectionResetError
                stream.parser.feed_data(came)
                if self._context is None:
                    return
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except (OSError, httptools.HttpParserError):
            self._drop(stream)

    def _receive(self, stream: Stream) -> bytes:
        if self._context is not None:
            return stream.sock.recv(READ_BYTES)
        came, told, _, _ = stream.sock.recvmsg(READ_BYTES, ROOM)
        stream.arrived = stamp(told, self._offset)
        return came

    def _tick(self) -> None:
        instant = now()
        stalls = self._began and self.pace.stall_at >= 0
        since = (instant - self._began) / _SECOND - self.pace.stall_at
        if not (stalls and 0 <= since < self.pace.stall):
            for stream in [one for one in self._live if one.ready <= instant]:
                self._emit(stream)
        self._next += ((now() - self._next) // self._step + 1) * self._step
        self._set()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.set(self._next)

    def _emit(self, stream: Stream) -> None:
        entry = stream.entry
        assert entry is not None
        if stream.fault in ("reset", "cut") and len(entry.sent) == 2:
            if stream.fault == "reset":
                stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._drop(stream)
            return
        stream.left -= min(self.shape.per_event, stream.left)
        done = stream.tokens - stream.left
        usage = self._usage(stream, done) if self.shape.usage == "continuous" else None
        event = _framed(_event(stream.path, self._delta(done), None if stream.left else "length", usage))
        entry.sent.append(now())
        self._put(stream, event)
        if not stream.left:
            self._finish(stream, entry)

    def _finish(self, stream: Stream, entry: Entry) -> None:
        entry.ended = now()
        last = b""
        if self.shape.usage != "none":
            last = _framed(_event(stream.path, None, None, self._usage(stream, stream.tokens)))
        self._live.pop(stream, None)
        self._put(stream, last + _framed(b"data: [DONE]\n\n") + _LAST)
        if stream.fault == "silent close":
            self._drop(stream)

    def _delta(self, done: int) -> dict[str, str]:
        return {"reasoning_content" if self.shape.reasoning else "content": f" word{done}" * self.shape.per_event}

    def _usage(self, stream: Stream, done: int) -> dict[str, int]:
        return {"prompt_tokens": stream.prompt, "completion_tokens": done, "total_tokens": stream.prompt + done}

    def _put(self, stream: Stream, data: bytes) -> None:
        pieces = [data[i : i + 1] for i in range(len(data))] if self.shape.split else [data]
        try:
            for piece in pieces:
                stream.sock.send(
                    piece
                )  # events are far smaller than a socket's buffer: what does not fit is a client that hangs
        except OSError:
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        self._live.pop(stream, None)
        if not stream.closing:
            stream.closing = True
            self._selector.unregister(stream.sock)
            stream.sock.close()


def _event(path: bytes, delta: Mapping[str, str] | None, finish: str | None, usage: Mapping[str, int] | None) -> bytes:
    """One event as an OpenAI engine writes it."""
    chat = b"chat" in path
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
    if delta is not None:
        choice |= {"delta": delta} if chat else {"text": "".join(delta.values())}
    told: dict[str, Any] = {
        "id": "cmpl-5f1c2f0e9d1b4c3aa7d5e0b6",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 1790000000,
        "model": "mock",
        "choices": [] if delta is None else [choice],
    }
    return b"data: %b\n\n" % json.dumps(told if usage is None else {**told, "usage": usage}).encode()


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def _prompt_tokens(wish: Mapping[str, Any]) -> int:
    """Ids are counted, of texts the words."""
    prompt = wish.get("prompt", "")
    if isinstance(prompt, list):
        return len(prompt)
    return len(" ".join([str(prompt), *(str(turn.get("content", "")) for turn in wish.get("messages", ()))]).split())
