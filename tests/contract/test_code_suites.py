"""The coding suites from the prompt to the score, with the real proctor in the real sandbox."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toys.scribe import Scribe

from evalrig import fetch
from evalrig.code_suite import SOLVED, CodeSuite
from evalrig.plugins import find, make
from evalrig.problems import Problem, read
from evalrig.sandbox import Booth, Sandbox, probe
from evalrig.suite import Attempt
from evalrig.suites.code_humaneval import HumanEval, HumanEvalOptions
from evalrig.suites.code_jsonl import CodeJsonl, CodeJsonlOptions
from evalrig.types import State


@pytest.fixture(scope="module")
def booth() -> Iterator[Booth]:
    sandbox = make(find("sandboxes", "bwrap", Sandbox, "test"), False)
    held = Booth(sandbox, 4, probe(sandbox))
    yield held
    held.close()


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return read(fetch.path_of("humaneval"), "test")


def all_attempts(suite: CodeSuite, booth: Booth, says: dict[str, str]) -> dict[str, Attempt]:
    """Each sample once; `says`: what is answered to a prompt, by a part of it."""

    def write(prompt: str) -> str:
        return next(said for part, said in says.items() if part.rstrip() in prompt)

    async def go() -> dict[str, Attempt]:
        scribe, samples = Scribe(write), suite.samples()
        suite.equip(booth)
        await scribe.start()
        found = await asyncio.gather(*(suite.attempt(scribe, sample, 0, None) for sample in samples))
        return {sample.id: attempt for sample, attempt in zip(samples, found, strict=True)}

    return asyncio.run(go())


def solved(found: dict[str, Attempt]) -> float:
    assert {attempt.state for attempt in found.values()} == {State.SCORED}, "a grader that fails must show"
    return sum(attempt.scores[SOLVED] for attempt in found.values())


def humaneval(prompting: str) -> HumanEval:
    return HumanEval("humaneval", HumanEvalOptions(prompting=prompting))


def test_canonical_solutions_of_humaneval_pass_as_continuations(booth: Booth, problems: list[Problem]) -> None:
    says = {p.prompt: p.solution.removeprefix(p.prompt) + "\n\nprint('more')\n" for p in problems}
    found = all_attempts(humaneval("base"), booth, says)
    assert {name: a.trajectory.failure for name, a in found.items() if a.trajectory.failure} == {}
    assert solved(found) == len(found) == 164
    assert all(attempt.sandbox.startswith("bwrap ") for attempt in found.values())


def test_canonical_solutions_of_humaneval_pass_as_answers(booth: Booth, problems: list[Problem]) -> None:
    says = {p.prompt: f"Sure.\n\n```python\n{p.solution}```\n\nIt's done." for p in problems}
    found = all_attempts(humaneval("chat"), booth, says)
    assert {name: a.trajectory.failure for name, a in found.items() if a.trajectory.failure} == {}
    assert solved(found) == len(found) == 164


@pytest.mark.slow
def test_canonical_bodies_of_humaneval_pass_as_answers(booth: Booth, problems: list[Problem]) -> None:
    """What a chat model may answer when it was asked to complete."""
    says = {p.prompt: f"```python\n{p.solution.removeprefix(p.prompt)}```" for p in problems}
    found = all_attempts(humaneval("chat"), booth, says)
    assert {name: a.trajectory.failure for name, a in found.items() if a.trajectory.failure} == {}
    assert solved(found) == 164


@pytest.mark.parametrize(
    ("prompting", "body"),
    [("base", "    pass\n"), pytest.param("chat", "    pass\n", marks=pytest.mark.slow), ("base", ""), ("chat", "")],
)
def test_empty_bodies_of_humaneval_fail(prompting: str, body: str, booth: Booth, problems: list[Problem]) -> None:
    whole = prompting == "chat" and body
    says = {p.prompt: f"```python\n{p.prompt}{body}```" if whole else body for p in problems}
    found = all_attempts(humaneval(prompting), booth, says)
    assert solved(found) == 0
    failures = Counter(attempt.trajectory.failure for attempt in found.values())
    assert failures.total() == 164
    assert failures.keys() <= ({"wrong_answer", "crash"} if body else {"no_code"})


ROWS: dict[str, dict[str, Any]] = {
    "mbpp": {
        "task_id": 1,
        "text": "Write a function that adds one.",
        "code": "def plus(x):\n    return x + 1\n",
        "test_list": ["assert plus(1) == 2", "assert set([plus(2)]) == {3}"],
    },
    "tests of a class": {
        "task_id": 2,
        "text": "Sum the pairs' first parts.",
        "code": "class Pair:\n    def __init__(self, a):\n        self.a = a\n\ndef total(ps):\n    return sum(p.a for p in ps)\n",
        "test_list": ["assert total([Pair(1), Pair(2)]) == 3"],
    },
    "further inputs": {
        "task_id": "Plus/0",
        "prompt": 'def mean(xs):\n    """The mean."""\n',
        "entry_point": "mean",
        "canonical_solution": "    return sum(xs) / len(xs)\n",
        "test": "def check(candidate):\n    assert candidate([1]) == 1\n",
        "base_input": [[[1, 2]]],
        "plus_input": [[[0.1, 0.2, 0.3]], [[5] * 9]],
        "atol": 1e-6,
    },
    "given outputs": {
        "id": "own",
        "prompt": "Swap two numbers.",
        "entry_point": "swap",
        "base_input": [[1, 2]],
        "expected": [[2, 1]],
    },
}
RIGHT = {
    "mbpp": ROWS["mbpp"]["code"],
    "tests of a class": ROWS["tests of a class"]["code"],
    "further inputs": "def mean(xs):\n    return math.fsum(xs) / len(xs)\n",
    "given outputs": "def swap(a, b):\n    return b, a\n",
}
WRONG = {
    "mbpp": "def plus(x):\n    return 2\n",
    "tests of a class": "class Pair:\n    def __init__(self, a):\n        self.a = a\n\ndef total(ps):\n    return 4\n",
    "further inputs": "def mean(xs):\n    return xs[0] if len(xs) == 1 else 1.5\n",
    "given outputs": "def swap(a, b):\n    return a, b\n",
}
CRASHES = {name: code.replace("return", "import os; os._exit(0); return") for name, code in RIGHT.items()}


@pytest.mark.parametrize(
    ("programs", "failure"),
    [(RIGHT, {""}), (WRONG, {"wrong_answer"}), (CRASHES, {"crash"})],
    ids=["right", "wrong", "exit"],
)
def test_problems_of_every_form_tell_right_from_wrong(
    programs: dict[str, str], failure: set[str], booth: Booth, tmp_path: Path
) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS.values()))
    says = {ROWS[name].get("text") or ROWS[name]["prompt"]: f"```python\n{code}```" for name, code in programs.items()}
    found = all_attempts(CodeJsonl("own", CodeJsonlOptions(path=str(path))), booth, says)
    assert {attempt.trajectory.failure for attempt in found.values()} == failure
    assert solved(found) == (len(ROWS) if failure == {""} else 0)


def test_tests_that_are_wrong_themselves_are_no_score(booth: Booth, tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "Add.", "entry_point": "f", "tests": "assert unknown(1)"}) + "\n")
    suite = CodeJsonl("own", CodeJsonlOptions(path=str(path)))
    [attempt] = all_attempts(suite, booth, {"Add.": "```python\ndef f(x):\n    return x\n```"}).values()
    assert (attempt.state, attempt.scores) == (State.UNSCORED, {})
    assert "unknown" in attempt.trajectory.error
