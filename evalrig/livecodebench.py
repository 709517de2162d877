"""LiveCodeBench's release format: problems of programming contests, one JSON object a line, and their tests.

The tests of one problem can be a hundred megabytes. So a problem keeps where its line lies and a digest of its tests; they are read
once to see that they can be, and again when a program is marked.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from evalrig.errors import RunError, UsageError
from evalrig.pickled_text import unpacked

LONGEST_SECONDS = 600.0
_HOLDS = "a line is one problem as LiveCodeBench releases them (docs/suites.md)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a file."""

    path: Path
    line: int
    start: int
    """Offset of its first byte."""
    size: int

    def __str__(self) -> str:
        return f"{self.path} line {self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One input and the output it must lead to."""

    given: str | tuple[object, ...]
    """Standard input, or the arguments of the function."""
    wanted: Any
    """The text to print, or the value to return, as JSON has it."""
    hidden: bool
    """Not among the public ones, which statements often show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tests:
    """All tests of a problem, public ones first."""

    function: str
    """Name of the function or method under test; empty: a program that reads standard input."""
    seconds: float
    """Limit of each test; 0: the problem names none."""
    tests: tuple[Test, ...]
    sha256: str
    """Of all that is above, however it was packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem without its tests."""

    id: str
    title: str
    statement: str
    starter: str
    """What a function is completed from; empty: a program that reads standard input."""
    platform: str
    difficulty: str
    date: date
    tests_sha256: str
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which problems are taken."""

    since: date | None = None
    until: date | None = None
    """The first day that is no longer taken."""
    difficulty: tuple[str, ...] = ()
    """Empty: all."""
    platform: tuple[str, ...] = ()


class _Row(msgspec.Struct):
    question_id: str
    question_title: str
    question_content: str
    platform: str
    difficulty: str
    contest_date: str
    public_test_cases: str
    private_test_cases: str
    starter_code: str = ""
    metadata: str = "{}"


class _Case(msgspec.Struct):
    input: str
    output: str
    testtype: Literal["stdin", "functional"]


class _Metadata(msgspec.Struct):
    func_name: str | None = None
    time_limit: float | None = None


def files_of(path: Path, where: str) -> list[Path]:
    """The file, or the JSONL files of the folder in the order of their names.

    Raises:
        UsageError: there is none.
    """
    found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not found or not all(each.is_file() for each in found):
        raise UsageError(
            f"{where}: {str(path)!r}: no such file, or a folder without JSONL files; give one or the other"
        )
    return found


def problems_of(paths: Sequence[Path], choice: Choice, where: str) -> list[Problem]:
    """The chosen problems, in the order of the files; one that several files hold alike is taken once.

    Raises:
        UsageError: names file and line of what cannot be read, or says why nothing is left.
    """
    chosen: dict[str, Problem] = {}
    seen: dict[str, set[str]] = {"platform": set(), "difficulty": set()}
    days: list[date] = []
    for place, row in _rows(paths, where):
        at = f"{where}: {place}"
        day = _day(row.contest_date, at)
        days.append(day)
        seen["platform"].add(row.platform)
        seen["difficulty"].add(row.difficulty)
        if _taken(row, day, choice):
            problem = _problem(row, day, place, at)
            before = chosen.setdefault(problem.id, problem)
            if not _alike(before, problem):
                raise UsageError(f"{at}: {problem.id!r} is another problem in {before.place}; leave one of them out")
    for key, asked in (("platform", choice.platform), ("difficulty", choice.difficulty)):
        if strange := [word for word in asked if word not in seen[key]]:
            raise UsageError(f"{where}: no problem has the {key} {strange[0]!r}; known: {', '.join(sorted(seen[key]))}")
    if not chosen:
        dates = f", of {min(days)} to {max(days)}," if days else ""
        raise UsageError(
            f"{where}: none of the {len(days)} problems{dates} is chosen; widen since, until or the filters"
        )
    return list(chosen.values())


def read_tests(problem: Problem) -> Tests:
    """Read the tests of a problem.

    Raises:
        RunError: the file is no longer what it was when its problems were read.
    """
    place, found = problem.place, None
    try:
        with place.path.open("rb") as stream:
            stream.seek(place.start)
            found = _tests(msgspec.json.decode(stream.read(place.size), type=_Row))
    except (OSError, ValueError):
        pass
    if found is None or found.sha256 != problem.tests_sha256:
        raise RunError(
            f"{place}: the tests of {problem.id} changed while the run went on; restore the file, then resume"
        )
    return found


def _rows(paths: Sequence[Path], where: str) -> Iterator[tuple[Place, _Row]]:
    for path in paths:
        try:
            with path.open("rb") as stream:
                start = 0
                for number, line in enumerate(stream, 1):
                    place = Place(path=path, line=number, start=start, size=len(line))
                    start += len(line)
                    if line.strip():
                        yield place, _row(line, f"{where}: {place}")
        except OSError as error:
            raise UsageError(f"{where}: cannot read {str(path)!r}: {error.strerror}; give a JSONL file") from error


def _row(line: bytes, at: str) -> _Row:
    try:
        return msgspec.json.decode(line, type=_Row)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{at}: {error}; {_HOLDS}") from error


def _day(text: str, at: str) -> date:
    try:
        return datetime.fromisoformat(text).date()
    except ValueError as error:
        raise UsageError(f"{at}: contest_date {text!r} is no ISO 8601 date; {_HOLDS}") from error


def _taken(row: _Row, day: date, choice: Choice) -> bool:
    return (
        (choice.since is None or choice.since <= day)
        and (choice.until is None or day < choice.until)
        and (not choice.platform or row.platform in choice.platform)
        and (not choice.difficulty or row.difficulty in choice.difficulty)
    )


def _problem(row: _Row, day: date, place: Place, at: str) -> Problem:
    try:
        tests = _tests(row)
        if tests.function and not row.starter_code.strip():
            raise ValueError("functional tests, and no starter_code that shows the function")
    except ValueError as error:
        raise UsageError(f"{at}: {row.question_id!r}: {error}; {_HOLDS}") from error
    return Problem(
        id=row.question_id,
        title=row.question_title.strip(),
        statement=row.question_content.strip(),
        starter=row.starter_code.strip("\n") if tests.function else "",
        platform=row.platform,
        difficulty=row.difficulty,
        date=day,
        tests_sha256=tests.sha256,
        place=place,
    )


def _alike(one: Problem, other: Problem) -> bool:
    return (one.statement, one.starter, one.tests_sha256) == (other.statement, other.starter, other.tests_sha256)


def _tests(row: _Row) -> Tests:
    """Raises ValueError, of which msgspec's errors are kinds."""
    private = row.private_test_cases
    packed = not private.lstrip().startswith("[")
    public = msgspec.json.decode(row.public_test_cases, type=list[_Case])
    hidden = msgspec.json.decode(unpacked(private) if packed else private, type=list[_Case])
    metadata = msgspec.json.decode(row.metadata or "{}", type=_Metadata)
    function, seconds = metadata.func_name or "", metadata.time_limit or 0.0
    if function and not re.fullmatch(r"[A-Za-z_]\w*", function, re.ASCII):
        raise ValueError("metadata: func_name is no name of a function")
    if not (math.isfinite(seconds) and 0 <= seconds <= LONGEST_SECONDS):
        raise ValueError(f"metadata: time_limit lies in 0..{LONGEST_SECONDS:g} seconds")
    if not public and not hidden:
        raise ValueError("no tests at all")
    kind = "functional" if function else "stdin"
    if any(case.testtype != kind for case in (*public, *hidden)):
        raise ValueError(f"tests of type {kind} only, because metadata {'names' if function else 'lacks'} func_name")
    return Tests(
        function=function,
        seconds=seconds,
        tests=(*(_test(case, False) for case in public), *(_test(case, True) for case in hidden)),
        sha256=hashlib.sha256(msgspec.json.encode((function, seconds, public, hidden))).hexdigest(),
    )


def _test(case: _Case, hidden: bool) -> Test:
    if case.testtype == "stdin":
        return Test(given=case.input, wanted=case.output, hidden=hidden)
    arguments = tuple(_value(line) for line in case.input.split("\n")) if case.input.strip() else ()
    return Test(given=arguments, wanted=_value(case.output), hidden=hidden)


def _value(text: str) -> object:
    """JSON; the standard library's reader keeps whole numbers of any length."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a functional test holds {text[:40]!r}, which is not JSON") from error


def _no_number(text: str) -> None:
    raise ValueError(text)
