"""What a sandbox is: it runs one program that a model wrote, and lets nothing out but what the program prints."""

import asyncio
import os
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from evalrig.errors import UsageError


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


class Booth:
    """Runs programs side by side in one kind of sandbox."""

    def __init__(self, sandbox: Sandbox, at_once: int = 0) -> None:
        self.sandbox = sandbox
        self.at_once = at_once or 2 * (os.cpu_count() or 1)
        self._slots: list[int] = list(range(self.at_once))
        # a sandbox dies with the thread that started it: these live as long as the booth
        self._threads = ThreadPoolExecutor(self.at_once, thread_name_prefix="sandbox")

    @property
    def label(self) -> str:
        """Back end and version, for every record."""
        return f"{self.sandbox.kind} {self.sandbox.version}".strip()

    async def run(self, program: str, stdin: bytes = b"", limits: Limits | None = None) -> Ran:
        """As `Sandbox.run`, without blocking."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._run, program, stdin, limits or Limits()
        )

    def _run(self, program: str, stdin: bytes, limits: Limits) -> Ran:
        slot = self._slots.pop()
        try:
            return self.sandbox.run(program, stdin, limits, slot)
        finally:
            self._slots.append(slot)
