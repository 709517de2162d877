"""From bytes to events: each fault that a load client was seen to have is a test named after it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.loaded import block, delta, stream, text, usage

from evalrig.errors import UsageError
from evalrig.loadgen.events import answered, parse
from evalrig.loadgen.raw import read_block, read_served, write_block

DONE = "data: [DONE]\n\n"
ANSWER = [text(" a"), text(" b"), text(" c"), usage(3, cached_tokens=1), DONE]


def test_times_tokens_and_prompt_come_from_the_events_and_from_usage():
    found = parse(block(stream(ANSWER)))
    assert found.requests.ok.all()
    assert found.events.at == pytest.approx([0.01, 0.02, 0.03])
    assert (found.requests.first[0], found.requests.last[0]) == pytest.approx((0.01, 0.03))
    assert [int(x[0]) for x in (found.requests.prompt_tokens, found.requests.cached_tokens, found.requests.tokens)] == [
        3,
        1,
        3,
    ]
    assert list(found.events.tokens) == [1, 2, 3]


def test_a_role_or_an_empty_piece_is_no_first_token():
    """vllm 15106: the first event of a chat has a role and no text."""
    found = answered(stream([delta(role="assistant", content=""), delta(content=None), delta(content="a"), usage(1)]))
    assert [at - 10**9 for at in found.at] == [3 * 10**7]


def test_reasoning_and_tool_calls_are_tokens():
    """sglang 23954: a stream of reasoning alone had a time to first token of 0."""
    events = [
        delta(reasoning_content="hm"),
        delta(reasoning="hm"),
        delta(tool_calls=[{"index": 0}]),
        delta(content="a"),
    ]
    assert len(answered(stream([*events, usage(4)])).at) == 4


def test_several_tokens_an_event_are_counted_by_usage():
    """vllm 42661: one event counted as one token."""
    found = parse(block(stream([text(" a b c d"), text(" e f g h"), usage(8), DONE])))
    assert int(found.requests.tokens[0]) == 8
    assert list(found.events.tokens) == [4, 8]


def test_continuous_usage_tells_the_tokens_of_each_event():
    counted = [text(" a", **{"usage": {"completion_tokens": 1}}), text(" b c d", **{"usage": {"completion_tokens": 4}})]
    assert list(parse(block(stream([*counted, usage(4)]))).events.tokens) == [1, 4]


def test_missing_usage_is_not_told_and_never_the_number_asked_for():
    """SGLang's client took max_tokens where the server sent no usage."""
    found = parse(block(stream([text(" a"), DONE])))
    assert found.requests.ok[0]
    assert int(found.requests.tokens[0]) == -1
    assert np.isnan(found.events.tokens).all()


def test_events_of_one_read_are_upper_bounds_but_for_the_last():
    """Events that come together are no gaps of microseconds."""
    whole = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in ANSWER[:3])
    found = answered(stream([whole]))
    assert found.exact == [False, False, True]
    assert len(set(found.at)) == 1


def test_line_ends_of_the_other_kind_and_comments():
    raw = ": ping\r\n\r\n" + "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in ANSWER[:4])
    found = answered(stream([raw[:40], raw[40:90], raw[90:]]))
    assert len(found.at) == 3
    assert found.tokens == 3


@pytest.mark.parametrize(
    ("events", "sent", "why"),
    [
        ([], {"status": 0, "error": "ConnectionRefusedError: no"}, "ConnectionRefusedError: no"),
        (['{"error": "too long"}'], {"status": 400}, "status 400: {\"error\": \"too long\"}"),
        ([text("a"), {"error": {"message": "out\nof memory"}}], {}, "the engine says: {'message': 'out"),
        ([text("a"), "data: {not json\n\n"], {}, "an event that is none"),
        ([text("a"), "data: " + "[" * 5000 + "\n\n"], {}, "an event that is none"),
        ([usage(3)], {}, "no content"),
        (["data: \xff\n\n".encode("latin-1"), text("a")], {}, "an event that is none"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_a_failed_request_and_says_why(events: list[Any], sent: dict[str, Any], why: str):
    found = parse(block(stream(events, **sent), stream(ANSWER)))
    assert found.requests.ok.tolist() == [False, True]
    assert found.requests.error[0].startswith(why)
    assert "\n" not in found.requests.error[0]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.booleans())
@settings(deadline=None, max_examples=80)
def test_however_a_stream_is_cut_into_reads_the_events_are_the_same(sizes: list[int], other: bool):
    events: list[Any] = [delta(role="assistant", content=""), *ANSWER]
    whole = stream(events).body.replace(b"\n", b"\r\n") if other else stream(events).body
    ends = sorted({min(int(end), len(whole)) for end in np.cumsum(sizes)} | {len(whole)})
    found = answered(stream([whole], ends))
    assert (found.tokens, found.prompt_tokens, found.error, len(found.at)) == (3, 3, "", 3)
    assert found.at == sorted(found.at)
    one_read = [(a, b) for a, b, exact in zip(found.at, found.at[1:], found.exact, strict=False) if not exact and a > b]
    assert not one_read


def test_a_block_comes_back_from_the_disk_as_it_was(tmp_path: Path):
    was = block(stream(ANSWER), stream(["junk"], status=500, error="x"))
    write_block(tmp_path / "a" / "round-1", was, parse(was))
    back, tables = read_block(tmp_path / "a" / "round-1"), read_served(tmp_path / "a" / "round-1")
    assert back.health == was.health
    assert (back.start, back.schedule_sha256) == (was.start, was.schedule_sha256)
    for one, other in zip(back.exchanges, was.exchanges, strict=True):
        assert (one.sent, one.body) == (other.sent, other.body)
        for name in ("ends", "at", "lag"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
    again = parse(back)
    for name in ("ok", "due", "first", "tokens", "error"):
        assert np.array_equal(
            getattr(tables.requests, name), getattr(again.requests, name), equal_nan=name in ("due", "first")
        )
    assert np.array_equal(tables.events.at, again.events.at)
    assert tables.seconds == again.seconds


def test_a_file_that_is_no_block_is_named(tmp_path: Path):
    (tmp_path / "x.raw").write_bytes(b"\x10" * 40)
    with pytest.raises(UsageError, match=r"x\.raw: no recorded block"):
        read_block(tmp_path / "x")
    with pytest.raises(UsageError, match="is it a run with rounds of load"):
        read_served(tmp_path / "x")
