"""In place of the load client: blocks as a toy engine would serve them, made without a socket and without waiting."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from evalrig.loadgen.block import Block, Exchange
from evalrig.loadgen.draw import generator
from evalrig.loadgen.schedule import Call, Schedule
from evalrig.loadgen.target import Serving
from toys.sse import DONE, HEALTH, exchange, text, usage


class Client:
    """Remembers what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Schedule]] = []
        """Model and schedule of every block, in order, warm-ups among them."""
        self.rates: list[float] = []
        """Events a second that were expected of each."""
        self.running = 0
        self.void: dict[str, tuple[str, ...]] = {}
        """Model -> what the client's certificate says against its blocks."""

    async def sends(
        self,
        serving: Serving,
        schedule: Schedule,
        seconds: float,
        events_per_second: float,
        heard: Callable[[float], None],
    ) -> Block:
        assert serving.completions.host == "toy"
        assert not self.running, "nothing else may run meanwhile"
        if serving.body["flaw"] == "hung":
            await asyncio.Event().wait()
        self.running += 1
        model = str(msgspec.json.decode(schedule.calls[0].body)["model"])
        self.sent.append((model, schedule))
        self.rates.append(events_per_second)
        rng = generator(schedule.sha256, model, len(self.sent))
        free = [0.0] * max(schedule.concurrency, 1)
        exchanges = list[Exchange]()
        for index, call in enumerate(call for call in schedule.calls if not call.primes):
            lane = int(np.argmin(free))
            due = 1000 * call.due if schedule.loop == "open" else free[lane]
            exchanges.append(_answered(call, index, due, rng))
            free[lane] = exchanges[-1].sent.ended / 1e6
        self.running -= 1
        heard(math.inf)
        return Block(
            start=0,
            start_utc="2026-11-30T00:00:00Z",
            exchanges=tuple(exchanges),
            health=replace(HEALTH, void=self.void.get(model, ())),
            schedule_sha256=schedule.sha256,
        )


def _answered(call: Call, index: int, due: float, rng: np.random.Generator) -> Exchange:
    """Times in milliseconds, one event a token."""
    asked = msgspec.json.decode(call.body)
    step, flaw, tokens = 1000 * asked["step"], asked["flaw"], call.max_tokens
    if flaw == "failing":
        return exchange([], index=index, due=due, status=503, error="HTTP 503")
    if flaw == "short":
        tokens = max(tokens - 1, 1)
    steps = np.cumsum(step * rng.uniform(0.95, 1.05, tokens + 1))
    last = usage(tokens, prompt=call.prompt_tokens, cached=call.prompt_tokens // 2 if flaw == "cached" else 0) + DONE
    reads = [(due + float(at), text("x")) for at in steps[1:]]
    return exchange([*reads, (reads[-1][0] + 0.01, last)], index=index, due=due)


def installed(monkeypatch: pytest.MonkeyPatch) -> Client:
    """The stand-in, where blocks are asked for."""
    client = Client()
    monkeypatch.setattr("evalrig.loaded.sent", lambda *given: client.sends(*given))
    return client
