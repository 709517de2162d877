"""Marks programs that a model wrote: the tests run in one process of the sandbox, the program in another.

What passes between the two are values. So a program cannot read the tests, end them, or hand them an object that equals everything,
and a mark counts only with the random token that the test process prints after the last test.
"""

import asyncio
import marshal
import re
import secrets
import zlib
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.util import MAGIC_NUMBER
from math import ceil
from pathlib import Path
from typing import Literal, cast

from evalrig.errors import UsageError, one_line
from evalrig.proctored.plain import Nonsense, decode, encode
from evalrig.sandbox import Booth, Limits, Ran, SandboxUnavailable

START_SECONDS = 10.0
"""Allowed beside the exam's own time, which begins when the program is compiled: a busy machine starts slowly."""
CPU_SECONDS = 10
"""Of processor time, beside the exam's own seconds: the wall clock is to be first."""
LONGEST_SECONDS = 600.0
"""Of all cases together."""
OUTPUT_BYTES = 32 << 20
"""All that the cases of a program may give together."""
FILE_MB = 16
_MODULES = ("plain", "channel", "shield", "program", "script", "candidate", "examiner", "cases", "main")

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
    """Run one exam in a sandbox of its own.

    Raises:
        UsageError: the tests are wrong, not the program.
        SandboxUnavailable: no exam can be held in this sandbox.
    """
    ran, told = await _hold(booth, asdict(exam) | {"seconds": exam.wall_seconds, "sizes": []}, b"", Limits())
    for word, found in told:
        if word == "fault":
            raise UsageError(f"tests of {exam.entry_point or 'a program'}: {found['detail']}; correct the tests")
        if word in ("passed", "failed"):
            return Mark(failure=cast(Failure, found["failure"]), detail=found["detail"], seconds=ran.seconds)
    failure, detail = _silent(ran)
    return Mark(failure=failure, detail=detail, seconds=ran.seconds)


async def outputs(booth: Booth, code: str, cases: Sequence[Case], entry_point: str, seconds: float) -> list[Output]:
    """What a program gives for each case, each in a fresh process with its own limit of `seconds`; later cases are not run
    after one that failed (they are left out). `entry_point`: `function` or `Class.method`; empty: a program that reads
    standard input. All cases share one sandbox.

    Raises:
        SandboxUnavailable: no program can be run in this sandbox.
    """
    if not cases:
        return []
    given = [encode(case.arguments) if entry_point else case.stdin.encode("utf-8", "surrogateescape") for case in cases]
    sheet = {"code": code, "entry_point": entry_point, "seconds": seconds, "output_bytes": OUTPUT_BYTES}
    largest = max(FILE_MB, 1 + (max(map(len, given)) >> 20))
    limits = Limits(
        wall_seconds=min(LONGEST_SECONDS, len(cases) * seconds),
        file_mb=largest,
        scratch_mb=4 * largest,  # what it is given, prints, complains and writes
        output_bytes=7 * OUTPUT_BYTES,  # a control character takes six as text
    )
    ran, told = await _hold(booth, sheet | {"sizes": [len(text) for text in given]}, b"".join(given), limits)
    found = [await asyncio.to_thread(_output, text["text"], entry_point) for word, text in told if word == "gave"]
    ended = [
        Output(failure=cast(Failure, text["failure"]), detail=text["detail"]) for word, text in told if word == "failed"
    ]
    if not ended and len(found) < len(cases):
        failure, detail = _silent(ran)
        ended = [Output(failure=failure, detail=detail)]
    return [*found, *ended]


def _output(text: str, entry_point: str) -> Output:
    if not entry_point:
        return Output(failure="", text=text)
    try:  # the sandbox's Python could read it; ours may be stricter, on depth and on the length of numbers
        return Output(failure="", value=decode(text.encode())[1])
    except Nonsense:
        return Output(failure="crash", detail="returned a value that cannot be read")


async def _hold(
    booth: Booth, sheet: Mapping[str, object], given: bytes, limits: Limits
) -> tuple[Ran, list[tuple[str, dict[str, str]]]]:
    """Run what is on a sheet; what the test process told, in its order. Anything else that was printed is passed over."""
    words = {word: secrets.token_hex(16) for word in ("began", "passed", "failed", "gave", "fault", "unshielded")}
    seconds = cast(float, sheet["seconds"])
    cpu = ceil(seconds) + CPU_SECONDS
    head = encode({**sheet, "words": words, "done": secrets.token_hex(16), "cpu_seconds": cpu})
    wall = max(limits.wall_seconds, seconds) + START_SECONDS
    limits = replace(limits, wall_seconds=wall, cpu_seconds=cpu)
    ran = await booth.run(_program(f"{sheet['code']}"), len(head).to_bytes(8, "big") + head + given, limits)
    told = await asyncio.to_thread(_told, ran.stdout, {secret.encode(): word for word, secret in words.items()})
    for word, found in told:
        if word == "unshielded":
            raise SandboxUnavailable(f"sandbox {booth.label}: {found['detail']}; no program can be marked in it")
    if not told:  # not even that it began
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        why = one_line(said[-1])[:300] if said else f"ended by {ran.ended}, status {ran.code}"
        raise SandboxUnavailable(f"sandbox {booth.label}: no exam can be held in it: {why}; run `evalrig doctor`")
    return ran, told


def _told(printed: bytes, meanings: Mapping[bytes, str]) -> list[tuple[str, dict[str, str]]]:
    """Up to 200 MB are seconds of work."""
    told: list[tuple[str, dict[str, str]]] = []
    for line in printed.split(b"\n")[:-1]:  # the last has no end: it was cut, and counts for nothing
        secret, _, found = line.partition(b" ")
        if secret in meanings:
            told.append((meanings[secret], _read(found)))
    return told


def _read(told: bytes) -> dict[str, str]:
    found = {name: str(text) for name, text in decode(told).items()}
    return found | {"detail": one_line(found.get("detail", ""))}


def _silent(ran: Ran) -> tuple[Failure, str]:
    """What it means that the test process began and told no end: that the program ended it."""
    if ran.ended == "timeout":
        return "timeout", "not done in time"
    return "crash", "printed too much" if ran.ended == "output" else "ended the test process"


_PRELOADED = ("collections", "dataclasses", "functools", "heapq", "math", "re", "string", "typing")
"""Imported before the fork where a program mentions them: the test process mostly imports the same."""


def _program(code: str) -> str:
    """What runs in the sandbox."""
    mentioned = {found[1] for found in re.finditer(r"^[ \t]*(?:from|import)[ \t]+(\w+)", code, re.MULTILINE)}
    return "".join(f"import {name}\n" for name in _PRELOADED if name in mentioned) + _proctored()


@cache
def _proctored() -> str:
    """The modules of `proctored` in one text; compiled already, for an interpreter of the same minor version."""
    folder = Path(__file__).with_name("proctored")
    texts = [(f"evalrig.proctored.{name}", (folder / f"{name}.py").read_text("utf-8")) for name in _MODULES]
    codes = marshal.dumps([(name, compile(text, name, "exec", dont_inherit=True)) for name, text in texts])
    packed = b2a_base64(zlib.compress(repr(texts).encode()))
    return (
        "import binascii, marshal, sys\n"
        f"if sys.modules['_frozen_importlib_external'].MAGIC_NUMBER == {MAGIC_NUMBER!r}:\n"
        f"    codes = marshal.loads(binascii.a2b_base64({b2a_base64(codes)!r}))\n"
        "else:\n"
        f"    import ast, zlib\n    texts = ast.literal_eval(zlib.decompress(binascii.a2b_base64({packed!r})).decode())\n"
        "    codes = [(name, compile(text, name, 'exec')) for name, text in texts]\n"
        "for name, code in codes:\n"
        "    sys.modules[name] = module = type(sys)(name)\n"
        "    exec(code, module.__dict__)\n"
        "module.main()\n"
    )
