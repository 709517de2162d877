"""The suite that grades generated text, against an engine that says what a test wants."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from toys.engine import Toy, ToyOptions, tokens
from toys.runs import carry_out, run_file

from evalrig.engine import Chat, Launch, Sampling
from evalrig.errors import UsageError
from evalrig.suite import Attempt, ids_sha256
from evalrig.suites.short_answers import ShortAnswers, ShortAnswersOptions
from evalrig.types import Completion, Message, Outcome, State, Variant


class Parrot(Toy):
    """Answers every question with the same text, and keeps what it was asked."""

    def __init__(self, text: str, finish: str = "stop", prompt_tokens: int = 7) -> None:
        variant = Variant(name="parrot", role="reference", engine="toys.engine", weights="toy")
        super().__init__(variant, ToyOptions(), Launch(log=Path(), start_seconds=1, request_seconds=1))
        self.said = Completion(text=text, finish=finish, prompt_tokens=prompt_tokens, retries=2)
        self.asked: list[Any] = []
        self.sampled: list[Sampling] = []

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        self.asked.append(tuple(ids))
        self.sampled.append(sampling)
        return self.said

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        self.asked.append(chat)
        self.sampled.append(sampling)
        return self.said


ASK = (Message(role="user", content="6 * 7?"),)
ROW = {"id": "a", "messages": [{"role": "user", "content": "6 * 7?"}], "answers": ["42", "forty-two"], "match": "exact"}


def suite(folder: Path, *rows: Any, **options: Any) -> ShortAnswers:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows or (ROW,)) + "\n")
    return ShortAnswers("short_answers", ShortAnswersOptions(path=str(path), **options))


def attempted(asked: ShortAnswers, parrot: Parrot, epoch: int = 0) -> Attempt:
    async def go() -> Attempt:
        await parrot.start()
        return await asked.attempt(parrot, asked.samples()[0], epoch, None)

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("text", "finish", "state", "scores"),
    [
        ("42", "stop", State.SCORED, {"accuracy": 1.0}),
        ("Forty-two.", "stop", State.SCORED, {"accuracy": 1.0}),
        ("43", "stop", State.SCORED, {"accuracy": 0.0}),
        ("", "stop", State.SCORED, {"accuracy": 0.0}),
        ("I cannot answer that.", "stop", State.SCORED, {"accuracy": 0.0}),
        ("<think>42", "stop", State.SCORED, {"accuracy": 0.0}),
        ("42", "length", State.TRUNCATED, {}),
        ("", "length", State.TRUNCATED, {}),
        ("The answer is 42\nas", "length", State.SCORED, {"accuracy": 1.0}),
        ("The answer is 43\nas", "length", State.SCORED, {"accuracy": 0.0}),
    ],
)
def test_an_empty_answer_is_wrong_and_a_cut_one_is_truncated(
    text: str, finish: str, state: State, scores: dict[str, float], tmp_path: Path
) -> None:
    """Pitfalls 11 and 12: neither is missing, and neither is agreement."""
    found = attempted(suite(tmp_path), Parrot(text, finish))
    assert (found.state, found.scores, found.retries) == (state, scores, 2)
    assert found.trajectory.turns[0].text == text


def test_what_was_asked_is_what_is_digested(tmp_path: Path) -> None:
    parrot = Parrot("42")
    found = attempted(suite(tmp_path), parrot)
    assert parrot.asked == [tokens("<user>6 * 7?\n")]
    assert found.prompt_sha256 == ids_sha256(parrot.asked[0])
    assert parrot.sampled == [Sampling(max_tokens=512)]
    assert found.trajectory.answer == "42"


def test_a_plain_prompt_goes_through_no_template(tmp_path: Path) -> None:
    parrot = Parrot("42")
    attempted(suite(tmp_path, {"id": "a", "prompt": "6 * 7 =", "answers": ["42"]}), parrot)
    assert parrot.asked == [tokens("6 * 7 =")]


def test_the_chat_route_is_asked_for_and_its_prompt_is_compared_too(tmp_path: Path) -> None:
    asked = suite(tmp_path, route="chat")
    assert asked.needs().chat
    assert not suite(tmp_path).needs().chat
    parrot = Parrot("42")
    found = attempted(asked, parrot)
    assert parrot.asked == [Chat(messages=ASK)]
    assert found.scores == {"accuracy": 1.0}
    other = attempted(asked, Parrot("42", prompt_tokens=8))
    assert found.prompt_sha256 != other.prompt_sha256, "the route's own template may differ from the tokenizer's"


def test_one_answer_repeated_for_every_epoch(tmp_path: Path) -> None:
    """Pitfall 2: five repeats of one cached answer. A sampled attempt has a seed of its own, the same in every arm."""
    asked, parrot, again = suite(tmp_path, temperature=0.7), Parrot("42"), Parrot("42")
    for epoch in range(5):
        attempted(asked, parrot, epoch)
        attempted(asked, again, epoch)
    assert len({sampling.seed for sampling in parrot.sampled}) == 5
    assert all(sampling.temperature == 0.7 for sampling in parrot.sampled)
    assert parrot.sampled == again.sampled
    other = Parrot("42")
    attempted(suite(tmp_path, temperature=0.7, seed=1), other)
    assert other.sampled[0].seed not in {sampling.seed for sampling in parrot.sampled}


def test_answers_and_match_are_part_of_the_registered_sample(tmp_path: Path) -> None:
    """Pitfall 3: a changed answer key must show in the digest of the samples."""
    [sample] = suite(tmp_path, {**ROW, "tags": ["sums", "easy"]}).samples()
    assert sample.target == "42\nforty-two"
    assert sample.tags == ("exact", "sums", "easy")
    assert sample.messages == ASK


BAD = {
    "no file": (None, "cannot read '"),
    "not JSON": ("{", "questions.jsonl line 1: "),
    "no answers": ({**ROW, "answers": []}, "line 1: no answer is given; correct `answers` or `match`"),
    "an answer that is none": ({**ROW, "match": "number"}, "line 1: 'forty-two' is no answer in one line for match"),
    "an unknown match": ({**ROW, "match": "fuzzy"}, "line 1: Invalid enum value 'fuzzy' - at `$.match`; a line holds"),
    "a typo": ({**ROW, "anwsers": []}, "line 1: Object contains unknown field `anwsers`; a line holds"),
    "nothing asked": ({"id": "a", "answers": ["42"]}, "line 1: needs either `prompt` or `messages`; give one of them"),
    "asked twice": ({**ROW, "prompt": "x"}, "line 1: needs either `prompt` or `messages`; give one of them"),
    "answered already": (
        {**ROW, "messages": [{"role": "assistant", "content": "42"}]},
        "line 1: the last message is the assistant's; end with the user's",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_line(name: str, tmp_path: Path) -> None:
    row, why = BAD[name]
    asked = suite(tmp_path, row) if row else ShortAnswers("s", ShortAnswersOptions(path=str(tmp_path / "none")))
    with pytest.raises(UsageError) as caught:
        asked.samples()
    assert why in str(caught.value)
    assert str(caught.value).startswith(f"suites.{asked.name}.options.path: ")
    assert "\n" not in str(caught.value)


def test_an_id_is_given_once_and_a_prompt_has_no_chat_route(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 2: id 'a' occurs twice; rename one"):
        suite(tmp_path, ROW, ROW).samples()
    with pytest.raises(UsageError, match="has no chat route; give `messages`, or set route: completion"):
        suite(tmp_path, {"id": "a", "prompt": "6 * 7 =", "answers": ["42"]}, route="chat").samples()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_tokens": 0}, "max_tokens is at least 1"),
        ({"temperature": -1.0}, "temperature is in 0..2"),
        ({"route": "chatt"}, "no route 'chatt'; known: completion, chat"),
    ],
)
def test_options_out_of_range_are_one_line(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        suite(tmp_path, **options)


def toy_questions(folder: Path, rows: int = 64) -> Path:
    """Questions of which the toy's reference answers nearly all: their answers are what it says."""
    variant = Variant(name="reference", role="reference", engine="toys.engine", weights="toy")

    async def said() -> list[dict[str, Any]]:
        toy = Toy(variant, ToyOptions(), Launch(log=Path(), start_seconds=1, request_seconds=1))
        await toy.start()
        found: list[dict[str, Any]] = []
        for number in range(rows):
            messages = [{"role": "user", "content": f"question {number}"}]
            ids = await toy.tokenize([Message(role="user", content=f"question {number}")])
            text = (await toy.generate(ids, Sampling(max_tokens=2000))).text
            wanted = "no such text" if number % 5 == 0 else text
            found.append({"id": f"q-{number}", "messages": messages, "answers": [wanted], "match": "verbatim"})
        return found

    path = folder / "toy-questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in asyncio.run(said())))
    return path


def test_a_whole_run_is_graded_on_generated_text(tmp_path: Path) -> None:
    """A candidate that says the same passes, one that says other things fails."""
    suites = {
        "short_answers": {
            "kind": "short_answers",
            "options": {"path": str(toy_questions(tmp_path)), "max_tokens": 2000},
        }
    }
    gates = {"g": {"kind": "noninferior", "suite": "short_answers", "metric": "accuracy", "margin": 0.05}}
    candidates = {"same": {"noise": 1.5e-5}, "worse": {"noise": 1.0}}
    finished = carry_out(run_file(tmp_path, candidates, suites=suites, gates=gates))
    assert {name: one.outcome for name, one in finished.verdict.candidates.items()} == {
        "same": Outcome.GO,
        "worse": Outcome.NO_GO,
    }
    [accounting] = [a for a in finished.verdict.accounting if a.variant == "worse"]
    assert accounting.planned == sum(accounting.states.values()) == 64
