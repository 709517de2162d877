"""One block of load from one process: every call at its time, whatever became of the others."""

import asyncio
import contextlib
import gc
import math
import resource
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from evalrig.loadgen.block import OVER, Block, Exchange
from evalrig.loadgen.clock import Alarm, now, offset
from evalrig.loadgen.health import Effort, certify
from evalrig.loadgen.pool import Pool, Wish, never_sent
from evalrig.loadgen.schedule import Address, Schedule

LEAD_SECONDS = 0.05
"""From the decision to begin until the block's start: the first call is not late."""
SPIN_NS = 400_000
"""Before a due time, the wait that is burnt: longer than a kernel timer needs to wake a process on a free core."""
SPARE_SECONDS = 0.05
"""An open loop keeps idle connections for the arrivals of so long: most that come meanwhile need not wait for a new one."""
SPARE = (2, 256)
"""Least and most of them. No more than are needed: some servers give each a thread."""
BLOCK_SECONDS = 3600.0
"""That a block may take beyond its last due time."""
LISTEN_SECONDS = 0.5
"""Between two looks whether anything came: a look at each answer in flight, so that nothing is done at each read."""
PRIMING = 8
"""Priming calls in flight, where the loop has no number of its own."""
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Bounds of a block, seconds. No request and no block hangs for ever."""

    request: float = 600.0
    """From when a request is launched; then it ends with an error. Also of the priming calls."""
    block: float = BLOCK_SECONDS
    """From the start; what is in flight then ends with an error, and what was not sent is told as not sent. Of the priming calls together
    too, from when the first is sent."""
    begin: float = math.inf
    """From the start; what has not begun by then is left out of the block (a closed loop of a fixed time)."""

    @classmethod
    def of(cls, schedule: Schedule, request: float) -> "Stop":
        """Bounds that cut off nothing a schedule asks for: an hour (or the time of two requests) after its last due time, the time to
        think within each conversation counted. `request`: seconds that one may take."""
        at: list[float] = []
        for call in schedule.calls:
            at.append(call.due + (at[call.after] if call.after is not None else 0.0))
        return cls(request=request, block=max(at, default=0.0) + max(BLOCK_SECONDS, 2 * request))


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """What one process did of a block."""

    start: int
    exchanges: tuple[Exchange, ...]
    effort: Effort


def nobody(seconds: float) -> None:
    """Listens to no block."""


async def run_block(
    address: Address, schedule: Schedule, *, stop: Stop | None = None, heard: Callable[[float], None] = nobody
) -> Block:
    """Send `schedule` to `address` from this process. The caller's loop may do little else meanwhile; what it does costs
    `cpu_share`, and on Linux no accuracy. `heard`: see `Driver.listen`.

    Raises:
        EngineError: the host's name cannot be resolved. All else that fails stands in the exchanges.
        ClientError: this process can open no socket.
    """
    driver = Driver(address, schedule, stop or Stop())
    listening = asyncio.create_task(driver.listen(heard))
    try:
        await driver.prime()
        driven = await driver.run(now() + int(LEAD_SECONDS * _SECOND))
    finally:
        await stopped(listening)
        await driver.close()
    return block_of((driven,), schedule)


async def stopped(task: "asyncio.Task[None]") -> None:
    """Cancel it and wait until it has ended."""
    task.cancel()
    await asyncio.wait({task})


def block_of(driven: tuple[Driven, ...], schedule: Schedule) -> Block:
    """One block of what its processes did, in the order of the schedule."""
    exchanges = sorted((one for part in driven for one in part.exchanges), key=lambda one: one.sent.index)
    start = driven[0].start
    return Block(
        start=start,
        start_utc=datetime.fromtimestamp((start + offset()) / _SECOND, UTC).isoformat(timespec="milliseconds"),
        exchanges=tuple(exchanges),
        health=certify(exchanges, tuple(part.effort for part in driven)),
        schedule_sha256=schedule.sha256,
    )


class Driver:
    """Sends one schedule: `prime`, `run`, `close`."""

    def __init__(self, address: Address, schedule: Schedule, stop: Stop) -> None:
        """
        Raises:
            ValueError: the schedule cannot be carried out.
        """
        _refuse(schedule)
        self._address = address
        self._schedule = schedule
        self._calls = schedule.calls
        self._stop = stop
        self._pool: Pool | None = None
        self._alarm = Alarm()
        self._exchanges: list[Exchange] = []
        self._followers: dict[int, list[int]] = {}
        self._roots: list[int] = []
        self._unprimed: tuple[str, ...] = ()
        self._start = self._last = self._end = 0
        self._spare = spare(schedule)
        for index, call in enumerate(self._calls):
            if call.primes:
                continue
            if call.after is None or self._calls[call.after].primes:
                self._roots.append(index)
            else:
                self._followers.setdefault(call.after, []).append(index)

    async def prime(self) -> None:
        """Open the pool and send the calls that fill the prefix cache. One that fails makes the block void."""
        self._pool = await Pool.open(self._address)
        left = iter([index for index, call in enumerate(self._calls) if call.primes])
        failed: list[str] = []
        end = now() + int(self._stop.block * _SECOND)

        async def lane(pool: Pool) -> None:
            for index in left:
                until = now() + int(self._stop.request * _SECOND)
                wish = Wish(
                    index=index, body=self._calls[index].body, due=now(), until=min(until, end), last=end < until
                )
                one = await pool.launch(wish)
                if one.sent.error or one.sent.status != 200:
                    failed.append(f"priming call {index}: {one.sent.error or f'HTTP {one.sent.status}'}")

        async with asyncio.TaskGroup() as group:
            for _ in range(self._schedule.concurrency or PRIMING):
                group.create_task(lane(self._pool))
        self._unprimed = tuple(failed)
        await self._pool.warm(self._spare if self._schedule.loop == "open" else self._first_lanes())

    def _first_lanes(self) -> int:
        return sum(_opens(self._schedule, lane, 0.0) == 0.0 for lane in range(self._schedule.concurrency))

    async def run(self, start: int) -> Driven:
        """All counted calls from `start` on, monotonic nanoseconds."""
        assert self._pool is not None, "prime first"
        self._start, self._end = start, start + int(self._stop.block * _SECOND)
        self._last = start + int(min(self._stop.begin, self._stop.block) * _SECOND)
        with _quiet_memory():
            before, began = _cpu_seconds(), now()
            async with asyncio.TaskGroup() as group:
                if self._schedule.loop == "open":
                    await self._open(group)
                else:
                    self._closed(group)
            seconds, cpu = (now() - began) / _SECOND, _cpu_seconds() - before
            moved = offset() - self._pool.offset  # the pool's is taken off every arrival
        effort = Effort(
            seconds=seconds,
            cpu_seconds=cpu,
            clock_moved=abs(moved) / _SECOND,
            troubles=self._unprimed,
            waits=tuple(self._pool.waits),
        )
        return Driven(start=start, exchanges=tuple(self._exchanges), effort=effort)

    async def listen(self, heard: Callable[[float], None]) -> None:
        """Tell `heard` every half second what the server did: `inf` when bytes came, and the seconds in which nothing was
        waited for. It is told nothing of silence. Never returns; where it is cancelled it tells the rest."""
        came, at = 0, now()
        while True:
            try:
                await asyncio.sleep(LISTEN_SECONDS)
            finally:
                before, came = came, self._pool.came if self._pool is not None else 0
                since, at = at, now()
                if came > before:
                    heard(math.inf)
                elif self._pool is None or not self._pool.waiting:
                    heard((at - since) / _SECOND)

    async def close(self) -> None:
        """Close what is open."""
        self._alarm.close()
        if self._pool is not None:
            await self._pool.close()

    async def _open(self, group: asyncio.TaskGroup) -> None:
        """Each call at its due time; the next one never waits for it."""
        for index in sorted(self._roots, key=lambda index: self._calls[index].due):
            due = self._start + int(self._calls[index].due * _SECOND)
            if await self._turn(index, due):
                group.create_task(self._through(group, self._launch(index, due)))

    async def _through(self, group: asyncio.TaskGroup, flight: "asyncio.Task[Exchange]") -> None:
        one = await flight
        self._exchanges.append(one)
        for follower in self._followers.get(one.sent.index, ()):
            due = one.sent.ended + int(self._calls[follower].due * _SECOND)
            group.create_task(self._follow(group, follower, due))

    async def _follow(self, group: asyncio.TaskGroup, index: int, due: int) -> None:
        if await self._turn(index, due):
            await self._through(group, self._launch(index, due))

    def _closed(self, group: asyncio.TaskGroup) -> None:
        """Lanes: each takes a conversation, and the next one when that has ended."""
        left = iter(self._roots)
        for lane in range(self._schedule.concurrency):
            group.create_task(self._lane(lane, left))

    async def _lane(self, lane: int, left: Iterator[int]) -> None:
        while (opens := _opens(self._schedule, lane, max(0.0, (now() - self._start) / _SECOND))) is not None:
            await self._alarm.until(min(self._start + int(opens * _SECOND), self._last))
            index = next(left, None)
            if index is None:
                return
            await self._talk(index)

    async def _talk(self, root: int) -> None:
        """One call and all that come after it, one by one, with the time to think between them."""
        left = [(root, now())]
        while left:
            index, due = left.pop()
            if await self._turn(index, due):
                one = await self._launch(index, due)
                self._exchanges.append(one)
                followers = reversed(self._followers.get(index, ()))
                left += [(each, one.sent.ended + int(self._calls[each].due * _SECOND)) for each in followers]

    async def _turn(self, index: int, due: int) -> bool:
        """Wait until just before `due`. False: its time lies behind the end of the block; with all that come after it, it is not sent."""
        await self._alarm.until(min(due, self._last) - SPIN_NS)
        if due >= self._last or now() >= self._last:
            self._unsent(index, due)
            return False
        return True

    def _launch(self, index: int, due: int) -> asyncio.Task[Exchange]:
        assert self._pool is not None
        until, end = now() + int(self._stop.request * _SECOND), self._end
        wish = Wish(index=index, body=self._calls[index].body, due=due, until=min(until, end), last=end < until)
        flight = self._pool.launch(wish)
        if self._schedule.loop == "open":
            self._pool.refill(self._spare)
        return flight

    def _unsent(self, index: int, due: int) -> None:
        if self._stop.begin < self._stop.block:
            return  # a block of a fixed time ends here as it should
        self._exchanges.append(never_sent(index, due, f"not sent: {OVER}"))
        for follower in self._followers.get(index, ()):
            self._unsent(follower, due)


def spare(schedule: Schedule) -> int:
    """Idle connections that an open loop keeps: for the most arrivals within `SPARE_SECONDS`, as far as they are known beforehand."""
    due = np.sort([call.due for call in schedule.calls if call.after is None and not call.primes])
    most = int((np.searchsorted(due, due + SPARE_SECONDS) - np.arange(len(due))).max(initial=0))
    return min(max(most, SPARE[0]), SPARE[1])


def _refuse(schedule: Schedule) -> None:
    if schedule.loop == "closed" and schedule.concurrency < 1:
        raise ValueError("a closed loop needs at least one lane")
    for index, call in enumerate(schedule.calls):
        if call.after is not None and not 0 <= call.after < index:
            raise ValueError(f"call {index} comes after call {call.after}, which does not stand before it")
        if call.after is not None and call.primes:
            raise ValueError(f"call {index} primes and comes after another: priming calls have no order")


def _opens(schedule: Schedule, lane: int, at: float) -> float | None:
    """Seconds from the start when `lane` may take its next conversation, `at` or later; None: never again."""
    ramp = schedule.ramp or ((0.0, schedule.concurrency),)
    if ramp[0][0] > 0.0:
        ramp = ((0.0, 0), *ramp)
    for (begin, lanes), end in zip(ramp, [*(step[0] for step in ramp[1:]), math.inf], strict=True):
        if lanes > lane and at < end:
            return max(at, begin)
    return None


@contextlib.contextmanager
def _quiet_memory() -> Generator[None]:
    """No collection of garbage meanwhile: it stops the loop, and what a block leaves is freed by counting."""
    was = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was:
            gc.enable()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
