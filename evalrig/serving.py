"""How a running engine is told to the load client, and read while it is loaded: what its dialects have in common."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from evalrig.exposition import Page
from evalrig.loadgen.schedule import Address
from evalrig.loadgen.target import Gauges, Serving
from evalrig.wire import Wire

STREAMED: Final[Mapping[str, Any]] = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "ignore_eos": True,
    "skip_special_tokens": False,  # an answer that goes on after its end is made of them: events without text
}
"""Laid over the requests of SGLang, vLLM and refengine."""


def address(wire: Wire, path: str) -> Address:
    """Where a path of that server is. Its key goes into a header, and nowhere else."""
    url = urlsplit(str(wire.http.base_url))
    tls = url.scheme == "https"
    return Address(
        host=url.hostname or "",
        port=url.port or (443 if tls else 80),
        path=f"{url.path.rstrip('/')}{path}",
        headers=(("Authorization", f"Bearer {wire.key}"),) if wire.key else (),
        tls=tls,
    )


def streamed(wire: Wire, model: str, gpus: int, flushes: bool) -> Serving:
    """Of a server whose streams tell the tokens with every event, and whose answers are as long as asked."""
    return Serving(
        completions=address(wire, "/v1/completions"),
        chat=address(wire, "/v1/chat/completions"),
        body={"model": model, **STREAMED},
        fixed_length=True,
        usage="continuous",
        flushes=flushes,
        gpus=gpus,
    )


def phases_of(page: Page, names: Mapping[str, tuple[str, Mapping[str, str]]]) -> dict[str, tuple[float, float]]:
    """Sum and count of each phase that the page tells. `names`: phase -> histogram and labels."""
    found = {phase: page.histogram(name, **labels) for phase, (name, labels) in names.items()}
    return {phase: pair for phase, pair in found.items() if pair is not None}


def together(prefill: Sequence[Gauges], decode: Sequence[Gauges]) -> Gauges:
    """One reading of a prefill/decode split: requests and preemptions of all servers, tokens and phases where they are made."""
    every = [*prefill, *decode]
    phases = {
        phase: _sums([one.phases[phase] for one in servers if phase in one.phases])
        for servers, names in ((prefill, ("queue", "prefill")), (decode, ("decode", "first_token", "request")))
        for phase in names
        if any(phase in one.phases for one in servers)
    }
    return Gauges(
        at=time.monotonic(),
        running=sum(one.running for one in every),
        waiting=sum(one.waiting for one in every),
        kv_usage=max((one.kv_usage for one in every if not math.isnan(one.kv_usage)), default=math.nan),
        preemptions=sum(one.preemptions for one in every),
        prompt_tokens=sum(one.prompt_tokens for one in prefill),
        generated_tokens=sum(one.generated_tokens for one in decode),
        phases=phases,
    )


def _sums(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
