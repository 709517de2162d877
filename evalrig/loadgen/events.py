"""From bytes and times to what was served, after the block (`served.py` says what each column means).

What came is the engine's, and hostile until parsed: a stream that is no stream of events is a failed request and ends nothing.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from evalrig.errors import one_line
from evalrig.loadgen.block import Block, Exchange
from evalrig.loadgen.served import Events, Requests, Served

DONE = b"[DONE]"
LONGEST = 1 << 31


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class Answered:
    """One answer, parsed. Times in monotonic nanoseconds."""

    at: list[int] = field(default_factory=list[int])
    """Of events with content."""
    exact: list[bool] = field(default_factory=list[bool])
    counted: list[int] = field(default_factory=list[int])
    """Tokens told with each of them; -1: not told."""
    prompt_tokens: int = -1
    cached_tokens: int = -1
    tokens: int = -1
    error: str = ""


def parse(block: Block) -> Served:
    """All of a block."""
    answers = [answered(one) for one in block.exchanges]
    last = max((answer.at[-1] for answer in answers if answer.at), default=block.start)
    return Served(
        requests=_requests(block, answers),
        events=_events(block, answers),
        seconds=(last - block.start) / 1e9,
    )


def answered(exchange: Exchange) -> Answered:
    """One answer. `error` is empty where it is whole: status 200, no error of the connection or in the stream, some content."""
    found = Answered()
    for at, exact, content in _framed(exchange):
        try:
            event = _decoder.decode(content)
        except (msgspec.MsgspecError, RecursionError) as error:
            found.error = f"an event that is none: {one_line(str(error))[:200]}"
            break
        if event.error is not None:
            found.error = f"the engine says: {one_line(str(event.error))[:200]}"
            break
        told = _usage(found, event.usage)
        if any(_content(choice) for choice in event.choices or ()):
            found.at.append(at)
            found.exact.append(exact)
            found.counted.append(told)
    found.error = _fault(exchange, found)
    return found


def _fault(exchange: Exchange, found: Answered) -> str:
    sent = exchange.sent
    if sent.error:
        return sent.error
    if sent.status != 200:
        return f"status {sent.status}: {one_line(exchange.body[:200].decode(errors='replace'))}"
    return found.error or ("" if found.at else "no content")


def _usage(found: Answered, usage: _Usage | None) -> int:
    """Take over what an event tells of tokens; tokens generated so far, -1 where it does not tell."""
    if usage is None:
        return -1
    if usage.prompt_tokens is not None and 0 <= usage.prompt_tokens < LONGEST:
        found.prompt_tokens = usage.prompt_tokens
    details = usage.prompt_tokens_details
    if details is not None and details.cached_tokens is not None and 0 <= details.cached_tokens < LONGEST:
        found.cached_tokens = details.cached_tokens
    if usage.completion_tokens is None or not 0 <= usage.completion_tokens < LONGEST:
        return -1
    found.tokens = usage.completion_tokens
    return usage.completion_tokens


def _content(choice: _Choice) -> bool:
    """Text, reasoning or a tool call: a role alone, or an empty piece, is no token."""
    delta = choice.delta
    if choice.text or delta is None:
        return bool(choice.text)
    return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


def _framed(exchange: Exchange) -> Iterator[tuple[int, bool, bytes]]:
    """Each event's bytes, the time of the read that brought its end, and whether it was the last event of that read."""
    body, ends = exchange.body, exchange.ends
    if b"\r" in body:
        body, ends = _plain_lines(body, ends)
    start, read, held = 0, 0, None
    while (stop := body.find(b"\n\n", start)) >= 0:
        event, start = body[start:stop], stop + 2
        while ends[read] < start:
            read += 1
        if held is not None:
            yield exchange.at[held[0]], held[0] != read, held[1]
        held = None
        if content := b"\n".join(line[5:].lstrip() for line in event.split(b"\n") if line[:5] == b"data:"):
            if content == DONE:
                continue
            held = read, content
    if held is not None:
        yield exchange.at[held[0]], True, held[1]


def _plain_lines(body: bytes, ends: np.ndarray) -> tuple[bytes, Sequence[int]]:
    """Line ends of the other kind as \\n, each read's end moved along."""
    plain = bytearray()
    moved: list[int] = []
    start = 0
    for end in ends:
        plain += body[start:end].replace(b"\r", b"")
        moved.append(len(plain))
        start = int(end)
    return bytes(plain), moved


def _requests(block: Block, answers: Sequence[Answered]) -> Requests:
    def seconds(values: Sequence[int | None]) -> Any:
        return np.array([math.nan if value is None else (value - block.start) / 1e9 for value in values])

    sent = [one.sent for one in block.exchanges]
    return Requests(
        ok=np.array([not answer.error for answer in answers], np.bool_),
        due=seconds([one.due or None for one in sent]),
        sent=seconds([one.sent or None for one in sent]),
        first=seconds([answer.at[0] if answer.at else None for answer in answers]),
        last=seconds([answer.at[-1] if answer.at else None for answer in answers]),
        prompt_tokens=np.array([answer.prompt_tokens for answer in answers], np.int64),
        cached_tokens=np.array([answer.cached_tokens for answer in answers], np.int64),
        tokens=np.array([answer.tokens for answer in answers], np.int64),
        error=tuple(answer.error for answer in answers),
    )


def _events(block: Block, answers: Sequence[Answered]) -> Events:
    sizes = [len(answer.at) for answer in answers]
    at = np.array([at for answer in answers for at in answer.at], np.int64)
    return Events(
        request=np.repeat(np.arange(len(answers)), sizes),
        at=(at - block.start) / 1e9,
        exact=np.array([exact for answer in answers for exact in answer.exact], np.bool_),
        tokens=np.concatenate([_cumulative(answer) for answer in answers] or [np.zeros(0)]),
    )


def _cumulative(answer: Answered) -> np.ndarray:
    """Tokens up to and with each event; spread evenly where only their number at the end is told."""
    n = len(answer.at)
    if answer.tokens < 0:
        return np.full(n, math.nan)
    if all(count >= 0 for count in answer.counted):
        return np.array(answer.counted, np.float64)
    return answer.tokens * np.arange(1, n + 1) / max(n, 1)
