"""A program that is run once for each case: what it is given, and what it gives."""

from __future__ import annotations

import os
import sys
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from itertools import islice

from evalrig.proctored.examiner import Asked, Over, fate
from evalrig.proctored.plain import LONGEST_RUN, Nonsense, NoPlainValue, decode, encode
from evalrig.proctored.program import entry, load
from evalrig.proctored.shield import end_children, silence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType
    from typing import Any


class Files:
    """In the scratch folder, without names there, and the same open files on both sides. Emptied between cases."""

    def __init__(self) -> None:
        self.given, self.printed, self.errors, self.returned = (_nameless(f".case{number}") for number in range(4))

    def lay(self, given: bytes | memoryview) -> None:
        """What the next case is given."""
        for file in (self.given, self.printed, self.errors, self.returned):
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)
        left = memoryview(given)
        while left:
            left = left[os.write(self.given, left) :]
        os.lseek(self.given, 0, os.SEEK_SET)


def _nameless(name: str) -> int:
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(name)  # noqa: PTH108  pathlib is slow to import
    return file


def sit(code: CodeType, entry_point: str, files: Files) -> None:
    """In the new process of a case. A program that reads standard input then ends as any program does."""
    for file, number in ((files.given, 0), (files.printed, 1), (files.errors, 2), (files.returned, 3)):
        os.dup2(file, number)
    os.closerange(4, 1024)
    given, printed = FileIO(0, closefd=False), FileIO(1, "w", closefd=False)
    sys.stdin = TextIOWrapper(BufferedReader(given), "utf-8", "surrogateescape")
    sys.stdout = TextIOWrapper(BufferedWriter(printed), "utf-8", "surrogateescape")
    if not entry_point:
        os.close(3)
        load(code, "__main__")
        return
    arguments = decode(given.readall())
    silence(0, 1)
    value = entry(load(code, "program"), entry_point)(*arguments)
    try:
        message = encode(["gave", list(islice(value, LONGEST_RUN)) if hasattr(type(value), "__next__") else value])
    except NoPlainValue as error:
        message = encode(["odd", f"returned {error}, which is no plain value"])
    with FileIO(3, "w") as returned:
        BufferedWriter(returned).write(message)
    os._exit(0)


def hold(
    sheet: dict[str, Any], cases: Iterable[memoryview], asked: Asked, files: Files, tell: Callable[[str], None]
) -> tuple[str, str]:
    """In the test process: each case, until one fails. `tell` gets what each good one printed, or the text of what it returned.

    Class of failure, or empty, and a detail.
    """
    try:
        answer = asked.ask("compile", sheet["code"])
        if answer[0] == "syntax":
            return "syntax_error", str(answer[-1])
        left = sheet["output_bytes"]
        for case in cases:
            files.lay(case)
            asked.clock(sheet["seconds"])
            answer = asked.ask("case", sheet["entry_point"])
            gave = _gave(answer, files.returned if sheet["entry_point"] else files.printed, asked, (files.errors, left))
            if sheet["entry_point"]:
                _check(gave, asked)
            asked.clock(0)
            end_children(spared=asked.pid)
            left -= len(gave)
            tell(gave.decode("utf-8", "replace"))
    except Over:
        pass
    return (asked.over.failure, asked.over.detail) if asked.over else ("", "")


def _gave(answer: list[Any], file: int, asked: Asked, rest: tuple[int, int]) -> bytes:
    """What is in the file of a case that ended well. `rest`: the file of its errors, and the most bytes it may give."""
    errors, most = rest
    if answer[0] != "ended" or [type(part) for part in answer[1:]] != [int, float]:
        asked.end("crash", "answered with nonsense")
    if answer[1]:
        failure, detail = fate(answer[1], answer[2], asked.cpu_seconds)
        asked.end(failure, (os.WIFEXITED(answer[1]) and _last_words(errors)) or detail)
    size = os.fstat(file).st_size
    if size > most:
        asked.end("crash", f"gave more than {most >> 20} MB")
    return os.pread(file, size, 0)


def _check(returned: bytes, asked: Asked) -> None:
    """It can be read, and within the time of the case: whoever compares will have to."""
    if not returned:
        asked.end("crash", "ended before it returned")
    try:
        answer = decode(returned)
    except Nonsense:
        asked.end("crash", "answered with nonsense")
    if type(answer) is not list or len(answer) != 2 or answer[0] not in ("gave", "odd"):
        asked.end("crash", "answered with nonsense")
    if answer[0] == "odd":
        asked.end("crash", answer[1][:500] if type(answer[1]) is str else "answered with nonsense")


def _last_words(errors: int) -> str:
    """The last line of a traceback."""
    size = os.fstat(errors).st_size
    lines = os.pread(errors, 4096, max(0, size - 4096)).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else ""
