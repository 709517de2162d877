"""What a block sends: the same for both arms, other in every round, as much as was asked."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalrig.errors import UsageError
from evalrig.loadgen.draw import SALT, arrivals, framed, generator, lengths, text
from evalrig.loadgen.trace import read
from evalrig.loadgen.workloads import LADDER, MAKERS, Stock, Wish, asks

POOL = tuple(range(1000, 4000))
HISTORIES = ((tuple(range(40)), tuple(range(80))), (tuple(range(30)), tuple(range(50)), tuple(range(90))))


def wish(workload: str = "random", **more: Any) -> Wish:
    given: dict[str, Any] = {"workload": workload, "count": 12, "input_tokens": 64, "output_tokens": 16, **more}
    return Wish(**given)


def rows(tmp_path: Path, *lines: dict[str, Any]) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def row(at: int, ids: list[int], size: int = 600) -> dict[str, Any]:
    return {"timestamp": at, "input_length": size, "output_length": 20, "hash_ids": ids}


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    path = rows(tmp_path, *(row(1000 + 500 * n, [n % 3, 10 + n]) for n in range(12)))
    return Stock(pool=POOL, histories=HISTORIES, rows=read(path, "here"))


@pytest.mark.parametrize("workload", MAKERS)
def test_a_schedule_is_drawn_from_the_seed_and_the_round_alone(workload: str, stock: Stock) -> None:
    made = [framed(asks(wish(workload), stock, f"7/load/{name}", True), {}, "closed", 2) for name in ("a", "a", "b")]
    assert made[0] == made[1]
    assert made[0].sha256 != made[2].sha256
    other = framed(asks(wish(workload), stock, "8/load/a", True), {}, "closed", 2)
    assert other.sha256 != made[0].sha256, "another seed, another schedule"


def test_both_arms_have_one_digest_though_their_models_have_two_names(stock: Stock) -> None:
    drawn = asks(wish(), stock, "7/load/a", True)
    first, second = (framed(drawn, {"model": name}, "closed", 2) for name in ("bf16", "fp8"))
    assert first.sha256 == second.sha256
    assert first.calls[0].body != second.calls[0].body
    assert framed(drawn[:-1], {}, "closed", 2).sha256 != framed(drawn, {}, "closed", 2).sha256


@pytest.mark.parametrize("workload", MAKERS)
def test_as_many_requests_as_were_asked_and_no_longer(workload: str, stock: Stock) -> None:
    made = asks(wish(workload), stock, "7/load/a", True)
    counted = [ask for ask in made if not ask.primes]
    longest = 4 if workload == "lengths" else 1
    assert len(counted) == 12
    assert all(1 <= len(ask.ids) <= 64 * longest for ask in made)
    assert all(1 <= ask.max_tokens <= 16 * longest for ask in made)


def test_a_body_holds_the_tokens_and_what_the_engine_lays_over_it(stock: Stock) -> None:
    drawn = asks(wish(), stock, "7/load/a", True)
    sent = framed(drawn, {"model": "m", "ignore_eos": True}, "closed", 2)
    body = msgspec.json.decode(sent.calls[3].body)
    assert body["prompt"] == list(drawn[3].ids)
    assert (body["model"], body["ignore_eos"], body["stream"], body["max_tokens"]) == ("m", True, True, 16)
    assert sent.calls[3].prompt_tokens == 64


def test_cold_prompts_share_no_beginning_within_or_between_rounds(stock: Stock) -> None:
    """Else the prefix cache answers, and the second arm of a round would look faster."""
    made = [ask for name in ("a", "b") for ask in asks(wish(), stock, f"7/load/{name}", True)]
    assert len({ask.ids[:SALT] for ask in made}) == len(made)


def test_without_salt_every_round_sends_the_same_prompts(stock: Stock) -> None:
    first, second = (asks(wish(), stock, f"7/load/{name}", False) for name in ("a", "b"))
    assert [ask.ids for ask in first] == [ask.ids for ask in second]


def test_a_shared_prefix_is_shared_by_a_group_and_not_between_rounds(stock: Stock) -> None:
    made = asks(wish("shared_prefix", groups=3), stock, "7/load/a", True)
    heads = {ask.ids[:48] for ask in made}
    assert len(heads) == 3
    assert len({ask.ids for ask in made}) == 12
    assert not heads & {ask.ids[:48] for ask in asks(wish("shared_prefix", groups=3), stock, "7/load/b", True)}


def test_a_prefill_has_lengths_to_fit_a_slope_to_and_one_token_answers(stock: Stock) -> None:
    made = asks(wish("prefill"), stock, "7/load/a", True)
    assert {len(ask.ids) for ask in made} == {64 // part for part in LADDER}
    assert {ask.max_tokens for ask in made} == {1}


def test_a_decode_is_primed_with_its_own_prompts(stock: Stock) -> None:
    made = asks(wish("decode"), stock, "7/load/a", True)
    primed, counted = ([ask for ask in made if ask.primes is primes] for primes in (True, False))
    assert [ask.ids for ask in primed] == [ask.ids for ask in counted]
    assert {ask.max_tokens for ask in primed} == {1}


def test_a_conversation_grows_and_waits_for_its_own_last_turn(stock: Stock) -> None:
    made = asks(wish("conversations", input_tokens=500, pace=("poisson", 2.0)), stock, "7/load/a", True)
    assert {ask.after is None for ask in made} == {True, False}
    for number, ask in enumerate(made):
        if ask.after is None:
            assert ask.due == 0
            continue
        before = made[ask.after]
        assert ask.after == number - 1
        assert ask.ids[: len(before.ids)] == before.ids, "the history is what the prefix cache holds"
        assert ask.due > 0, "think time"
    openings = [ask.ids[:SALT] for ask in made if ask.after is None]
    assert len(set(openings)) == len(openings), "a conversation that comes again is a new one"


def test_openings_of_conversations_come_at_the_rate(stock: Stock) -> None:
    made = asks(wish("conversations", rate=4.0), stock, "7/load/a", True)
    openings = [ask.due for ask in made if ask.after is None]
    assert openings == sorted(openings)
    assert openings[-1] < len(openings) / 4


def test_rows_of_a_trace_share_what_their_hash_ids_share(stock: Stock) -> None:
    made = asks(wish("trace", input_tokens=2000), stock, "7/load/a", True)
    assert made[0].ids[:512] == made[3].ids[:512] != made[1].ids[:512]
    assert made[0].ids[512:] != made[3].ids[512:]
    assert [len(ask.ids) for ask in made] == [600] * 12
    assert [ask.due for ask in made] == pytest.approx([0.5 * n for n in range(12)])
    assert made[0].ids != asks(wish("trace", input_tokens=2000), stock, "7/load/b", True)[0].ids
    faster = asks(wish("trace", rate=12.0), stock, "7/load/a", True)
    assert faster[-1].due == pytest.approx(1.0)


@given(st.integers(1, 300), st.floats(0.1, 1000), st.sampled_from(["poisson", "constant"]), st.integers(0, 99))
def test_the_realised_rate_is_the_one_asked(count: int, rate: float, law: Any, seed: int) -> None:
    """Relative sleeps drift: a client of that kind realises less than it was asked."""
    at = arrivals(count, rate, law, generator(seed))
    assert at[0] == 0
    assert at == sorted(at)
    assert at[-1] < count / rate * (1 + 1e-9)
    if law == "constant":
        assert at == pytest.approx([n / rate for n in range(count)])


def test_poisson_arrivals_are_as_irregular_as_they_should_be() -> None:
    gaps = np.diff(arrivals(4000, 10.0, "poisson", generator("gaps")))
    assert gaps.mean() == pytest.approx(0.1, rel=0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.06)


def test_mixed_lengths_have_the_mean_asked_and_a_long_tail() -> None:
    drawn = np.array(lengths(20_000, 200, 0.6, generator("lengths")))
    assert drawn.mean() == pytest.approx(200, rel=0.03)
    assert np.median(drawn) < 180
    assert drawn.max() > 600


@given(st.integers(1, 500), st.booleans(), st.integers(2, 50))
def test_text_is_as_long_as_asked_of_ids_of_the_pool(count: int, salted: bool, pool: int) -> None:
    made = text(range(pool), count, generator(count, pool), salted)
    assert len(made) == count
    assert set(made) <= set(range(pool))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1]}',
            "1 hash_ids of 512 tokens make no",
        ),
        ('{"timestamp": 0, "input_length": 0, "output_length": 5, "hash_ids": [1]}', "lengths are at least 1"),
        ('{"timestamp": 0, "input_length": 6, "hash_ids": [1]}', "missing required field `output_length`"),
        ("[1, 2", "a line holds timestamp, input_length, output_length and hash_ids"),
    ],
)
def test_a_bad_line_of_a_trace_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(UsageError) as caught:
        read(path, "suites.load.options.shape.path")
    assert str(caught.value).startswith(f"suites.load.options.shape.path: {path} line 2: ")
    assert words in str(caught.value)


def test_a_trace_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path / "none.jsonl", "here")
    with pytest.raises(UsageError, match="holds no request"):
        read(rows(tmp_path), "here")
