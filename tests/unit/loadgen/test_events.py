"""Every fault of a parser of streams that other clients had, and known answers."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import sse
from toys.sse import DONE, chat, event, exchange, text, usage

from evalrig.loadgen.block import Exchange
from evalrig.loadgen.events import parse, spread
from evalrig.loadgen.served import Served


def served(*exchanges: Exchange) -> Served:
    return parse(sse.block(*exchanges))


def one(*reads: tuple[float, bytes], **more: Any) -> Served:
    return served(exchange(reads, **more))


def test_known_times_of_a_plain_stream() -> None:
    found = served(sse.steady_stream(100, 20, 5, due=50.0, sent=60.0))
    rows = found.requests
    assert rows.ok.all()
    assert rows.due[0] == pytest.approx(0.05)
    assert rows.sent[0] == pytest.approx(0.06)
    assert rows.first[0] == pytest.approx(0.15)
    assert rows.last[0] == pytest.approx(0.23)
    assert (rows.prompt_tokens[0], rows.tokens[0], rows.cached_tokens[0]) == (7, 5, -1)
    assert found.events.tokens.tolist() == [1, 2, 3, 4, 5]
    assert found.events.exact.all()
    assert found.seconds == pytest.approx(0.23002)


def test_a_role_only_first_event_is_no_token() -> None:
    """vllm 3759, 15106."""
    found = one((10, chat(role="assistant", content="")), (90, chat(content="Hi")), (91, usage(1)), (92, DONE))
    assert found.requests.first[0] == pytest.approx(0.09)
    assert len(found.events.at) == 1


def test_a_stream_of_reasoning_only_has_a_first_token() -> None:
    """sglang 23954, inference-perf 559."""
    for name in ("reasoning_content", "reasoning"):
        found = one((30, chat(**{name: "hm"})), (40, chat(**{name: "so"})), (41, usage(2)), (42, DONE))
        assert found.requests.ok[0]
        assert found.requests.first[0] == pytest.approx(0.03)


def test_a_tool_call_is_content() -> None:
    """sglang 36272."""
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
    found = one((30, chat(tool_calls=[call])), (40, chat(tool_calls=[])), (41, usage(9)), (42, DONE))
    assert found.events.at.tolist() == [pytest.approx(0.03)]
    assert found.requests.tokens[0] == 9


def test_events_of_several_tokens_have_the_tokens_that_usage_tells() -> None:
    """vllm 42661, sglang 12064: an event is not a token."""
    found = one((10, text("a b c d")), (20, text("e f g h")), (21, usage(8)), (22, DONE))
    assert found.events.tokens.tolist() == [4, 8]


def test_continuous_usage_says_which_event_had_how_many() -> None:
    counts = [{"usage": {"prompt_tokens": 3, "completion_tokens": n}} for n in (1, 5, 6)]
    found = one(*((10.0 * k, text("x", **more)) for k, more in enumerate(counts)), (40, usage(6)), (41, DONE))
    assert found.events.tokens.tolist() == [1, 5, 6]
    assert spread([-1, 4, -1, -1], 8).tolist() == [2, 4, 6, 8]
    assert spread([5, 3, -1], 9).tolist() == [5, 5, 9], "a count that falls is held"
    assert spread([-1], -1).tolist() == pytest.approx([np.nan], nan_ok=True)
    assert spread([], 4).size == 0


def test_usage_with_empty_choices_is_counted_and_is_no_event() -> None:
    """evalscope 1572."""
    found = one((10, text("a")), (99, usage(1, prompt=12, cached=8)), (100, DONE))
    assert (found.requests.tokens[0], found.requests.prompt_tokens[0], found.requests.cached_tokens[0]) == (1, 12, 8)
    assert found.requests.last[0] == pytest.approx(0.01), "the event with usage is not the last token"


def test_missing_usage_is_not_the_number_of_events() -> None:
    found = one((10, text("a")), (20, text("b")), (21, DONE))
    assert found.requests.ok[0]
    assert found.requests.tokens[0] == -1
    assert np.isnan(found.events.tokens).all()


def test_events_of_one_read_are_told_apart_from_exact_ones() -> None:
    found = one((10, text("a") + text("b")), (20, text("c")), (30, text("d") + usage(4) + DONE))
    assert found.events.exact.tolist() == [False, True, True, False]
    assert found.events.at.tolist() == pytest.approx([0.01, 0.01, 0.02, 0.03])


def test_an_event_split_over_reads_came_with_its_last_byte() -> None:
    whole = text("a") + text("b")
    reads = [(float(k), whole[k : k + 1]) for k in range(len(whole))]
    found = one(*reads, (900, usage(2)), (901, DONE))
    assert found.events.at.tolist() == pytest.approx([(len(text("a")) - 1) / 1000, (len(whole) - 1) / 1000])
    assert found.events.exact.all()


def test_a_read_that_ends_within_the_next_event_is_not_exact() -> None:
    """The kernel keeps the time of the newest bytes only."""
    after = text("b")
    found = one((10, text("a") + after[:9]), (20, after[9:]), (21, usage(2)), (22, DONE))
    assert found.events.exact.tolist() == [False, True]


def test_line_ends_comments_and_fields_of_other_servers() -> None:
    body = b": ping\r\n\r\nevent: message\r\nid: 3\r\n" + text("a").replace(b"\n", b"\r\n") + b"retry: 5\r\n\r\n"
    found = one((10, body), (20, text("b").replace(b"\n", b"\r")), (30, b"data:[DONE]\n\n"))
    assert found.requests.ok[0]
    assert found.events.at.tolist() == pytest.approx([0.01, 0.02])
    halves = '{"choices":\n[{"text": "a"}]}'
    lines = "".join(f"data: {line}\n" for line in halves.splitlines()).encode()
    for end in (b"\n", b"\r\n", b"\r"):
        assert one((10, (lines + b"\n").replace(b"\n", end)), (11, DONE)).requests.ok[0], (
            "one event of two lines of data"
        )


FAULTY = {
    "invalid JSON": b'data: {"choices": [\n\n',
    "not UTF-8": b'data: {"choices": [{"text": "\xff\xfe"}]}\n\n',
    "a list": b"data: [1]\n\n",
    "choices of null": b'data: {"choices": [null]}\n\n',
    "text that is a number": b'data: {"choices": [{"text": 5}]}\n\n',
    "tokens below zero": b'data: {"choices": [], "usage": {"completion_tokens": -3}}\n\n',
    "more tokens than a column holds": b'data: {"choices": [], "usage": {"completion_tokens": 1e30}}\n\n',
    "a count beyond 64 bits": b'data: {"choices": [], "usage": {"prompt_tokens": 99999999999999999999999}}\n\n',
    "a deep nest": b'data: {"x": ' + b"[" * 5000 + b"\n\n",
    "nothing": b"data:\n\n",
}


@pytest.mark.parametrize("event", FAULTY.values(), ids=FAULTY.keys())
def test_an_event_that_is_none_fails_its_request_only(event: bytes) -> None:
    broken = exchange([(10, text("a")), (20, event), (30, text("b")), (31, DONE)])
    found = served(broken, sse.steady_stream(5, 5, 2, index=1))
    assert found.requests.ok.tolist() == [False, True]
    assert "no completion" in found.requests.error[0]
    assert found.requests.first[0] == pytest.approx(0.01), "what came before stays"


def test_an_error_within_a_stream_of_status_200() -> None:
    for said in ({"error": {"message": "out of memory", "code": 500}}, {"object": "error", "message": "out of memory"}):
        found = one((10, text("a")), (20, event(said)), (21, DONE))
        assert not found.requests.ok[0]
        assert "out of memory" in found.requests.error[0]
    assert one((10, text("a", error=None)), (21, DONE)).requests.ok[0]


def test_a_stream_that_just_stops_is_no_answer() -> None:
    """llama.cpp's and SGLang's streams end without an error when the engine is ended."""
    assert "without [DONE]" in one((10, text("a")), (20, text("b"))).requests.error[0]
    finished = event({"choices": [{"text": "b", "finish_reason": "length"}]})
    assert one((10, text("a")), (20, finished)).requests.ok[0]


def test_an_event_cut_off_is_not_counted() -> None:
    found = one((10, text("a")), (20, text("b")[:-1]))
    assert len(found.events.at) == 1


def test_other_statuses_and_lost_connections_say_why() -> None:
    rows = served(
        exchange([(1, b'{"error": {"message": "too long"}}')], status=400),
        exchange([], index=1, status=0, error="connection refused"),
        exchange([(5, chat(role="assistant")), (6, usage(0)), (7, DONE)], index=2),
        exchange([(5, b'{"choices": [{"text": "no stream"}]}')], index=3),
    ).requests
    assert not rows.ok.any()
    assert "too long" in rows.error[0]
    assert rows.error[1] == "connection refused"
    assert rows.error[2] == "no content came"
    assert np.isnan(rows.first).all()


def test_a_request_that_never_left_has_no_time() -> None:
    lost = exchange([], status=0, error="no socket")
    object.__setattr__(lost.sent, "sent", 0)
    assert np.isnan(served(lost).requests.sent[0])


def test_rows_are_in_the_order_of_the_schedule() -> None:
    found = served(sse.steady_stream(9, 1, 1, index=1, due=5.0), sse.steady_stream(3, 1, 2, index=0))
    assert found.requests.due.tolist() == [0, 0.005]
    assert found.events.request.tolist() == [0, 0, 1]


def test_an_empty_block() -> None:
    found = served()
    assert found.seconds == 0
    assert found.requests.ok.shape == found.events.at.shape == (0,)


STREAM = (
    chat(role="assistant") + chat(content="ä\n\nb") + b": ping\n\n" + chat(reasoning="r").replace(b"\n", b"\r\n")
    + chat(content="c") + usage(5) + DONE
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_any_split_into_reads_gives_the_same_events(cuts: list[int]) -> None:
    bounds = sorted({0, len(STREAM), *cuts})
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(bounds)]
    found = one(*((float(k), piece) for k, piece in enumerate(pieces)))
    assert found.requests.ok[0]
    assert found.requests.tokens[0] == 5
    assert found.events.tokens.tolist() == pytest.approx([5 / 3, 10 / 3, 5])
    assert (np.diff(found.events.at) >= 0).all()
    starts = [STREAM.index(word) for word in (b"u00e4", b'"r"', b'"c"')]
    for start, at in zip(starts, found.events.at, strict=True):
        assert bounds[round(at * 1000) + 1] > start, "an event came before its bytes"


@settings(deadline=None, max_examples=150)
@given(st.lists(st.binary(max_size=20), max_size=6), st.sampled_from([b"", b"data: ", b"\n\n", b"data: {\n\n"]))
def test_hostile_bytes_are_a_failure_and_never_a_crash(pieces: list[bytes], glue: bytes) -> None:
    found = one(*((float(k), glue + piece) for k, piece in enumerate(pieces)))
    assert not found.requests.ok[0]
    assert found.requests.error[0]
