"""The shipped contest problems through the real sandbox: what solves them is solved, and everything else is not."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from toys.contest import packed, row, written
from toys.engine import Toy, ToyOptions
from toys.runs import carry_out, run_file

from evalrig import fetch
from evalrig.engine import Launch, Sampling
from evalrig.proctor import Mark
from evalrig.sandbox import Booth
from evalrig.sandboxes.bwrap import Bwrap
from evalrig.suite import Attempt
from evalrig.suites.code_livecodebench import CodeLiveCodeBench, LiveCodeBenchOptions
from evalrig.types import CheckOutcome, Completion, State, Variant

SOLUTIONS: list[dict[str, Any]] = [
    json.loads(line)
    for line in fetch.path_of("livecodebench", "solutions.jsonl").read_text(encoding="utf-8").splitlines()
]
WRONG = [
    pytest.param(row["question_id"], wrong["code"], wrong["failure"], id=f"{row['question_id']}-{number}")
    for row in SOLUTIONS
    for number, wrong in enumerate(row["wrong"])
]


class Says(Toy):
    """Answers with one text."""

    def __init__(self, text: str) -> None:
        variant = Variant(name="says", role="reference", engine="toys.engine", weights="toy")
        super().__init__(variant, ToyOptions(), Launch(log=Path(), start_seconds=1, request_seconds=1))
        self.text = text

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        return Completion(text=self.text, finish="stop")


@pytest.fixture(scope="module")
def booth() -> Iterator[Booth]:
    made = Booth(Bwrap(False), 2)
    yield made
    made.close()


def suite(booth: Booth, **options: Any) -> CodeLiveCodeBench:
    made = CodeLiveCodeBench("livecodebench", LiveCodeBenchOptions(**options))
    made.samples()
    made.equip(booth)
    return made


def marked(made: CodeLiveCodeBench, problem: str, code: str) -> Mark:
    return asyncio.run(made.run(code, made.problems[problem]))


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda row: row["question_id"])
def test_a_reference_solution_is_solved(solution: dict[str, Any], booth: Booth) -> None:
    made = suite(booth)
    [sample] = [each for each in made.samples() if each.id == solution["question_id"]]

    async def go() -> Attempt:
        engine = Says(f"This solves it:\n\n```python\n{solution['reference']}```\n")
        await engine.start()
        return await made.attempt(engine, sample, 0, None)

    found = asyncio.run(go())
    assert (found.state, found.scores, found.trajectory.failure) == (State.SCORED, {"solved": 1.0}, "")
    assert found.sandbox.startswith("bwrap ")


@pytest.mark.parametrize(("problem", "code", "failure"), WRONG)
def test_a_wrong_solution_fails_as_its_author_says(problem: str, code: str, failure: str, booth: Booth) -> None:
    found = marked(suite(booth), problem, code)
    assert found.failure == failure, found.detail


SLOW = "import time\nn = int(input())\ntime.sleep(n / 10)\nprint(n)\n"


def of(path: Path, *numbers: int, **fields: Any) -> dict[str, Any]:
    tests = [{"input": f"{n}\n", "output": f"{n}\n", "testtype": "stdin"} for n in numbers]
    written(path, row("slow", public_test_cases=tests, private_test_cases=packed("[]"), **fields))
    return {"path": str(path)}


def test_the_limit_is_one_of_each_test_and_a_problem_can_have_its_own(booth: Booth, tmp_path: Path) -> None:
    many = of(tmp_path / "many.jsonl", *[4] * 6)
    assert marked(suite(booth, wall_seconds=2.0, **many), "slow", SLOW).passed
    late = of(tmp_path / "late.jsonl", 1, 60, 1)
    found = marked(suite(booth, wall_seconds=1.5, **late), "slow", SLOW)
    assert (found.failure, found.detail) == ("timeout", found.detail)
    assert found.detail.startswith("test 2 of 3 (public stdin): timeout")
    assert found.seconds < 6, "the program was ended, not waited for"
    own = of(tmp_path / "own.jsonl", 1, 60, metadata={"time_limit": 1.5})
    assert marked(suite(booth, wall_seconds=30.0, **own), "slow", SLOW).failure == "timeout"
    own = of(tmp_path / "long.jsonl", 20, metadata={"time_limit": 8})
    assert marked(suite(booth, wall_seconds=1.0, **own), "slow", SLOW).passed


@pytest.mark.parametrize(
    "code",
    [
        "import os\nprint(42, flush=True)\nos._exit(0)\n",
        "import sys\nprint('solved')\nsys.exit(0)\n",
        "import glob\nfor path in glob.glob('/**/*.jsonl', recursive=True):\n    print(open(path).read())\n",
        "print(float('nan'))\n",
    ],
)
def test_a_program_that_does_not_answer_is_not_solved(code: str, booth: Booth) -> None:
    assert marked(suite(booth, wall_seconds=2.0), "loop-walk", code).failure in ("wrong_answer", "crash", "timeout")


def test_a_value_that_claims_to_equal_everything_equals_nothing(booth: Booth) -> None:
    code = (
        "class Any(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\n\n\n"
        "class Solution:\n    def longestRun(self, rain, least):\n        return Any(10**9)\n"
    )
    assert marked(suite(booth), "rain-days", code).failure in ("wrong_answer", "crash")


def test_names_of_the_standard_library_need_no_import(booth: Booth) -> None:
    code = (
        "class Solution:\n    def longestRun(self, rain: List[int], least: int) -> int:\n"
        "        runs = [len(list(g)) for wet, g in groupby(rain, lambda day: day >= least) if wet]\n"
        "        assert deque and inf > pi and itemgetter and deepcopy and sys.getrecursionlimit() >= 50000\n"
        "        return pow(max(runs, default=0), 1, 10**9)\n"
    )
    found = marked(suite(booth), "rain-days", code)
    assert found.passed, found.detail


def test_a_whole_run_tells_a_variant_that_forgot_from_one_that_did_not(tmp_path: Path) -> None:
    path = run_file(
        tmp_path,
        {"same": {"noise": 0.01}, "forgetful": {"noise": 0.01, "forgets": 9}},
        engine={"kind": "toys.solver"},
        suites={"livecodebench": {"kind": "code_livecodebench", "again": 1.0, "options": {"wall_seconds": 4.0}}},
        gates={"solved": {"kind": "noninferior", "suite": "livecodebench", "metric": "pass@1", "margin": 0.03}},
    )
    finished = carry_out(path)
    assert not finished.stopped
    solved = {
        variant: sum(record.scores["solved"] for record in finished.folder.records(variant, "livecodebench"))
        for variant in ("reference", "same", "forgetful")
    }
    assert solved == {"reference": 14.0, "same": 14.0, "forgetful": 5.0}
    [check] = finished.verdict.candidates["forgetful"].checks
    assert (check.outcome, check.estimate is not None) == (CheckOutcome.FAILED, True)
    asked = (finished.folder.path / "samples" / "livecodebench.jsonl").read_text()
    assert "bridge-queue" in asked
    assert len(asked) < 30_000, "hidden tests stay out of the run folder"
