"""One block by several processes: each has its share of the calls from the beginning, so nothing passes between them while it
runs. A conversation stays in one share.
"""

import asyncio
import contextlib
import os
import signal
import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from evalrig.loadgen.block import Exchange, Sent
from evalrig.loadgen.clock import now
from evalrig.loadgen.drive import Deadlines, Recorded, record
from evalrig.loadgen.health import Effort
from evalrig.loadgen.schedule import Address, Call, Schedule

LEAD = 300_000_000
"""Nanoseconds from the last process being ready to the start."""
READY = b"ready\n"
READY_SECONDS = 600.0
"""For priming, too."""


class WorkerLost(RuntimeError):
    """A process of the load client ended before its share was done: the block is lost."""


class _Share(msgspec.Struct):
    address: Address
    schedule: Schedule
    limits: Deadlines


class _Kept(msgspec.Struct):
    sent: Sent
    body: bytes
    ends: bytes
    at: bytes
    lag: bytes
    kernel: bool


class _Told(msgspec.Struct):
    effort: Effort
    exchanges: list[_Kept]


def shares(schedule: Schedule, workers: int) -> list[tuple[Schedule, tuple[int, ...]]]:
    """The schedule of each process, and the place of each of its calls in the whole. Conversations and lanes go round."""
    owner: list[int] = []
    turns = 0
    for call in schedule.calls:
        owner.append(turns % workers if call.after is None else owner[call.after])
        turns += call.after is None
    found: list[tuple[Schedule, tuple[int, ...]]] = []
    for worker in range(workers):
        places = tuple(i for i, of in enumerate(owner) if of == worker)
        place_of = {place: i for i, place in enumerate(places)}
        calls = tuple(_moved(schedule.calls[place], place_of) for place in places)
        found.append((replace(schedule, calls=calls, **_lanes(schedule, worker, workers)), places))
    return [(share, places) for share, places in found if places]


def _moved(call: Call, place_of: dict[int, int]) -> Call:
    return call if call.after is None else replace(call, after=place_of[call.after])


def _lanes(schedule: Schedule, worker: int, workers: int) -> dict[str, Any]:
    def own(lanes: int) -> int:
        return lanes // workers + (worker < lanes % workers)

    ramp = tuple((after, own(lanes)) for after, lanes in schedule.ramp)
    return {"concurrency": own(schedule.concurrency), "ramp": ramp}


async def run_shards(address: Address, schedule: Schedule, limits: Deadlines, workers: int) -> list[Recorded]:
    """Run a schedule in several processes that start at one moment.

    Raises:
        WorkerLost: one ended early. None of them outlives this call.
    """
    if schedule.loop == "closed" and schedule.concurrency < workers:
        raise ValueError(f"{workers} processes for {schedule.concurrency} lanes: give each one lane at least")
    parts = shares(schedule, workers)
    processes = [await _start() for _ in parts]
    try:
        for process, (share, _) in zip(processes, parts, strict=True):
            await _send(process, msgspec.msgpack.encode(_Share(address, share, limits)))
        for process in processes:
            if await asyncio.wait_for(_pipe(process.stdout).readline(), READY_SECONDS) != READY:
                raise WorkerLost("a process of the load client ended before the block; look at the memory that is free")
        start = now() + LEAD
        for process in processes:
            await _send(process, struct.pack("<q", start))
        told = await asyncio.gather(*(_result(process) for process in processes))
    finally:
        for process in processes:
            await _end(process)
    return [_recorded(one, start, places) for one, (_, places) in zip(told, parts, strict=True)]


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "evalrig.loadgen.sharded"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 26,
    )


def _pipe(pipe: Any) -> Any:
    assert pipe is not None, "made with a pipe"
    return pipe


async def _send(process: asyncio.subprocess.Process, content: bytes) -> None:
    inlet = _pipe(process.stdin)
    try:
        inlet.write(struct.pack("<q", len(content)) + content)
        await inlet.drain()
    except ConnectionError as error:
        raise WorkerLost("a process of the load client ended before the block") from error


async def _result(process: asyncio.subprocess.Process) -> _Told:
    outlet = _pipe(process.stdout)
    try:
        (size,) = struct.unpack("<q", await outlet.readexactly(8))
        return msgspec.msgpack.decode(await outlet.readexactly(size), type=_Told)
    except asyncio.IncompleteReadError as error:
        raise WorkerLost(f"process {process.pid} of the load client ended within the block") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
    await process.wait()


def _recorded(told: _Told, start: int, places: Sequence[int]) -> Recorded:
    return Recorded(
        start=start,
        exchanges=tuple(_exchange(one, places[one.sent.index]) for one in told.exchanges),
        effort=told.effort,
    )


def _exchange(kept: _Kept, index: int) -> Exchange:
    ends, at, lag = (np.frombuffer(part, np.int64) for part in (kept.ends, kept.at, kept.lag))
    sent = replace(kept.sent, index=index)
    return Exchange(sent=sent, body=kept.body, ends=ends, at=at, lag=lag, kernel=kept.kernel)


# ---- in the process


def _read() -> bytes:
    (size,) = struct.unpack("<q", _exactly(8))
    return _exactly(size)


def _exactly(size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = os.read(0, size - len(found))
        if not part:
            raise SystemExit("the one that asked is gone")
        found += part
    return bytes(found)


async def _begin() -> int:
    """Ready; the answer is the moment to start at. Nothing else happens here meanwhile, so waiting may block."""
    os.write(1, READY)
    return struct.unpack("<q", _read())[0]


def main() -> None:
    """Carry out one share."""
    share = msgspec.msgpack.decode(_read(), type=_Share)
    found = asyncio.run(record(share.address, share.schedule, share.limits, _begin))
    kept = [
        _Kept(
            sent=one.sent,
            body=one.body,
            ends=one.ends.tobytes(),
            at=one.at.tobytes(),
            lag=one.lag.tobytes(),
            kernel=one.kernel,
        )
        for one in found.exchanges
    ]
    told = msgspec.msgpack.encode(_Told(found.effort, kept))
    with os.fdopen(1, "wb") as outlet:
        outlet.write(struct.pack("<q", len(told)) + told)


if __name__ == "__main__":
    main()
