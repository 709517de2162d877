"""The suite of contest problems: what is asked, which options it takes, how outputs become a mark."""

import asyncio
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from toys.contest import row, written
from toys.engine import Toy, ToyOptions

from evalrig.engine import Launch, Sampling
from evalrig.errors import UsageError
from evalrig.livecodebench import Test as Asked
from evalrig.proctor import Case, Output
from evalrig.sandbox import Booth, SandboxUnavailable
from evalrig.suite import Attempt
from evalrig.suites import code_livecodebench
from evalrig.suites.code_livecodebench import BATCH_BYTES, CodeLiveCodeBench, LiveCodeBenchOptions, batches, prepared
from evalrig.types import Completion, State, Variant

PROGRAM = "Here it is.\n```python\nprint(sum(map(int, input().split())))\n```\n"
METHOD = {
    "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
    "metadata": {"func_name": "add", "time_limit": 2.5},
    "public_test_cases": [{"input": "1\n2", "output": "3", "testtype": "functional"}],
    "private_test_cases": [{"input": "0.1\n0.2", "output": "0.3", "testtype": "functional"}],
}


class Writer(Toy):
    """Answers every question with the same text."""

    def __init__(self, text: str, finish: str = "stop") -> None:
        variant = Variant(name="writer", role="reference", engine="toys.engine", weights="toy")
        super().__init__(variant, ToyOptions(), Launch(log=Path(), start_seconds=1, request_seconds=1))
        self.said = Completion(text=text, finish=finish)

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        return self.said


class Outputs:
    """In place of the proctor: gives what a test wants, and keeps what it was asked."""

    def __init__(self, *found: Output) -> None:
        self.left = list(found)
        self.asked: list[tuple[str, tuple[Case, ...], str, float]] = []

    async def __call__(
        self, booth: Booth, code: str, cases: Sequence[Case], entry_point: str, seconds: float
    ) -> list[Output]:
        self.asked.append((code, tuple(cases), entry_point, seconds))
        taken: list[Output] = []
        while self.left and len(taken) < len(cases):
            taken.append(self.left.pop(0))
            if taken[-1].failure:
                break
        return taken


def suite(path: Path | str = "", **options: Any) -> CodeLiveCodeBench:
    made = CodeLiveCodeBench("lcb", LiveCodeBenchOptions(path=str(path), **options))
    made.equip(cast(Booth, types.SimpleNamespace(label="toy 1")))
    return made


def attempted(made: CodeLiveCodeBench, writer: Writer) -> Attempt:
    async def go() -> Attempt:
        await writer.start()
        return await made.attempt(writer, made.samples()[0], 0, None)

    return asyncio.run(go())


def marked(
    monkeypatch: pytest.MonkeyPatch, folder: Path, said: Writer, *found: Output, **fields: Any
) -> tuple[Attempt, Outputs]:
    proctor = Outputs(*found)
    monkeypatch.setattr(code_livecodebench, "outputs", proctor)
    return attempted(suite(written(folder / "test.jsonl", row(**fields))), said), proctor


def printed(*texts: str) -> tuple[Output, ...]:
    return tuple(Output(failure="", text=text) for text in texts)


def test_a_program_that_prints_what_is_wanted_has_solved_its_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, proctor = marked(monkeypatch, tmp_path, Writer(PROGRAM), *printed("3", "42\n"))
    assert (found.state, found.scores, found.trajectory.failure) == (State.SCORED, {"solved": 1.0}, "")
    [(code, cases, entry_point, seconds)] = proctor.asked
    assert code.rstrip().endswith("\nprint(sum(map(int, input().split())))")
    assert [case.stdin for case in cases] == ["1 2\n", "20 22\n"]
    assert (entry_point, seconds, found.sandbox) == ("", 6.0, "toy 1")


@pytest.mark.parametrize(
    ("outputs", "failure"),
    [
        (printed("4"), "wrong_answer"),
        (printed("3", "43"), "wrong_answer"),
        (printed("3", ""), "wrong_answer"),
        ((Output(failure="crash", detail="ValueError: x"),), "crash"),
        ((*printed("3"), Output(failure="timeout")), "timeout"),
        ((Output(failure="syntax_error"),), "syntax_error"),
    ],
)
def test_the_first_failing_test_ends_it_under_its_word(
    outputs: tuple[Output, ...], failure: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, _ = marked(monkeypatch, tmp_path, Writer(PROGRAM), *outputs)
    assert (found.state, found.scores, found.trajectory.failure) == (State.SCORED, {"solved": 0.0}, failure)


@pytest.mark.parametrize(
    ("code", "entry_point"),
    [
        ("class Solution:\n    def add(self, a, b):\n        return a + b\n", "Solution.add"),
        ("def add(a, b):\n    return a + b\n", "add"),
    ],
)
def test_a_function_is_called_where_the_answer_defines_it(
    code: str, entry_point: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    values = (Output(failure="", value=3), Output(failure="", value=0.1 + 0.2))
    found, proctor = marked(monkeypatch, tmp_path, Writer(f"```python\n{code}```"), *values, **METHOD)
    assert found.scores == {"solved": 1.0}
    [(_, cases, called, seconds)] = proctor.asked
    assert ([case.arguments for case in cases], called, seconds) == ([(1, 2), (0.1, 0.2)], entry_point, 2.5)


def test_an_answer_without_a_program_runs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, proctor = marked(monkeypatch, tmp_path, Writer("I would rather not."))
    assert (found.state, found.trajectory.failure, proctor.asked) == (State.SCORED, "no_code", [])


def test_a_cut_answer_is_solved_or_truncated_and_never_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pitfall 12."""
    cut = "```python\nprint(sum(map(int, input().split())))\nprint('never fin"
    found, _ = marked(monkeypatch, tmp_path, Writer(cut, "length"), *printed("4"))
    assert (found.state, found.scores, found.trajectory.failure) == (State.TRUNCATED, {}, "truncated")
    found, _ = marked(monkeypatch, tmp_path, Writer(cut, "length"), *printed("3", "42"))
    assert (found.state, found.scores) == (State.SCORED, {"solved": 1.0})


def test_a_sandbox_that_fails_says_nothing_about_the_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pitfall 7: a failed grader is no score."""

    async def broken(*_: object) -> list[Output]:
        raise SandboxUnavailable("bwrap is gone")

    monkeypatch.setattr(code_livecodebench, "outputs", broken)
    found = attempted(suite(written(tmp_path / "test.jsonl", row())), Writer(PROGRAM))
    assert (found.state, found.scores) == (State.UNSCORED, {})
    assert "bwrap is gone" in found.trajectory.error


def test_outputs_that_are_missing_without_a_failure_are_a_bug_not_a_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="1 outputs of 2 tests, and none failed"):
        marked(monkeypatch, tmp_path, Writer(PROGRAM), *printed("3"))


def test_what_is_said_of_a_hidden_test_does_not_hold_its_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    raised = Output(failure="crash", detail="ValueError: invalid literal: '20 22'\n\x1b[31mmore")

    async def details(*given: Output) -> str:
        monkeypatch.setattr(code_livecodebench, "outputs", Outputs(*given))
        made = suite(written(tmp_path / "test.jsonl", row()))
        made.samples()
        return (await made.run("", made.problems["sum"])).detail

    assert asyncio.run(details(*printed("3"), raised)) == "test 2 of 2 (hidden stdin): crash: ValueError"
    assert asyncio.run(details(raised)).startswith("test 1 of 2 (public stdin): crash: ValueError: invalid literal")
    assert "\x1b" not in asyncio.run(details(raised))
    assert asyncio.run(details(*printed("3", "41"))) == "test 2 of 2 (hidden stdin): wrong_answer"


def test_batches_grow_keep_the_order_and_stay_small_in_bytes() -> None:
    tests = [Asked(given=str(n), wanted="", hidden=True) for n in range(300)]
    cut = list(batches(tests, 1.0))
    assert [test for batch in cut for test in batch] == tests
    assert [len(batch) for batch in cut] == [4, 8, 16, 32, 64, 64, 64, 48]
    large = [Asked(given="x" * (BATCH_BYTES - 1), wanted="", hidden=True) for _ in range(3)]
    assert [len(batch) for batch in batches(large, 1.0)] == [1, 1, 1]
    answers = [Asked(given="", wanted="x" * (BATCH_BYTES // 2), hidden=True) for _ in range(5)]
    assert [len(batch) for batch in batches(answers, 1.0)] == [2, 2, 1]
    assert max(len(batch) for batch in batches(tests, 20.0)) == 15
    assert {len(batch) for batch in batches(tests, 600.0)} == {1}


def test_the_prompt_holds_the_statement_and_no_test(tmp_path: Path) -> None:
    first, second = suite(
        written(tmp_path / "test.jsonl", row(), row("m", **METHOD, contest_date="2025-01-02"))
    ).samples()
    assert first.tags == ("evalrig", "easy", "2024-03")
    assert second.tags == ("evalrig", "easy", "2025-01")
    [asked] = first.messages
    assert "Print the sum of two numbers." in asked.content
    assert "standard input" in asked.content
    assert "def add(self, a: int, b: int) -> int:" in second.messages[0].content
    for sample in (first, second):
        assert len(sample.target) == 64
        assert "42" not in sample.messages[0].content


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompting": "base"}, "suites.lcb.options.prompting: contest problems are asked in a conversation; set"),
        ({"compare": "loose"}, "suites.lcb.options.compare: no rule 'loose'; known: tokens, exact"),
        ({"float_tolerance": -1.0}, "suites.lcb.options.float_tolerance: -1.0 does not lie in 0..1"),
        ({"float_tolerance": float("nan")}, "suites.lcb.options.float_tolerance: nan does not lie in 0..1"),
        ({"since": "2024"}, "suites.lcb.options.since: '2024' is no date; write YYYY-MM-DD"),
        ({"until": "2024-02-30"}, "suites.lcb.options.until: '2024-02-30' is no date; write YYYY-MM-DD"),
        ({"since": "2024-02-01", "until": "2024-02-01"}, "since 2024-02-01 is not before until 2024-02-01"),
        (
            {"hub": "owner/name@main"},
            "suites.lcb.options.hub: 'owner/name@main' is not owner/name@REVISION; give the 40",
        ),
        ({"hub": f"a/b@{'0' * 40}", "path": "x"}, "suites.lcb.options: both path and hub; give one of them"),
        ({"release": 0}, "suites.lcb.options.release: 0 is no release; 6 means release_v6"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        CodeLiveCodeBench("lcb", LiveCodeBenchOptions(**options))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_filters_reach_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path / "test.jsonl",
        row("a", difficulty="hard"),
        row("b", platform="atcoder"),
        row("c", contest_date="2023-01-01"),
        row("d"),
    )
    options: dict[str, Any] = {"difficulty": ["easy"], "platform": ["evalrig"], "since": "2024-01-01"}
    assert [sample.id for sample in suite(path, **options).samples()] == ["d"]
    with pytest.raises(UsageError, match="none of the 4 problems"):
        suite(path, until="2020-01-01").samples()


# ---- the hub

PINNED = f"livecodebench/code_generation_lite@{'0a' * 20}"


def test_a_hub_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "datasets.download", None)
    with pytest.raises(UsageError) as caught:
        suite(hub=PINNED).samples()
    assert str(caught.value) == (
        "suites.lcb.options.hub: needs the package `datasets`; install it, or give the files with `path`"
    )


def in_place_of_datasets(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    module = types.ModuleType("datasets.download")
    module.__dict__["DownloadManager"] = lambda: types.SimpleNamespace(download=download)
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    monkeypatch.setitem(sys.modules, "datasets.download", module)


def test_a_hub_gives_the_files_of_the_release_at_the_pinned_revision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def download(urls: list[str]) -> list[str]:
        asked.extend(urls)
        return [str(written(tmp_path / f"blob{n}", row(f"p{n}"))) for n, _ in enumerate(urls)]

    in_place_of_datasets(monkeypatch, download)
    samples = suite(hub=PINNED, release=3).samples()
    assert [sample.id for sample in samples] == ["p0", "p1", "p2"]
    assert asked == [f"hf://datasets/{PINNED}/{name}.jsonl" for name in ("test", "test2", "test3")]


class Unreachable(Exception):
    """What some HTTP client raises: neither OSError nor one that evalrig knows."""


@pytest.mark.parametrize("raised", [FileNotFoundError("404\nno such revision"), Unreachable("404 no such revision")])
def test_a_hub_that_fails_is_one_line(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(urls: list[str]) -> list[str]:
        raise raised

    in_place_of_datasets(monkeypatch, download)
    with pytest.raises(UsageError) as caught:
        suite(hub=PINNED).samples()
    said = f"could not be downloaded ({type(raised).__name__}: 404 no such revision); give the files with `path`"
    assert str(caught.value) == f"suites.lcb.options.hub: {PINNED} {said}"


@pytest.mark.parametrize(
    "code", ["x = 1\n", "from __future__ import annotations\nx = 1\n", "\n# a\nfrom __future__ import annotations\n"]
)
def test_imports_stand_before_a_program_and_behind_its_future_ones(code: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(prepared(code), "program", "exec", dont_inherit=True), names)
    assert names["Counter"]
    assert names["List"]
    assert names["pow"] is pow, "the usual names stay what they are"
    assert names["datetime"].datetime, "the module, as its name says"
