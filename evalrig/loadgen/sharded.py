"""A block of load from one process or from several: as many as its events need, each with its own part of the schedule."""

import asyncio
import contextlib
import math
import pickle
import resource
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from evalrig.errors import ClientError
from evalrig.loadgen.block import Block
from evalrig.loadgen.clock import now
from evalrig.loadgen.drive import LISTEN_SECONDS, Driven, Stop, block_of, nobody, run_block
from evalrig.loadgen.pool import places
from evalrig.loadgen.schedule import Address, Call, Schedule

EVENTS_PER_WORKER = 8_000.0
"""Events a second that one process takes with about a quarter of a core: 24 to 33 microseconds each were measured (docs/load.md)."""
START_SECONDS = 60.0
"""For a worker to import what it needs."""
LEAD_SECONDS = 0.2
"""From when all are ready until the common start."""
HEARD, IDLE, SAID = b"\x07", b"\x05", b"\x06"
"""What a worker writes: bytes came; nothing was waited for; it is ready, or done."""
END_SECONDS = 60.0
"""For a worker to hand over what it recorded, after the block's own bound."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one worker is given, through a pipe: a key in the address's headers is never written to disk."""

    address: Address
    schedule: Schedule
    indices: tuple[int, ...]
    """Of its calls in the whole schedule."""
    stop: Stop


async def run_load(
    address: Address,
    schedule: Schedule,
    *,
    stop: Stop | None = None,
    events_per_second: float = 0.0,
    heard: Callable[[float], None] = nobody,
) -> Block:
    """Send `schedule` from as many processes as `events_per_second`, the expected rate, needs; 0: from this one.
    `heard`: as of `run_block`.

    Raises:
        EngineError: the host's name cannot be resolved.
        ClientError: this process can open no socket, or a worker could not be started, died or hung.
    """
    workers = workers_for(events_per_second)
    with _descriptors():
        if workers == 1:
            return await run_block(address, schedule, stop=stop, heard=heard)
        return await run_sharded(address, schedule, workers, stop=stop, heard=heard)


@contextlib.contextmanager
def _descriptors() -> Generator[None]:
    """As many file descriptors as this process may have, for it and for the workers that it starts meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems take less than they call the limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def workers_for(events_per_second: float) -> int:
    """How many processes a rate of events needs."""
    return max(1, math.ceil(events_per_second / EVENTS_PER_WORKER))


async def run_sharded(
    address: Address,
    schedule: Schedule,
    workers: int,
    *,
    stop: Stop | None = None,
    heard: Callable[[float], None] = nobody,
) -> Block:
    """Send `schedule` from `workers` processes that begin at one instant. None of them outlives this call.

    Raises:
        EngineError: the host's name cannot be resolved.
        ClientError: a worker could not be started, died or hung.
    """
    await places(address)  # a worker that cannot resolve the name would look like one that died
    jobs = jobs_of(address, schedule, workers, stop or Stop())
    shards = [_Shard(f"load worker {number + 1} of {len(jobs)}", job, heard) for number, job in enumerate(jobs)]
    try:
        await _all([shard.start() for shard in shards])
        start = now() + int(LEAD_SECONDS * 1e9)
        driven = await _all([shard.finish(start) for shard in shards])
    finally:
        await asyncio.gather(*(shard.end() for shard in shards))
    return block_of(tuple(driven), schedule)


def jobs_of(address: Address, schedule: Schedule, workers: int, stop: Stop) -> list[Job]:
    """The parts of a schedule. Conversations are dealt out whole, one by one; lanes likewise."""
    if schedule.loop == "closed":
        workers = min(workers, schedule.concurrency)  # each needs a lane
    shards: list[list[int]] = [[] for _ in range(workers)]
    home: dict[int, int] = {}
    dealt = {True: 0, False: 0}
    for index, call in enumerate(schedule.calls):
        if call.after is not None and not schedule.calls[call.after].primes:
            home[index] = home[call.after]
        else:
            home[index] = dealt[call.primes] % workers
            dealt[call.primes] += 1
        shards[home[index]].append(index)
    return [
        Job(address=address, schedule=_part(schedule, indices, number, workers), indices=tuple(indices), stop=stop)
        for number, indices in enumerate(shards)
        if indices
    ]


async def _all(works: Sequence[Awaitable[T]]) -> list[T]:
    """What all return; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _part(schedule: Schedule, indices: Sequence[int], number: int, workers: int) -> Schedule:
    here = {index: place for place, index in enumerate(indices)}

    def moved(call: Call) -> Call:
        return call if call.after is None else replace(call, after=here.get(call.after))

    return replace(
        schedule,
        calls=tuple(moved(schedule.calls[index]) for index in indices),
        concurrency=_lanes(schedule.concurrency, number, workers),
        ramp=tuple((at, _lanes(lanes, number, workers)) for at, lanes in schedule.ramp),
    )


def _lanes(lanes: int, number: int, workers: int) -> int:
    """Of all lanes those of one worker."""
    return (lanes + workers - 1 - number) // workers


class _Shard:
    """One worker process: it is given its job, says that it is ready, is told the start, and hands over what it recorded."""

    def __init__(self, name: str, job: Job, heard: Callable[[float], None]) -> None:
        self._name = name
        self._job = job
        self._heard = heard
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "evalrig.loadgen.worker")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise ClientError(f"{self._name}: cannot be started: {error.strerror}") from error
        job = pickle.dumps(self._job)
        await self._within(START_SECONDS + self._priming_seconds(), self._ready(len(job).to_bytes(8, "big") + job))

    async def finish(self, start: int) -> Driven:
        return await self._within(self._job.stop.block + END_SECONDS, self._driven(start))

    async def end(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()  # it starts no processes of its own
        await self._process.communicate()

    def _priming_seconds(self) -> float:
        stop = self._job.stop
        return min(sum(call.primes for call in self._job.schedule.calls) * stop.request, stop.block)

    async def _ready(self, job: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(job)
        await self._process.stdin.drain()
        await self._through(self._process.stdout)

    async def _through(self, told: asyncio.StreamReader) -> None:
        """Until it says that it is ready, or done; that it hears the server is passed on meanwhile."""
        while (sign := await told.readexactly(1)) != SAID:
            self._heard(math.inf if sign == HEARD else LISTEN_SECONDS)

    async def _driven(self, start: int) -> Driven:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(start.to_bytes(8, "big"))
        await self._process.stdin.drain()
        await self._through(self._process.stdout)
        size = int.from_bytes(await self._process.stdout.readexactly(8), "big")
        driven: Driven = pickle.loads(await self._process.stdout.readexactly(size))
        exchanges = (
            replace(one, sent=replace(one.sent, index=self._job.indices[one.sent.index])) for one in driven.exchanges
        )
        return replace(driven, exchanges=tuple(exchanges))

    async def _within(self, seconds: float, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError as error:
            raise ClientError(f"{self._name}: no answer within {seconds:.0f} s") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ClientError(f"{self._name}: ended in the middle of the block: {await self._last_words()}") from error

    async def _last_words(self) -> str:
        assert self._process is not None
        assert self._process.stderr is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        said = (await self._process.stderr.read()).decode(errors="replace").strip().splitlines()
        code = await self._process.wait()
        return said[-1][:300] if said else f"it said nothing, exit code {code}"
