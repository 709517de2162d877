"""What a probe gives: a sign. And how a probe asks another program: briefly, and never longer than it was given."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

SECONDS = 20.0
LONGEST = 160


class Mark(StrEnum):
    """How much a sign matters."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is lost."""
    LACK = "lack"
    """Something cannot be done here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One thing that was looked at."""

    name: str
    mark: Mark
    found: str
    then: str = ""
    """What a lack means, and what to do."""
    needed: bool = False
    """Without it no run is possible."""

    def __str__(self) -> str:
        words = "; ".join(filter(None, (self.found, self.then)))
        line = " ".join(words.split())
        return f"{self.mark:<5} {self.name:<12} {''.join(x if x.isprintable() else '?' for x in line)}"


def ok(name: str, found: str) -> Sign:
    """All is well."""
    return Sign(name=name, mark=Mark.OK, found=found)


def note(name: str, found: str, then: str = "") -> Sign:
    """Worth knowing."""
    return Sign(name=name, mark=Mark.NOTE, found=found, then=then)


def lack(name: str, found: str, then: str, needed: bool = False) -> Sign:
    """What is missing, what that means, what to do."""
    return Sign(name=name, mark=Mark.LACK, found=found, then=then, needed=needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a program said."""

    code: int | None
    """None: it was not there, or did not end in time."""
    out: str
    trouble: str
    """Its last line of complaint, or why it gave none; empty: it ended well."""


def ask(argv: Sequence[str], seconds: float = SECONDS, env: Mapping[str, str] | None = None) -> Answer:
    """Run a program to its end. Past the time its whole process group is ended: a child of its own may hold the pipe."""
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    whole = {**os.environ, **(env or {})}
    try:
        process = subprocess.Popen(argv, stdin=quiet, stdout=pipe, stderr=pipe, env=whole, start_new_session=True)
    except OSError as error:
        return Answer(code=None, out="", trouble=f"cannot run `{argv[0]}`: {error.strerror}")
    with process:
        try:
            out, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return Answer(code=None, out="", trouble=f"no answer in {seconds:g} s")
    lines = (said or out).decode(errors="replace").strip().splitlines()
    last = lines[-1][:LONGEST] if lines else f"ended with code {process.returncode} without a word"
    return Answer(
        code=process.returncode,
        out=out.decode(errors="replace").strip(),
        trouble="" if process.returncode == 0 else last,
    )
