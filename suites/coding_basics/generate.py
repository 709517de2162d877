"""Writes problems.jsonl: small Python exercises, each with tests, a solution that is right and some that are not.

    python suites/coding_basics/generate.py > suites/coding_basics/problems.jsonl

A file of `source/` is a family. A problem there is a block of lines, with an empty line between two blocks:

    # trivial demo like=sum       level; whether a short demo asks it; the idea that it shares with other problems
    def add_numbers(a, b):        signature, after any imports
    Return the sum of a and b.    what to do, as the docstring says it
    > 2, 3 -> 5                   arguments and result: shown as an example, and tested
    ? 0, 0 -> 0                   tested only
    = return a + b                the body that is right; further lines of it are indented by two
    ! return a - b                a body with a plausible mistake
"""

import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("source")
LEVELS = ("trivial", "easy", "moderate")
_SIGNATURE = re.compile(r"def (\w+)\(.*\):")


class _Block:
    """The lines of one problem, by their marker."""

    def __init__(self, lines: list[str]) -> None:
        self.level, *self.words = lines[0].removeprefix("# ").split()
        if self.level not in LEVELS:
            raise ValueError(f"{lines[0]!r}: the level is one of {', '.join(LEVELS)}")
        self.head: list[str] = []
        self.says: list[str] = []
        self.calls: list[tuple[str, str, str]] = []
        """Marker, arguments, result."""
        self.bodies: list[tuple[str, list[str]]] = []
        """Marker, lines."""
        for line in lines[1:]:
            self._take(line)

    def _take(self, line: str) -> None:
        marker, rest = line[:2], line[2:]
        if marker in ("> ", "? "):
            arguments, _, result = rest.rpartition(" -> ")
            self.calls.append((marker, arguments, result))
        elif marker in ("= ", "! "):
            self.bodies.append((marker, [rest]))
        elif marker == "  " and self.bodies:
            self.bodies[-1][1].append(rest)
        elif not self.head or not _SIGNATURE.fullmatch(self.head[-1]):
            self.head.append(line)
        else:
            self.says.append(line)

    @property
    def name(self) -> str:
        """Of the function that is asked for."""
        found = _SIGNATURE.fullmatch(self.head[-1])
        if found is None:
            raise ValueError(f"{self.head}: no line `def NAME(...):`")
        return found[1]

    def prompt(self) -> str:
        """Signature and docstring, with the examples as the interpreter would show them.

        There is no line break at its end: after one, small models close a code block instead of going on.
        """
        text = textwrap.fill(" ".join(self.says), 92)
        for marker, arguments, result in self.calls:
            if marker == "> ":
                text += "\n\n" if ">>>" not in text else "\n"
                text += f">>> {self.name}({arguments})\n{ast.literal_eval(result)!r}"
        opening = 'r"""' if "\\" in text else '"""'
        return "\n".join(self.head) + "\n" + textwrap.indent(f'{opening}{text}\n"""', "    ")

    def tests(self) -> str:
        """A function that asserts every result."""
        lines = [f"    assert candidate({arguments}) == {result}\n" for _, arguments, result in self.calls]
        return "def check(candidate):\n" + "".join(lines)

    def solutions(self, marker: str) -> list[str]:
        """Bodies that continue the prompt."""
        return [textwrap.indent("\n".join(["", *lines, ""]), "    ") for each, lines in self.bodies if each == marker]


def row(family: str, block: _Block) -> dict[str, Any]:
    """One line of problems.jsonl."""
    [right] = block.solutions("= ")
    made: dict[str, Any] = {
        "id": f"{family}-{block.name.replace('_', '-')}",
        "family": family,
        "level": block.level,
        "prompt": block.prompt(),
        "entry_point": block.name,
        "tests": block.tests(),
        "canonical_solution": right,
        "wrong_solutions": block.solutions("! "),
    }
    for word in block.words:
        if word == "demo":
            made["tags"] = ["demo"]
        elif word.startswith("like="):
            made["idea"] = word.removeprefix("like=")
        else:
            raise ValueError(f"{block.name}: what is {word!r}? After the level come `demo` and `like=NAME`")
    return made


def rows() -> Iterator[str]:
    """Lines of problems.jsonl, family by family."""
    for path in sorted(SOURCE.glob("*.txt")):
        for text in path.read_text(encoding="utf-8").strip().split("\n\n"):
            yield json.dumps(row(path.stem, _Block(text.split("\n"))), ensure_ascii=False)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in rows()))
