"""What a sandbox is: it runs one program that a model wrote, and lets nothing out but what the program prints."""

import asyncio
import os
import resource
import secrets
import tempfile
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from evalrig.errors import RunError, UsageError

SLOTS: Final = 1000
"""Runs side by side, at most: each has a uid of its own where evalrig runs as root."""
DESCRIPTORS: Final = 16
"""Of our own process for each run, at most."""
STANDARD = "asyncio, collections, ctypes, decimal, hashlib, heapq, itertools, json, math, re, statistics, string, typing, unittest"
"""Parts of the standard library without which a Python is not whole."""


class SandboxUnavailable(UsageError):
    """No program may be run here: something is missing or failing. Never a reason to take a weaker sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one program and all that it starts."""

    wall_seconds: float = 10.0
    cpu_seconds: int = 10
    memory_mb: int = 1024
    """Address space of each process: fewer than 1,024 leave too little for a handful of threads."""
    processes: int = 32
    open_files: int = 64
    file_mb: int = 16
    """Largest single file."""
    scratch_mb: int = 64
    """All files together."""
    output_bytes: int = 1 << 20
    """Of standard output, and of standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a program ended. All that it printed is hostile."""

    ended: Literal["exit", "timeout", "output"]
    """By itself, at the wall clock's limit, or at the limit of what it may print."""
    code: int | None
    """Exit status; below 0: the signal that ended it."""
    stdout: bytes
    stderr: bytes
    seconds: float


class Sandbox(ABC):
    """A way to keep a program in. `run` blocks, and is called from threads that live as long as the sandbox is used."""

    kind: str
    version: str
    """Of what keeps the program in, in its own words."""
    confines: ClassVar[bool] = True
    """False: it keeps nothing in, and is not asked to prove that it does."""

    @abstractmethod
    def __init__(self, unsandboxed: bool) -> None:
        """Look for what is needed. `unsandboxed`: the run file's second key.

        Raises:
            SandboxUnavailable: it is not here, and how to get it.
        """

    @abstractmethod
    def run(self, program: str, stdin: bytes, limits: Limits, slot: int) -> Ran:
        """Run a Python program to its end or a limit; nothing of it is left afterwards. No two runs at once share a `slot`.

        Raises:
            SandboxUnavailable: the program could not be started at all.
        """

    def close(self) -> None:
        """End what runs now, from any thread; later runs are refused."""
        return  # a sandbox that starts no process has nothing to end


def probe(sandbox: Sandbox) -> str:
    """Run a program that must come back, and that must not get out. The version of the Python it ran under.

    Raises:
        SandboxUnavailable: it did not come back, or a file or the network was within its reach.
    """
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        outside = Path(folder) / "outside"
        outside.write_text("")
        ran = sandbox.run(_PROBE.format(STANDARD, outside=str(outside), word=word), b"", Limits(wall_seconds=30), 0)
    said = ran.stdout.decode(errors="replace").split()
    if ran.ended != "exit" or ran.code != 0 or len(said) != 4 or said[0] != word:
        why = (ran.stderr.decode(errors="replace").strip().splitlines() or [f"ended with {ran.code} ({ran.ended})"])[-1]
        raise SandboxUnavailable(
            f"sandbox: {sandbox.kind} did not run a first program: {why[:300]}; see docs/sandbox.md"
        )
    if sandbox.confines and said[2:] != ["kept", "kept"]:
        reached = " and ".join(
            what for what, how in zip(("a file", "the network"), said[2:], strict=True) if how != "kept"
        )
        raise SandboxUnavailable(f"sandbox: {sandbox.kind} {sandbox.version} let a program reach {reached}; mend it")
    return said[1]


_PROBE = """\
import {}, socket, sys
def kept(reach):
    try:
        reach()
    except OSError:
        return "kept"
    return "out"
print({word!r}, sys.version.split()[0], kept(lambda: open({outside!r})), kept(socket.socket))
"""


class Booth:
    """Runs programs side by side in one kind of sandbox. Close it: what still runs would be waited for."""

    def __init__(self, sandbox: Sandbox, at_once: int = 0, python: str = "") -> None:
        self.sandbox = sandbox
        self.at_once = min(at_once or _affordable(), SLOTS)
        self.python = python
        self._slots: list[int] = list(range(self.at_once))
        # a sandbox dies with the thread that started it: these live as long as the booth
        self._threads = ThreadPoolExecutor(self.at_once, thread_name_prefix="sandbox")
        self._closed = False

    @property
    def label(self) -> str:
        """Back end, version and the Python in it, for every record: another of them may mark otherwise."""
        name = f"{self.sandbox.kind} {self.sandbox.version}".strip()
        return f"{name}, python {self.python}" if self.python else name

    async def run(self, program: str, stdin: bytes = b"", limits: Limits | None = None) -> Ran:
        """As `Sandbox.run`, without blocking.

        Raises:
            RunError: the sandbox was lost while the run goes on, or the booth is closed.
        """
        if self._closed:
            raise RunError("sandbox: closed; no program can be run any more")
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._run, program, stdin, limits or Limits()
        )

    def close(self) -> None:
        """End all programs; nothing runs here afterwards."""
        self._closed = True
        self.sandbox.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, program: str, stdin: bytes, limits: Limits) -> Ran:
        slot = self._slots.pop()
        try:
            return self.sandbox.run(program, stdin, limits, slot)
        except SandboxUnavailable as error:  # it was proved before the run: what fails now is the machine
            raise RunError(str(error)) from error
        except OSError as error:  # no descriptor, no memory, a full disk: ours, and nothing of the program
            why = f"{error.strerror or error}; free it, then `evalrig resume`"
            raise RunError(f"sandbox: {self.sandbox.kind} cannot run a program: {why}") from error
        finally:
            self._slots.append(slot)


def _affordable() -> int:
    """Two runs a core that we may use, as far as half of our descriptors reach: engines and files need the others."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2 * cores if most == resource.RLIM_INFINITY else max(1, min(2 * cores, most // 2 // DESCRIPTORS))
