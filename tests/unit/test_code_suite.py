"""What the coding suites share: how a problem is asked, and what an answer and its mark become. Nothing is run here."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from toys.engine import tokens
from toys.runs import run_file
from toys.scribe import Scribe, written

from evalrig.assemble import assemble
from evalrig.code_suite import FAILURES, SOLVED, CodeOptions
from evalrig.config.load import load_run
from evalrig.errors import UsageError
from evalrig.extraction import BODY_STOPS
from evalrig.proctor import Exam, Mark
from evalrig.rehearsal import rehearsed
from evalrig.sandbox import Booth, SandboxUnavailable
from evalrig.suite import Attempt, ids_sha256
from evalrig.suites.code_basics import CodeBasics, CodeBasicsOptions
from evalrig.suites.code_jsonl import CodeJsonl, CodeJsonlOptions
from evalrig.types import Message, State

PROMPT = 'def f(x):\n    """Add one."""\n'
ROW = {"id": "a", "prompt": PROMPT, "entry_point": "f", "tests": ["assert f(1) == 2"]}
GOOD = "```python\ndef f(x):\n    return x + 1\n```"


class Examiner:
    """In place of the proctor: gives one mark, and keeps the exams."""

    def __init__(self, failure: Any = "", error: Exception | None = None) -> None:
        self.failure, self.error = failure, error
        self.exams: list[Exam] = []

    async def __call__(self, booth: Booth, exam: Exam) -> Mark:
        self.exams.append(exam)
        if self.error:
            raise self.error
        return Mark(failure=self.failure)


@pytest.fixture
def examiner(monkeypatch: pytest.MonkeyPatch) -> Examiner:
    found = Examiner()
    monkeypatch.setattr("evalrig.code_suite.mark", found)
    return found


def suite(folder: Path, *rows: Any, **options: Any) -> CodeJsonl:
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or (ROW,)))
    return CodeJsonl("code", CodeJsonlOptions(path=str(path), **options))


def attempted(asked: CodeJsonl, text: str, finish: str = "stop", epoch: int = 0) -> Attempt:
    return written(asked, asked.samples()[0], Scribe(lambda _: text, finish), epoch)


@pytest.mark.parametrize("failure", ["", "syntax_error", "wrong_answer", "timeout", "crash"])
def test_a_mark_is_a_score_and_a_failure_has_a_name(failure: str, examiner: Examiner, tmp_path: Path) -> None:
    examiner.failure = failure
    found = attempted(suite(tmp_path, wall_seconds=3.0), GOOD)
    assert (found.state, found.scores) == (State.SCORED, {SOLVED: float(not failure)})
    assert found.trajectory.failure == failure
    assert failure in ("", *FAILURES)
    assert found.trajectory.answer == "def f(x):\n    return x + 1"
    assert (found.sandbox, found.retries) == ("idle 1", 1)
    assert examiner.exams == [
        Exam(
            code="def f(x):\n    return x + 1",
            tests="assert f(1) == 2",
            entry_point="f",
            wall_seconds=3.0,
        )
    ]


def test_an_answer_without_a_program_is_wrong_and_nothing_is_run(examiner: Examiner, tmp_path: Path) -> None:
    """Pitfall 11: an empty answer is model behaviour, in the denominator."""
    for text in ("", "I cannot do that.", f"<think>{GOOD}"):
        found = attempted(suite(tmp_path), text)
        assert (found.state, found.scores, found.trajectory.failure) == (State.SCORED, {SOLVED: 0.0}, "no_code")
    assert not examiner.exams


@pytest.mark.parametrize(
    ("text", "failure", "state", "scores", "named"),
    [
        (f"{GOOD}\nThis fun", "", State.SCORED, {SOLVED: 1.0}, ""),
        (f"{GOOD}\nThis fun", "wrong_answer", State.SCORED, {SOLVED: 0.0}, "wrong_answer"),
        ("```python\ndef f(x):\n    return x + 1\n    # do", "", State.SCORED, {SOLVED: 1.0}, ""),
        ("```python\ndef f(x):\n    y = x\n    retu", "wrong_answer", State.TRUNCATED, {}, "truncated"),
        ("Let me see", "", State.TRUNCATED, {}, "truncated"),
        ("", "", State.TRUNCATED, {}, "truncated"),
    ],
)
def test_a_cut_answer_counts_if_it_passes_or_its_program_had_ended(
    text: str, failure: str, state: State, scores: dict[str, float], named: str, examiner: Examiner, tmp_path: Path
) -> None:
    """Pitfall 12: cut is neither missing nor right, except where the tests say that nothing was lost."""
    examiner.failure = failure
    found = attempted(suite(tmp_path), text, "length")
    assert (found.state, found.scores, found.trajectory.failure) == (state, scores, named)


def test_thinking_that_was_cut_holds_no_program(examiner: Examiner, tmp_path: Path) -> None:
    """Pitfall 16: a program that is thought about is no answer."""
    found = attempted(suite(tmp_path, thinking=True), f"I could write {GOOD}\nBut", "length")
    assert (found.state, found.trajectory.failure) == (State.TRUNCATED, "truncated")
    assert not examiner.exams


@pytest.mark.parametrize("error", [SandboxUnavailable("bwrap is gone"), UsageError("tests of f: no name g")])
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_failure_of_the_grader_is_no_score(error: Exception, finish: str, examiner: Examiner, tmp_path: Path) -> None:
    """Pitfall 7: an infrastructure failure scored 0."""
    examiner.error = error
    found = attempted(suite(tmp_path), GOOD.removesuffix("```"), finish)
    assert (found.state, found.scores, found.trajectory.failure) == (State.UNSCORED, {}, "")
    assert found.trajectory.error == f"not graded: {error}"


def test_what_is_run_has_the_imports_that_the_program_lacks(examiner: Examiner, tmp_path: Path) -> None:
    program = "def f(x: List[int]):\n    return math.floor(x) + 1"
    found = attempted(suite(tmp_path), f"```python\n{program}\n```")
    assert examiner.exams[0].code == f"from typing import List; import math\n{program}"
    assert found.trajectory.answer == program, "the record keeps what the model wrote"


def test_a_program_without_a_mark_is_no_score(tmp_path: Path) -> None:
    asked = suite(tmp_path)
    found = asked.graded((), "x = 1", None, "")
    assert (found.state, found.scores) == (State.UNSCORED, {})


def test_what_is_asked_in_a_conversation(examiner: Examiner, tmp_path: Path) -> None:
    asked, scribe = suite(tmp_path), Scribe(lambda _: GOOD)
    [sample] = asked.samples()
    found = written(asked, sample, scribe)
    [message] = sample.messages
    assert message.role == "user"
    assert PROMPT.rstrip() in message.content
    assert scribe.asked == [tokens(f"<user>{message.content}\n")]
    assert found.prompt_sha256 == ids_sha256(scribe.asked[0])
    assert (scribe.sampled[0].stop, scribe.sampled[0].max_tokens, scribe.sampled[0].seed) == ((), 512, None)
    assert not asked.needs().chat
    assert suite(tmp_path, route="chat").needs().chat


def test_a_plain_prompt_is_continued_and_ends_at_the_margin(examiner: Examiner, tmp_path: Path) -> None:
    asked, scribe = suite(tmp_path, prompting="base"), Scribe(lambda _: "    return x + 1\n\n\nprint(f(1))")
    found = written(asked, asked.samples()[0], scribe)
    assert scribe.asked == [tokens(PROMPT)]
    assert scribe.sampled[0].stop == BODY_STOPS
    assert found.trajectory.answer == f"{PROMPT}    return x + 1\n"
    assert found.scores == {SOLVED: 1.0}


def test_a_later_turn_draws_with_a_seed_of_its_own(tmp_path: Path) -> None:
    asked, scribe = suite(tmp_path, temperature=0.8), Scribe(lambda _: GOOD)
    [sample] = asked.samples()
    said = (*sample.messages, Message(role="assistant", content="x"), Message(role="user", content="wrong"))

    async def go() -> None:
        await scribe.start()
        await asked.ask(scribe, sample, 0)
        await asked.ask(scribe, sample, 0, said)

    asyncio.run(go())
    assert scribe.asked[1] == tokens("".join(f"<{m.role}>{m.content}\n" for m in said))
    assert scribe.sampled[0].seed != scribe.sampled[1].seed


def test_one_answer_repeated_for_every_epoch(examiner: Examiner, tmp_path: Path) -> None:
    """Pitfall 2: each epoch draws with a seed of its own, the same in every arm."""
    asked, scribes = suite(tmp_path, temperature=0.8), [Scribe(lambda _: GOOD) for _ in range(2)]
    for scribe in scribes:
        for epoch in range(5):
            written(asked, asked.samples()[0], scribe, epoch)
    assert len({sampling.seed for sampling in scribes[0].sampled}) == 5
    assert scribes[0].sampled == scribes[1].sampled


def test_the_tests_are_part_of_the_registered_sample(tmp_path: Path) -> None:
    """Pitfall 3: a changed test must show in the digest of the samples."""
    [sample] = suite(tmp_path).samples()
    [other] = suite(tmp_path, {**ROW, "tests": "assert f(1) == 3"}).samples()
    assert sample.target != other.target


def test_metrics_follow_the_options(tmp_path: Path) -> None:
    found = suite(tmp_path, pass_at=[5, 1, 2], temperature=0.8).metrics
    assert [(m.name, m.score, m.over, m.k) for m in found] == [
        ("pass@1", SOLVED, "mean", 1),
        ("pass@2", SOLVED, "any", 2),
        ("pass^2", SOLVED, "all", 2),
        ("pass@5", SOLVED, "any", 5),
        ("pass^5", SOLVED, "all", 5),
    ]
    assert {(m.kind, m.scale, m.units) for m in found} == {("binary", 100.0, "points")}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens is at least 1"),
    ({"temperature": 3.0}, "temperature is in 0..2"),
    ({"route": "chatt"}, "no route 'chatt'; known: completion, chat"),
    ({"prompting": "few-shot"}, "prompting: no 'few-shot'; known: chat, base"),
    ({"prompting": "base", "thinking": True}, "need a conversation; set prompting: chat"),
    ({"prompting": "base", "route": "chat"}, "need a conversation; set prompting: chat"),
    ({"pass_at": []}, "give numbers of 1 or more"),
    ({"pass_at": [0]}, "give numbers of 1 or more"),
    ({"pass_at": [1, 5]}, "at temperature 0 all answers are one answer; raise `temperature`"),
    ({"wall_seconds": 0.0}, "give more than 0 and at most 600"),
]


@pytest.mark.parametrize(("options", "why"), BAD)
def test_options_out_of_range_are_one_line(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^suites\.code\.options") as caught:
        suite(tmp_path, **options)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def planned(folder: Path, epochs: int) -> Path:
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps({**ROW, "id": f"p-{n}"}) + "\n" for n in range(12)))
    options = {"path": str(path), "pass_at": [1, 5], "temperature": 0.8}
    suites = {"x": {"kind": "code_jsonl", "epochs": epochs, "options": options}}
    gates = {"g": {"kind": "noninferior", "suite": "x", "metric": "pass^5", "margin": 0.05}}
    return run_file(folder, {"cheap": {"noise": 0.1}}, suites=suites, gates=gates)


def test_more_draws_than_epochs_are_refused_before_anything_starts(tmp_path: Path) -> None:
    path = planned(tmp_path, 4)
    with pytest.raises(UsageError) as caught:
        assemble(load_run(path), path, lambda _: None)
    assert str(caught.value) == (
        f"{path}: suites.x.options.pass_at: 5 needs epochs >= 5; raise suites.x.epochs or lower pass_at"
    )


def test_a_rehearsal_keeps_as_many_epochs_as_are_drawn(tmp_path: Path) -> None:
    path = planned(tmp_path, 8)
    config = load_run(path)
    small = rehearsed(config, assemble(config, path, lambda _: None), path)
    assert small.suites["x"].epochs == 5
    assert assemble(small, path, lambda _: None).plan.suite("x").epochs == 5


def basics(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> CodeBasics:
    (folder / "coding_basics").mkdir()
    row = {**ROW, "family": "sums", "level": "easy", "canonical_solution": f"{PROMPT}    return x + 1\n"}
    rows = [row, {**row, "id": "b", "family": "lists", "tags": ["demo"], "cluster": "c", "wrong_solutions": ["x"]}]
    (folder / "coding_basics" / "problems.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    monkeypatch.setattr("evalrig.suites.code_basics.content_dir", lambda _: folder)
    return CodeBasics("coding_basics", CodeBasicsOptions(**options))


def test_the_basics_are_continued_and_can_be_narrowed_to_a_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = basics(tmp_path, monkeypatch)
    assert isinstance(asked.options, CodeOptions)
    first, second = asked.samples()
    assert (first.prompt, first.messages, first.tags) == (PROMPT, (), ("sums", "easy"))
    assert (second.tags, second.cluster) == (("lists", "easy", "demo"), "c")
    asked.options.tag = "demo"
    assert asked.samples() == [second]
    asked.options.tag = "demon"
    with pytest.raises(UsageError, match="tag: no problem has 'demon'; known: demo, easy, lists, sums"):
        asked.samples()
