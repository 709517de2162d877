"""Problems of programming contests in LiveCodeBench's release format: programs that read standard input, and functions.

What is shipped is a small sample that this project wrote, for trying the path: its scores are no LiveCodeBench scores.
"""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import cast

from evalrig import hub
from evalrig.code_suite import CodeOptions, CodeSuite
from evalrig.content import content_dir
from evalrig.engine import Engine
from evalrig.errors import UsageError, one_line
from evalrig.extraction import headed
from evalrig.livecodebench import Choice, Problem, Test, Tests, files_of, problems_of, read_tests
from evalrig.outputs_alike import Rule, same_text, same_value
from evalrig.proctor import Case, Mark, Output, outputs
from evalrig.sandbox import SandboxUnavailable
from evalrig.suite import Attempt
from evalrig.types import Message, Sample, Trace

RULES = ("tokens", "exact")
FIRST, LARGEST = 4, 64
"""Tests of the first batch, and most of a later one: a wrong program is left early, a right one starts few sandboxes."""
BATCH_BYTES, BATCH_SECONDS = 4 << 20, 300.0
"""Most input and wanted output of a batch of several tests, and most time that it may take in all."""
MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
)
"""What a program finds imported, by name and with its names, as LiveCodeBench's own marking has it: answers rely on it."""
PRELUDE = "".join(
    (
        *(f"from {name} import *\n" for name in MODULES),
        *(f"import {name}\n" for name in MODULES),
        "sys.setrecursionlimit(50000)\n",
    )
)
STDIN = (
    "Write a Python 3 program that reads the input from standard input and prints the answer to standard output, "
    "and nothing else. End your reply with the whole program in one code block:\n```python\n# the program\n```"
)
FUNCTION = (
    "Complete this Python 3 code. Keep the names and the parameters; the answer is returned, not printed. "
    "End your reply with the whole code in one code block:\n```python\n{starter}\n```"
)


@dataclass(kw_only=True)
class LiveCodeBenchOptions(CodeOptions):
    """Keys of `suites.<name>.options`."""

    path: str = ""
    """A release file, or a folder of them; default: the sample that evalrig ships, which measures nothing."""
    hub: str = ""
    """In place of `path`, `owner/name@REVISION`: the release's files are downloaded through the package `datasets`."""
    release: int = 6
    """Of `hub`: problems up to this release (release_v6: the files of 1 to 6)."""
    since: str = ""
    """First day of contests that count, YYYY-MM-DD."""
    until: str = ""
    """First day of contests that no longer count."""
    difficulty: list[str] = field(default_factory=list[str])
    """Empty: all."""
    platform: list[str] = field(default_factory=list[str])
    compare: str = "tokens"
    """What is printed: `tokens`, or `exact` but for spaces at the ends of lines."""
    float_tolerance: float = 1e-6
    """Absolute or relative."""
    wall_seconds: float = 6.0
    """Of one test; a problem's own `time_limit` wins."""


class CodeLiveCodeBench(CodeSuite):
    """Contest problems, each solved if every public and every hidden test is passed."""

    Options = LiveCodeBenchOptions

    def __init__(self, name: str, options: LiveCodeBenchOptions) -> None:
        super().__init__(name, options)
        self.options: LiveCodeBenchOptions = options
        self.problems: dict[str, Problem] = {}
        where = f"suites.{name}.options"
        if options.prompting != "chat":
            raise UsageError(f"{where}.prompting: contest problems are asked in a conversation; set prompting: chat")
        if options.compare not in RULES:
            raise UsageError(f"{where}.compare: no rule {options.compare!r}; known: {', '.join(RULES)}")
        if not 0 <= options.float_tolerance < 1:
            raise UsageError(f"{where}.float_tolerance: {options.float_tolerance} does not lie in 0..1; correct it")
        if options.path and options.hub:
            raise UsageError(f"{where}: both path and hub; give one of them")
        if options.hub and (fault := hub.unfit(options.hub)):
            raise UsageError(f"{where}.hub: {fault}")
        if not 1 <= options.release <= 99:
            raise UsageError(f"{where}.release: {options.release} is no release; 6 means release_v6")
        self._choice = Choice(
            since=_day(options.since, f"{where}.since"),
            until=_day(options.until, f"{where}.until"),
            difficulty=tuple(options.difficulty),
            platform=tuple(options.platform),
        )
        if self._choice.since and self._choice.until and self._choice.since >= self._choice.until:
            raise UsageError(f"{where}: since {options.since} is not before until {options.until}; swap or widen them")

    def samples(self) -> list[Sample]:
        """One a problem. `target`: the digest of its tests, which stay in the file."""
        where = f"suites.{self.name}.options"
        self.problems = {each.id: each for each in problems_of(self._files(where), self._choice, where)}
        return [_sample(problem) for problem in self.problems.values()]

    def _files(self, where: str) -> list[Path]:
        if self.options.hub:
            names = [f"test{number if number > 1 else ''}.jsonl" for number in range(1, self.options.release + 1)]
            return hub.files(self.options.hub, names, f"{where}.hub")
        own = self.options.path
        return files_of(
            Path(own).expanduser() if own else content_dir("suites") / "livecodebench" / "sample.jsonl", f"{where}.path"
        )

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """Ask once, find the program, run it on the tests."""
        said, prompt_sha256 = await self.ask(engine, sample, epoch)
        problem = self.problems[sample.id]
        name, stub = _name(problem.starter), problem.starter
        code, mark = await self.tried(said, name, stub, lambda code: self._marked(code, problem))
        return self.graded((said,), code, mark, prompt_sha256)

    async def _marked(self, code: str, problem: Problem) -> Mark | str:
        """The mark, or why the sandbox could not hold the program."""
        try:
            return await self.run(code, problem)
        except SandboxUnavailable as error:
            return f"the sandbox failed: {error}"

    async def run(self, code: str, problem: Problem) -> Mark:
        """A program on the tests of a problem, up to the first that it fails."""
        tests = await asyncio.to_thread(read_tests, problem)  # up to seconds of work
        seconds = tests.seconds or self.options.wall_seconds
        began, at = time.monotonic(), 0
        for batch in batches(tests.tests, seconds):
            found = await self._outputs(code, tests.function, batch, seconds)
            for number, (test, output) in enumerate(zip(batch, found, strict=False), at + 1):
                alike = not output.failure and await asyncio.to_thread(self._alike, output, test)  # may be megabytes
                failure = output.failure or ("" if alike else "wrong_answer")
                if failure:
                    detail = _detail(number, tests, test, output)
                    return Mark(failure=failure, detail=detail, seconds=time.monotonic() - began)
            if len(found) < len(batch):
                raise RuntimeError(f"{len(found)} outputs of {len(batch)} tests, and none failed")
            at += len(batch)
        return Mark(failure="", seconds=time.monotonic() - began)

    async def _outputs(self, code: str, function: str, batch: Sequence[Test], seconds: float) -> list[Output]:
        cases = [
            Case(stdin=test.given) if isinstance(test.given, str) else Case(arguments=test.given) for test in batch
        ]
        return await outputs(self.booth, prepared(code), cases, _entry_point(code, function), seconds)

    def _alike(self, output: Output, test: Test) -> bool:
        tolerance = self.options.float_tolerance
        if isinstance(test.given, str):
            return same_text(output.text, test.wanted, cast(Rule, self.options.compare), tolerance)
        return same_value(output.value, test.wanted, tolerance)


def batches(tests: Sequence[Test], seconds: float) -> Iterator[Sequence[Test]]:
    """Growing slices of the tests, in order; each test may take so many seconds."""
    largest = max(1, min(LARGEST, int(BATCH_SECONDS // seconds)))
    at, most = 0, min(FIRST, largest)
    while at < len(tests):
        end, size = at, 0
        while end < min(len(tests), at + most) and (end == at or size + _bytes(tests[end]) <= BATCH_BYTES):
            size += _bytes(tests[end])
            end += 1
        yield tests[at:end]
        at, most = end, min(2 * most, largest)


def _bytes(test: Test) -> int:
    if isinstance(test.given, str):
        return len(test.given) + len(test.wanted)
    return len(repr(test.given)) + len(repr(test.wanted))


def prepared(code: str) -> str:
    """The program with the imports before it; its `from __future__` lines stay first."""
    return headed(code, PRELUDE)


def _entry_point(code: str, function: str) -> str:
    """A method of `Solution` if the program defines that class, as LiveCodeBench's own marking looks for it."""
    return f"Solution.{function}" if function and re.search(r"^class Solution\b", code, re.MULTILINE) else function


def _detail(number: int, tests: Tests, test: Test, output: Output) -> str:
    """Which test, and how it failed. Of a hidden test not what was raised, whose words could hold its input."""
    kind = f"{'hidden' if test.hidden else 'public'} {'function' if tests.function else 'stdin'}"
    raised = re.match(r"[A-Za-z_.]{1,60}" if test.hidden else r".{1,200}", one_line(output.detail))
    said = f": {raised[0]}" if raised else ""
    return f"test {number} of {len(tests.tests)} ({kind}): {output.failure or 'wrong_answer'}{said}"


def _sample(problem: Problem) -> Sample:
    asked = FUNCTION.format(starter=problem.starter) if problem.starter else STDIN
    return Sample(
        id=problem.id,
        messages=(Message(role="user", content=f"{problem.title}\n\n{problem.statement}\n\n{asked}"),),
        target=problem.tests_sha256,
        tags=(problem.platform, problem.difficulty, f"{problem.date:%Y-%m}"),
    )


def _name(starter: str) -> str:
    """What the starter code defines first."""
    found = re.search(r"^(?:class|def)\s+(\w+)", starter, re.MULTILINE)
    return found[1] if found else ""


def _day(text: str, where: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError as error:
        raise UsageError(f"{where}: {text!r} is no date; write YYYY-MM-DD") from error
