"""The shipped mock server, and streams written by hand."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from evalrig.loadgen.block import Block, Exchange, Health, Sent
from evalrig.loadgen.schedule import Address, Call, Schedule

HEALTHY = Health(
    cpu_share=0.1, send_lag_p99=0.0, read_lag_p99=0.0, coalesced=0.0, clock_moved=0.0, kernel=True, cpu_per_event=1e-5, workers=1
)  # fmt: skip


class Mock:
    """One running server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def address(self, chat: bool = False) -> Address:
        return Address(host="127.0.0.1", port=self.port, path="/v1/chat/completions" if chat else "/v1/completions")

    def log(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/log", timeout=20) as answer:
            return json.loads(answer.read())


@contextlib.contextmanager
def mock(**behaviour: Any) -> Iterator[Mock]:
    command = [sys.executable, "-m", "evalrig.loadgen.mock_server", json.dumps(behaviour)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield Mock(int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


def calls(count: int, every: float = 0.0, tokens: int = 8, **more: Any) -> tuple[Call, ...]:
    return tuple(
        Call(
            body=json.dumps({"user": str(n), "prompt": [1, 2, 3], "max_tokens": tokens, "stream": True}).encode(),
            due=n * every,
            max_tokens=tokens,
            **more,
        )
        for n in range(count)
    )


def open_loop(count: int, every: float, tokens: int = 8) -> Schedule:
    return Schedule(calls=calls(count, every, tokens), loop="open")


def closed_loop(count: int, lanes: int, tokens: int = 8) -> Schedule:
    return Schedule(calls=calls(count, tokens=tokens), loop="closed", concurrency=lanes)


def stream(events: Sequence[Any], ends: Sequence[int] | None = None, **sent: Any) -> Exchange:
    """An answer made of JSON events (a str or bytes goes as it is); a read for each, or reads that end at `ends`."""
    parts = [
        part.encode() if isinstance(part, str) else part if isinstance(part, bytes)
        else b"data: " + json.dumps(part).encode() + b"\n\n"
        for part in events
    ]  # fmt: skip
    body = b"".join(parts)
    stops = np.cumsum([len(part) for part in parts]) if ends is None else np.array(ends)
    return Exchange(
        sent=Sent(**{"index": 0, "due": 10**9, "sent": 10**9, "ended": 9 * 10**9, "status": 200, **sent}),
        body=body,
        ends=stops.astype(np.int64),
        at=10**9 + 10**7 * (1 + np.arange(len(stops), dtype=np.int64)),
        lag=np.zeros(len(stops), np.int64),
    )


def block(*exchanges: Exchange) -> Block:
    return Block(
        start=10**9, start_utc="2026-11-30T00:00:00Z", exchanges=exchanges, health=HEALTHY, schedule_sha256="x"
    )


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": words}], **more}


def delta(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


def usage(tokens: int, prompt: int = 3, **details: int) -> dict[str, Any]:
    counted: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": tokens}
    return {"choices": [], "usage": counted | ({"prompt_tokens_details": details} if details else {})}
