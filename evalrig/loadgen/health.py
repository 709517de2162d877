"""The client's certificate: whether what a block measured is the server, or the client itself."""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalrig.loadgen.block import Exchange, Health

CPU_SHARE = 0.5
"""Of one core. Above it requests leave late in bursts, and what a read holds is no longer one event."""
SEND_LAG = 0.02
"""Of the median time to the first bytes."""
CLOCK_SECONDS = 1e-4
OWN = frozenset(os.strerror(code) for code in (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL))
"""Errors of requests that had no descriptor or no port: this machine's, before the engine was asked."""
_SECOND = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a block cost one process of the client."""

    seconds: float
    cpu_seconds: float
    clock_moved: float
    """Seconds by which the kernel's clock moved against the monotonic one, since the pool was opened."""
    troubles: tuple[str, ...] = ()
    """What went wrong before the start: priming calls that failed."""
    waits: tuple[float, ...] = ()
    """Seconds for which requests waited for their connections, of those that did."""


def certify(exchanges: Sequence[Exchange], efforts: Sequence[Effort]) -> Health:
    """The certificate of a block that one or more processes sent. All in seconds."""
    events, crowded, reads = _events(exchanges)
    lags = [one.lag for one in exchanges if one.kernel]
    late = [(one.sent.sent - one.sent.due) / _SECOND for one in exchanges if one.sent.sent]
    first = [(int(one.at[0]) - one.sent.due) / _SECOND for one in exchanges if one.at.size and one.sent.status == 200]
    answered = [one for one in exchanges if one.at.size]
    share = max(effort.cpu_seconds / max(effort.seconds, 1e-9) for effort in efforts)
    moved = max(effort.clock_moved for effort in efforts)
    waits = [wait for effort in efforts for wait in effort.waits]
    send_lag = _p99(late)
    return Health(
        cpu_share=share,
        send_lag_p99=send_lag,
        read_lag_p99=_p99(np.concatenate(lags) / _SECOND) if lags else 0.0,
        coalesced=crowded / reads if reads else 0.0,
        clock_moved=moved,
        kernel=bool(answered) and all(one.kernel for one in answered),
        cpu_per_event=sum(effort.cpu_seconds for effort in efforts) / events if events else 0.0,
        workers=len(efforts),
        void=(
            *_short(exchanges),
            *_void(share, send_lag, first, moved, waits),
            *(line for effort in efforts for line in effort.troubles),
        ),
    )


def _short(exchanges: Sequence[Exchange]) -> list[str]:
    """What the client had too few of to send."""
    errors = [one.sent.error for one in exchanges if one.sent.error in OWN]
    if not errors:
        return []
    many = f"{len(errors)} of {len(exchanges)} requests could not be sent: {errors[0]}"
    return [f"the client was short of descriptors or ports: {many}; raise `ulimit -n`, or ask for fewer at once"]


def _void(share: float, send_lag: float, first: Sequence[float], moved: float, waits: Sequence[float]) -> list[str]:
    """Without a good answer there is no time that a busy client could have spoilt."""
    reasons: list[str] = []
    if first and share > CPU_SHARE:
        reasons.append(
            f"the client was short of processor time: {share:.0%} of a core, above {CPU_SHARE:.0%}; free cores for it"
        )
    median = float(np.median(first)) if first else 0.0
    if first and send_lag > SEND_LAG * median:
        why = "something kept the client from its processor"
        if waits:
            why = f"{len(waits)} waited for a connection, up to {max(waits) * 1e3:.3g} ms; the server or the way to it is slow"
        reasons.append(
            f"requests left late: p99 {send_lag * 1e3:.3g} ms after they were due, above {SEND_LAG:.0%} of the median time to the "
            f"first bytes ({median * 1e3:.3g} ms); {why}"
        )
    if moved > CLOCK_SECONDS:
        reasons.append(
            f"the wall clock was set during the block: it moved {moved * 1e3:.3g} ms; hold time steps back while a run goes"
        )
    return reasons


def _events(exchanges: Sequence[Exchange]) -> tuple[int, int, int]:
    """(events, reads that brought more than one, reads). The line that only ends a stream is no event."""
    events = crowded = reads = 0
    for one in exchanges:
        if not one.ends.size:
            continue
        stops = _separators(one.body)
        held = np.diff(np.searchsorted(stops, one.ends, side="right"), prepend=0)
        if one.body.rstrip().endswith(b"[DONE]"):
            held[-1] = max(0, held[-1] - 1)
        events += int(held.sum())
        crowded += int((held > 1).sum())
        reads += len(one.ends)
    return events, crowded, reads


def _separators(body: bytes) -> np.ndarray:
    """Where each event of a stream ends: behind its empty line."""
    mark = b"\r\n\r\n" if b"\r\n\r\n" in body else b"\n\n"
    ends: list[int] = []
    at = body.find(mark)
    while at >= 0:
        ends.append(at + len(mark))
        at = body.find(mark, at + len(mark))
    return np.array(ends, np.int64)


def _p99(values: Sequence[float] | np.ndarray) -> float:
    return float(np.quantile(values, 0.99, method="higher")) if len(values) else 0.0
