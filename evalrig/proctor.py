"""Marks programs that a model wrote: the tests run in one process of the sandbox, the program in another.

What passes between the two are values. So a program cannot read the tests, end them, or hand them an object that equals everything,
and a mark counts only with the random token that the test process prints after the last test.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evalrig.sandbox import Booth

Failure = Literal["", "syntax_error", "wrong_answer", "timeout", "crash"]
"""Empty: passed. `crash`: the program raised, was killed or ran out of memory; `wrong_answer`: a test said no."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """A program with tests that call into it."""

    code: str
    """The model's program, hostile."""
    tests: str
    """Ours: a script that asserts; it may define `check(candidate)`, which is then called with the entry point."""
    entry_point: str = ""
    """The function under test. Empty: the tests run in the program's own process, which protects them less."""
    setup: str = ""
    """Ours: runs before the tests in their process, for what they use beside the entry point."""
    wall_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input of a program, and how its output is got."""

    stdin: str = ""
    arguments: tuple[object, ...] = ()
    """Of a function: plain values (as JSON has them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What an exam found."""

    failure: Failure
    detail: str = ""
    """One line for people and for the model's next try: what was raised, or which test said no. Hostile."""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """All tests ran to the end and none said no."""
        return not self.failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a program gave for one case."""

    failure: Failure
    """`wrong_answer` never: comparing is the caller's work."""
    text: str = ""
    """Of a case with `stdin`: what it printed."""
    value: object = None
    """Of a case with `arguments`: what the function returned, as a plain value."""
    detail: str = ""


async def mark(booth: Booth, exam: Exam) -> Mark:
    """Run one exam in a sandbox of its own."""
    raise NotImplementedError


async def outputs(booth: Booth, code: str, cases: Sequence[Case], entry_point: str, seconds: float) -> list[Output]:
    """What a program gives for each case, each in a fresh process with its own limit of `seconds`; later cases are not run
    after one that failed (they are left out). `entry_point`: `function` or `Class.method`; empty: a program that reads
    standard input. All cases share one sandbox."""
    raise NotImplementedError
