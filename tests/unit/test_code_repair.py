"""The suite that repairs programs: conversations with an engine that writes what a test wants, and marks that a test gives."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from toys.booth import booth
from toys.engine import Toy, ToyOptions
from toys.runs import carry_out, run_file
from toys.scribe import Idle

from evalrig.engine import Chat, Launch, Sampling
from evalrig.errors import EngineError, UsageError
from evalrig.proctor import Exam, Mark
from evalrig.sandbox import Booth, SandboxUnavailable
from evalrig.suite import Attempt
from evalrig.suites.code_repair import LONGEST, CodeRepair, CodeRepairOptions
from evalrig.types import Completion, Message, Sample, State, Tool, Variant

PROMPT = 'def f(x):\n    """Add one."""'
ROW = {
    "id": "add",
    "family": "sums",
    "level": "easy",
    "prompt": PROMPT,
    "entry_point": "f",
    "tests": "def check(candidate):\n    assert candidate(1) == 2\n",
    "wrong_solutions": ["\n    return x - 1\n", "\n    return x\n"],
}
GOOD = "```python\ndef f(x):\n    return x + 1\n```"
BAD = "```python\ndef f(x):\n    return x + 2\n```"
OPENING = """\
This Python program does not do what its description says.

```python
def f(x):
    \"\"\"Add one.\"\"\"
    return x - 1
```

Its tests fail: a test says no: got 0

Repair it. Answer with the whole program in one ```python block."""


class Author(Toy):
    """Answers turn by turn; an error in place of a text is raised."""

    def __init__(self, *answers: str | Completion | EngineError) -> None:
        variant = Variant(name="author", role="reference", engine="toys.engine", weights="toy")
        super().__init__(variant, ToyOptions(), Launch(log=Path(), start_seconds=1, request_seconds=1))
        self.answers_left = list(answers)
        self.heard: list[tuple[Message, ...]] = []

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        assert not isinstance(prompt, str)
        self.heard.append(tuple(prompt))
        return await super().tokenize(prompt, tools, answer)

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        answer = self.answers_left.pop(0)
        if isinstance(answer, EngineError):
            raise answer
        return answer if isinstance(answer, Completion) else Completion(text=answer, finish="stop", retries=1)

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        assert chat.messages == self.heard[-1], "the digest is of what was asked"
        return await self.generate((), sampling)


class Examiner:
    """In place of the proctor: `x + 1` passes, `x + 2` fails with what `detail` says, what `fails` holds is its own word."""

    def __init__(self) -> None:
        self.detail = "got 3"
        self.exams: list[Exam] = []

    async def __call__(self, booth: Booth, exam: Exam) -> Mark:
        self.exams.append(exam)
        if "boom" in exam.code:
            raise SandboxUnavailable("no room")
        if "x + 1" in exam.code:
            return Mark(failure="")
        if "while" in exam.code:
            return Mark(failure="timeout", detail="")
        return Mark(failure="wrong_answer", detail="got 0" if "x - 1" in exam.code else self.detail)


@pytest.fixture
def examiner(monkeypatch: pytest.MonkeyPatch) -> Examiner:
    found = Examiner()
    monkeypatch.setattr("evalrig.code_suite.mark", found)
    return found


def suite(folder: Path, *rows: Any, **options: Any) -> CodeRepair:
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or (ROW,)))
    return CodeRepair("code_repair", CodeRepairOptions(path=str(path), **options))


def written(asked: CodeRepair, sample: Sample, author: Author, held: Booth | None = None) -> Attempt:
    async def go() -> Attempt:
        asked.equip(held or Booth(Idle(), 1))
        await author.start()
        return await asked.attempt(author, sample, 0, None)

    return asyncio.run(go())


def attempted(asked: CodeRepair, *answers: str | Completion | EngineError) -> tuple[Attempt, Author]:
    author = Author(*answers)
    return written(asked, asked.samples()[0], author), author


@pytest.mark.parametrize(
    ("answers", "scores", "failure"),
    [
        ([GOOD], (1, 1, 1), ""),
        ([BAD, GOOD], (0, 1, 1), ""),
        ([BAD, "I am sorry.", GOOD], (0, 0, 1), ""),
        ([BAD, BAD, BAD], (0, 0, 0), "wrong_answer"),
        ([BAD, BAD, "I give up."], (0, 0, 0), "no_code"),
        ([BAD, BAD, "```python\ndef f(x):\n    while 1: pass\n```"], (0, 0, 0), "timeout"),
    ],
)
def test_solved_at_the_first_second_or_third_try_or_never(
    answers: list[str], scores: tuple[int, ...], failure: str, examiner: Examiner, tmp_path: Path
) -> None:
    found, author = attempted(suite(tmp_path), *answers)
    assert (found.state, found.trajectory.failure) == (State.SCORED, failure)
    assert found.scores == {f"solved@{turn}": score for turn, score in enumerate(scores, 1)}
    assert [turn.text for turn in found.trajectory.turns] == answers, "every turn is kept"
    assert len(author.heard) == len(answers), "who has solved it is not asked again"
    assert (found.retries, found.sandbox) == (len(answers), "idle 1")


def test_what_the_model_is_told_turn_by_turn(examiner: Examiner, tmp_path: Path) -> None:
    found, author = attempted(suite(tmp_path), BAD, "I am sorry.", BAD)
    first = Message(role="user", content=OPENING)
    again = Message(
        role="user",
        content="Its tests fail: a test says no: got 3\n\nTry again. Answer with the whole program in one ```python block.",
    )
    nothing = Message(
        role="user",
        content=(
            "There is nothing to test: no whole program was found in the answer\n\n"
            "Try again. Answer with the whole program in one ```python block."
        ),
    )
    said = [Message(role="assistant", content=text) for text in (BAD, "I am sorry.")]
    assert author.heard == [(first,), (first, said[0], again), (first, said[0], again, said[1], nothing)]
    assert found.prompt_sha256
    other, _ = attempted(suite(tmp_path), GOOD)
    assert other.prompt_sha256 == found.prompt_sha256, "later prompts hold the model's own words: arms may differ there"


def test_the_chat_route_passes_back_what_the_engine_gave_with_its_reasoning(examiner: Examiner, tmp_path: Path) -> None:
    thought = Message(role="assistant", content=BAD, reasoning="two is more than one")
    said = Completion(text=BAD, finish="stop", message=thought)
    _, author = attempted(suite(tmp_path, route="chat"), said, GOOD)
    assert author.heard[1][1] == thought


def test_what_a_program_says_is_shown_in_one_bounded_line(examiner: Examiner, tmp_path: Path) -> None:
    """The model's own program wrote it, and it is put into a prompt, a record and a report."""
    examiner.detail = "got\n\x1b[2J\u202e <object at 0x7f3a5c00d2e0> " + "x" * 100_000
    _, author = attempted(suite(tmp_path), BAD, GOOD)
    line, blank, rest = author.heard[1][-1].content.partition("\n")
    assert line.startswith("Its tests fail: a test says no: got \ufffd[2J\ufffd <object at 0x...> xxx")
    assert line.endswith("x ... (cut)")
    assert len(line) < LONGEST + 60
    assert (blank, rest.splitlines()[0]) == ("\n", "")


def test_an_answer_that_a_limit_cuts_in_the_second_turn_is_truncated(examiner: Examiner, tmp_path: Path) -> None:
    cut = Completion(text="Let me think about it", finish="length")
    found, author = attempted(suite(tmp_path), BAD, cut)
    assert (found.state, found.scores, found.trajectory.failure) == (State.TRUNCATED, {}, "truncated")
    assert len(found.trajectory.turns) == len(author.heard) == 2


@pytest.mark.parametrize(
    "words",
    [
        "HTTP 400: The input (2500 tokens) is longer than the model's context length (2048 tokens).",
        "HTTP 400: This model's maximum context length is 2048 tokens. However, your prompt contains 2500 input tokens",
        "HTTP 400: request (2500 tokens) exceeds the available context size (2048 tokens), try increasing it",
        "HTTP 400: Input length (1200 tokens) exceeds the maximum allowed length (1018 tokens).",
    ],
)
def test_a_conversation_that_outgrows_the_context_is_truncated(words: str, examiner: Examiner, tmp_path: Path) -> None:
    found, _ = attempted(suite(tmp_path), BAD, EngineError(words))
    assert (found.state, found.scores, found.trajectory.failure) == (State.TRUNCATED, {}, "truncated")
    assert found.trajectory.error == words
    assert [turn.finish for turn in found.trajectory.turns] == ["stop"], "what was said is kept as it was said"
    with pytest.raises(EngineError):
        attempted(suite(tmp_path), EngineError(words))


def test_an_engine_that_fails_in_the_second_turn_leaves_the_whole_attempt_missing(
    examiner: Examiner, tmp_path: Path
) -> None:
    """Pitfalls 7 and 11: not a failed repair, and not the score of the first turn either."""
    with pytest.raises(EngineError, match="HTTP 503"):
        attempted(suite(tmp_path), BAD, EngineError("HTTP 503"))


def test_a_sandbox_that_fails_is_no_answer_of_the_model(examiner: Examiner, tmp_path: Path) -> None:
    found, _ = attempted(suite(tmp_path), BAD, "```python\ndef f(x):\n    boom\n```")
    assert (found.state, found.scores, found.trajectory.failure) == (State.UNSCORED, {}, "")
    assert "no room" in found.trajectory.error
    first, author = attempted(suite(tmp_path, {**ROW, "wrong_solutions": ["\n    boom\n"]}), GOOD)
    assert (first.state, first.scores, author.heard) == (State.UNSCORED, {}, [])


def test_a_wrong_program_that_passes_is_refused(examiner: Examiner, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"suites\.code_repair: add\.1: the wrong program passes its tests; correct"):
        attempted(suite(tmp_path, {**ROW, "wrong_solutions": ["\n    return x + 1\n"]}), GOOD)


def test_every_arm_of_a_run_sees_the_same_first_message(examiner: Examiner, tmp_path: Path) -> None:
    """A time limit can strike once and not again: the wrong program is tested once a run."""
    asked = suite(tmp_path)
    first, _ = attempted(asked, GOOD)
    examiner.detail = "something else"
    again, author = attempted(asked, GOOD)
    assert first.prompt_sha256 == again.prompt_sha256
    assert author.heard[0][0].content == OPENING
    assert sum("x - 1" in exam.code for exam in examiner.exams) == 1


@limits(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(0, 8))
def test_scores_never_fall_from_turn_to_turn(turns: int, solved_at: int) -> None:
    """`solved_at` 0: never."""

    async def marked(self: Any, exam: Exam) -> Mark:
        return Mark(failure="" if "x + 1" in exam.code else "crash")

    with pytest.MonkeyPatch.context() as patch, pytest.MonkeyPatch.context() as files:
        patch.setattr(CodeRepair, "marked", marked)
        files.setattr("pathlib.Path.read_bytes", lambda _: json.dumps(ROW).encode())
        asked = CodeRepair("code_repair", CodeRepairOptions(path="problems.jsonl", turns=turns))
        answers = [GOOD if turn == solved_at else BAD for turn in range(1, turns + 1)]
        found = written(asked, asked.samples()[0], Author(*answers))
    scores = [found.scores[metric.name] for metric in asked.metrics]
    assert len(scores) == turns
    assert scores == sorted(scores)
    assert sum(scores) == (max(turns - solved_at + 1, 0) if solved_at else 0)


def test_samples_are_wrong_programs_of_one_problem_a_cluster(tmp_path: Path) -> None:
    plain = {**ROW, "id": "plain", "prompt": "Add one.", "level": "trivial", "cluster": "adding"}
    plain["wrong_solutions"] = ["def f(x):\n    return x - 1\n"]
    samples = suite(tmp_path, ROW, plain).samples()
    assert [(sample.id, sample.cluster, sample.tags) for sample in samples] == [
        ("add.1", "add", ("sums", "easy")),
        ("add.2", "add", ("sums", "easy")),
        ("plain.1", "adding", ("sums", "trivial")),
    ]
    assert samples[2].messages[0].content == (
        "This Python program does not do what its description says.\n\nAdd one.\n\n```python\ndef f(x):\n    return x - 1\n```"
    )
    assert [sample.id for sample in suite(tmp_path, ROW, plain, levels=["trivial"]).samples()] == ["plain.1"]
    changed = {**ROW, "tests": "def check(candidate):\n    assert candidate(1) == 3\n"}
    assert suite(tmp_path, changed).samples()[0].target != samples[0].target, "pitfall 3: a changed test must show"


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no wrong solution": ({"wrong_solutions": []}, {}, "'add' has no `wrong_solutions`; there is nothing to repair"),
    "one text for a list": ({"wrong_solutions": "x"}, {}, "line 1: .*`wrong_solutions` is a list of programs"),
    "no such level": ({}, {"levels": ["hard"]}, r"levels: no problem has \['hard'\]; known: easy, sums"),
    "no turn": ({}, {"turns": 0}, r"options\.turns: 0; give 1 to 20"),
    "pass@k": ({}, {"pass_at": [1, 4], "temperature": 0.7}, "leave `prompting` and `pass_at` out"),
    "no conversation": ({}, {"prompting": "base"}, "leave `prompting` and `pass_at` out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_asked_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    row, options, why = REFUSED[case]
    with pytest.raises(UsageError, match=why) as caught:
        suite(tmp_path, {**ROW, **row}, **options).samples()
    assert "\n" not in str(caught.value)


def test_the_metrics_are_the_turns(tmp_path: Path) -> None:
    assert [metric.name for metric in suite(tmp_path).metrics] == ["solved@1", "solved@2", "solved@3"]
    assert [metric.name for metric in suite(tmp_path, turns=1).metrics] == ["solved@1"]


# ---- with the real sandbox


def test_a_shipped_problem_is_repaired_in_the_real_sandbox() -> None:
    """What the first test run says is in the question, and the canonical solution solves it in the second turn."""
    asked = CodeRepair("code_repair", CodeRepairOptions(levels=["lists"]))
    sample = asked.samples()[0]
    row = _shipped(sample.id.rpartition(".")[0])
    still_wrong, right = (
        f"```python\n{row['prompt']}{body}\n```" for body in (row["wrong_solutions"][1], row["canonical_solution"])
    )
    author = Author(still_wrong, right)
    with booth() as real:
        found = written(asked, sample, author, real)
    assert found.scores == {"solved@1": 0.0, "solved@2": 1.0, "solved@3": 1.0}
    assert found.sandbox == real.label
    assert all("Its tests fail: " in heard[-1].content for heard in author.heard)


def _shipped(problem: str) -> Any:
    from evalrig.content import content_dir

    lines = (content_dir("suites") / "coding_basics" / "problems.jsonl").read_text("utf-8").splitlines()
    return next(row for row in map(json.loads, lines) if row["id"] == problem)


def test_a_whole_run_files_turns_failures_and_the_sandbox(examiner: Examiner, tmp_path: Path) -> None:
    """From the run file to the verdict; the toy engine writes nothing that is a program."""
    rows = [{**ROW, "id": f"add-{n}"} for n in range(30)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    suites = {
        "code_repair": {
            "kind": "code_repair",
            "options": {"path": str(tmp_path / "problems.jsonl"), "turns": 2, "max_tokens": 8},
        }
    }
    gates = {
        "solved": {"kind": "noninferior", "suite": "code_repair", "metric": "solved@2", "margin": 0.1},
        "drift": {"kind": "failure_drift", "suite": "code_repair", "margin": 0.1, "gating": False},
    }
    done = carry_out(run_file(tmp_path, {"quiet": {"noise": 0.02}}, suites=suites, gates=gates))
    records = done.folder.records("quiet", "code_repair")
    assert len(records) == 60
    assert {record.trajectory.failure for record in records} <= {"no_code", "truncated"}
    assert all(record.provenance.sandbox for record in records)
    assert {len(record.trajectory.turns) for record in records} <= {1, 2}
    solved, drift = done.verdict.candidates["quiet"].checks
    assert "no assay sensitivity: the reference scores 0.0%" in solved.reason or "held back" in solved.reason
    assert drift.outcome in ("pass", "undecided")
