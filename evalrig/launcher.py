"""Engines that are the user's own programs: found, asked for their flags, started, watched, and stopped with all they started.

What SGLang and vLLM share. A kind adds its options, its flags, and what its server says.
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
import socket
import sys
from abc import abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from evalrig import checkpoint
from evalrig.checkpoint import Checkpoint, CheckpointError
from evalrig.engine import Engine, Launch
from evalrig.errors import EngineError, UsageError
from evalrig.failures import classify
from evalrig.gpus import wait_until_free
from evalrig.process import Process
from evalrig.programs import Program, known_flags
from evalrig.types import Variant

T = TypeVar("T")
POLL = 0.25
"""Seconds between two looks at a starting engine."""
SETTLE = 8.0
"""Seconds that a dying engine may take until its process is gone: SGLang needs 6."""
STARTS = 3
"""Tries, where only the port was at fault."""
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


class Server(Protocol):
    """The client of an engine, as far as starting needs it."""

    async def ready(self) -> bool: ...
    async def close(self) -> None: ...
    async def status(self, path: str, seconds: float = 5.0) -> int: ...


class StartError(EngineError):
    """A failed start of a known kind."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One start: its process, its guard, where its log begins."""

    process: Process
    guard: asyncio.subprocess.Process
    log_start: int


class Launched(Engine):
    """An engine that is started as a program."""

    module: ClassVar[str]
    """What `python -m` starts."""
    package: ClassVar[str]
    table: ClassVar[Sequence[tuple[str, str, str]]]
    """Group, option and flag."""
    reserved: ClassVar[frozenset[str]]
    """Flags that this adapter sets itself."""

    def __init__(self, variant: Variant, options: Any, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self.checkpoint: Checkpoint | None = None
        self._running: Running | None = None
        self._gone = False
        self._stage = ""

    @property
    def folder(self) -> str:
        """Of the checkpoint."""
        return str(Path(self.variant.weights).expanduser())

    def template_digest(self) -> str:
        """Of the chat template in use: the one that was given, else the checkpoint's."""
        if given := self.options.parsers.chat_template:
            path = Path(given).expanduser()
            text = path.read_text("utf-8") if path.is_file() else given
            return checkpoint.digest_of(text)
        return self.checkpoint.template_digest if self.checkpoint else ""

    @abstractmethod
    def arguments(self, port: int) -> list[str]:
        """The command line after the program."""

    @abstractmethod
    def connect(self, url: str) -> Server:
        """The client for a server at this address, remembered."""

    @abstractmethod
    def server(self) -> Server | None:
        """The client; None before the start."""

    @abstractmethod
    async def settle(self) -> None:
        """Read back what the server is. Raises `EngineError` where it is another than the one started."""

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """What the kind sets in the program's environment; the run file's `program.env` is laid over it."""

    @classmethod
    def resolve(cls, variant: Variant, options: Any, where: str) -> None:
        """Options that go together."""
        set_here = {flag for _, _, flag in cls.table} | cls.reserved
        for flag in _named(options.extra):
            if flag in set_here:
                raise UsageError(f"{where}.args.extra: `{flag}` has an option of its own; set it there")

    @classmethod
    def reach(cls, variant: Variant, options: Any, where: str) -> None:
        """The checkpoint and the program are here, and the program knows every flag."""
        _read(variant, where)
        program: Program = options.program
        known = known_flags(program, cls.package, cls.module, f"{where}.args.program")
        for flag in sorted(_named([*flags(cls.table, options), *cls.reserved, *options.extra])):
            if flag not in known:
                close = get_close_matches(flag, known, 1)
                hint = f"did you mean `{close[0]}`?" if close else "leave it out, or use the version that has it"
                raise UsageError(f"{where}.args: this {cls.package} knows no flag `{flag}`; {hint}")

    async def start(self) -> None:
        """Start on a free port, wait, and read back. A port that was taken meanwhile is tried again."""
        self.checkpoint = await asyncio.to_thread(_read, self.variant, self.variant.name)
        await wait_until_free(self.options.program.env, self.launch.say)
        for left in reversed(range(STARTS)):
            try:
                await self._start(_free_port())
                await self.settle()
                return
            except StartError as error:
                if error.kind != "port taken" or not left:
                    raise
                await self.stop()

    async def stop(self) -> None:
        """See `Engine.stop`."""
        if (server := self.server()) is not None:
            await server.close()
        if (running := self._running) is None:
            return
        await running.process.stop()
        if running.guard.stdin is not None:
            running.guard.stdin.close()
        with contextlib.suppress(TimeoutError):  # a stop command that takes longer goes on without us
            await asyncio.wait_for(running.guard.wait(), 3.0)

    def alive(self) -> bool:
        """See `Engine.alive`."""
        return self._running is not None and self._running.process.alive() and not self._gone

    def log(self) -> str:
        """What this start has written so far."""
        if self._running is None:
            return ""
        with self.launch.log.open("rb") as file:
            file.seek(self._running.log_start)
            return file.read().decode(errors="replace")

    async def guarded(self, call: Awaitable[T]) -> T:
        """A call that fails while the engine is dying is told from one that fails alone: wait until it is clear."""
        try:
            return await call
        except EngineError:
            self._gone = not await self._survives()
            raise

    async def _survives(self) -> bool:
        server, end = self.server(), asyncio.get_running_loop().time() + SETTLE
        while server is not None and asyncio.get_running_loop().time() < end:
            if not self.alive():
                return False
            if await server.status("/health", SETTLE) == 200:
                return True
            await asyncio.sleep(POLL)
        return False

    async def _start(self, port: int) -> None:
        program: Program = self.options.program
        name = f"evalrig-{re.sub(r'[^A-Za-z0-9]', '-', self.variant.name)}-{secrets.token_hex(4)}"
        argv = [*program.argv(self.module, name), *self.arguments(port)]
        began = self.launch.log.stat().st_size if self.launch.log.is_file() else 0
        process = Process(self.variant.name, self.launch.log)
        self._gone, self._stage = False, ""
        await process.start(argv, {**os.environ, **self.environment(), **program.env})
        try:
            guard = await _guard(process.pid, program.stopping(name))
        except BaseException:
            await process.stop()
            raise
        self._running = Running(process=process, guard=guard, log_start=began)
        server = self.connect(f"http://127.0.0.1:{port}")

        async def ready() -> bool:
            await asyncio.sleep(POLL)
            self._tell()
            return await server.ready() and process.alive()

        try:
            await process.wait_ready(ready, self.launch.start_seconds)
        except EngineError as error:
            raise self._failure(process, error) from None

    def _failure(self, process: Process, error: EngineError) -> StartError:
        """The reason in one line."""
        name, see = self.variant.name, f"see {self.launch.log}"
        if process.alive():
            heard = self._stage or process.last_line()
            waited = f"not ready after {self.launch.start_seconds:.0f} s, last heard: {heard}"
            return StartError(f"{name}: {waited}; raise engine.start_seconds, or {see}", "deadline")
        kind, words, remedy = classify(self.log())
        if not kind:
            return StartError(f"{name}: did not start: {words}; {see}" if words else str(error), "")
        return StartError(f"{name}: did not start, {kind}: {words}; {remedy}; {see}", kind)

    def _tell(self) -> None:
        """Say how far the start is, where the log tells."""
        stage = how_far(self.log()[-RECENT:])
        if stage and stage != self._stage:
            self._stage = stage
            self.launch.say(f"{self.variant.name}: {stage}")


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


def flags(table: Iterable[tuple[str, str, str]], options: Any) -> list[str]:
    """The command line of typed options: a flag alone for true, nothing for what is not set."""
    argv: list[str] = []
    for group, name, flag in table:
        value = getattr(getattr(options, group), name)
        if value is True:
            argv.append(flag)
        elif value not in (None, "", False) or (value == 0 and value is not False):
            argv += [flag, str(value)]
    return argv


def redacted(words: Sequence[str]) -> list[str]:
    """A command line without what must not be written down."""
    kept: list[str] = []
    hide = False
    for word in words:
        name, _, value = word.partition("=")
        secret = bool(re.search(r"(key|token|password|secret)$", name)) and name.startswith("--")
        kept.append("(redacted)" if hide else f"{name}=(redacted)" if secret and value else word)
        hide = secret and not value
    return kept


def _named(words: Iterable[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def _read(variant: Variant, where: str) -> Checkpoint:
    try:
        return checkpoint.read(Path(variant.weights).expanduser() if variant.weights else Path("/dev/null"))
    except (CheckpointError, OSError) as error:
        text = f"{where}.weights: {variant.weights!r}: {error}; give the folder of a checkpoint on this machine"
        raise UsageError(text) from error


async def _guard(group: int, stop_command: Sequence[str]) -> asyncio.subprocess.Process:
    code = str(Path(__file__).with_name("guard.py"))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", code, str(group), json.dumps(list(stop_command))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
