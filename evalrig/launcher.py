"""Engines that are the user's own programs: found, asked for their flags, started, watched, and stopped with all they started.

What SGLang and vLLM share. A kind adds its options, its flags, and what its server says.
"""

import asyncio
import re
from abc import abstractmethod
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from evalrig import checkpoint
from evalrig.checkpoint import Checkpoint, CheckpointError
from evalrig.engine import Engine, Launch
from evalrig.errors import EngineError, UsageError
from evalrig.gpus import memory_in_use, wait_until_free
from evalrig.loadgen.target import Gauges
from evalrig.programs import Program, known_flags, refuse_secrets
from evalrig.started import POLL, Command, Reached, Server, Started
from evalrig.types import Variant

T = TypeVar("T")
SETTLE = 8.0
"""Seconds that a dying engine may take until its process is gone: SGLang needs 6."""


class Loaded(Reached, Protocol):
    """One server, or all of an engine that has several, as they are read under load."""

    async def flush(self) -> bool: ...
    async def gauges(self) -> Gauges | None: ...


class Launched(Engine):
    """An engine that is started as a program."""

    module: ClassVar[str]
    """What `python -m` starts."""
    package: ClassVar[str]
    table: ClassVar[Sequence[tuple[str, str, str]]]
    """Group, option and flag."""
    reserved: ClassVar[frozenset[str]]
    """Flags that this adapter sets itself."""
    online: ClassVar[Mapping[str, str]]
    """`quantization` of a checkpoint that is not quantised -> dtype of the weights once loaded."""
    grouped: ClassVar[frozenset[str]] = frozenset()
    """Flags that options set which are not of the table."""

    def __init__(self, variant: Variant, options: Any, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self.checkpoint: Checkpoint | None = None
        self._parts: list[Started] = []
        self._gone = False

    @property
    def folder(self) -> str:
        """Of the checkpoint."""
        return str(Path(self.variant.weights).expanduser())

    def weights_dtype(self) -> str:
        """The checkpoint's, or what it was quantised to while loading."""
        held = self.checkpoint.weights if self.checkpoint else ""
        asked = self.options.weights_and_kv.quantization
        return self.online.get(asked, held) if held in ("bf16", "fp16", "f32") else held

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
    def server(self) -> Loaded | None:
        """Whom to ask whether it still answers, and how it is loaded; None before the start."""

    @abstractmethod
    async def settle(self) -> None:
        """Read back what the server is. Raises `EngineError` where it is another than the one started."""

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """What the kind sets in the program's environment; the run file's `program.env` is laid over it."""

    @classmethod
    def resolve(cls, variant: Variant, options: Any, where: str) -> None:
        """Options that go together."""
        program: Program = options.program
        refuse_secrets(options.extra, f"{where}.args.extra")
        for key, words in (("command", program.command), ("stop_command", program.stop_command)):
            refuse_secrets(words, f"{where}.args.program.{key}")
        refuse_secrets([f"{name}={value}" for name, value in program.env.items()], f"{where}.args.program.env")
        for key in ("tp", "dp", "pp", "ep"):
            if (given := getattr(options.parallel, key, None)) is not None and given < 1:
                raise UsageError(f"{where}.args.parallel.{key}: {given}; 1 is the least")
        for flag in _named(options.extra):
            if flag in cls.reserved:
                raise UsageError(f"{where}.args.extra: `{flag}` is set by evalrig; leave it out")
            if flag in {flag for _, _, flag in cls.table} | cls.grouped:
                raise UsageError(f"{where}.args.extra: `{flag}` has an option of its own; set it there")

    @classmethod
    def wanted(cls, options: Any) -> list[str]:
        """Words of the command line, whose flags the program must know."""
        return [*flags(cls.table, options), *cls.reserved, *options.extra]

    @classmethod
    def reach(cls, variant: Variant, options: Any, where: str) -> None:
        """The checkpoint and the program are here, and the program knows every flag."""
        _read(variant, where)
        program: Program = options.program
        known = known_flags(program, cls.package, cls.module, f"{where}.args.program")
        for flag in sorted(_named(cls.wanted(options))):
            if flag not in known:
                close = get_close_matches(flag, known, 1)
                hint = f"did you mean `{close[0]}`?" if close else "leave it out, or use the version that has it"
                raise UsageError(f"{where}.args: this {cls.package} knows no flag `{flag}`; {hint}")

    def commands(self) -> Iterator[Command]:
        """What is started, one after the other; each is asked for when those before it are ready."""
        yield Command(
            program=self.options.program,
            module=self.module,
            arguments=self.arguments,
            environment=self.environment(),
            connect=self.connect,
            settle=self.settle,
        )

    async def start(self) -> None:
        """Start all there is to start, in order: each is ready, and read back, before the next begins."""
        self.checkpoint = await asyncio.to_thread(_read, self.variant, self.variant.name)
        await wait_until_free(self.options.program.env, self.launch.say)
        self._gone, self._parts = False, []
        for command in self.commands():
            self._parts.append(part := Started(self.variant.name, command, self.launch))
            await part.start()

    async def stop(self) -> None:
        """See `Engine.stop`."""
        await asyncio.gather(*(part.stop() for part in self._parts))

    def alive(self) -> bool:
        """See `Engine.alive`; of several, all."""
        return bool(self._parts) and all(part.alive() for part in self._parts) and not self._gone

    async def flush(self) -> bool:
        """See `Engine.flush`; of several servers, all."""
        return (server := self.server()) is not None and await server.flush()

    async def gauges(self) -> Gauges | None:
        """See `Engine.gauges`; of several servers together."""
        server = self.server()
        found = None if server is None else await server.gauges()
        return found and replace(found, gpu_bytes=await asyncio.to_thread(memory_in_use, self.options.program.env))

    def log(self) -> str:
        """What this start has written so far."""
        return "\n".join(part.log() for part in self._parts)

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
