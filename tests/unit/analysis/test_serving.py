"""Metrics of a block, on blocks whose numbers are known; each trap of other clients is a test named after it."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalrig.analysis.percentiles import certified, least, rank
from evalrig.analysis.serving import Slo, gaps, in_flight, metrics_of, rates, steady
from evalrig.loadgen.served import Events, Requests, Served


def served(rows: list[tuple[float, float, float]], tokens: int = 11, **more: Any) -> Served:
    """Requests of (due, first, last), each with `tokens` tokens at even times."""
    n = len(rows)
    due, first, last = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    at = np.concatenate([np.linspace(a, b, tokens) for a, b in zip(first, last, strict=True)])
    requests: dict[str, Any] = {
        "ok": np.ones(n, np.bool_),
        "due": due,
        "sent": due,
        "first": first,
        "last": last,
        "prompt_tokens": np.full(n, 100),
        "cached_tokens": np.full(n, -1),
        "tokens": np.full(n, tokens),
        "error": ("",) * n,
    }
    return Served(
        requests=Requests(**(requests | more)),
        events=Events(
            request=np.repeat(np.arange(n), tokens),
            at=at,
            exact=np.ones(len(at), np.bool_),
            tokens=np.tile(np.arange(1.0, tokens + 1), n),
        ),
        seconds=float(last.max()),
    )


def lanes(count: int, each: int) -> list[tuple[float, float, float]]:
    """A closed loop: `count` lanes with `each` answers one after the other, first token after 0.5 s, last after 1.5 s."""
    return [(1.5 * k, 1.5 * k + 0.5, 1.5 * k + 1.5) for _ in range(count) for k in range(each)]


def test_the_numbers_of_a_closed_loop():
    found = metrics_of(served(lanes(4, 10)), Slo(), gpus=2, loop="closed", price=3.6)
    assert found["ttft_p50"] == pytest.approx(0.5)
    assert found["tpot_p50"] == pytest.approx(0.1)
    assert found["e2e_p50"] == pytest.approx(1.5)
    assert found["itl_p50"] == pytest.approx(0.1)
    assert found["concurrency"] == pytest.approx(4)
    assert found["output_tokens_per_second"] == pytest.approx(4 * 11 / 1.5, rel=0.03)
    assert found["tokens_per_gpu"] == pytest.approx(found["output_tokens_per_second"] / 2)
    assert found["usd_per_million_output"] == pytest.approx(2 * 3.6e6 / 3600 / found["output_tokens_per_second"])
    assert found["tokens_per_user"] == pytest.approx(10)
    assert found["over_saturated"] == 0.0


def test_ramp_and_drain_are_no_throughput():
    """vllm bench divides all tokens by the whole time, the tail of one long answer included."""
    rows = [*lanes(4, 10), (0.0, 0.5, 60.0)]
    window = steady(served(rows), "closed")
    assert window is not None
    assert window.stop == pytest.approx(15.0)
    plain = rates(served(lanes(4, 10)), window)["output_tokens_per_second"]
    assert plain == pytest.approx(4 * 11 / 1.5, rel=0.03)


def test_a_moment_between_two_answers_ends_no_window():
    rows = [(2.0 * k, 2.0 * k + 0.5, 2.0 * k + 1.99) for k in range(10)]
    window = steady(served(rows), "closed")
    assert window is not None
    assert window.seconds > 19


def test_latency_starts_when_a_request_was_due():
    """vllm 54101: the queue in the client was no part of the time to first token."""
    one = served([(0.0, 2.0, 3.0)] * 3, sent=np.array([1.9] * 3))
    found = metrics_of(one, Slo(), gpus=1, loop="closed")
    assert found["ttft_p50"] == pytest.approx(2.0)
    assert found["ttft_sent_p50"] == pytest.approx(0.1)


def test_missing_usage_leaves_token_numbers_out():
    one = served(lanes(2, 3))
    n = len(one.requests.ok)
    events = Events(
        request=one.events.request, at=one.events.at, exact=one.events.exact, tokens=one.events.tokens * math.nan
    )
    requests = served(lanes(2, 3), tokens=11, prompt_tokens=np.full(n, -1)).requests
    blind = Served(requests=requests, events=events, seconds=one.seconds)
    object.__setattr__(blind.requests, "tokens", np.full(n, -1))
    found = metrics_of(blind, Slo(tpot=1.0), gpus=1, loop="closed", price=1.0)
    assert (
        not {"output_tokens_per_second", "tpot_p50", "tokens_per_gpu", "usd_per_million_output", "tokens_per_event"}
        & found.keys()
    )
    assert found["slo_ok"] == 0.0, "what is not told is not within a limit"
    assert found["requests_per_second"] > 0


def test_events_that_came_together_are_no_gaps():
    """Gaps of microseconds of one read pulled the median of ITL down."""
    one = served([(0.0, 1.0, 2.0)])
    exact = np.tile([False, True], 6)[:11]
    events = Events(request=one.events.request, at=one.events.at, exact=exact, tokens=one.events.tokens)
    assert len(gaps(Served(requests=one.requests, events=events, seconds=2.0))) == 0
    assert len(gaps(one)) == 10


def test_goodput_counts_requests_within_the_limits_and_failures_against_it():
    rows = [*lanes(4, 10)]
    ok = np.ones(len(rows), np.bool_)
    ok[:10] = False
    one = served(rows, ok=ok)
    found = metrics_of(one, Slo(ttft=0.6, tpot=0.2), gpus=1, loop="closed")
    assert (found["slo_ok"], found["slo_n"]) == (30.0, 40.0)
    assert found["goodput"] == pytest.approx(found["requests_per_second"])
    assert "goodput" not in metrics_of(one, Slo(ttft=0.1), gpus=1, loop="closed")


def test_a_queue_that_grows_is_over_saturated():
    calm = [(0.1 * k, 0.1 * k + 0.5, 0.1 * k + 1.0) for k in range(300)]
    rising = [(0.1 * k, 0.1 * k + 0.5 + 0.02 * k, 0.1 * k + 1.0 + 0.02 * k) for k in range(300)]
    assert metrics_of(served(calm), Slo(), gpus=1, loop="open")["over_saturated"] == 0.0
    assert metrics_of(served(rising), Slo(), gpus=1, loop="open")["over_saturated"] == 1.0


def test_nothing_served_gives_no_numbers():
    none = served(lanes(1, 2), ok=np.zeros(2, np.bool_))
    assert metrics_of(none, Slo(ttft=1.0), gpus=1, loop="closed") == {}


def test_percentiles_need_their_samples():
    assert (least(0.99), least(0.9)) == (662, 64)
    assert rank(661, 0.99) is None
    assert rank(662, 0.99) == 661
    assert certified(np.arange(63.0), 0.9) is None
    value, bound = certified(np.arange(1000.0), 0.9) or (0.0, 0.0)
    assert value < bound < 999
    found = metrics_of(served(lanes(7, 10)), Slo(), gpus=1, loop="closed")
    assert "ttft_p90" in found
    assert "ttft_p99" not in found


def test_a_certified_bound_holds_in_99_of_100_samples():
    rng = np.random.default_rng(1)
    missed = sum((certified(rng.exponential(size=700), 0.99) or (0, 0))[1] < -math.log(0.01) for _ in range(1000))
    assert missed <= 20


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0.001, 3), st.floats(0, 5)), min_size=1, max_size=20))
def test_requests_in_flight_begin_and_end_at_nothing(rows: list[tuple[float, float, float]]):
    whole = served([(due, due + first, due + first + more) for due, first, more in rows], tokens=3)
    times, count = in_flight(whole)
    assert (np.diff(times) >= 0).all()
    assert count.min() >= 0
    assert count[-1] == 0
    assert count.max() <= len(rows)
