"""A program with a server in it, started on a port of its own: watched while it loads, ended with everything it started.

An engine is one of them, or several (a prefill/decode split). Each has its own process group, log and guard.
"""

import asyncio
import contextlib
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evalrig import guard
from evalrig.engine import Launch
from evalrig.errors import EngineError
from evalrig.failures import classify
from evalrig.process import Process
from evalrig.programs import Program

POLL = 0.25
"""Seconds between two looks at a starting engine."""
STARTS = 3
"""Tries, where only the port was at fault."""
GRACE = 6.0
"""Seconds that the guard gives a group after SIGTERM."""
RECENT = 65_536
"""Characters at the end of a log in which it tells how far a start is."""
STAGES: Sequence[tuple[str, str]] = (
    (r"(?:Loading|Capturing)[^\r\n]*?(\d+)%", "{0} %"),
    (r"Load weight begin|Starting to load model", "loading weights"),
    (r"Load weight end|Loading weights took", "weights loaded"),
    (r"KV Cache is allocated|KV cache size:", "KV cache allocated"),
    (r"Capture cuda graph begin|Capturing CUDA graph", "capturing CUDA graphs"),
)
"""What a log says of a start that takes minutes."""


class Reached(Protocol):
    """What can be asked whether it answers."""

    async def status(self, path: str, seconds: float = 5.0) -> int: ...


class Server(Reached, Protocol):
    """The client of a server, as far as starting needs it."""

    async def ready(self) -> bool: ...
    async def close(self) -> None: ...


class StartError(EngineError):
    """A failed start of a known kind."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is started."""

    program: Program
    module: str
    """What `python -m` starts."""
    arguments: Callable[[int], list[str]]
    """The command line after the program, for a port."""
    environment: Mapping[str, str]
    """What the kind sets; `program.env` is laid over it."""
    connect: Callable[[str], Server]
    """The client for a server at an address."""
    settle: Callable[[], Awaitable[None]]
    """Read back what the server is. Raises `StartError` of kind "port taken" where it is another than the one started."""
    role: str = ""
    """Where an engine has several: `prefill-0`, `decode-0`, `router`."""


def log_of(log: Path, role: str) -> Path:
    """The log of one role of an engine that has several; of an engine of one process, its own."""
    return log.with_name(f"{log.stem}.{role}{log.suffix}") if role else log


class Started:
    """One such program."""

    def __init__(self, name: str, command: Command, launch: Launch) -> None:
        role = command.role
        self.name = f"{name}, {role}" if role else name
        self.command = command
        self.url = ""
        self.log_file = log_of(launch.log, role)
        self.process = Process(self.name, self.log_file)
        self.server: Server | None = None
        self._launch = launch
        self._guard: asyncio.subprocess.Process | None = None
        self._log_start = 0
        self._stage = ""

    async def start(self) -> None:
        """Start on a free port, wait, and read back. A port that was taken meanwhile is tried again."""
        for left in reversed(range(STARTS)):
            try:
                await self._start(free_port())
                await self.command.settle()
                return
            except StartError as error:
                if error.kind != "port taken" or not left:
                    raise
                await self.stop()

    async def stop(self) -> None:
        """The whole process group, within 10 s. Harmless when not started."""
        if self.server is not None:
            await self.server.close()
        await self.process.stop()
        if self._guard is None:
            return
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        with contextlib.suppress(TimeoutError):  # a stop command that takes longer goes on without us
            await asyncio.wait_for(self._guard.wait(), 3.0)

    def alive(self) -> bool:
        """Started and not ended."""
        return self.process.alive()

    def log(self) -> str:
        """What this start has written so far."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(self._log_start)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    async def _start(self, port: int) -> None:
        program, name = self.command.program, f"evalrig-{_word(self.name)}-{secrets.token_hex(4)}"
        argv = [*program.argv(self.command.module, name), *self.command.arguments(port)]
        self._log_start = self.log_file.stat().st_size if self.log_file.is_file() else 0
        self.process = Process(self.name, self.log_file)
        self._stage = ""
        await self.process.start(argv, {**os.environ, **self.command.environment, **program.env})
        try:
            self._guard = await _guarding(self.process.pid, program.stopping(name))
        except BaseException:
            await self.process.stop()
            raise
        self.url = f"http://127.0.0.1:{port}"
        self.server = server = self.command.connect(self.url)

        async def ready() -> bool:
            await asyncio.sleep(POLL)
            self._tell()
            return await server.ready() and self.process.alive()

        try:
            await self.process.wait_ready(ready, self._launch.start_seconds)
        except EngineError as error:
            raise self._failure(error) from None

    def _failure(self, error: EngineError) -> StartError:
        """The reason in one line."""
        see = f"see {self.log_file}"
        if self.process.alive():
            heard = self._stage or self.process.last_line()
            waited = f"not ready after {self._launch.start_seconds:.0f} s, last heard: {heard}"
            return StartError(f"{self.name}: {waited}; raise engine.start_seconds, or {see}", "deadline")
        kind, words, remedy = classify(self.log())
        if not kind:
            return StartError(f"{self.name}: did not start: {words}; {see}" if words else str(error), "")
        return StartError(f"{self.name}: did not start, {kind}: {words}; {remedy}; {see}", kind)

    def _tell(self) -> None:
        """Say how far the start is, where the log tells."""
        stage = how_far(self.log()[-RECENT:])
        if stage and stage != self._stage:
            self._stage = stage
            self._launch.say(f"{self.name}: {stage}")


def how_far(log: str) -> str:
    """The last thing a log says about a start; empty: nothing."""
    best, place = "", -1
    for pattern, words in STAGES:
        for found in re.finditer(pattern, log):
            if found.start() > place:
                what = "capturing CUDA graphs " if found.group(0).startswith("Capturing") else "loading weights "
                best = what + words.format(*found.groups()) if "{0}" in words else words
                place = found.start()
    return best


def free_port() -> int:
    """A port of the loopback interface that nobody listens on, for now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name)


async def _guarding(group: int, stop_command: Sequence[str]) -> asyncio.subprocess.Process:
    started = await asyncio.create_subprocess_exec(
        *guard.command_line(GRACE, stop_command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    assert started.stdin is not None
    started.stdin.write(b"%d\n" % group)
    return started
