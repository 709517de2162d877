"""How other load generators count, applied to the same bytes. Read in their source: vLLM's `bench serve` and SGLang's
`benchmark/serving.py` (autumn 2026), GuideLLM 0.8.1, AIPerf 0.13.0."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evalrig.loadgen.block import Exchange
from evalrig.loadgen.chunks import DONE, Usage, failure, has_content, read
from evalrig.loadgen.frames import frames
from evalrig.loadgen.served import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One answer as a program sees it: seconds of its own clock, when each read came to it. Shape [m]: events, [DONE] too."""

    sent: float
    at: Floats
    choices: NDArray[np.bool_]
    """It has a choice, be it empty."""
    content: NDArray[np.bool_]
    done: NDArray[np.bool_]
    tokens: int
    """From `usage`; -1: not told."""
    in_first: int
    """Tokens that usage told with the first content; -1: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a tool makes of one answer. Seconds; None: it gives none."""

    ttft: float | None = None
    tpot: float | None = None
    itl: list[float] = field(default_factory=list[float])
    """Samples that its percentiles are taken of."""
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One load generator."""

    title: str
    count: Callable[[Stream], Counted]
    why: Mapping[str, str]
    """Metric -> how its definition is another than ours."""


def stream(exchange: Exchange) -> Stream | None:
    """None: the tools would have counted it as failed too (no status 200, a lost connection, an error, no event)."""
    if exchange.sent.status != 200 or exchange.sent.error:
        return None
    parts = frames(exchange)
    kinds: list[tuple[bool, bool, bool]] = []
    tokens = in_first = -1
    begun = False
    for data in parts.data:
        if data == DONE:
            kinds.append((False, False, True))
            break
        chunk = read(data)
        if isinstance(chunk, str) or failure(chunk):
            return None
        content = has_content(chunk)
        told = _told(chunk.usage)
        if content and not begun:
            begun, in_first = True, told
        tokens = told if told >= 0 else tokens
        kinds.append((bool(chunk.choices), content, False))
    if not any(kind[0] for kind in kinds):
        return None
    flags = np.array(kinds, bool)
    seen = np.asarray((parts.at + parts.lag)[: len(kinds)] * 1e-9, float)
    return Stream(
        sent=exchange.sent.sent * 1e-9,
        at=seen,
        choices=flags[:, 0],
        content=flags[:, 1],
        done=flags[:, 2],
        tokens=tokens,
        in_first=in_first,
    )


def _told(usage: Usage | None) -> int:
    return -1 if usage is None or usage.completion_tokens is None else usage.completion_tokens


def _vllm(one: Stream) -> Counted:
    timed = one.at[one.choices]
    ttft = float(timed[0] - one.sent)
    return Counted(
        ttft=ttft,
        tpot=float(timed[-1] - timed[0]) / (one.tokens - 1) if one.tokens > 1 else None,
        itl=np.diff(timed).tolist(),
        tokens=one.tokens if one.tokens >= 0 else None,
    )


def _sglang(one: Stream) -> Counted:
    timed = one.at[one.content]
    if not len(timed):
        return Counted()
    ttft = float(timed[0] - one.sent)
    return Counted(
        ttft=ttft,
        tpot=float(one.at[-1] - one.sent - ttft) / (one.tokens - 1) if one.tokens > 1 else None,
        itl=np.diff(timed).tolist(),
        tokens=one.tokens if one.tokens >= 0 else None,
    )


def _guidellm(one: Stream) -> Counted:
    timed = one.at[one.content]
    if not len(timed):
        return Counted()
    tokens = one.tokens if one.tokens >= 0 else len(timed)
    return Counted(
        ttft=float(timed[0] - one.sent),
        tpot=float(timed[-1] - one.sent) / tokens if tokens > 0 else None,
        itl=[float(timed[-1] - timed[0]) / (tokens - 1)] if tokens > 1 else [],
        tokens=tokens,
    )


def _aiperf(one: Stream) -> Counted:
    timed = one.at[one.content]
    if not len(timed):
        return Counted()
    later = one.tokens - (one.in_first if one.in_first > 0 else 1)
    return Counted(
        ttft=float(timed[0] - one.sent),
        itl=[float(timed[-1] - timed[0]) / later] if one.tokens > 0 and later > 0 else [],
        tokens=one.tokens if one.tokens >= 0 else None,
    )


_FROM_SENT = "from when it was sent: time in a queue before that is not seen; stamped when the program read it"
_WHOLE = "all tokens over all of the block's time, ramp and drain too; ours is the steady window's"

TOOLS: Mapping[str, Tool] = {
    "vllm": Tool(
        title="vLLM bench serve",
        count=_vllm,
        why={
            "ttft": f"{_FROM_SENT}; ends at the first event with choices, also an empty or role-only one",
            "tpot": "from that first event to the last one with choices, which may say only why the answer ended",
            "itl": "every event is one token, of all events with choices; events of one read are 0 apart",
            "output": _WHOLE,
        },
    ),
    "sglang": Tool(
        title="SGLang benchmark/serving.py",
        count=_sglang,
        why={
            "ttft": _FROM_SENT,
            "tpot": "the answer lasts until [DONE]; without usage it would divide by the length asked for",
            "itl": "every event is one token; events of one read are 0 apart",
            "output": f"{_WHOLE}; without usage it would count the length asked for",
        },
    ),
    "guidellm": Tool(
        title="GuideLLM",
        count=_guidellm,
        why={
            "ttft": f"{_FROM_SENT}, on a clock that can be set",
            "tpot": "from the send to the last token over all tokens: it has the first token's wait in it",
            "itl": "one mean a request, so that a percentile is of requests and hides single gaps",
            "output": f"{_WHOLE}; without usage an event is a token",
        },
    ),
    "aiperf": Tool(
        title="AIPerf",
        count=_aiperf,
        why={
            "ttft": _FROM_SENT,
            "tpot": "it prints none: its inter-token latency is the mean",
            "itl": "one mean a request, without the tokens of the first event; percentiles hide single gaps",
            "output": _WHOLE,
        },
    ),
}
