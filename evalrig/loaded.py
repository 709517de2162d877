"""One block of load on a running engine: its own metrics read meanwhile, and whether the block was what it should be."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evalrig.engine import Engine
from evalrig.errors import EngineError
from evalrig.loadgen.block import OVER, Block
from evalrig.loadgen.schedule import Schedule
from evalrig.loadgen.served import Served
from evalrig.loadgen.target import Gauges, Serving

EVERY: Final = 0.5
"""Seconds between two readings of an engine's metrics."""
READING: Final = 2.0
"""Seconds that one of them may take; then it is left out."""
FLUSH: Final = 30.0
"""Seconds that an engine may take to empty its prefix cache."""
FAILED: Final = 0.01
"""Share of a block's requests that may fail; above, the engine failed."""
CACHED: Final = 0.02
"""Share of a cold block's prompt tokens that may come from the prefix cache: single tokens can be met by chance."""


MOST: Final = (
    ("waiting_most", "waiting"),
    ("running_most", "running"),
    ("kv_usage_most", "kv_usage"),
    ("gpu_bytes_most", "gpu_bytes"),
)
"""Scores that are the largest of an engine's readings during a block."""


async def loaded(
    engine: Engine, serving: Serving, schedule: Schedule, cold: bool, events_per_second: float = 0.0
) -> Block:
    """Load the engine with a schedule. `cold`: its prefix cache is emptied first, where it can be. `events_per_second`: how
    many are expected, if known; very many are received by several processes.

    Raises:
        EngineError: the engine could not be reached at all.
        ClientError: the load client failed.
    """
    flushed = cold and serving.flushes and await _flushed(engine)
    read: list[Gauges] = []
    await _look(engine, read)
    looking = asyncio.create_task(_looking(engine, read))
    try:
        sending = sent(serving, schedule, engine.launch.request_seconds, events_per_second, engine.beat)
        block = await engine.carry(sending)
    finally:
        looking.cancel()
        await asyncio.wait({looking})
    await _look(engine, read)
    return replace(block, flushed=flushed, notes={"gauges": [_row(one) for one in read]} if read else None)


async def sent(
    serving: Serving,
    schedule: Schedule,
    request_seconds: float,
    events_per_second: float,
    heard: Callable[[float], None],
) -> Block:
    """A schedule, sent by the load client. `heard`: see `Driver.listen`."""
    from evalrig.loadgen.drive import Stop
    from evalrig.loadgen.sharded import run_load

    stop = Stop.of(schedule, request_seconds)
    return await run_load(serving.completions, schedule, stop=stop, events_per_second=events_per_second, heard=heard)


async def _flushed(engine: Engine) -> bool:
    """Empty the prefix cache.

    Raises:
        EngineError: it does not answer, though nothing is asked of it.
    """
    try:
        async with asyncio.timeout(FLUSH):
            return await engine.flush()
    except TimeoutError as error:
        name = engine.variant.name
        raise EngineError(
            f"{name}: it did not empty its prefix cache within {FLUSH:.0f} s, with no request running"
        ) from error


async def _looking(engine: Engine, read: list[Gauges]) -> None:
    while True:
        await asyncio.sleep(EVERY)
        await _look(engine, read)


async def _look(engine: Engine, read: list[Gauges]) -> None:
    """One reading. An engine too busy to tell is no reason to lose a block, nor to wait."""
    with contextlib.suppress(EngineError, TimeoutError):
        async with asyncio.timeout(READING):
            if (one := await engine.gauges()) is not None:
                read.append(one)


def _row(one: Gauges) -> dict[str, Any]:
    """What it told, without what it did not: JSON has no NaN."""
    row: dict[str, Any] = asdict(one)
    row["phases"] = {phase: pair for phase, pair in one.phases.items() if not any(map(math.isnan, pair))}
    return {key: value for key, value in row.items() if not (isinstance(value, float) and math.isnan(value))}


def told(block: Block) -> dict[str, float]:
    """Scores of the client, and of what the engine tells: the most that waited and was in use, preemptions, mean seconds a phase."""
    health = block.health
    client = {"kernel": float(health.kernel), "cpu_share": health.cpu_share, "send_lag_p99": health.send_lag_p99}
    rows: list[dict[str, Any]] = (block.notes or {}).get("gauges", [])
    if not rows:
        return client
    found = client | {
        score: max(row[key] for row in rows if key in row) for score, key in MOST if any(key in row for row in rows)
    }
    if known := [row["waiting"] for row in rows if "waiting" in row]:
        found["waiting_usual"] = float(np.median(known))
    first, last = rows[0], rows[-1]
    if "preemptions" in first and "preemptions" in last:
        found["preemptions"] = last["preemptions"] - first["preemptions"]
    for phase, (seconds, count) in last.get("phases", {}).items():
        before = first.get("phases", {}).get(phase, (0.0, 0.0))
        if count > before[1]:
            found[f"engine_{phase}_seconds"] = (seconds - before[0]) / (count - before[1])
    return {name: float(value) for name, value in found.items()}


def expected(schedule: Schedule, warm: Served | None = None) -> float:
    """Events a second to be expected of a schedule; `warm`: what its warm-up served. 0: not known.

    An open loop brings its tokens at the pace of its arrivals, each an event at most; a closed one so many in each lane as one answer of
    the warm-up had.
    """
    calls = [call for call in schedule.calls if not call.primes]
    paced = [call.due for call in calls if call.after is None]
    if schedule.loop == "open" and len(paced) > 1 and max(paced) > min(paced):
        tokens = sum(call.max_tokens for call in calls)
        return tokens / (max(paced) - min(paced)) * (1 - 1 / len(paced))  # so many gaps fewer than requests
    if warm is None:
        return 0.0
    by_request = [warm.events.at[warm.events.request == row] for row in range(len(warm.requests.ok))]
    rates = [(len(at) - 1) / float(at[-1] - at[0]) for at in by_request if len(at) > 1 and at[-1] > at[0]]
    lanes = schedule.concurrency or len(calls)
    whole = len(warm.events.at) / max(warm.seconds, 1.0)
    return max(whole, lanes * float(np.median(rates)) if rates else 0.0)


def failed(block: Block, served: Served) -> str:
    """Why the engine failed in this block; empty: it did not. What the end of the block cut off is not held against it."""
    errors = served.requests.error
    if not errors:
        return "the block has no requests"
    asked = ~_cut(served)
    lost, of = int(np.count_nonzero(~served.requests.ok & asked)), int(np.count_nonzero(asked))
    if lost <= FAILED * of:
        return ""
    status = next((f"HTTP {x.sent.status}" for x in block.exchanges if x.sent.status not in (0, 200)), "no tokens came")
    return f"{lost} of {of} requests failed: {next((e for e in errors if e and OVER not in e), status)}"


def _cut(served: Served) -> NDArray[np.bool_]:
    """Shape [n]: not sent or not waited for, because the block's time was over."""
    return np.array([OVER in error for error in served.requests.error], bool)


def void(block: Block, served: Served, schedule: Schedule, serving: Serving, cold: bool) -> list[str]:
    """Why a block must not count: the client cannot be trusted, or the work was not what both arms must do."""
    calls = [call for call in schedule.calls if not call.primes]
    reasons = list(block.health.void)
    if block.schedule_sha256 and block.schedule_sha256 != schedule.sha256:
        reasons.append("another schedule was sent than was drawn")
    if len(calls) != len(served.requests.ok):
        return [*reasons, f"{len(served.requests.ok)} requests were measured of {len(calls)} that were due"]
    if cut := int(np.count_nonzero(_cut(served))):
        reasons.append(
            f"{cut} of {len(calls)} requests were not sent, or not waited for: {OVER}; ask for fewer requests"
        )
    ok = served.requests.ok
    if serving.fixed_length:
        reasons += _unlike("answers", [call.max_tokens for call in calls], served.requests.tokens, ok)
    asked = [call.prompt_tokens for call in calls]
    reasons += _unlike("prompts", asked, served.requests.prompt_tokens, ok)
    if cold and (share := cached_share(served)) is not None and share > CACHED:
        reasons.append(f"{share:.1%} of the prompt tokens of a cold block came from the prefix cache")
    return reasons


def cached_share(served: Served) -> float | None:
    """Share of the prompt tokens that came from the prefix cache; None: the engine does not tell."""
    requests = served.requests
    known = requests.ok & (requests.cached_tokens >= 0) & (requests.prompt_tokens > 0)
    return float(requests.cached_tokens[known].sum() / requests.prompt_tokens[known].sum()) if known.any() else None


def _unlike(what: str, asked: Sequence[int], said: NDArray[np.int64], ok: NDArray[np.bool_]) -> list[str]:
    """Where lengths differ from those asked. Prompts may all be longer by the same: a token that the server puts in front."""
    known = ok & (said >= 0)
    wanted, given = np.asarray(asked, np.int64)[known], said[known]
    off = int(given[0] - wanted[0]) if what == "prompts" and len(given) and given[0] - wanted[0] == 1 else 0
    unlike = np.flatnonzero(given != wanted + off)
    if not len(unlike):
        return []
    first = int(unlike[0])
    example = f"{int(given[first])} tokens where {int(wanted[first])} were asked"
    return [f"{len(unlike)} of {len(given)} {what} were not as long as asked: {example}"]
