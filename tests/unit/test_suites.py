"""The suites, against a toy model whose exact likelihoods are known."""

import asyncio
import itertools
import json
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from toys.engine import END, Toy, ToyOptions, tokens
from toys.runs import REFERENCE, likelihood, piqa_file, prompts_file

from evalrig.engine import Engine, Launch, Penalties, Sampling
from evalrig.errors import EngineError, UsageError
from evalrig.suite import Attempt, Suite, ids_sha256, sound
from evalrig.suites.kl import Kl, KlOptions
from evalrig.suites.piqa import Piqa, PiqaOptions
from evalrig.types import NON_FINITE, Completion, Sample, State, Trace, Trajectory, Variant

T = TypeVar("T")


def with_toy(then: Any, **options: Any) -> Any:
    """What `then(engine)` gives with a started toy engine."""
    variant = Variant(name="toy", role="reference", engine="toys.engine", weights="toy")

    async def go() -> Any:
        toy = Toy(variant, ToyOptions(**options), Launch(log=Path(), start_seconds=1, request_seconds=1))
        await toy.start()
        return await then(toy)

    return asyncio.run(go())


def attempted(suite: Suite, sample: Sample, trace: Trace | None = None, **options: Any) -> Attempt:
    def then(engine: Engine) -> Awaitable[Attempt]:
        return suite.attempt(engine, sample, 0, trace)

    return with_toy(then, **options)


# ---- piqa


def piqa(path: Path) -> Piqa:
    return Piqa("piqa", PiqaOptions(path=str(path)))


def written(path: Path, *rows: Any) -> Piqa:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return piqa(path)


def row(question: str = "why?", a: str = "this", b: str = "that", answer: str = "A. this") -> dict[str, str]:
    return {"question": question, "options": f"A. {a}\nB. {b}", "answer": answer}


def test_off_by_one_continuation_scoring(tmp_path: Path) -> None:
    """Pitfall 31: every token of the choice, none of the prompt, each given exactly what is before it."""
    suite = piqa(piqa_file(tmp_path / "piqa.jsonl", rows=8))
    for sample in suite.samples():
        found = attempted(suite, sample)
        for turn, choice in zip(found.trajectory.turns, sample.choices, strict=True):
            assert turn.token_ids == tokens(f" {choice}")
            assert turn.prompt_tokens == len(tokens(sample.prompt))
            assert sum(turn.logprobs) == pytest.approx(likelihood(sample.prompt, choice), rel=1e-6)
        right, wrong = (likelihood(sample.prompt, c) for c in sorted(sample.choices, key=lambda c: c != sample.target))
        assert found.scores["lead"] == pytest.approx(right - wrong, rel=1e-5)
        assert found.scores["accuracy"] == float(right > wrong)
        assert (
            found.trajectory.answer
            == sample.choices[int(np.argmax([likelihood(sample.prompt, c) for c in sample.choices]))]
        )


def test_a_tie_is_no_knowledge_of_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toys.engine.table", lambda *_: np.full_like(REFERENCE, -np.log(REFERENCE.shape[0])))
    suite = written(tmp_path / "p", row(a="this", b="that"))
    found = attempted(suite, suite.samples()[0])
    assert found.scores == {"accuracy": 0.0, "lead": 0.0}
    assert found.trajectory.answer == "that"


def test_the_place_of_the_right_choice_does_not_matter(tmp_path: Path) -> None:
    first = written(tmp_path / "a", row(a="this", b="that", answer="A. this"))
    second = written(tmp_path / "b", row(a="that", b="this", answer="B. this"))
    a, b = (attempted(suite, suite.samples()[0]) for suite in (first, second))
    assert a.scores == b.scores
    assert a.trajectory.answer == b.trajectory.answer


def test_both_arms_digest_the_tokens_they_saw(tmp_path: Path) -> None:
    suite = written(tmp_path / "p", row())
    [sample] = suite.samples()
    digest = attempted(suite, sample).prompt_sha256
    assert digest == attempted(suite, sample, noise=1.0).prompt_sha256
    assert digest == ids_sha256([*tokens(f"{sample.prompt} this"), *tokens(f"{sample.prompt} that")])


def test_a_repeated_question_is_no_new_evidence(tmp_path: Path) -> None:
    suite = written(tmp_path / "p", row("a?"), row("b?"), row(" a? ", "other", "that", "B. that"))
    assert [(sample.id, sample.prompt) for sample in suite.samples()] == [
        ("piqa-0000", "Question: a?\nAnswer:"),
        ("piqa-0001", "Question: b?\nAnswer:"),
    ]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (row(answer="A. neither"), "not two choices with the answer among them; restore the file"),
        (row(answer="A."), "not two choices with the answer among them; restore the file"),
        (row(a="same", b="same", answer="A. same"), "not two choices with the answer among them; restore the file"),
        (row(a="", b="that", answer="B. that"), "not two choices with the answer among them; restore the file"),
        ({**row(), "options": "A. only one"}, "not two choices with the answer among them; restore the file"),
        ({**row(), "options": "A. a\nB. b\nA. c"}, "not two choices with the answer among them; restore the file"),
        ({"question": "q"}, "Object missing required field `options`; a line holds question, options, answer"),
        ("{", "Input data was truncated; a line holds question, options, answer"),
        ("", "Input data was truncated; a line holds question, options, answer"),
    ],
)
def test_a_malformed_row_names_file_and_line(tmp_path: Path, bad: Any, why: str) -> None:
    suite = written(tmp_path / "p.jsonl", row(), bad, row("other?"))
    with pytest.raises(UsageError) as caught:
        suite.samples()
    assert str(caught.value) == f"{tmp_path / 'p.jsonl'}: line 2: {why}"


def test_nan_from_the_engine_is_missing_and_not_a_wrong_answer(tmp_path: Path) -> None:
    """Pitfalls 27 and 36: a comparison with NaN would say "wrong"."""
    suite = written(tmp_path / "p", row())
    found = sound(attempted(suite, suite.samples()[0], nan_every=1), suite)
    assert (found.state, found.scores, found.trajectory.error) == (State.INFRA, {}, NON_FINITE)
    assert all(not turn.logprobs for turn in found.trajectory.turns)


def test_what_is_finite_is_left_alone(tmp_path: Path) -> None:
    whole = Attempt(trajectory=Trajectory(turns=(Completion(text="x", logprobs=(-1.0,)),)), scores={"a": 1.0})
    assert sound(whole, written(tmp_path / "p", row())) is whole


def test_a_binary_score_beyond_one_is_refused_when_made_not_when_judged(tmp_path: Path) -> None:
    suite = written(tmp_path / "p", row())
    with pytest.raises(UsageError, match=r"accuracy scored 3.0; a binary score lies in 0..1"):
        sound(Attempt(trajectory=Trajectory(), scores={"accuracy": 3.0}), suite)


# ---- kl


def kl(folder: Path, **options: Any) -> Kl:
    own: dict[str, Any] = {"tokens": 12, "top_k": 20, **options}
    return Kl("kl", KlOptions(prompts=str(prompts_file(folder / "prompts.jsonl", 12)), **own))


def traced(suite: Kl, sample: Sample, seed: int = 5, **options: Any) -> Trace:
    return with_toy(lambda engine: suite.trace(engine, sample, 0, seed), **options)


def test_a_trace_is_the_reference_s_own_answer_and_repeats_with_its_seed(tmp_path: Path) -> None:
    suite = kl(tmp_path)
    first, second, *_ = suite.samples()
    trace = traced(suite, first)
    assert trace == traced(suite, first)
    assert trace.token_ids != traced(suite, first, seed=6).token_ids, "repeats must not be one cached answer"
    assert trace.prompt_ids == tokens(f"<{first.messages[0].role}>{first.messages[0].content}\n")
    assert len(trace.token_ids) == 12 or trace.token_ids[-1] == END
    assert traced(suite, second).sample == second.id


def test_every_variant_scores_the_very_same_tokens(tmp_path: Path) -> None:
    suite = kl(tmp_path)
    sample = suite.samples()[0]
    trace = traced(suite, sample)
    stream = [*trace.prompt_ids[-1:], *trace.token_ids]
    exact = [REFERENCE[a, b] for a, b in itertools.pairwise(stream)]
    own, other = attempted(suite, sample, trace), attempted(suite, sample, trace, noise=1.0)
    assert own.tokens is not None
    assert other.tokens is not None
    assert tuple(own.tokens.token_ids) == tuple(other.tokens.token_ids) == trace.token_ids
    assert own.tokens.logprobs == pytest.approx(exact)
    assert own.scores == {"logprob": pytest.approx(np.mean(exact)), "tokens": float(len(trace.token_ids))}
    assert own.tokens.top_ids.shape == (len(trace.token_ids), 20)
    assert other.tokens.logprobs != pytest.approx(exact)


def test_another_template_shows_in_the_prompt_digest_and_not_in_the_scored_stream(tmp_path: Path) -> None:
    suite = kl(tmp_path)
    sample = suite.samples()[0]
    trace = traced(suite, sample)
    own, other = attempted(suite, sample, trace), attempted(suite, sample, trace, template="[{role}]{content}")
    assert own.prompt_sha256 != other.prompt_sha256
    assert own.tokens is not None
    assert other.tokens is not None
    assert np.array_equal(own.tokens.logprobs, other.tokens.logprobs)


def test_the_audit_window_is_the_same_for_all_variants_and_lies_in_the_answer(tmp_path: Path) -> None:
    suite = kl(tmp_path, audit_share=1.0, audit_tokens=4)
    for sample in suite.samples():
        trace = traced(suite, sample)
        audits = [attempted(suite, sample, trace, **options).audit for options in ({}, {"noise": 1.0})]
        rows = min(4, len(trace.token_ids))
        for audit in audits:
            assert audit is not None
            assert audit.top_ids.shape == (rows, 64)
            assert audit.token_ids.tobytes() in np.array(trace.token_ids, np.int32).tobytes()
        assert audits[0] is not None
        assert audits[1] is not None
        assert np.array_equal(audits[0].token_ids, audits[1].token_ids)


def test_an_engine_that_has_no_whole_vocabulary_is_not_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "capabilities", replace(Toy.capabilities, top_logprobs=20))
    suite = kl(tmp_path, audit_share=1.0)
    sample = suite.samples()[0]
    found = attempted(suite, sample, traced(suite, sample))
    assert (found.state, found.audit) == (State.SCORED, None)


@pytest.mark.parametrize(("leg", "method"), [("prefill", "score"), ("cached_prefix", "score_cached")])
def test_the_leg_says_by_which_way_the_tokens_and_the_audit_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leg: str, method: str
) -> None:
    calls: list[tuple[str, int]] = []
    for name in ("score", "score_cached"):
        original = getattr(Toy, name)

        async def counted(self: Toy, ids: Any, start: int, top_k: int = 0, name: str = name, o: Any = original) -> Any:
            calls.append((name, top_k))
            return await o(self, ids, start, top_k)

        monkeypatch.setattr(Toy, name, counted)
    suite = kl(tmp_path, audit_share=1.0, leg=leg)
    assert suite.needs().cached_prefix == (leg == "cached_prefix")
    sample = suite.samples()[0]
    attempted(suite, sample, traced(suite, sample))
    assert calls == [(method, 20), (method, -1)]


def test_a_leg_that_is_none_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^suites\.kl\.options\.leg: no leg 'warm'; give prefill or cached_prefix or decode$"
    ):
        Kl("kl", KlOptions(leg="warm"))


def test_the_audited_share_is_about_what_was_asked(tmp_path: Path) -> None:
    suite = kl(tmp_path, audit_share=1 / 3, audit_tokens=4)
    windows = [
        suite._window(Trace(sample=f"p-{n}", epoch=0, prompt_ids=(1, 2), token_ids=(3,) * 12)) for n in range(300)
    ]
    audited = [window for window in windows if window]
    assert 75 < len(audited) < 125
    assert all(2 <= start < stop <= 14 and stop - start == 4 for start, stop in audited)
    assert len(set(audited)) == 9, "windows lie at every place an answer has"


def test_a_nan_row_keeps_its_place_and_brings_no_score(tmp_path: Path) -> None:
    suite = kl(tmp_path)
    sample = suite.samples()[0]
    found = attempted(suite, sample, traced(suite, sample), nan_every=1)
    assert found.scores == {}
    assert found.tokens is not None
    assert np.isnan(found.tokens.logprobs).sum() == 1
    assert sound(found, suite) == found


def test_an_empty_answer_of_the_reference_is_missing_in_every_arm(tmp_path: Path) -> None:
    suite = kl(tmp_path)
    sample = suite.samples()[0]
    found = attempted(suite, sample, Trace(sample=sample.id, epoch=0, prompt_ids=(5, 6), token_ids=()))
    assert (found.state, found.scores) == (State.UNSCORED, {})
    assert found.trajectory.error == "the reference answered no token: there is nothing to compare"


def test_nothing_is_cut_from_the_distribution_that_a_trace_is_drawn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truncated sampling makes the mean over tokens something else than the KL of answers."""
    asked: list[Sampling] = []
    for name in ("generate", "decode"):
        original = getattr(Toy, name)

        async def noted(self: Toy, ids: Any, sampling: Sampling, *k: int, o: Any = original) -> Any:
            asked.append(sampling)
            return await o(self, ids, sampling, *k)

        monkeypatch.setattr(Toy, name, noted)
    for leg in ("prefill", "decode"):
        suite = kl(tmp_path, leg=leg)
        sample = suite.samples()[0]
        suite.settle([sample])
        attempted(suite, sample, traced(suite, sample))
    assert len(asked) == 4  # each leg: the trace (the decode leg's is not used), and the path check or the answer
    for sampling in asked:
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, -1, 0.0)
        assert (sampling.penalties, sampling.stop) == (Penalties(), ())


def test_an_engine_that_scores_other_tokens_than_given_is_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = kl(tmp_path)
    sample = suite.samples()[0]
    trace = traced(suite, sample)
    original = Toy.score

    async def shifted(self: Toy, ids: Any, start: int, top_k: int = 0) -> Any:
        return await original(self, [*ids[1:], 5], start, top_k)

    monkeypatch.setattr(Toy, "score", shifted)
    with pytest.raises(EngineError, match="toy: the engine scored other tokens than those it was given"):
        attempted(suite, sample, trace)


@pytest.mark.parametrize("line", ["{", '{"kind": "k"}', '{"id": "a", "kind": "k", "messages": [{"role": "user"}]}'])
def test_a_malformed_prompt_names_file_and_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(UsageError) as caught:
        Kl("kl", KlOptions(prompts=str(path))).samples()
    assert str(caught.value).startswith(f"suites.kl.options.prompts: {path} line 1: ")
    assert str(caught.value).endswith("; a line holds id, kind, messages or prompt, tools")


@pytest.mark.parametrize(
    "options", [{"tokens": 0}, {"top_k": 0}, {"audit_share": 0.0}, {"audit_share": 1.5}, {"audit_tokens": 0}]
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^suites\.kl\.options: tokens, top_k and audit_tokens are at least 1"):
        Kl("kl", KlOptions(**options))
