"""From stored lists to estimates: labels, places, texts, and what cannot be read."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from toys.engine import table

from evalrig.analysis.kl import merged_bucket
from evalrig.analysis.responses import Responses
from evalrig.distance import CHUNK, Joined
from evalrig.report.maps import maps
from evalrig.streams import Streamed, Texts, read, step
from evalrig.tokens import Columns
from evalrig.types import NO_ANSWER, Sample, Trace

REFERENCE, CANDIDATE = table(), table(0.3)


def streamed(joined: Iterable[Joined], samples: Mapping[str, Sample], texts: Texts, alpha: float) -> Streamed | None:
    return read(joined, samples, texts, ("", ""), alpha).streamed


def spoken(joined: Iterable[Joined], samples: Mapping[str, Sample], texts: Texts, modes: tuple[str, str]) -> Responses:
    return read(joined, samples, texts, modes, 0.05).responses


def lists(rows: np.ndarray, tokens: np.ndarray, k: int = 20) -> Columns:
    order = np.argsort(-rows, axis=1)[:, :k].astype(np.int32)
    return {
        "token": tokens,
        "logprob": rows[np.arange(len(tokens)), tokens],
        "top_ids": order,
        "top_logprobs": np.take_along_axis(rows, order, 1),
    }


def scored(name: str, tokens: int = 12, cluster: str = "", k: int = 20) -> Joined:
    rng = np.random.default_rng([ord(letter) for letter in name])
    stream = [int(rng.integers(64))]
    for _ in range(tokens):
        p = np.exp(REFERENCE[stream[-1]].astype(np.float64))
        stream.append(int(rng.choice(64, p=p / p.sum())))
    before, ids = stream[:-1], np.array(stream[1:])
    return Joined(
        sample=name,
        epoch=0,
        cluster=cluster or name,
        reference=lists(REFERENCE[before], ids, k),
        candidate=lists(CANDIDATE[before], ids, k),
    )


def traced(both: Joined, **more: object) -> Trace:
    ids = tuple(int(i) for i in both.reference["token"])
    filled = {"pieces": tuple(chr(33 + i) for i in ids), "finish": "stop", **more}
    return Trace(sample=both.sample, epoch=both.epoch, prompt_ids=(1,), token_ids=ids, **filled)  # type: ignore[arg-type]


ARMS = [scored(f"s{n:02d}", tokens=5 + n) for n in range(30)]
SAMPLES = {one.sample: Sample(id=one.sample, tags=(("chat", "code")[n % 2],)) for n, one in enumerate(ARMS)}
TEXTS = Texts(traced(one) for one in ARMS)


def test_the_worst_tokens_are_found_again_in_their_files() -> None:
    found = streamed(ARMS, SAMPLES, TEXTS, 0.05)
    assert found is not None
    by_name = {one.sample: one for one in ARMS}
    for worst in found.result.worst_tokens:
        place = [one for one in found.places if one.row <= worst.row][-1]
        row = worst.row - place.row
        assert row == worst.position - 1
        assert found.clusters[worst.prompt] == place.sample
        both = by_name[place.sample]
        alone = streamed([both], {place.sample: SAMPLES[place.sample]}, TEXTS, 0.05)
        assert alone is not None
        assert worst.kl == pytest.approx(alone.result.summary.tail.maximum)
        break  # the largest of all is the largest of its own attempt


def test_classes_entropies_and_sources_share_out_all_tokens() -> None:
    found = streamed(ARMS, SAMPLES, TEXTS, 0.05)
    assert found is not None
    tokens = sum(len(one.reference["token"]) for one in ARMS)
    for rows in (found.result.classes, found.result.entropies, found.sources):
        assert sum(row.tokens for row in rows) == tokens
        total = sum(row.tokens * row.mean for row in rows)
        assert total / tokens == pytest.approx(found.result.summary.mean)
    assert [row.name for row in found.sources] == ["chat", "code"]
    assert found.told == 30


def test_one_source_is_no_map() -> None:
    found = streamed(ARMS, {name: Sample(id=name) for name in SAMPLES}, TEXTS, 0.05)
    assert found is not None
    assert found.sources == ()


def test_lists_of_another_length_and_long_streams_are_measured_as_one() -> None:
    mixed = [scored("a", 30, k=20), scored("b", 30, k=10), scored("c", CHUNK + 5, k=10)]
    found = streamed(mixed, {one.sample: Sample(id=one.sample) for one in mixed}, Texts(()), 0.05)
    assert found is not None
    assert found.result.summary.tokens == 65 + CHUNK
    assert [place.row for place in found.places] == [0, 30, 60]
    assert found.told == 0
    assert found.result.classes == ()


def test_rows_that_name_a_token_twice_are_counted_and_do_not_end_the_run() -> None:
    one = scored("a", 30)
    one.candidate["top_ids"][4, 1] = one.candidate["top_ids"][4, 0]
    one.reference["logprob"][7] = np.nan
    one.candidate["top_logprobs"][9, 3] = 2.0
    found = streamed([one], {"a": Sample(id="a")}, Texts(()), 0.05)
    assert found is not None
    assert (found.result.broken, found.result.summary.tokens) == (3, 27)


def test_nothing_readable_is_no_distance() -> None:
    one = scored("a", 3)
    one.candidate["top_logprobs"][:] = np.nan
    found = read([one], {"a": Sample(id="a")}, Texts(()), ("", ""), 0.05)
    assert found.streamed is None
    assert found.distances is not None
    assert (found.distances.tokens, found.distances.broken) == (3, 3)
    nothing = read([], SAMPLES, TEXTS, ("", ""), 0.05)
    assert (nothing.streamed, nothing.distances, nothing.responses.whole.tokens.size) == (None, None, 0)


def test_texts_that_do_not_belong_to_the_tokens_are_not_used() -> None:
    one = scored("a", 3)
    assert Texts([traced(one, pieces=("x",))]).pieces("a", 0) == ()
    assert Texts([traced(one, finish=NO_ANSWER)]).pieces("a", 0) == ()


def test_given_text_is_no_response_and_a_tool_call_is_a_step() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    drawn, given, untraced = scored("a", 4), scored("b", 4), scored("c", 4)
    tagged = scored("d", 4)
    texts = Texts(
        [traced(drawn, pieces=("so ", call[:20], call[20:], " end")), traced(given, finish=""), traced(tagged)]
    )
    samples = {name: Sample(id=name, tags=("fixed",) if name == "d" else ()) for name in "abcd"}
    found = spoken([drawn, given, untraced, tagged], samples, texts, ("", ""))
    assert (found.whole.tokens.tolist(), found.given, found.calls.tokens.tolist()) == ([4], 3, [2])
    assert found.drawn.refusal() is None
    assert "not raw" in str(spoken([drawn], samples, texts, ("", "processed_logprobs")).drawn.refusal())


def test_the_tokens_of_calls_are_grouped_by_the_step_that_a_sample_is_tagged_with() -> None:
    """The candidate is exact at the first steps and off at the later ones; words beside the calls do not count."""
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    pieces = ("so ", call[:20], call[20:], " end")
    rows, samples = list[Joined](), dict[str, Sample]()
    for talk in range(25):
        for number in (1, 2, 7, 30):
            one = scored(f"t{talk:02d}.{number}", 4, cluster=f"t{talk:02d}")
            rows.append(replace(one, candidate=one.reference) if number < 3 else one)
            samples[one.sample] = Sample(id=one.sample, cluster=one.cluster, tags=("tools", "fixed", f"step:{number}"))
    texts = Texts(traced(one, pieces=pieces, finish="fixed") for one in rows)
    found = streamed(rows, samples, texts, 0.05)
    assert found is not None
    calls = found.result.by_position.calls
    assert [(row.name, row.tokens, row.prompts) for row in calls] == [
        ("steps 1–2", 100, 25),
        ("steps 6–10", 50, 25),
        ("steps 21 and later", 50, 25),
    ]
    assert calls[0].mean == 0.0 < calls[1].low
    kl = [alone(one) for one in rows if one.sample.endswith(".7")]
    assert calls[1].mean == pytest.approx(np.mean([each[1:3] for each in kl]))
    [shown] = [one for one in maps([("cheap", found)], "90 %") if one.title == "Tool calls by step"]
    assert [row.cells[:3] for row in shown.rows] == [
        ("steps 1–2", "100", "25"),
        ("steps 6–10", "50", "25"),
        ("steps 21 and later", "50", "25"),
    ]


def alone(one: Joined) -> np.ndarray:
    p, q = one.reference, one.candidate
    return merged_bucket(p["top_ids"], p["top_logprobs"], q["top_ids"], q["top_logprobs"]).kl


def test_where_no_step_is_told_there_is_no_table_of_steps() -> None:
    found = streamed(ARMS, SAMPLES, TEXTS, 0.05)
    assert found is not None
    assert found.result.by_position.calls == ()
    assert "Tool calls by step" not in [one.title for one in maps([("cheap", found)], "90 %")]
    assert [step(Sample(id="a", tags=tags)) for tags in (("step:12",), ("step:",), ("step:x",), ())] == [12, 0, 0, 0]
