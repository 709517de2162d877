"""An exam from start to end: the program's process is forked first, and only then the tests are read."""

from __future__ import annotations

import os

from evalrig.proctored.candidate import Candidate
from evalrig.proctored.cases import Files, hold, sit
from evalrig.proctored.channel import Channel, pair
from evalrig.proctored.examiner import Asked, Fault, Over, examine
from evalrig.proctored.plain import decode, encode
from evalrig.proctored.shield import Unshielded, close_memory, drain, empty_input, end_children, silence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def main() -> None:
    """Read the exam from standard input, write the marks to standard output."""
    os.closerange(3, 1024)
    files = Files()
    mine, theirs = pair()
    unshielded = ""
    try:
        close_memory()
    except Unshielded as error:
        unshielded = str(error)
    pid = os.fork()
    if pid:
        _close(theirs)
        _preside(files, Asked(pid, mine), unshielded)
        os._exit(0)  # without taking the interpreter down, which takes milliseconds
    else:
        _close(mine)
        silence(0, 1, 2)
        sit(*Candidate(theirs).serve(), files)


def _close(channel: Channel) -> None:
    os.close(channel.reads)
    os.close(channel.writes)


def _preside(files: Files, asked: Asked, unshielded: str) -> None:
    """The test process. A mark that counts begins with a word that only it knows, and is written when the program is dead."""
    report = os.dup(1)
    silence(1)
    sheet, cases = _read(drain())

    def tell(word: str, **found: str) -> None:
        left = memoryview(f"\n{sheet['words'][word]} ".encode() + encode(found) + b"\n")
        while left:
            left = left[os.write(report, left) :]

    try:
        if unshielded:
            raise Unshielded(unshielded)
        empty_input()
        asked.cpu_seconds = sheet["cpu_seconds"]
        tell("began")  # nothing of the program was read yet: without this word it is not to blame
        failure, detail = _held(sheet, cases, asked, files, lambda gave: tell("gave", text=gave))
        asked.clock(0)
        end_children()
        tell("failed" if failure else "passed", failure=failure, detail=detail[:2000])
    except Fault as error:
        asked.clock(0)
        end_children()
        tell("fault", detail=str(error))
    except Unshielded as error:
        tell("unshielded", detail=str(error))


def _held(sheet: dict[str, Any], cases: Iterator[memoryview], asked: Asked, files: Files, tell: Any) -> tuple[str, str]:
    try:
        return hold(sheet, cases, asked, files, tell) if sheet["sizes"] else examine(sheet, asked)
    except Over as over:  # the clock, at the very end
        return over.failure, over.detail


def _read(text: bytes) -> tuple[dict[str, Any], Iterator[memoryview]]:
    """The sheet, and what each case is given."""
    start = 8 + int.from_bytes(text[:8], "big")
    sheet = decode(text[8:start])

    def cases() -> Iterator[memoryview]:
        at = start
        for size in sheet["sizes"]:
            yield memoryview(text)[at : at + size]
            at += size

    return sheet, cases()
