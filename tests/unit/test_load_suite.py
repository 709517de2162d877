"""The suite `load`: options, metrics, and when a block does not count."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import load_client
from toys.engine import Toy, ToyOptions
from toys.sse import HEALTH, block, exchange, steady_stream

from evalrig.engine import Launch
from evalrig.errors import ClientError, EngineError, UsageError
from evalrig.loaded import failed, told, void
from evalrig.loadgen.block import OVER
from evalrig.loadgen.draw import Ask, framed
from evalrig.loadgen.events import parse
from evalrig.loadgen.schedule import Address
from evalrig.loadgen.target import Gauges, Serving
from evalrig.suite import Attempt, LoadAttempt
from evalrig.suites.load import Limits, Load, LoadOptions, Pace, Shape
from evalrig.types import Sample, State, Variant


def suite(**options: Any) -> Load:
    small: dict[str, Any] = {"requests": 12, "input_tokens": 32, "output_tokens": 8, "concurrency": [2], **options}
    return Load("load", LoadOptions(**small))


def attempted(load: Load, sample: Sample | None = None, name: str = "reference", **faults: Any) -> Attempt:
    variant = Variant(name=name, role="candidate", engine="toys.engine", weights="toy")

    async def attempt() -> Attempt:
        toy = Toy(variant, ToyOptions(**faults), Launch(log=Path(), start_seconds=1, request_seconds=1))
        await toy.start()
        return await load.attempt(toy, sample or load.samples()[0], 0, None)

    return asyncio.run(attempt())


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> load_client.Client:
    return load_client.installed(monkeypatch)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workload": "sharegpt"}, "workload: no 'sharegpt'; known: random, prefill"),
        ({"pace": Pace(loop="half")}, "pace.loop: no 'half'; known: open, closed"),
        ({"pace": Pace(arrivals="gamma")}, "pace.arrivals: no 'gamma'; known: poisson, constant"),
        ({"requests": 0}, "requests: at least 1"),
        ({"input_tokens": 1}, "input_tokens: at least 2"),
        ({"output_tokens": 0}, "output_tokens: at least 1"),
        ({"concurrency": []}, "concurrency: name at least one, none below 1"),
        ({"concurrency": [4, 4]}, "concurrency: one stands there twice"),
        ({"pace": Pace(rounds=0)}, "pace.rounds: at least 1"),
        ({"pace": Pace(warm_up=-1)}, "pace: warm_up and think_seconds are at least 0"),
        ({"pace": Pace(rate=2.0)}, "pace.rate: a closed loop has no rate; leave it out, or take `loop: open`"),
        ({"pace": Pace(loop="open")}, "pace.rate: an open loop needs requests a second; give a rate"),
        ({"workload": "trace"}, "pace.loop: a trace tells when its requests come; take `loop: open`"),
        ({"workload": "trace", "pace": Pace(loop="open")}, "shape.path: a trace is read from a file"),
        ({"shape": Shape(path="x")}, "shape.path: only traces and conversations are read"),
        ({"shape": Shape(spread=3)}, "shape.spread: 3; 0 to 2"),
        ({"shape": Shape(shared=1.0)}, "shape: shared is between 0 and 1, groups at least 1"),
        ({"slo": Limits(ttft=-1)}, "slo: limits are seconds, at least 0"),
        ({"price_per_gpu_hour": -2.0}, "price_per_gpu_hour: at least 0"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        suite(**options)
    assert str(caught.value).startswith(f"suites.load.options.{words}")
    assert "\n" not in str(caught.value)


def test_each_concurrency_is_a_block_in_every_round() -> None:
    names = [sample.id for sample in suite(concurrency=[1, 16], pace=Pace(rounds=2)).samples()]
    assert names == ["c01-round-01", "c16-round-01", "c01-round-02", "c16-round-02"]
    assert [sample.id for sample in suite(pace=Pace(rounds=2)).samples()] == ["round-01", "round-02"]


def test_metrics_are_those_that_the_options_can_give() -> None:
    plain = {metric.name for metric in suite().metrics}
    assert not plain & {"goodput", "usd_per_million_output", "usd_per_million_input"}
    priced = suite(price_per_gpu_hour=2.0, slo=Limits(ttft=1.0))
    assert {metric.name for metric in priced.metrics} - plain == {"goodput", "usd_per_million_output"}
    prefill = {metric.name for metric in suite(workload="prefill", price_per_gpu_hour=2.0).metrics}
    assert "usd_per_million_input" in prefill
    assert not prefill & {"tpot_p50", "itl_p50", "tokens_per_user"}, "one token has no pace"
    assert all(metric.kind == "ratio" for metric in Load.metrics)
    less = {metric.name for metric in Load.metrics if metric.less}
    assert {"ttft_p50", "tpot_p99", "usd_per_million_output"} <= less
    assert not less & {"goodput", "output_tokens_per_second", "tokens_per_gpu"}


def test_a_block_has_scores_and_is_kept(client: load_client.Client) -> None:
    found = attempted(suite(price_per_gpu_hour=3.6, slo=Limits(e2e=0.2)), step=0.01)
    assert isinstance(found, LoadAttempt)
    assert found.state is State.SCORED, found.trajectory.error
    assert found.scores["tpot_p50"] == pytest.approx(0.01, rel=0.03)
    assert found.scores["output_tokens_per_second"] == pytest.approx(2 * 8 / 0.09, rel=0.15)
    cost = 3.6 / 3600 * 1e6 / found.scores["output_tokens_per_second"]
    assert found.scores["usd_per_million_output"] == pytest.approx(cost)
    assert (found.scores["slo_ok"], found.scores["slo_n"]) == (24, 24)
    assert (found.scores["kernel"], found.scores["kv_usage_most"]) == (1, 0.5)
    assert len(found.block.exchanges) == 24
    assert found.block.flushed
    assert found.block.notes is not None
    assert len(found.block.notes["gauges"]) == 2, "before and after"


def test_percentiles_of_few_requests_are_left_out(client: load_client.Client) -> None:
    found = attempted(suite())
    assert "ttft_p50" in found.scores
    assert "ttft_p99" not in found.scores


def test_the_warm_up_is_sent_before_and_has_other_prompts(client: load_client.Client) -> None:
    attempted(suite(pace=Pace(warm_up=2)))
    warm, block = (schedule for _, schedule in client.sent)
    assert (len(warm.calls), len(block.calls)) == (4, 24)
    assert not {call.body for call in warm.calls} & {call.body for call in block.calls}
    assert client.rates[0] == 0, "nothing is known yet"
    assert client.rates[1] > 10, "what was seen in the warm-up"
    client.sent.clear()
    attempted(suite(pace=Pace(warm_up=0)))
    assert len(client.sent) == 1


def test_two_engines_are_sent_the_same(client: load_client.Client) -> None:
    load = suite()
    first, second = (attempted(load, name=name) for name in ("reference", "cheap"))
    assert first.prompt_sha256 == second.prompt_sha256 != ""
    load.seed = 1
    assert attempted(load).prompt_sha256 != first.prompt_sha256, "the run's seed decides"


def test_conversations_of_the_tool_worlds_are_sent_turn_by_turn(client: load_client.Client) -> None:
    load = suite(workload="conversations", input_tokens=4000, pace=Pace(think_seconds=0.5))
    found = attempted(load)
    assert found.state is State.SCORED, found.trajectory.error
    calls = client.sent[-1][1].calls
    assert sum(call.after is not None for call in calls) > len(calls) / 2
    assert load.samples()[0].target.startswith("sha256 ")


def test_an_answer_that_is_too_short_makes_the_block_void(client: load_client.Client) -> None:
    found = attempted(suite(), flaw="short")
    assert found.state is State.UNSCORED
    assert found.scores == {}
    assert found.trajectory.error == "24 of 24 answers were not as long as asked: 7 tokens where 8 were asked"
    assert isinstance(found, LoadAttempt), "its bytes are kept all the same"


def test_a_warm_cache_in_a_cold_block_makes_it_void(client: load_client.Client) -> None:
    found = attempted(suite(), flaw="cached")
    assert found.state is State.UNSCORED
    assert found.trajectory.error == "50.0% of the prompt tokens of a cold block came from the prefix cache"
    shared = attempted(suite(workload="shared_prefix"), flaw="cached")
    assert (shared.state, shared.scores["cached_share"]) == (State.SCORED, 0.5)


def test_a_client_that_cannot_be_trusted_makes_the_block_void(client: load_client.Client) -> None:
    client.void["reference"] = ("the client was starved",)
    found = attempted(suite())
    assert (found.state, found.trajectory.error) == (State.UNSCORED, "the client was starved")


NO_WARM_UP = Pace(warm_up=0)


def test_an_engine_that_fails_under_load_is_no_score(client: load_client.Client) -> None:
    found = attempted(suite(pace=NO_WARM_UP), flaw="failing")
    assert (found.state, found.scores) == (State.INFRA, {})
    assert found.trajectory.error == "24 of 24 requests failed: HTTP 503"


def test_failures_that_a_client_in_doubt_saw_are_not_the_engines(client: load_client.Client) -> None:
    client.void["reference"] = ("short of descriptors",)
    found = attempted(suite(pace=NO_WARM_UP), flaw="failing")
    assert (found.state, found.trajectory.error) == (State.UNSCORED, "short of descriptors")
    warm = attempted(suite(), flaw="failing")
    assert (warm.state, warm.trajectory.error) == (State.UNSCORED, "warm-up: short of descriptors")


def test_an_engine_that_fails_in_the_warm_up_is_not_sent_the_block(client: load_client.Client) -> None:
    found = attempted(suite(), flaw="failing")
    assert (found.state, found.trajectory.error) == (State.INFRA, "warm-up: 2 of 2 requests failed: HTTP 503")
    assert len(client.sent) == 1


@pytest.mark.parametrize("pace", [NO_WARM_UP, Pace()])
def test_requests_of_a_block_in_which_the_engine_failed_are_outside_the_slo(
    client: load_client.Client, pace: Pace
) -> None:
    """In the block itself or in its warm-up: they must not drop out of the share that is judged."""
    found = attempted(suite(pace=pace, slo=Limits(ttft=9.0)), flaw="failing")
    assert found.state is State.INFRA
    assert found.scores == {"slo_ok": 0.0, "slo_n": 24.0, "slo_asked": 0.99}


def test_a_load_client_that_breaks_voids_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(*given: Any) -> None:
        raise ClientError("load worker 1 of 2: ended in the middle of the block: killed")

    monkeypatch.setattr("evalrig.loaded.sent", breaks)
    found = attempted(suite())
    assert (found.state, found.scores) == (State.UNSCORED, {})
    assert found.trajectory.error == "load worker 1 of 2: ended in the middle of the block: killed"


@pytest.mark.parametrize("loop", ["closed", "open"])
def test_the_events_to_expect_are_those_of_the_block_and_not_of_the_warm_up(
    client: load_client.Client, loop: str
) -> None:
    pace = Pace(loop=loop, rate=0.0 if loop == "closed" else 50.0)
    attempted(suite(pace=pace, requests=100, concurrency=[40]), step=0.01)
    assert client.rates[-1] == pytest.approx(40 * 100 if loop == "closed" else 50 * 8, rel=0.25)


@pytest.mark.parametrize("slow", ["gauges", "flush"])
def test_an_engine_that_does_not_answer_holds_up_nothing(
    client: load_client.Client, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    async def never(_: Toy) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Toy, slow, never)
    monkeypatch.setattr("evalrig.loaded.READING", 0.01)
    monkeypatch.setattr("evalrig.loaded.FLUSH", 0.01)
    if slow == "gauges":
        found = attempted(suite())
        assert (found.state, "kv_usage_most" in found.scores) == (State.SCORED, False)
        return
    with pytest.raises(EngineError, match="reference: it did not empty its prefix cache within"):
        attempted(suite())


def test_sums_without_a_count_leave_no_hole_in_a_blocks_notes(
    client: load_client.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp tells seconds of a phase, and not of how many requests: JSON has no NaN."""

    async def told_half(_: Toy) -> Gauges:
        return Gauges(at=1.0, phases={"prefill": (3.0, math.nan), "queue": (1.0, 2.0)})

    monkeypatch.setattr(Toy, "gauges", told_half)
    found = attempted(suite())
    assert isinstance(found, LoadAttempt)
    assert found.block.notes is not None
    assert found.block.notes["gauges"][0] == {"at": 1.0, "phases": {"queue": (1.0, 2.0)}}


# ---- a block by itself

SERVING = Serving(completions=Address(host="toy", port=1), fixed_length=True)


def measured(*prompts: int, tokens: int = 4) -> Any:
    asks = [Ask(ids=tuple(range(7)), max_tokens=4) for _ in prompts]
    schedule = framed(asks, {}, "closed", 1)
    made = block(*(steady_stream(10.0, 5.0, tokens, index=n) for n in range(len(prompts))))
    return replace(made, schedule_sha256=schedule.sha256), schedule


def test_prompts_may_all_be_one_token_longer_and_not_some() -> None:
    """Some servers put their own mark in front of given ids; one that cuts some is another matter."""
    made, schedule = measured(7, 7, 7)
    served = parse(made)
    assert void(made, served, schedule, SERVING, cold=True) == []
    longer = replace(served, requests=replace(served.requests, prompt_tokens=np.array([8, 8, 8])))
    assert void(made, longer, schedule, SERVING, cold=True) == []
    unlike = replace(served, requests=replace(served.requests, prompt_tokens=np.array([7, 5, 7])))
    assert void(made, unlike, schedule, SERVING, cold=True) == [
        "1 of 3 prompts were not as long as asked: 5 tokens where 7 were asked"
    ]


def test_lengths_are_not_asked_of_an_engine_that_ends_when_it_likes() -> None:
    made, schedule = measured(7, tokens=3)
    assert void(made, parse(made), schedule, SERVING, cold=False) != []
    assert void(made, parse(made), schedule, replace(SERVING, fixed_length=False), cold=False) == []


def test_another_schedule_or_a_part_of_it_is_no_block() -> None:
    made, schedule = measured(7, 7)
    other = replace(made, schedule_sha256="0" * 64)
    assert void(other, parse(other), schedule, SERVING, cold=False) == ["another schedule was sent than was drawn"]
    part = replace(made, exchanges=made.exchanges[:1])
    assert void(part, parse(part), schedule, SERVING, cold=False) == ["1 requests were measured of 2 that were due"]


def test_one_request_in_a_hundred_may_fail_and_not_two() -> None:
    good = [steady_stream(10.0, 5.0, 4, index=n) for n in range(100)]
    lost = exchange([], index=0, status=0, error="connection reset")
    for bad, words in ((1, ""), (2, "2 of 100 requests failed: connection reset")):
        made = block(*(lost if n < bad else good[n] for n in range(100)))
        assert failed(made, parse(made)) == words
    empty = block()
    assert failed(empty, parse(empty)) == "the block has no requests"


def test_what_the_end_of_a_block_cut_off_is_the_schedules_and_not_the_engines() -> None:
    made, schedule = measured(*[7] * 10)
    late = [
        exchange([], index=n, status=0, error=f"{what}: {OVER}") for n, what in ((8, "no end of it"), (9, "not sent"))
    ]
    cut = replace(made, exchanges=(*made.exchanges[:8], *late))
    assert failed(cut, parse(cut)) == ""
    assert void(cut, parse(cut), schedule, SERVING, cold=False) == [
        f"2 of 10 requests were not sent, or not waited for: {OVER}; ask for fewer requests"
    ]
    hung = exchange([], index=7, status=0, error="no end of the answer 600.0 s after it was sent")
    broken = replace(cut, exchanges=(*cut.exchanges[:7], hung, *late))
    assert failed(broken, parse(broken)) == f"1 of 8 requests failed: {hung.sent.error}"


def test_gauges_become_scores_of_the_block_alone() -> None:
    rows = [
        {"at": 0.0, "waiting": 0.0, "preemptions": 3.0, "phases": {"queue": (10.0, 4.0)}},
        {"at": 0.5, "waiting": 7.0, "preemptions": 4.0, "phases": {}},
        {"at": 1.0, "waiting": 1.0, "preemptions": 5.0, "phases": {"queue": (13.0, 6.0), "decode": (0.0, 0.0)}},
    ]
    made = replace(block(), health=HEALTH, notes={"gauges": rows})
    found = told(made)
    assert (found["waiting_most"], found["preemptions"], found["engine_queue_seconds"]) == (7.0, 2.0, 1.5)
    assert found["waiting_usual"] == 1.0, "a burst at the start is no queue"
    assert "engine_decode_seconds" not in found
    assert told(replace(made, notes=None)) == {
        "kernel": 1.0,
        "cpu_share": HEALTH.cpu_share,
        "send_lag_p99": HEALTH.send_lag_p99,
    }


def test_limits_of_mlperf_can_be_named_and_overruled() -> None:
    assert Limits(preset="llama2-70b").seconds() == {"ttft": 2.0, "tpot": 0.2}
    assert Limits(preset="llama2-70b", tpot=0.05, e2e=9.0).seconds() == {"ttft": 2.0, "tpot": 0.05, "e2e": 9.0}
    assert Limits().seconds() == {}
    with pytest.raises(UsageError, match=r"slo\.preset: no 'gpt-2'; known: llama2-70b"):
        Load("load", LoadOptions(slo=Limits(preset="gpt-2")))
