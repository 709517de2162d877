"""Looks after one running engine: is it alive, does it answer, what does its log say. What befalls it is filed as events.

An engine that crashes or hangs is ended and, as often as `engine.restarts` allows, replaced; that it was is evidence.
"""

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

from evalrig.engine import Engine
from evalrig.errors import EngineError, one_line
from evalrig.failures import classify, words
from evalrig.runner import Filing, Work
from evalrig.troubles import Trouble
from evalrig.types import Event

T = TypeVar("T")
Kind: TypeAlias = Literal["crash", "hang", "silent", "restart", "trouble"]
LOOK: Final = 1.0
"""Seconds between two looks."""
SHOWN: Final = 1.5
"""Times `request_seconds`: a hang of an engine whose log shows it at work."""
UNSEEN: Final = 3.5
"""The same where work is not seen: one call that is slow in every try is no hang."""
PIECE: Final = 1 << 18
"""Bytes of a log read in one look: what is more waits for the next."""
PIECES_AT_END: Final = 64
RECENT: Final = 1 << 16
"""Bytes at the end of a log in which the cause of a crash is looked for; also the longest line."""
CALLS: Final = ("tokenize", "generate", "score", "score_cached", "decode", "chat", "carry", "flush")
"""Not `gauges`: a server can tell of itself while what computes behind it hangs."""


class Fell(EngineError):
    """A running engine that must be ended."""

    def __init__(self, text: str, kind: Literal["crash", "hang", "silent"]) -> None:
        super().__init__(text)
        self.kind: Literal["crash", "hang", "silent"] = kind


class NotStarted(EngineError):
    """An engine that did not come up; nothing of it is left. `restarts`: how often it may be tried again in all."""

    def __init__(self, text: str, restarts: int) -> None:
        super().__init__(text)
        self.restarts = restarts


class Pulse:
    """Calls in flight in one engine, and since when none was answered.

    Counted at the engine's own methods, so that any kind has a pulse. A call that fails is no answer.
    """

    def __init__(self, engine: Engine) -> None:
        self.in_flight = 0
        self._since = 0.0
        """The last answer or sign of work, later by every idle time since: calls that time out together are no answer."""
        self._idle = 0.0
        """When the last call ended."""
        for name in CALLS:
            setattr(engine, name, self._counted(getattr(engine, name), answers=name != "carry"))
        engine.beat = self.beat

    def beat(self, seconds: float = math.inf) -> None:
        """It was seen at work; or for so many seconds of a call in flight nothing was waited for."""
        self._since = min(time.monotonic(), self._since + seconds)

    def unanswered(self) -> float:
        """Seconds for which there were calls in flight and no answer; 0: nothing is asked."""
        return time.monotonic() - self._since if self.in_flight else 0.0

    def _counted(self, call: Callable[..., Awaitable[Any]], answers: bool) -> Callable[..., Awaitable[Any]]:
        """`answers`: its end is one. The end of a block is none: all its requests may have failed."""

        async def counted(*given: Any, **named: Any) -> Any:
            if not self.in_flight:
                self._since += time.monotonic() - max(self._idle, self._since)
            self.in_flight += 1
            try:
                answer = await call(*given, **named)
                if answers:
                    self.beat()
                return answer
            finally:
                self.in_flight -= 1
                self._idle = time.monotonic()

        return counted


class _Place:
    """How far a log was read."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.at = log.stat().st_size if log.is_file() else 0
        self.rest = b""


class Tail:
    """Reads on where logs ended, and counts the lines that tell trouble. One an engine, however many processes write."""

    def __init__(self, logs: Sequence[Path], troubles: tuple[Trouble, ...], at_work: str = "") -> None:
        self.works = 0
        """Lines that only an engine at work writes."""
        self._at_work = re.compile(at_work) if at_work else None
        self._places = [_Place(log) for log in logs]
        self._troubles = [(trouble.kind, re.compile(trouble.pattern)) for trouble in troubles]
        self._recent = b""
        self._seen: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def read(self, pieces: int = 1) -> None:
        """Take in what was written since, as far as the bound goes."""
        for place in self._places:
            if place.log.is_file():
                self._read(place, pieces)

    def _read(self, place: _Place, pieces: int) -> None:
        with place.log.open("rb") as file:
            file.seek(place.at)
            while pieces and (piece := file.read(PIECE)):
                pieces -= 1
                place.at += len(piece)
                self._recent = (self._recent + piece)[-RECENT:]
                self._take(place, piece)

    def news(self, final: bool = False) -> Generator[tuple[str, int, str]]:
        """Kind, further lines, and the first one. Told at 1, 2, 4, 8 ... lines, so that a kill loses half at most; or all."""
        for kind, seen in self._seen.items():
            if seen >= max(1, 2 * self._told[kind]) or (final and seen > self._told[kind]):
                more, self._told[kind] = seen - self._told[kind], seen
                yield kind, more, self._first[kind]

    def begin(self) -> None:
        """A process starts: what an earlier one wrote explains nothing of it."""
        self._recent = b""

    def cause(self) -> str:
        """Why the process ended, in the log's own words; empty: it does not tell."""
        kind, said, _ = classify(self._recent.decode(errors="replace"))
        return one_line(f"{kind}: {said}" if kind else said)

    def _take(self, place: _Place, piece: bytes) -> None:
        *whole, place.rest = re.split(rb"[\r\n]", place.rest + piece)
        if len(place.rest) > RECENT:
            whole, place.rest = [*whole, place.rest], b""
        for line in whole:
            text = line[:RECENT].decode(errors="replace")
            self.works += bool(self._at_work and self._at_work.search(text))
            kind = next((kind for kind, pattern in self._troubles if pattern.search(text)), "")
            if kind:
                self._seen[kind] += 1
                self._first.setdefault(kind, one_line(words(text)))


class Watch:
    """One started engine."""

    def __init__(self, engine: Engine, file: Filing, tail: Tail) -> None:
        self.engine = engine
        self.variant = engine.variant.name
        self.proved = False
        """Preflight admitted it."""
        self.silent = 0
        """Attempts in a row that got no answer."""
        self.ended = False
        self.unfinished = 0
        """Attempts that its end cut short."""
        self._file = file
        self._tail = tail
        self._pulse = Pulse(engine)
        usual = (SHOWN if engine.at_work else UNSEEN) * engine.launch.request_seconds
        self._patience = engine.launch.hang_seconds or usual

    async def during(self, work: Awaitable[T], doing: str) -> T:
        """Do `work` on the engine, and look after it meanwhile.

        Raises:
            Fell: the engine died or hangs; the work was cut short.
        """
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=LOOK))[0]:
                self._look(doing)
            self._listen()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled():
                    task.exception()  # what it met while it was ended is not the reason

    async def recover(self, error: EngineError) -> EngineError | None:
        """After a failure. None: the engine fell and was ended, and another process may take its place; else why not."""
        kind = error.kind if isinstance(error, Fell) else "crash" if not self.engine.alive() else None
        if kind is None:
            return error
        await self.stop()
        cause = self._tail.cause() if kind == "crash" else ""
        said = f"{error}; its log says: {cause}" if cause else str(error)
        fall = _happened(kind, said, unfinished=self.unfinished)
        return may_start_again(self._file, self.variant, self.engine.launch.restarts, fall)

    async def close(self) -> None:
        """Stop an engine that has done its work; one that died after its last answer crashed all the same."""
        if not self.ended and not self.engine.alive():
            self._event("crash", f"{self.variant}: the engine died after its last answer")
        await self.stop()

    async def stop(self) -> None:
        """Stop the engine and hear the end of its log. Harmless when stopped."""
        self.ended = True
        await self.engine.stop()
        self._tail.read(PIECES_AT_END)
        self._tell(final=True)

    def _look(self, doing: str) -> None:
        self._listen()
        if not self.engine.alive():
            raise Fell(f"{self.variant}: the engine died during {doing}", "crash")
        if (waited := self._pulse.unanswered()) >= self._patience:
            asked = f"{self._pulse.in_flight} calls in flight during {doing}"
            raise Fell(f"{self.variant}: the engine hangs: no answer for {waited:.0f} s, {asked}", "hang")

    def _listen(self) -> None:
        before = self._tail.works
        self._tail.read()
        if self._tail.works > before:
            self._pulse.beat()
        self._tell()

    def _tell(self, final: bool = False) -> None:
        for kind, more, line in self._tail.news(final):
            if all(event.trouble != kind for event in self._file.events(self.variant)):
                self._file.progress.say(f"{self.variant}: {kind} in its log: {line}")
            self._event("trouble", line, trouble=kind, count=more)

    def _event(self, kind: Kind, line: str, **more: Any) -> None:
        self._file.event(self.variant, _happened(kind, line, **more))


def _happened(kind: Kind, line: str, **more: Any) -> Event:
    return Event(time=datetime.now(UTC).isoformat(timespec="milliseconds"), kind=kind, line=line, **more)


def may_start_again(file: Filing, variant: str, restarts: int, fall: Event) -> EngineError | None:
    """File a fall. None: another process may take its place, and that is filed too; else why the variant is lost."""
    file.event(variant, fall)
    used = sum(event.kind == "restart" for event in file.events(variant))
    if used >= restarts:
        return EngineError(f"{fall.line}; engine.restarts ({restarts}) is used up" if restarts else fall.line)
    file.event(variant, _happened("restart", f"restart {used + 1} of {restarts}"))
    cut = f", {fall.unfinished} attempts in flight are made again" if fall.unfinished else ""
    file.progress.say(f"{fall.line}; it is started again ({used + 1} of {restarts}){cut}")
    return None


async def begin_again(work: Work, name: str, tails: dict[Path, Tail]) -> Watch:
    """As `begin_watch`; a start that fails is a fall as others are, and tried again while `engine.restarts` are left.

    Raises:
        EngineError: they are used up.
    """
    while True:
        try:
            return await begin_watch(work, name, tails)
        except NotStarted as error:
            fall = _happened("crash", str(error))
            if (final := may_start_again(work.file, name, error.restarts, fall)) is not None:
                raise final from error


async def begin_watch(work: Work, name: str, tails: dict[Path, Tail]) -> Watch:
    """Start an engine of a variant, and read its log from here on. `tails`: where each log was read to; grows.

    Raises:
        NotStarted: nothing of it is left.
    """
    engine = work.engine(next(variant for variant in work.plan.variants if variant.name == name))
    if engine.launch.log not in tails:
        tails[engine.launch.log] = Tail(engine.logs, engine.troubles, engine.at_work)
    tail = tails[engine.launch.log]
    tail.begin()
    began = time.monotonic()
    try:
        await engine.start()
    except EngineError as error:
        await engine.stop()
        raise NotStarted(str(error), engine.launch.restarts) from error
    except BaseException:
        await engine.stop()
        raise
    work.file.progress.say(f"{name}: engine ready after {time.monotonic() - began:.1f} s")
    return Watch(engine, work.file, tail)
