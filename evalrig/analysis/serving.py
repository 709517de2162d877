"""What a block's users got: latencies, throughput in a window, goodput under an SLO. Seconds and tokens; NaN is missing."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.cost import usd_per_million
from evalrig.analysis.percentiles import percentile
from evalrig.analysis.phases import phases_of
from evalrig.analysis.windows import Window, in_flight, over_saturated, steady, tokens_within
from evalrig.loadgen.served import Floats, Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request must keep to count. Seconds."""

    ttft: float = float("inf")
    """From when it was due to its first token."""
    tpot: float = float("inf")
    e2e: float = float("inf")
    """From when it was due to its last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Of good requests, shape [n] each, in the order of the schedule; `itl` has one entry a pair of events."""

    ttft: Floats
    """From due: a queue in front of the engine, or in the client, is in it."""
    ttft_sent: Floats
    tpot: Floats
    """(last - first) / (tokens - 1); NaN with one token, or without `usage`."""
    e2e: Floats
    """From due."""
    itl: Floats
    """Gaps between neighbouring events whose times are both their own, however many tokens an event has."""


def latencies(served: Served) -> Latencies:
    """All latencies, by the definitions of docs/load.md."""
    rows, ok = served.requests, served.requests.ok
    many = np.where(rows.tokens > 1, rows.tokens - 1, np.nan)
    return Latencies(
        ttft=(rows.first - rows.due)[ok],
        ttft_sent=(rows.first - rows.sent)[ok],
        tpot=((rows.last - rows.first) / many)[ok],
        e2e=(rows.last - rows.due)[ok],
        itl=_gaps(served),
    )


def _gaps(served: Served) -> Floats:
    events = served.events
    pair = (events.request[1:] == events.request[:-1]) & events.exact[1:] & events.exact[:-1]
    return np.diff(events.at)[pair & served.requests.ok[events.request[1:]]]


def within(served: Served, slo: Slo) -> NDArray[np.bool_] | None:
    """Which requests kept the SLO, shape [n]; one that failed did not. An answer of one token has no TPOT to miss. None: a
    limit of TPOT, and a good request without `usage`."""
    rows = served.requests
    if np.isfinite(slo.tpot) and (rows.tokens[rows.ok] < 0).any():
        return None
    steps = np.maximum(rows.tokens - 1, 1)
    kept = (rows.first - rows.due <= slo.ttft) & (rows.last - rows.due <= slo.e2e)
    return rows.ok & kept & ((rows.last - rows.first) / steps <= slo.tpot)


def metrics_of(served: Served, slo: Slo | None, gpus: int, window: Window | None = None) -> dict[str, float]:
    """Scores of a block by name (docs/load.md). One that cannot be given is left out: too few requests, no `usage`, nothing
    in the window. `window`: what counts of throughput; None: by the concurrency rule."""
    window = window or steady(served.requests)
    scores = {"gpus": float(gpus), **_latency_scores(served), **phases_of(served)}
    if len(served.events.at):
        scores["exact"] = float(served.events.exact.mean())
    scores |= _event_scores(served) | _lengths(served)
    kept = None if slo is None else within(served, slo)
    if kept is not None:
        scores |= {"slo_ok": float(kept.sum()), "slo_n": float(len(kept))}
    if window is None or window.seconds <= 0:
        return scores
    scores |= _rates(served, window, gpus)
    scores["concurrency"] = in_flight(served.requests).mean(window.start, window.end)
    scores["over_saturated"] = float(bool(over_saturated(served.requests, window)))
    if kept is not None:
        scores["goodput"] = float(_ended(served, window, kept).sum() / window.seconds)
    return scores


def _latency_scores(served: Served) -> dict[str, float]:
    found = latencies(served)
    asked = [("ttft", found.ttft, (50, 99)), ("ttft_sent", found.ttft_sent, (50,)), ("tpot", found.tpot, (50, 99))]
    asked += [("itl", found.itl, (50, 99)), ("e2e", found.e2e, (50, 99))]
    scores: dict[str, float] = {}
    for name, values, percents in asked:
        for percent in percents:
            one = percentile(values, percent / 100)
            if one is not None and one.value > 0:
                scores[f"{name}_p{percent}"] = one.value
                if percent == 99:
                    scores[f"{name}_p99_bound"] = one.bound
    if "tpot_p50" in scores:
        scores["tokens_per_user"] = 1 / scores["tpot_p50"]
    return scores


def _event_scores(served: Served) -> dict[str, float]:
    rows = served.requests
    events = rows.ok[served.events.request].sum()
    if not events or (rows.tokens[rows.ok] < 0).any():
        return {}
    return {"tokens_per_event": float(rows.tokens[rows.ok].sum() / events)}


def _lengths(served: Served) -> dict[str, float]:
    """Means of good requests: what decides how many fit into the KV cache at once."""
    rows = served.requests
    prompt, output = rows.prompt_tokens[rows.ok], rows.tokens[rows.ok]
    if not len(prompt) or (prompt < 0).any() or (output < 0).any():
        return {}
    return {"tokens_in": float(prompt.mean()), "tokens_out": float(output.mean())}


def _rates(served: Served, window: Window, gpus: int) -> dict[str, float]:
    """Per second of the window. A request counts where it ended, a prompt where its first token came."""
    rows = served.requests
    scores = {"requests_per_second": _ended(served, window, rows.ok).sum() / window.seconds}
    output = tokens_within(served, window)
    if output is not None:
        scores["output_tokens_per_second"] = output / window.seconds
        scores["tokens_per_gpu"] = output / window.seconds / gpus
    if not (rows.prompt_tokens[rows.ok] < 0).any():
        begun = rows.ok & (rows.first > window.start) & (rows.first <= window.end)
        scores["prompt_tokens_per_second"] = rows.prompt_tokens[begun].sum() / window.seconds
        if output is not None:
            scores["total_tokens_per_second"] = scores["prompt_tokens_per_second"] + output / window.seconds
    return {name: float(value) for name, value in scores.items()}


def _ended(served: Served, window: Window, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return among & (served.requests.last > window.start) & (served.requests.last <= window.end)


def dollars(scores: Mapping[str, float], price: float, gpus: int) -> dict[str, float]:
    """US dollars per million tokens, at `price` per GPU-hour; none without a price. All of the machine's time is laid on each: a
    price of input means something of blocks that do little else, and a price of output of the others."""
    rates = {
        "usd_per_million_output": scores.get("output_tokens_per_second"),
        "usd_per_million_input": scores.get("prompt_tokens_per_second"),
    }
    return {name: usd_per_million(price, gpus, rate) for name, rate in rates.items() if price and rate}
