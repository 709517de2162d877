"""May a block count? The client certifies itself: a client that is short of processor measures itself and not the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalrig.loadgen.block import Exchange, Health

MOST_CPU = 0.5
"""Share of one core in one worker process."""
MOST_SEND_LAG = 0.02
"""Of the median time to the first byte."""
LEAST_SEND_LAG = 100e-6
"""Seconds that are allowed however fast the engine is."""
MOST_CLOCK = 100e-6
"""Seconds."""
MOST_CPU_ALONE = 0.3
"""Where the kernel tells no times: a client that works so much is late by an unknown time."""
SEPARATOR = b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What one worker process spent."""

    cpu: float
    """Seconds."""
    wall: float
    clock_moved: float


def health(exchanges: Sequence[Exchange], efforts: Sequence[Effort], open_loop: bool) -> Health:
    """The certificate of a block. `open_loop`: requests have a time at which they were due whatever the engine does."""
    sent = [one.sent for one in exchanges if one.sent.sent]
    lags = np.concatenate([one.lag for one in exchanges] or [np.zeros(0, np.int64)]) / 1e9
    reads, events, coalesced = _reads(exchanges)
    send_lag = _p99([(one.sent - one.due) / 1e9 for one in sent])
    first = [(one.at[0] - one.sent.sent) / 1e9 for one in exchanges if len(one.at)]
    share = max(effort.cpu / effort.wall for effort in efforts)
    moved = max(effort.clock_moved for effort in efforts)
    kernel = all(one.kernel for one in exchanges if len(one.at))
    read_lag = _p99(lags)
    allowed = max(LEAST_SEND_LAG, MOST_SEND_LAG * float(np.median(first))) if first else LEAST_SEND_LAG
    void: list[str] = []
    most = MOST_CPU if kernel else MOST_CPU_ALONE
    if share > most:
        void.append(f"the client took {share:.0%} of a core (at most {most:.0%}); give it cores or lower the load")
    if open_loop and send_lag > allowed:
        void.append(
            f"requests left up to {1e3 * send_lag:.2g} ms late (99th percentile; at most {1e3 * allowed:.2g} ms, "
            f"{MOST_SEND_LAG:.0%} of the time to the first byte)"
        )
    if moved > MOST_CLOCK:
        void.append(f"the system clock moved by {1e3 * moved:.2g} ms against the monotonic one")
    if not open_loop and read_lag > allowed:
        void.append(
            f"answers were read up to {1e3 * read_lag:.2g} ms late (99th percentile; at most {1e3 * allowed:.2g} ms), "
            "so the next requests were late as well"
        )
    return Health(
        cpu_share=share,
        send_lag_p99=send_lag,
        read_lag_p99=read_lag,
        coalesced=coalesced / reads if reads else 0.0,
        clock_moved=moved,
        kernel=kernel,
        cpu_per_event=sum(effort.cpu for effort in efforts) / events if events else float("nan"),
        workers=len(efforts),
        void=tuple(void),
    )


def _reads(exchanges: Sequence[Exchange]) -> tuple[int, int, int]:
    """Reads, events, and reads that brought more than one event's end."""
    reads = events = coalesced = 0
    for one in exchanges:
        previous = 0
        for end in one.ends:
            brought = one.body.count(SEPARATOR, max(0, previous - 1), end)
            reads, events, coalesced = reads + 1, events + brought, coalesced + (brought > 1)
            previous = int(end)
    return reads, events, coalesced


def _p99(values: "Sequence[float] | np.ndarray") -> float:
    return float(np.quantile(np.asarray(values), 0.99)) if len(values) else 0.0
