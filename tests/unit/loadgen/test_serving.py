"""Known answers of latencies, windows, goodput and percentiles; a test a way in which other tools go wrong."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from toys import sse
from toys.sse import DONE, chat, exchange, text, usage

from evalrig.analysis.percentiles import least, percentile
from evalrig.analysis.phases import alone, decode, phases_of, prefill
from evalrig.analysis.request_cost import request_costs, sums_of
from evalrig.analysis.serving import Slo, dollars, latencies, metrics_of, within
from evalrig.analysis.windows import (
    Window,
    arriving,
    conversing,
    in_flight,
    one_batch,
    over_saturated,
    steady,
    tokens_within,
)
from evalrig.loadgen.block import Exchange
from evalrig.loadgen.events import parse
from evalrig.loadgen.served import Events, Requests, Served


def served(*exchanges: Exchange) -> Served:
    return parse(sse.block(*exchanges))


def spans(sent: list[float], last: list[float], due: list[float] | None = None) -> Requests:
    """Requests of one token by their times in seconds."""
    n = len(sent)
    ends = np.array(last, float)
    return Requests(
        ok=np.ones(n, bool),
        due=np.array(sent if due is None else due, float),
        sent=np.array(sent, float),
        first=ends,
        last=ends,
        prompt_tokens=np.ones(n, np.int64),
        cached_tokens=np.full(n, -1),
        tokens=np.ones(n, np.int64),
        error=("",) * n,
    )


# ---- percentiles


def test_the_least_number_of_values_is_mlperfs() -> None:
    assert [least(p) for p in (0.99, 0.9, 0.5)] == [662, 64, 11]
    for p in (0.5, 0.9, 0.99):
        n = least(p)
        assert stats.binom.cdf(1, n, 1 - p) <= 0.01 < stats.binom.cdf(1, n - 1, 1 - p)


def test_one_value_too_few_is_no_percentile() -> None:
    assert percentile(range(661), 0.99) is None
    found = percentile(range(662), 0.99)
    assert found is not None
    assert (found.n, found.bound) == (662, 660), "the second largest"
    assert found.value == pytest.approx(np.quantile(range(662), 0.99))
    assert percentile([*range(63), math.nan], 0.9) is None
    assert percentile([], 0.5) is None


def test_the_bound_holds_in_99_of_100_samples() -> None:
    rng = np.random.default_rng(1)
    bounds = [found.bound for _ in range(3000) if (found := percentile(rng.random(100), 0.9))]
    assert len(bounds) == 3000
    assert np.mean(np.array(bounds) < 0.9) <= 0.0145, "1 % and three standard errors of 3000"


@given(st.integers(11, 400), st.sampled_from([0.5, 0.9]))
def test_a_bound_is_never_below_the_percentile(n: int, p: float) -> None:
    found = percentile(np.arange(n), p)
    if found is not None:
        assert found.value <= found.bound < n - 1


# ---- latencies


def test_known_latencies() -> None:
    found = latencies(
        served(*(sse.steady_stream(100, 20, 6, index=i, due=10.0 * i, sent=10.0 * i + 3) for i in range(4)))
    )
    assert found.ttft == pytest.approx([0.1] * 4)
    assert found.ttft_sent == pytest.approx([0.097] * 4)
    assert found.tpot == pytest.approx([0.02] * 4)
    assert found.e2e == pytest.approx([0.2] * 4)
    assert found.itl == pytest.approx([0.02] * 20)


def test_time_in_the_queue_of_the_client_is_in_ttft() -> None:
    """vllm 54101: a limit on requests in flight hid the wait."""
    found = latencies(served(sse.steady_stream(1050, 20, 3, due=0.0, sent=1000.0)))
    assert (found.ttft[0], found.ttft_sent[0]) == pytest.approx((1.05, 0.05))


def test_tpot_is_of_tokens_and_not_of_events() -> None:
    """evalscope 778, vllm 28183."""
    reads = [(10, text("a b")), (30, text("c d")), (50, text("e")), (50.1, usage(5)), (50.2, DONE)]
    found = served(exchange(reads))
    assert latencies(found).tpot == pytest.approx([0.04 / 4])
    assert latencies(found).itl == pytest.approx([0.02, 0.02])
    assert metrics_of(found, None, 1)["tokens_per_event"] == pytest.approx(5 / 3)


def test_gaps_within_one_read_are_no_itl() -> None:
    """vllm's microsecond gaps: two events of one read, and the pair after them starts at an upper bound."""
    reads = [(10, text("a")), (30, text("b")), (50, text("c") + text("d")), (70, text("e")), (71, usage(5)), (72, DONE)]
    assert latencies(served(exchange(reads))).itl == pytest.approx([0.02, 0.02]), "b-a, e-d: d ends its read"


def test_the_role_event_shortens_no_ttft() -> None:
    reads = [
        (1, chat(role="assistant", content="")),
        (80, chat(content="a")),
        (100, chat(content="b")),
        (101, usage(2)),
        (102, DONE),
    ]
    assert latencies(served(exchange(reads))).ttft == pytest.approx([0.08])


def test_missing_usage_leaves_token_metrics_out_and_keeps_the_others() -> None:
    plain = [(10.0, text("a")), (20.0, text("b")), (21.0, DONE)]
    found = metrics_of(
        served(*(exchange(plain, index=i) for i in range(12))), Slo(ttft=1.0), 1, Window(start=0, end=0.02)
    )
    assert found["ttft_p50"] == pytest.approx(0.01)
    assert found["requests_per_second"] == pytest.approx(600)
    assert found["slo_ok"] == 12
    assert not [name for name in found if "token" in name or "tpot" in name]


def test_a_limit_on_tpot_cannot_be_judged_without_usage() -> None:
    plain = served(exchange([(10, text("a")), (20, text("b")), (21, DONE)]))
    assert within(plain, Slo(tpot=1.0)) is None
    assert "slo_ok" not in metrics_of(plain, Slo(tpot=1.0), 1)


def test_percentiles_of_too_few_requests_are_left_out() -> None:
    few = metrics_of(served(*(sse.steady_stream(10, 5, 3, index=i) for i in range(10))), None, 1)
    assert "ttft_p50" not in few
    enough = metrics_of(served(*(sse.steady_stream(10, 5, 3, index=i) for i in range(11))), None, 1)
    assert enough["ttft_p50"] == pytest.approx(0.01)
    assert enough["tokens_per_user"] == pytest.approx(200)
    assert "ttft_p99" not in enough


def test_a_failed_request_has_no_latency_and_misses_the_slo() -> None:
    block = served(sse.steady_stream(10, 5, 3), exchange([(1, b"no")], index=1, status=500))
    assert within(block, Slo()) is not None
    assert metrics_of(block, Slo(), 1)["slo_n"] == 2
    assert metrics_of(block, Slo(), 1)["slo_ok"] == 1
    assert len(latencies(block).ttft) == 1


def test_an_slo_has_three_limits() -> None:
    block = served(
        *(sse.steady_stream(first, gap, 11, index=i) for i, (first, gap) in enumerate([(10, 5), (90, 5), (10, 50)]))
    )
    for slo, kept in [
        (Slo(ttft=0.05), [True, False, True]),
        (Slo(tpot=0.02), [True, True, False]),
        (Slo(e2e=0.1), [True, False, False]),
    ]:
        assert within(block, slo) == pytest.approx(kept)


def test_nothing_served_has_no_scores() -> None:
    assert metrics_of(served(), Slo(), 2) == {"gpus": 2, "slo_ok": 0, "slo_n": 0}
    assert set(metrics_of(served(exchange([], status=0, error="refused")), None, 1)) == {"gpus"}


# ---- windows


def test_requests_in_flight_over_time() -> None:
    flight = in_flight(spans([0, 1, 2], [3, 2, 4]))
    assert flight.at.tolist() == [0, 1, 2, 3, 4]
    assert flight.count.tolist() == [1, 2, 2, 1, 0]
    assert flight.mean(0, 4) == pytest.approx(6 / 4)
    assert flight.mean(-4, 4) == pytest.approx(6 / 8)
    assert flight.mean(5, 9) == 0


def test_ramp_and_drain_are_not_in_the_throughput() -> None:
    """vLLM and InferenceX divide by all of the time."""
    starts = [200.0 * i for i in range(10)]
    streams = [
        sse.steady_stream(10, 10, 200 + 20 * (9 - i) - 20 * i + 200, index=i, due=start)
        for i, start in enumerate(starts)
    ]
    block = served(*streams)
    window = steady(block.requests, 1.0)
    assert window is not None
    assert window.start == pytest.approx(1.8)
    tokens = tokens_within(block, window)
    assert tokens is not None
    assert tokens / window.seconds == pytest.approx(1000, rel=0.02), "ten streams of 100 tokens a second"
    assert block.requests.tokens.sum() / block.seconds < 900


def test_the_turn_around_of_a_closed_loop_does_not_end_the_window() -> None:
    sent = [float(k) for k in range(10) for _ in range(4)]
    last = [k + 0.999 for k in range(10) for _ in range(4)]
    window = steady(spans(sent, last))
    assert window is not None
    assert (window.start, window.end) == pytest.approx((0, 9.999))
    apart = steady(spans(sent, [end - 0.4 for end in last]))
    assert apart is not None
    assert apart.seconds < 1


def test_the_window_of_an_open_loop_ends_with_the_last_arrival() -> None:
    due = [float(k) for k in range(11)]
    window = arriving(spans(due, [d + 2.5 for d in due]))
    assert window == Window(start=2.5, end=10)
    assert arriving(spans([1.0], [2.0])) is None
    assert arriving(spans([1.0, 1.0], [2.0, 3.0])) is None
    late = arriving(spans(due, [d + 50 for d in due]))
    assert late is not None
    assert late.start == 5, "at most half of the arrivals are left out"


def test_one_batch_is_from_the_last_first_token_to_the_first_finish() -> None:
    block = served(*(sse.steady_stream(100 + 7 * i, 20, 50 - i, index=i) for i in range(3)))
    window = one_batch(block)
    assert window is not None
    assert (window.start, window.end) == pytest.approx((0.114, 1.054))
    found = decode(block)
    assert found is not None
    assert found.tokens_per_second == pytest.approx(150), "three streams of 50 a second, edges interpolated"
    assert phases_of(block)["decode_seconds"] == pytest.approx(0.02)
    assert one_batch(served(sse.steady_stream(5, 5, 2), sse.steady_stream(500, 5, 2, index=1))) is None


def queue(rate: float, seed: int, service: float = 0.4, seconds: float = 60.0, lanes: int = 10) -> Requests:
    """An engine of `lanes` places, Poisson arrivals; it is full at lanes / service requests a second."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / rate, int(rate * seconds * 1.5)))
    due = due[due < seconds]
    free = [0.0] * lanes
    ends: list[float] = []
    for at in due:
        lane = min(range(lanes), key=free.__getitem__)
        free[lane] = max(free[lane], float(at)) + float(rng.gamma(4, service / 4))
        ends.append(free[lane])
    return spans(due.tolist(), ends)


def test_more_load_than_the_engine_bears_is_found_and_half_of_it_is_not() -> None:
    over = [over_saturated(rows, arriving(rows)) for seed in range(20) for rows in [queue(29, seed)]]
    assert all(over)
    under = [over_saturated(rows, arriving(rows)) for seed in range(100) for rows in [queue(12, seed)]]
    assert np.mean([bool(x) for x in under]) <= 0.12, "5 % and three standard errors of 100"
    assert over_saturated(queue(5, 0), None) is None


def test_a_steady_closed_loop_is_not_over_saturated() -> None:
    sent = [0.25 * k for k in range(200)]
    rows = spans(sent, [at + 1 for at in sent])
    assert over_saturated(rows, steady(rows)) is False


def test_throughput_goodput_and_what_it_costs() -> None:
    # four lanes of 1 s: 0.1 s to the first of 10 tokens, the last at 1.0 s
    streams = [sse.steady_stream(100, 100, 10, index=i, due=1000.0 * (i // 4)) for i in range(48)]
    found = metrics_of(served(*streams), Slo(ttft=0.2, tpot=0.15), 2, Window(start=1, end=11))
    assert found["output_tokens_per_second"] == pytest.approx(40)
    assert found["tokens_per_gpu"] == pytest.approx(20)
    assert found["requests_per_second"] == found["goodput"] == pytest.approx(4)
    assert found["prompt_tokens_per_second"] == pytest.approx(28)
    assert found["total_tokens_per_second"] == pytest.approx(68)
    assert found["concurrency"] == pytest.approx(4, rel=1e-3)
    assert found["over_saturated"] == 0
    assert found["exact"] == 1
    assert metrics_of(served(*streams), Slo(ttft=0.05), 2, Window(start=1, end=11))["goodput"] == 0, (
        "no rate is worse than a low one"
    )
    priced = dollars(found, price=3.6, gpus=2)
    assert priced["usd_per_million_output"] == pytest.approx(0.002 / 40 * 1e6)
    assert priced["usd_per_million_input"] == pytest.approx(0.002 / 28 * 1e6)
    assert dollars({}, price=3.6, gpus=2) == {}


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.floats(0.1, 50), st.floats(0.1, 200), st.integers(2, 9), st.floats(1.1, 4))
def test_an_engine_that_is_slower_by_a_factor_has_all_ratios_of_it(
    n: int, gap: float, first: float, tokens: int, factor: float
) -> None:
    def run(scale: float) -> dict[str, float]:
        block = served(*(sse.steady_stream(first * scale, gap * scale, tokens, index=i) for i in range(n)))
        return metrics_of(block, None, 1, Window(start=0, end=block.seconds))

    fast, slow = run(1.0), run(factor)
    assert fast.keys() == slow.keys()
    for name in ("ttft_p50", "tpot_p50", "itl_p50", "e2e_p50"):
        if name in fast:
            assert slow[name] / fast[name] == pytest.approx(factor, rel=1e-3)
    assert slow["output_tokens_per_second"] < fast["output_tokens_per_second"]


# ---- phases


def single(lengths: list[int], seconds: list[float], cached: int | None = None) -> Served:
    """One after the other, a second apart."""
    told = [usage(1, prompt=n, cached=cached) for n in lengths]
    streams: list[Exchange] = []
    for i, (end, s) in enumerate(zip(told, seconds, strict=True)):
        at = 1000 * i
        reads = [(at + 1000 * s, text("a")), (at + 1000 * s + 1, end), (at + 1000 * s + 2, DONE)]
        streams.append(exchange(reads, index=i, due=at))
    return served(*streams)


def test_the_slope_of_prefill_is_what_was_put_in() -> None:
    lengths = [128, 256, 512, 1024, 2048, 4096, 8192, 300]
    noise = np.random.default_rng(0).normal(0, 1e-4, len(lengths))
    found = prefill(single(lengths, [0.02 + 3e-5 * n + e for n, e in zip(lengths, noise, strict=True)]))
    assert found is not None
    assert found.slope.value == pytest.approx(3e-5, rel=0.01)
    assert found.slope.low < 3e-5 < found.slope.high
    assert found.start.value == pytest.approx(0.02, rel=0.02)


def test_requests_that_met_others_have_no_prefill() -> None:
    """At eight at once the first token waited for seven other prompts: a slope over that is no cost of a token."""
    lengths = [128, 256, 512, 1024, 2048, 4096, 128, 256]
    streams = [sse.steady_stream(20 + 0.03 * n, 5, 1, index=i, due=i) for i, n in enumerate(lengths)]
    assert not alone(served(*streams).requests).any()
    assert prefill(served(*streams)) is None
    apart = [sse.steady_stream(20 + 0.03 * n, 5, 1, index=i, due=1000 * i) for i, n in enumerate(lengths)]
    assert alone(served(*apart).requests).all()


def test_prompts_that_were_cached_have_no_prefill() -> None:
    assert prefill(single([128, 256, 512, 1024, 2048, 4096], [0.02] * 6, cached=100)) is None
    assert prefill(single([128] * 8, [0.02] * 8)) is None, "one length has no slope"
    assert prefill(single([128, 512], [0.02, 0.04])) is None
    assert prefill(served(*(sse.steady_stream(5, 5, 4, index=i) for i in range(9)))) is None, "answers of four tokens"


def traffic(
    rng: np.random.Generator,
    n: int,
    slow: float = 1.0,
    prompt_cost: float = 4e-5,
    output_cost: float = 8e-3,
    *,
    noise: float = 0.02,
) -> Served:
    prompt, output = rng.integers(50, 4000, n), rng.integers(20, 500, n)
    took = (
        slow
        * (0.03 + prompt_cost * prompt + output_cost * output + 1e-6 * prompt * output)
        * rng.lognormal(0, noise, n)
    )
    rows = spans([float(i) for i in range(n)], (np.arange(n) + took).tolist())
    wanted = Requests(
        **{name: getattr(rows, name) for name in Requests.__slots__ if name not in ("prompt_tokens", "tokens")},
        prompt_tokens=prompt,
        tokens=output,
    )
    nothing = np.zeros(0)
    events = Events(request=np.zeros(0, np.int64), at=nothing, exact=np.zeros(0, bool), tokens=nothing)
    return Served(requests=wanted, events=events, seconds=1.0)


def test_conversations_with_pauses_are_judged_on_most_of_their_time() -> None:
    """16 lanes, turns of about 0.5 s and pauses of about 1 s: at few moments are 80 % of the most requests in flight, and those
    would be the opening burst alone."""
    rng = np.random.default_rng(4)
    sent, last, talk = list[float](), list[float](), list[int]()
    for lane in range(16):
        at = 0.0
        for number in range(4):
            for _ in range(6):
                took = rng.exponential(0.5)
                sent.append(at)
                last.append(at + took)
                talk.append(4 * lane + number)
                at += took + rng.exponential(1.0)
            at = last[-1]  # the lane takes its next conversation at once
    rows = spans(sent, last)
    whole = max(last)
    picked, found = steady(rows), conversing(rows, talk)
    assert picked is not None
    assert picked.seconds < 0.1 * whole
    assert found is not None
    assert found.seconds > 0.6 * whole
    assert conversing(rows, range(len(sent))) == picked, "without pauses it is the same rule"


def test_what_a_request_costs_covers_what_was_put_in() -> None:
    """A candidate with dearer prefill and cheaper decode; blocks of one round are both slow or both fast."""
    rng, truth = np.random.default_rng(5), np.array([0.0, 2e-5, -3e-3, 0.0])
    covered = np.zeros(4)
    for _ in range(200):
        pace = rng.lognormal(0, 0.05, 8)
        ours = [sums_of(traffic(rng, 24, slow).requests) for slow in pace]
        theirs = [sums_of(traffic(rng, 24, slow, 6e-5, 5e-3).requests) for slow in pace]
        parts = request_costs(ours, theirs)
        assert parts is not None
        covered += [
            part.difference.low <= true <= part.difference.high for part, true in zip(parts, truth, strict=True)
        ]
    assert covered.min() >= 160, "90 % of 200 and a little less: eight rounds are few for a jackknife"
    assert covered.max() <= 200


def test_what_a_request_costs_is_exact_without_noise() -> None:
    rng = np.random.default_rng(1)
    blocks = [sums_of(traffic(rng, 12, noise=0.0).requests) for _ in range(3)]
    parts = request_costs(blocks, blocks)
    assert parts is not None
    assert [part.reference.value for part in parts] == pytest.approx([0.03, 4e-5, 8e-3, 1e-6], rel=1e-4)
    assert all(part.difference.low == part.difference.high == 0 for part in parts)


def test_what_a_request_costs_needs_lengths_that_vary_and_rounds() -> None:
    rng = np.random.default_rng(0)
    alike = [sums_of(served(*(sse.steady_stream(5, 5, 4, index=i) for i in range(20))).requests)] * 4
    assert request_costs(alike, alike) is None
    some = [sums_of(traffic(rng, 24).requests) for _ in range(3)]
    assert request_costs(some[:2], some[:2]) is None
    few = [sums_of(traffic(rng, 3).requests) for _ in range(3)]
    assert request_costs(few, few) is None, "six requests where one round is left out"


def test_windows_of_many_requests_are_quick() -> None:
    """A loop over requests must not look at all events each time."""
    n, m = 2000, 100
    rows = spans([0.0] * n, [100.0] * n)
    at = np.tile(np.arange(1.0, m + 1), n)
    tokens = np.tile(np.arange(1.0, m + 1), n)
    events = Events(request=np.repeat(np.arange(n), m), at=at, exact=np.ones(n * m, bool), tokens=tokens)
    first = Requests(**{name: getattr(rows, name) for name in Requests.__slots__ if name != "first"}, first=np.ones(n))
    start = time.process_time()
    found = decode(Served(requests=first, events=events, seconds=100.0))
    assert found is not None
    assert found.tokens_per_second == pytest.approx(n)
    assert time.process_time() - start < 1.0
