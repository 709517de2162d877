"""Streams as engines send them, made into exchanges and blocks with known times."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evalrig.loadgen.block import Block, Exchange, Health, Sent

MS = 1_000_000
DONE = b"data: [DONE]\n\n"
HEALTH = Health(
    cpu_share=0.1,
    send_lag_p99=1e-4,
    read_lag_p99=1e-5,
    coalesced=0.0,
    clock_moved=0.0,
    kernel=True,
    cpu_per_event=1e-5,
    workers=1,
)


def event(said: Mapping[str, Any]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(said).encode() + b"\n\n"


def text(words: str, **more: Any) -> bytes:
    """Of a completion."""
    return event({"object": "text_completion", "choices": [{"index": 0, "text": words}], **more})


def chat(**delta: Any) -> bytes:
    """Of a chat."""
    return event({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]})


def usage(tokens: int, prompt: int = 7, cached: int | None = None) -> bytes:
    """The last event of a stream with `include_usage`: it has no choices."""
    details = None if cached is None else {"cached_tokens": cached}
    return event(
        {
            "choices": [],
            "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "prompt_tokens_details": details},
        }
    )


def exchange(
    reads: Sequence[tuple[float, bytes]],
    index: int = 0,
    due: float = 0.0,
    sent: float | None = None,
    status: int = 200,
    error: str = "",
) -> Exchange:
    """Reads are (milliseconds, bytes); due and sent too."""
    sizes = [len(piece) for _, piece in reads]
    at = np.array([round(ms * MS) for ms, _ in reads], np.int64)
    left = due if sent is None else sent
    ended = int(at[-1]) if len(at) else round(left * MS)
    return Exchange(
        sent=Sent(
            index=index,
            due=round(due * MS),
            sent=round(left * MS) + (left == 0),
            ended=ended,
            status=status,
            error=error,
        ),
        body=b"".join(piece for _, piece in reads),
        ends=np.cumsum(np.array(sizes, np.int64)),
        at=at,
        lag=np.full(len(at), 1000, np.int64),
    )


def block(*exchanges: Exchange) -> Block:
    """It starts at 0."""
    return Block(
        start=0, start_utc="2026-01-01T00:00:00Z", exchanges=exchanges, health=HEALTH, schedule_sha256="ab" * 32
    )


def steady_stream(first: float, gap: float, tokens: int, index: int = 0, **more: Any) -> Exchange:
    """A completion of `tokens` events: the first after `first` ms from when it was due, then one every `gap` ms, one read
    each."""
    start = more.get("due", 0.0) + first
    reads = [(start + gap * k, text(f" t{k}")) for k in range(tokens)]
    end = start + gap * (tokens - 1) + 0.01
    return exchange([*reads, (end, usage(tokens)), (end + 0.01, DONE)], index=index, **more)
