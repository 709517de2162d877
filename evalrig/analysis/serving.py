"""Numbers of one block of load, from what was served. Definitions: docs/load.md; sources: load.md, sections 1 and 3.

Every latency starts when the request was due, unless its name says `sent`: a queue in front of the engine is part of what a
user waits for. Tokens are those of `usage`. A number that cannot be given is left out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from evalrig.analysis.arrays import FloatArray
from evalrig.analysis.percentiles import certified
from evalrig.loadgen.served import Served

STEADY = 0.8
"""Share of the most requests in flight that makes the steady window of a closed loop."""
BRIDGED = 0.02
"""Of a block's length: a dip that is shorter ends no steady window, a lane takes a moment to begin its next request."""
SEGMENTS = 10
GROWN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits of one request, seconds; infinite: none."""

    ttft: float = math.inf
    tpot: float = math.inf
    e2e: float = math.inf

    @property
    def asked(self) -> bool:
        """There is one."""
        return min(self.ttft, self.tpot, self.e2e) < math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of a block, seconds after its start."""

    start: float
    stop: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.stop - self.start

    def holds(self, at: FloatArray) -> np.ndarray:
        """Which times lie in it."""
        return (at >= self.start) & (at < self.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Of the requests that were served, seconds; shape [served] each, NaN where there is none."""

    ttft: FloatArray
    """From when it was due to its first token."""
    ttft_sent: FloatArray
    tpot: FloatArray
    """(last - first) / (tokens - 1), for answers of two tokens or more whose tokens are told."""
    e2e: FloatArray
    """From when it was due to its last token."""


def latencies(served: Served) -> Latencies:
    """Of all requests that were served, in their order."""
    r = served.requests
    due, sent, first, last = (column[r.ok] for column in (r.due, r.sent, r.first, r.last))
    tokens = r.tokens[r.ok].astype(np.float64)
    told = tokens >= 2
    return Latencies(
        ttft=first - due,
        ttft_sent=first - sent,
        tpot=np.where(told, (last - first) / np.where(told, tokens - 1, 1), math.nan),
        e2e=last - due,
    )


def gaps(served: Served) -> FloatArray:
    """Seconds between neighbouring events of a request, both with a time of their own (ITL)."""
    e = served.events
    pairs = (e.request[1:] == e.request[:-1]) & e.exact[1:] & e.exact[:-1]
    return np.diff(e.at)[pairs]


def in_flight(served: Served) -> tuple[FloatArray, FloatArray]:
    """Times, rising, and the requests that had been sent and not yet ended from each on. Failed ones are left out."""
    r = served.requests
    begun, ended = r.sent[r.ok], r.last[r.ok]
    times = np.concatenate(
        [ended, begun]
    )  # of one moment the ends first: a lane takes its next call when one has ended
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(np.concatenate([-np.ones(len(ended)), np.ones(len(begun))])[order])


def steady(served: Served, loop: Literal["open", "closed"]) -> Window | None:
    """The part of a block that is neither ramp nor drain; None: nothing was served.

    Closed loop: the longest time with at least `STEADY` of the most requests in flight (as SGLang's steady state). Open loop,
    where that number wanders by itself: from one median answer after the start to the last arrival.
    """
    if not served.requests.ok.any():
        return None
    if loop == "open":
        begin = float(np.median(latencies(served).e2e))
        end = float(np.nanmax(served.requests.due))
        return Window(start=begin, stop=end) if end > begin else None
    times, count = in_flight(served)
    high = count >= STEADY * count.max()
    edges = np.flatnonzero(np.diff(np.concatenate([[False], high, [False]]).astype(np.int8)))
    spans = [(float(times[a]), float(times[min(b, len(times) - 1)])) for a, b in edges.reshape(-1, 2)]
    joined = [spans[0]]
    for start, stop in spans[1:]:
        if start - joined[-1][1] <= BRIDGED * served.seconds:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((start, stop))
    start, stop = max(joined, key=lambda span: span[1] - span[0])
    return Window(start=start, stop=stop) if stop > start else None


def rates(served: Served, window: Window) -> dict[str, float]:
    """Per second of the window: tokens by the times of their events, prompts by their first token, requests by their last."""
    r, e = served.requests, served.events
    before = np.where(np.diff(e.request, prepend=-1) != 0, 0.0, np.concatenate([[0.0], e.tokens[:-1]]))
    ok = r.ok[e.request]
    made = (e.tokens - before)[ok & window.holds(e.at)]
    found = {"requests_per_second": float((r.ok & window.holds(r.last)).sum()) / window.seconds}
    if not np.isnan(made).any() and len(made):
        found["output_tokens_per_second"] = float(made.sum()) / window.seconds
    prompts = r.prompt_tokens[r.ok & window.holds(r.first)]
    if (prompts >= 0).all() and len(prompts):
        found["prompt_tokens_per_second"] = float(prompts.sum()) / window.seconds
    if "output_tokens_per_second" in found and "prompt_tokens_per_second" in found:
        found["total_tokens_per_second"] = found["output_tokens_per_second"] + found["prompt_tokens_per_second"]
    return found


def metrics_of(
    served: Served, slo: Slo, gpus: int, loop: Literal["open", "closed"], price: float = 0.0
) -> dict[str, float]:
    """All scores of one block; what cannot be given is not there. `price`: of one GPU for an hour."""
    window = steady(served, loop)
    if window is None:
        return {}
    seen = latencies(served)
    found = {**rates(served, window), **_spread(seen, gaps(served)), **_within(served, seen, slo, window)}
    found |= {"exact": float(served.events.exact.mean()), "gpus": float(gpus), "window_seconds": window.seconds}
    tokens = served.requests.tokens[served.requests.ok]
    if (tokens >= 0).all():
        found["tokens_per_event"] = float(tokens.sum()) / len(served.events.at)
    if (tpot := found.get("tpot_p50", 0.0)) > 0:
        found["tokens_per_user"] = 1 / tpot
    if (rate := found.get("output_tokens_per_second", 0.0)) > 0:
        found["tokens_per_gpu"] = rate / gpus
    found |= _cost(found, gpus, price)
    return {**found, **_growth(served, window)}


def _spread(seen: Latencies, between: FloatArray) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, values in (("ttft", seen.ttft), ("tpot", seen.tpot), ("itl", between), ("e2e", seen.e2e)):
        kept = values[~np.isnan(values)]
        if len(kept):
            found[f"{name}_p50"] = float(np.median(kept))
        for share in (0.9, 0.99):
            if (bound := certified(kept, share)) is not None:
                found[f"{name}_p{100 * share:.0f}"], found[f"{name}_p{100 * share:.0f}_bound"] = bound
    if len(seen.ttft_sent):
        found["ttft_sent_p50"] = float(np.median(seen.ttft_sent))
    return {name: value for name, value in found.items() if value > 0}


def _within(served: Served, seen: Latencies, slo: Slo, window: Window) -> dict[str, float]:
    """Requests within the limits: a failed one is not, and neither is one whose tokens are not told where TPOT is limited."""
    if not slo.asked:
        return {}
    slow = (seen.ttft > slo.ttft) | (seen.e2e > slo.e2e)
    if slo.tpot < math.inf:
        short = served.requests.tokens[served.requests.ok] == 1
        slow |= ~(short | (seen.tpot <= slo.tpot))
    last = served.requests.last[served.requests.ok]
    good = float((~slow & window.holds(last)).sum()) / window.seconds
    found = {"slo_ok": float((~slow).sum()), "slo_n": float(len(served.requests.ok))}
    return found | ({"goodput": good} if good > 0 else {})


def _cost(found: Mapping[str, float], gpus: int, price: float) -> dict[str, float]:
    """Dollars for a million tokens at this load, all of the time charged to the one kind or to the other."""
    hourly = price * gpus
    if hourly <= 0:
        return {}
    kinds = (("output", "output_tokens_per_second"), ("input", "prompt_tokens_per_second"))
    return {
        f"usd_per_million_{kind}": hourly * 1e6 / (3600 * found[rate]) for kind, rate in kinds if found.get(rate, 0) > 0
    }


def _growth(served: Served, window: Window) -> dict[str, float]:
    """Mean requests in flight, and whether their number grows through the window (t over ten parts of it, 95 %, one-sided, and by
    `GROWN` of the mean at least)."""
    times, count = in_flight(served)
    edges = np.linspace(window.start, window.stop, SEGMENTS + 1)
    grid = np.union1d(np.clip(times, window.start, window.stop), edges)
    held = count[np.clip(np.searchsorted(times, grid[:-1], side="right") - 1, 0, len(count) - 1)]
    spent = held * np.diff(grid)
    part = np.clip(np.searchsorted(edges, grid[:-1], side="right") - 1, 0, SEGMENTS - 1)
    means = np.bincount(part, spent, SEGMENTS) / (window.seconds / SEGMENTS)
    found = {"concurrency": float(spent.sum()) / window.seconds}
    grows = False
    if float(np.ptp(means)) > 0:
        line: Any = stats.linregress(np.arange(SEGMENTS), means, alternative="greater")
        grows = line.pvalue < 0.05 and line.slope * SEGMENTS > GROWN * means.mean()
    return {**found, "over_saturated": float(grows)}
