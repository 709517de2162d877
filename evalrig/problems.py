"""Programming problems in JSONL files: functions to write, with the tests that they must pass.

Three forms are read: HumanEval's (`task_id`, `prompt`, `entry_point`, `test`), MBPP's (`task_id`, `text`, `test_list`), and a plain one
(`id`, `prompt`, `tests`). Each may have EvalPlus' further inputs (`base_input`, `plus_input`, `atol`), whose outputs are the reference
solution's, or `expected`.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from evalrig.errors import UsageError
from evalrig.extraction import beside, called, opens
from evalrig.types import Message, Sample

COMPARE = """
def _same(got, wanted, atol):
    if isinstance(wanted, (list, tuple)) and isinstance(got, (list, tuple)):
        return len(got) == len(wanted) and all(_same(g, w, atol) for g, w in zip(got, wanted))
    if isinstance(wanted, dict) and isinstance(got, dict):
        return got.keys() == wanted.keys() and all(_same(got[key], wanted[key], atol) for key in wanted)
    if isinstance(wanted, (int, float)) and isinstance(got, (int, float)) and got != wanted:
        near = atol or (1e-6 if isinstance(wanted, float) else 0)
        return near > 0 and (abs(got - wanted) <= near + 1e-7 * abs(wanted) or (got != got and wanted != wanted))
    return got == wanted


def _expected(solution, entry_point, inputs):
    import copy
    program = {"__name__": "reference"}
    exec(solution, program)
    return [program[entry_point](*copy.deepcopy(arguments)) for arguments in inputs]


def _further(candidate, inputs, expected, atol):
    import copy
    for arguments, wanted in zip(inputs, expected):
        assert _same(candidate(*copy.deepcopy(arguments)), wanted, atol), "input " + repr(arguments)[:200]
"""
"""Of further inputs: a list equals a tuple, a float what is within `atol` (1e-6 where that is 0). The solution is the file's own."""
SAID = "Answer with the whole program in one ```python block."


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A function to write."""

    id: str
    prompt: str
    """The start of a program that ends inside the function, or a text that says what is wanted."""
    entry_point: str
    """Empty: not known; the tests then run in the program's own process."""
    tests: str
    setup: str = ""
    """Runs before the tests."""
    solution: str = ""
    """A whole program that passes; empty: none is given."""
    inside: bool = False
    """The tests use more of the program than its entry point, so they run in its process."""
    tags: tuple[str, ...] = ()
    cluster: str = ""


class Key(msgspec.Struct, frozen=True):
    """How a sample's answer is graded, kept as its target: a changed test shows in the digest of the samples."""

    entry_point: str
    tests: str
    setup: str
    stub: str
    """What an answer completes; empty: nothing, it is a whole program."""
    inside: bool


class _Asked(msgspec.Struct):
    id: str = ""
    task_id: str | int = ""
    prompt: str = ""
    text: str = ""
    entry_point: str = ""
    cluster: str = ""
    family: str = ""
    level: str = ""
    tags: tuple[str, ...] = ()


class _Tested(msgspec.Struct):
    test: str = ""
    tests: str | list[str] = ""
    test_list: tuple[str, ...] = ()
    challenge_test_list: tuple[str, ...] = ()
    test_setup_code: str = ""
    canonical_solution: str = ""
    code: str = ""


class _Wrong(msgspec.Struct):
    prompt: str = ""
    text: str = ""
    wrong_solutions: tuple[str, ...] = ()


class _Further(msgspec.Struct):
    base_input: list[list[Any]] = []
    plus_input: list[list[Any]] = []
    expected: list[Any] | None = None
    atol: float = 0.0


def read(path: Path, where: str) -> list[Problem]:
    """The problems of a file, `.gz` or not, in its order; `where` leads the errors.

    Raises:
        UsageError: no such file, or a line that is no problem.
    """
    found: dict[str, Problem] = {}
    for number, line in _lines(path, where):
        problem = _problem(line, here := f"{where}: {path} line {number}")
        if problem.id in found:
            raise UsageError(f"{here}: id {problem.id!r} occurs twice; rename one")
        found[problem.id] = problem
    return list(found.values())


def wrong_solutions(path: Path, where: str) -> dict[str, tuple[str, ...]]:
    """Whole programs that fail the tests, by the problem's id; none where a line has no `wrong_solutions`. Errors as `read`."""
    found: dict[str, tuple[str, ...]] = {}
    for number, line in _lines(path, where):
        here = f"{where}: {path} line {number}"
        problem = _problem(line, here)
        try:
            wrong = msgspec.json.decode(line, type=_Wrong)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{here}: {error}; `wrong_solutions` is a list of programs") from error
        found[problem.id] = tuple(_whole(wrong.prompt or wrong.text, program) for program in wrong.wrong_solutions)
    return found


def _lines(path: Path, where: str) -> list[tuple[int, bytes]]:
    """The lines that hold something, numbered from 1."""
    try:
        raw = path.read_bytes()
        lines = (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{where}: cannot read {str(path)!r}: {why}; give a JSONL file of problems") from error
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def sample_of(problem: Problem, prompting: str) -> Sample:
    """The sample that asks a problem: `base` continues its text, `chat` puts it into words."""
    stub = problem.prompt.rstrip() if opens(problem.prompt) else ""  # a model writes the line's end with what follows
    key = Key(
        entry_point=problem.entry_point, tests=problem.tests, setup=problem.setup, stub=stub, inside=problem.inside
    )
    base = prompting == "base"
    return Sample(
        id=problem.id,
        prompt=(stub or f'"""\n{problem.prompt.strip()}\n"""\n') if base else "",
        messages=() if base else (Message(role="user", content=_words(problem, stub)),),
        target=msgspec.json.encode(key).decode(),
        cluster=problem.cluster,
        tags=problem.tags,
    )


def key_of(sample: Sample) -> Key:
    """How its answer is graded."""
    return msgspec.json.decode(sample.target, type=Key)


def _words(problem: Problem, stub: str) -> str:
    if stub:
        return f"Complete this Python function. {SAID}\n\n```python\n{stub}\n```"
    name = f" Name the function `{problem.entry_point}`." if problem.entry_point else ""
    return f"{problem.prompt.strip()}\n\nWrite it in Python.{name} {SAID}"


def _problem(line: bytes, where: str) -> Problem:
    try:
        asked, tested = msgspec.json.decode(line, type=_Asked), msgspec.json.decode(line, type=_Tested)
        further = msgspec.json.decode(line, type=_Further)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{where}: {error}; a line holds id, prompt, entry_point and tests") from error
    identity, prompt = asked.id or str(asked.task_id), asked.prompt or asked.text
    if not identity or not prompt.strip():
        raise UsageError(
            f"{where}: no {'prompt' if identity else 'id'}; a line holds id, prompt, entry_point and tests"
        )
    own = [tested.tests] if isinstance(tested.tests, str) else tested.tests
    lists = [*own, *tested.test_list, *tested.challenge_test_list]
    tests = "\n".join(each for each in (tested.test, *lists) if each.strip())
    solution = _solution(prompt, tested)
    known = called(tests, solution)
    entry_point = asked.entry_point or (known[0] if known else "")
    tests += _inputs(further, tests, solution, entry_point, where)
    if not tests.strip():
        raise UsageError(f"{where}: no tests; give `tests`, `test`, `test_list`, or inputs with `canonical_solution`")
    shown = "\n".join(tested.test_list)
    inside = not entry_point or (bool(tested.test_list) and len(known) > 1)
    return Problem(
        id=identity.replace("/", "-"),
        prompt=f"{prompt.strip()}\nIt must pass:\n{shown}" if shown and not opens(prompt) else prompt,
        entry_point=entry_point,
        tests=f"{tests}\ncheck({entry_point})\n" if inside and "def check(" in tests else tests,
        setup="\n".join(s for s in (tested.test_setup_code, _setup(prompt, entry_point)) if s.strip()),
        solution=solution,
        inside=inside,
        tags=tuple(tag for tag in (asked.family, asked.level, *asked.tags) if tag),
        cluster=asked.cluster,
    )


def _solution(prompt: str, tested: _Tested) -> str:
    """The whole reference program, where one is given: HumanEval's continues the prompt."""
    return _whole(prompt, tested.canonical_solution or tested.code)


def _whole(prompt: str, given: str) -> str:
    return prompt + given if given and opens(prompt) and given[:1] in (" ", "\t", "\n") else given


def _setup(prompt: str, entry_point: str) -> str:
    """What the prompt defines beside the entry point: tests use it too."""
    return beside(prompt, entry_point) if opens(prompt) else ""


def _inputs(further: _Further, tests: str, solution: str, entry_point: str, where: str) -> str:
    """Tests of further inputs: their outputs are given, or the reference solution's, which runs beside the tests."""
    inputs = [*further.base_input, *further.plus_input]
    if not inputs:
        return ""
    if not entry_point:
        raise UsageError(f"{where}: inputs without a function to call; give `entry_point`")
    if further.expected is None and not solution:
        raise UsageError(f"{where}: inputs without outputs; give `canonical_solution` or `expected`")
    if further.expected is not None and len(further.expected) != len(inputs):
        raise UsageError(f"{where}: {len(inputs)} inputs and {len(further.expected)} in `expected`; give one each")
    begin = "\n\n_check = check" if "def check(" in tests else ""
    outputs = (
        f"_expected({solution!r}, {entry_point!r}, inputs)" if further.expected is None else repr(further.expected)
    )
    first = "    _check(candidate)\n" if begin else ""
    return (
        f"\n{COMPARE}{begin}\n\ndef check(candidate):\n{first}    inputs = {inputs!r}\n"
        f"    _further(candidate, inputs, {outputs}, {further.atol!r})\n"
    )
