"""From the bytes of a block to what was served: times from reads, tokens from `usage`. Off the clock, after the block."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalrig.loadgen.block import Block, Exchange
from evalrig.loadgen.chunks import DONE, Usage, failure, finishes, has_content, read, shown
from evalrig.loadgen.frames import Frames, frames
from evalrig.loadgen.served import Events, Floats, Requests, Served

_NS = 1e-9


@dataclass(slots=True, kw_only=True)
class Heard:
    """One stream, read to its end or to what made it end."""

    content: list[int]
    """Frames with content."""
    generated: list[int]
    """Of each of them: `completion_tokens` up to and with it; -1: not told."""
    prompt_tokens: int = -1
    cached_tokens: int = -1
    tokens: int = -1
    ended: bool = False
    """[DONE] or a reason to finish came."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One request, with its events."""

    heard: Heard
    due: float
    sent: float
    at: Floats
    exact: NDArray[np.bool_]
    tokens: Floats


def parse(block: Block) -> Served:
    """All requests of a block, in the order of the schedule. Bytes that are no stream make their request fail, with why."""
    ordered = sorted(block.exchanges, key=lambda exchange: exchange.sent.index)
    rows = [_row(exchange, block.start) for exchange in ordered]
    ends = [(exchange.at.max() - block.start) * _NS for exchange in ordered if len(exchange.at)]
    return Served(requests=_requests(rows), events=_events(rows), seconds=float(max(ends, default=0.0)))


def heard(parts: Frames) -> Heard:
    """What the events of one stream say. It ends at [DONE], and at the first event that is none."""
    said = Heard(content=[], generated=[])
    for index, data in enumerate(parts.data):
        if data == DONE:
            said.ended = True
            break
        chunk = read(data)
        if isinstance(chunk, str):
            said.error = chunk
            break
        if trouble := failure(chunk):
            said.error = trouble
            break
        if chunk.usage is not None:
            _count(said, chunk.usage)
        if has_content(chunk):
            told = chunk.usage.completion_tokens if chunk.usage is not None else None
            said.content.append(index)
            said.generated.append(-1 if told is None else told)
        said.ended = said.ended or finishes(chunk)
    return said


def _count(said: Heard, usage: Usage) -> None:
    if usage.prompt_tokens is not None:
        said.prompt_tokens = usage.prompt_tokens
    if usage.completion_tokens is not None:
        said.tokens = usage.completion_tokens
    details = usage.prompt_tokens_details
    if details is not None and details.cached_tokens is not None:
        said.cached_tokens = details.cached_tokens


def _row(exchange: Exchange, start: int) -> _Row:
    parts = frames(exchange)
    said = heard(parts)
    said.error = _trouble(exchange, said)
    sent = exchange.sent
    return _Row(
        heard=said,
        due=(sent.due - start) * _NS,
        sent=(sent.sent - start) * _NS if sent.sent else float("nan"),
        at=np.asarray((parts.at[said.content] - start) * _NS, float),
        exact=parts.exact[said.content],
        tokens=spread(said.generated, said.tokens),
    )


def _trouble(exchange: Exchange, said: Heard) -> str:
    """Why the request failed; empty: it did not."""
    if exchange.sent.error:
        return exchange.sent.error
    if exchange.sent.status != 200:
        return f"status {exchange.sent.status}: {shown(exchange.body)}"
    if said.error:
        return said.error
    if not said.ended:
        # an engine that is ended closes some streams as if the answer were complete
        return "the stream ended without [DONE] and without a reason to finish"
    return "" if said.content else "no content came"


def spread(generated: Sequence[int], total: int) -> Floats:
    """Tokens up to and with each event, shape [m]: as told, and evenly over the events between two that were told. The last
    has all of `total` (-1: `usage` is missing, and so are its tokens: NaN)."""
    count = len(generated)
    if total < 0 or not count:
        return np.full(count, np.nan)
    told = np.asarray(generated, float)
    told[-1] = total
    known = np.flatnonzero(told >= 0)
    counts = np.minimum(np.maximum.accumulate(told[known]), total)
    return np.interp(np.arange(count), np.concatenate(([-1], known)), np.concatenate(([0.0], counts)))


def _requests(rows: Sequence[_Row]) -> Requests:
    said = [row.heard for row in rows]
    return Requests(
        ok=np.array([not one.error for one in said], bool),
        due=np.array([row.due for row in rows], float),
        sent=np.array([row.sent for row in rows], float),
        first=np.array([row.at[0] if len(row.at) else np.nan for row in rows], float),
        last=np.array([row.at[-1] if len(row.at) else np.nan for row in rows], float),
        prompt_tokens=np.array([one.prompt_tokens for one in said], np.int64),
        cached_tokens=np.array([one.cached_tokens for one in said], np.int64),
        tokens=np.array([one.tokens for one in said], np.int64),
        error=tuple(one.error for one in said),
    )


def _events(rows: Sequence[_Row]) -> Events:
    sizes = [len(row.at) for row in rows]
    nothing = np.zeros(0)
    return Events(
        request=np.repeat(np.arange(len(rows), dtype=np.int64), sizes),
        at=np.concatenate([nothing, *(row.at for row in rows)]),
        exact=np.concatenate([nothing.astype(bool), *(row.exact for row in rows)]),
        tokens=np.concatenate([nothing, *(row.tokens for row in rows)]),
    )
