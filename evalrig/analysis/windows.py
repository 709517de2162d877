"""Which part of a block counts, and how many requests were in flight in it. Times in seconds after the block's start."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from evalrig.loadgen.served import Floats, Requests, Served

STEADY = 0.8
"""Share of the most requests in flight that a steady window never falls below."""
DIP = 0.01
"""Share of a block: a shorter fall is the turn-around of a closed loop, whose next request follows the last answer."""
BINS = 20
"""Of the window, for the slope of requests in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Events after `start` and up to `end` count."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Requests in flight: `count[i]` from `at[i]` until `at[i + 1]`; before the first and after the last there are none."""

    at: Floats
    count: Floats

    def mean(self, start: float, end: float) -> float:
        """Over time; 0 where nothing was in flight."""
        if not len(self.at) or end <= start:
            return 0.0
        edges = np.clip(np.append(self.at, np.inf), start, end)
        return float((np.diff(edges) * self.count).sum() / (end - start))


def in_flight(requests: Requests) -> Flight:
    """From when it was sent to its last event with content. A request without one is not counted: nobody knows for how long
    it took room."""
    return _flight(requests.sent, requests.last)


def _flight(start: Floats, end: Floats) -> Flight:
    """Of spans, shape [n] each; one without an end is not counted."""
    there = ~np.isnan(start) & ~np.isnan(end)
    times = np.concatenate([start[there], end[there]])
    steps = np.concatenate([np.ones(there.sum()), -np.ones(there.sum())])
    at, place = np.unique(times, return_inverse=True)
    return Flight(at=at, count=np.asarray(np.cumsum(np.bincount(place, steps, len(at))), float))


def steady(requests: Requests, share: float = STEADY) -> Window | None:
    """The longest time with at least `share` of the most requests in flight: without ramp and drain. For closed loops; None
    where nothing was in flight."""
    return _longest(in_flight(requests), share)


def conversing(requests: Requests, conversation: Sequence[int], share: float = STEADY) -> Window | None:
    """As `steady`, for conversations with pauses, which few requests are in flight of at a time: one is at work from its first
    request to its last answer. `conversation`: to which each request belongs, shape [n]."""
    first, place = np.unique(conversation, return_inverse=True)
    start, end = np.full(len(first), np.inf), np.full(len(first), -np.inf)
    np.fmin.at(start, place, requests.sent)
    np.fmax.at(end, place, requests.last)
    return _longest(
        _flight(np.where(np.isfinite(start), start, np.nan), np.where(np.isfinite(end), end, np.nan)), share
    )


def _longest(flight: Flight, share: float) -> Window | None:
    if not len(flight.at):
        return None
    shortest = DIP * (flight.at[-1] - flight.at[0])
    full = flight.count[:-1] >= share * flight.count.max()
    best: Window | None = None
    start: float | None = None
    until = -np.inf
    for begin, end in zip(flight.at[:-1][full], flight.at[1:][full], strict=True):
        if start is None or begin - until > shortest:
            start = float(begin)
        until = float(end)
        if best is None or until - start > best.seconds:
            best = Window(start=start, end=until)
    return best


def arriving(requests: Requests) -> Window | None:
    """Of an open loop: from when the first requests have had time to end until the last one was due. The concurrency rule
    would choose the moments at which many happened to arrive. None: fewer than two times at which requests were due."""
    due = requests.due[~np.isnan(requests.due)]
    if len(due) < 2 or due.max() <= due.min():
        return None
    took = (requests.last - requests.due)[requests.ok]
    filled = float(np.median(took)) if len(took) else 0.0
    return Window(start=float(due.min() + min(filled, (due.max() - due.min()) / 2)), end=float(due.max()))


def one_batch(served: Served) -> Window | None:
    """All requests decode at once: from the last first token to the first finish. None: they never did."""
    ok = served.requests.ok
    if not ok.any():
        return None
    window = Window(start=float(served.requests.first[ok].max()), end=float(served.requests.last[ok].min()))
    return window if window.seconds > 0 else None


def tokens_within(served: Served, window: Window) -> float | None:
    """Generated tokens of good requests by the time of their events. None: `usage` is missing."""
    counts = _grown(served)
    if np.isnan(counts).any():
        return None
    at = served.events.at
    good = served.requests.ok[served.events.request]
    return float(counts[good & (at > window.start) & (at <= window.end)].sum())


def decoded_within(served: Served, window: Window) -> float | None:
    """As `tokens_within`, with counts interpolated between events at both edges: for windows of few steps."""
    total = 0.0
    bounds = np.searchsorted(served.events.request, np.arange(len(served.requests.ok) + 1))
    for row in np.flatnonzero(served.requests.ok):
        mine = slice(bounds[row], bounds[row + 1])
        at, tokens = served.events.at[mine], served.events.tokens[mine]
        if np.isnan(tokens).any():
            return None
        early, late = np.interp([window.start, window.end], at, tokens)
        total += late - early
    return float(total)


def _grown(served: Served) -> Floats:
    """Tokens that each event brought, shape [m]; 0 of requests that failed."""
    events = served.events
    first = np.ones(len(events.at), bool)
    first[1:] = events.request[1:] != events.request[:-1]
    before = np.where(first, 0.0, np.concatenate(([0.0], events.tokens[:-1])) if len(events.at) else 0.0)
    return np.where(served.requests.ok[events.request], events.tokens - before, 0.0)


def over_saturated(requests: Requests, window: Window | None, alpha: float = 0.05) -> bool | None:
    """Requests in flight grow: the slope over the window is above 0 at 1 - alpha (one-sided t, on `BINS` means over time), and
    over the window they grow by more than one. None: no window."""
    if window is None:
        return None
    flight = in_flight(requests)
    edges = np.linspace(window.start, window.end, BINS + 1)
    means = np.array([flight.mean(a, b) for a, b in pairwise(edges)])
    line: Any = stats.linregress(np.linspace(0, 1, BINS), means)
    if line.stderr == 0:
        return bool(line.slope > 1)
    return bool(line.slope > 1 and line.slope / line.stderr > stats.t.ppf(1 - alpha, BINS - 2))
