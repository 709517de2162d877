"""Counters of the engine, and their text for `/metrics`, under SGLang's names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

LATENCY_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 80.0)
"""Upper bounds in seconds."""


@dataclass(slots=True)
class Histogram:
    """Observations in cumulative buckets, as Prometheus counts them."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        """Counts one observation, in seconds."""
        self.counts[sum(bound < value for bound in LATENCY_BUCKETS)] += 1
        self.total += value


@dataclass(slots=True)
class Counters:
    """What happened since the start. Written by the compute thread only."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens: those that came from the prefix cache."""
    generation_tokens: int = 0
    requests: int = 0
    aborted: int = 0
    failed: int = 0
    steps: int = 0
    generation_rate: float = 0.0
    """Answer tokens a second in the last step that made any."""
    first_token: Histogram = field(default_factory=Histogram)
    between_tokens: Histogram = field(default_factory=Histogram)
    whole_request: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    prefill: Histogram = field(default_factory=Histogram)
    """From admission to the end of the prompt."""
    decode: Histogram = field(default_factory=Histogram)
    """From there to the end of the answer."""


def exposition(counters: Counters, gauges: Mapping[str, float], model_name: str) -> str:
    """The Prometheus text format, version 0.0.4. `gauges`: names without the prefix, to values."""
    label = model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "\n".join([*_lines(counters, gauges, f'model_name="{label}"'), ""])


def _lines(counters: Counters, gauges: Mapping[str, float], label: str) -> Iterator[str]:
    for name, value in gauges.items():
        yield from (f"# TYPE sglang:{name} gauge", f"sglang:{name}{{{label}}} {float(value)}")
    totals = {
        "prompt_tokens_total": counters.prompt_tokens,
        "cached_tokens_total": counters.cached_tokens,
        "generation_tokens_total": counters.generation_tokens,
        "num_requests_total": counters.requests,
        "num_aborted_requests_total": counters.aborted,
    }
    for name, value in totals.items():
        yield from (f"# TYPE sglang:{name} counter", f"sglang:{name}{{{label}}} {float(value)}")
    histograms = {
        "time_to_first_token_seconds": counters.first_token,
        "inter_token_latency_seconds": counters.between_tokens,
        "e2e_request_latency_seconds": counters.whole_request,
        "queue_time_seconds": counters.queue,
    }
    for name, histogram in histograms.items():
        yield f"# TYPE sglang:{name} histogram"
        yield from _histogram(f"sglang:{name}", histogram, label)
    stages = {"prefill_forward": counters.prefill, "decode_forward": counters.decode}
    yield "# TYPE sglang:per_stage_req_latency_seconds histogram"
    for stage, histogram in stages.items():
        yield from _histogram("sglang:per_stage_req_latency_seconds", histogram, f'{label},stage="{stage}"')


def _histogram(name: str, histogram: Histogram, label: str) -> Iterator[str]:
    running = 0
    for bound, count in zip([*map(str, LATENCY_BUCKETS), "+Inf"], histogram.counts, strict=True):
        running += count
        yield f'{name}_bucket{{le="{bound}",{label}}} {float(running)}'
    yield f"{name}_sum{{{label}}} {histogram.total}"
    yield f"{name}_count{{{label}}} {float(running)}"
