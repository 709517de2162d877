"""Runs one block: sends the calls of a schedule when they are due, takes what comes back, and certifies the client.

A call that is late never delays the next. Nothing else of this process should work meanwhile: what it costs shows in the
certificate.
"""

import asyncio
import contextlib
import gc
import resource
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from evalrig.loadgen.block import Block, Exchange
from evalrig.loadgen.clock import Timer, now, offset
from evalrig.loadgen.connection import Answer, Connections
from evalrig.loadgen.health import Effort, health
from evalrig.loadgen.schedule import Address, Schedule

LEAD = 50_000_000
"""Nanoseconds from the last preparation to the start of the block."""
PRIMING_LANES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds after which what is not answered ends with an error."""

    request: float = 600.0
    block: float = 3600.0
    """After the block's start, for all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What one process recorded, and what it cost."""

    start: int
    exchanges: tuple[Exchange, ...]
    effort: Effort


async def run_block(
    address: Address, schedule: Schedule, deadlines: Deadlines | None = None, workers: int = 1
) -> Block:
    """Send a schedule and record what comes back, one `Exchange` a call that counts, in the order of the schedule.

    Args:
        workers: processes that share it; more than one where some 20,000 events come in a second.

    Raises:
        ValueError: the schedule does not go together.
        WorkerLost: one of several processes ended before its share was done.
    """
    limits, utc = deadlines or Deadlines(), datetime.now(UTC).isoformat(timespec="milliseconds")
    if workers > 1:
        from evalrig.loadgen.sharded import run_shards

        recorded = await run_shards(address, schedule, limits, workers)
    else:
        recorded = [await record(address, schedule, limits, _soon)]
    exchanges = tuple(sorted((one for part in recorded for one in part.exchanges), key=lambda one: one.sent.index))
    return Block(
        start=recorded[0].start,
        start_utc=utc,
        exchanges=exchanges,
        health=health(exchanges, [part.effort for part in recorded], schedule.loop == "open"),
        schedule_sha256=schedule.sha256,
    )


async def _soon() -> int:
    return now() + LEAD


async def record(
    address: Address, schedule: Schedule, limits: Deadlines, begin: Callable[[], Awaitable[int]]
) -> Recorded:
    """Prime, then ask `begin` when the block starts (monotonic nanoseconds), then run it."""
    moved = offset()
    course = _Course(Connections(address, moved), schedule, limits)
    try:
        await course.prime()
        with _undisturbed():
            start = await begin()
            before, began = _cpu(), now()
            await course.run(start)
            effort = Effort(cpu=_cpu() - before, wall=(now() - began) / 1e9, clock_moved=abs(offset() - moved) / 1e9)
    finally:
        course.close()
    return Recorded(start=start, exchanges=course.exchanges(), effort=effort)


class _Course:
    """One block while it runs."""

    def __init__(self, lines: Connections, schedule: Schedule, limits: Deadlines) -> None:
        self.lines, self.calls, self.schedule, self.limits = lines, schedule.calls, schedule, limits
        self.answers: dict[int, Answer] = {}
        self.next_of: dict[int, list[int]] = {}
        """Call -> the calls that come after its end."""
        for index, call in enumerate(self.calls):
            if call.after is not None:
                if not 0 <= call.after < index:
                    raise ValueError(f"call {index} comes after {call.after}, which is not before it in the schedule")
                self.next_of.setdefault(call.after, []).append(index)
        if schedule.loop == "closed" and schedule.concurrency < 1:
            raise ValueError("a closed loop has at least one lane")
        self.timer = Timer()
        self.tasks: set[asyncio.Task[None]] = set()

    async def prime(self) -> None:
        """Send what fills the cache, and forget the answers."""
        waiting = [index for index, call in enumerate(self.calls) if call.primes]

        async def lane() -> None:
            while waiting:
                await self._ask(waiting.pop(0), now())

        await asyncio.gather(*(lane() for _ in range(min(PRIMING_LANES, len(waiting)))))
        self.answers.clear()

    async def run(self, start: int) -> None:
        """All calls that count, to their ends or to the block's."""
        first = [i for i, call in enumerate(self.calls) if not call.primes and call.after is None]
        try:
            async with asyncio.timeout((start - now()) / 1e9 + self.limits.block):
                await (self._open(first, start) if self.schedule.loop == "open" else self._closed(first, start))
                while self.tasks:
                    await asyncio.wait(self.tasks)
        except TimeoutError:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _open(self, first: Sequence[int], start: int) -> None:
        for index in sorted(first, key=lambda i: self.calls[i].due):
            due = start + int(self.calls[index].due * 1e9)
            await self.timer.until(due)
            self._begin(index, due)

    async def _closed(self, first: Sequence[int], start: int) -> None:
        waiting = list(reversed(first))
        steps = self.schedule.ramp or ((0.0, self.schedule.concurrency),)

        async def lane() -> None:
            while waiting:
                index: int | None = waiting.pop()
                due = now()
                while index is not None:  # a lane keeps a conversation to its end
                    await self._ask(index, due)
                    index = next(iter(self.next_of.get(index, ())), None)
                    if index is not None:
                        due = now() + int(self.calls[index].due * 1e9)
                        await self.timer.until(due)

        running = 0
        for after, lanes in steps:
            await self.timer.until(start + int(after * 1e9))
            for _ in range(lanes - running):
                self._keep(lane())
            running = max(running, lanes)

    def _begin(self, index: int, due: int) -> None:
        self._keep(self._ask(index, due, follow=True))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _ask(self, index: int, due: int, follow: bool = False) -> None:
        answer = self.answers[index] = Answer(index, due)
        try:
            async with asyncio.timeout(self.limits.request):
                await self.lines.ask(self.calls[index].body, answer)
        except TimeoutError:
            answer.error = f"no answer within {self.limits.request:g} s"
        except asyncio.CancelledError:
            answer.error = f"the block ended after {self.limits.block:g} s"
            raise
        for after in self.next_of.get(index, ()) if follow else ():
            self._keep(self._later(after))

    async def _later(self, index: int) -> None:
        """The next turn of a conversation, after the think time."""
        due = now() + int(self.calls[index].due * 1e9)
        await self.timer.until(due)
        await self._ask(index, due, follow=True)

    def exchanges(self) -> tuple[Exchange, ...]:
        """What was recorded; a call that was never begun is one with an error."""
        return tuple(
            self.answers[index].exchange() if index in self.answers else _never(index)
            for index, call in enumerate(self.calls)
            if not call.primes
        )

    def close(self) -> None:
        """Hang up."""
        for task in self.tasks:
            task.cancel()
        self.lines.close()
        self.timer.close()


def _never(index: int) -> Exchange:
    answer = Answer(index, 0)
    answer.error = "never sent: the block ended before it was due"
    return answer.exchange()


@contextlib.contextmanager
def _undisturbed() -> Generator[None]:
    """No garbage is looked for while times are taken."""
    gc.collect()
    gc.freeze()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
