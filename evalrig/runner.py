"""What a runner is: it carries cells out, wherever engines can be had, and files each attempt as it ends."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from evalrig.engine import Engine
from evalrig.plan import Cell, Plan
from evalrig.progress import Progress
from evalrig.suite import Attempt, Suite
from evalrig.types import Event, Record, Sample, Trace, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All a runner needs. The callbacks file things durably before they return."""

    plan: Plan
    suites: Mapping[str, Suite]
    samples: Mapping[str, Mapping[str, Sample]]
    """Suite -> sample id -> sample."""
    pending: Mapping[Cell, tuple[str, ...]]
    """What is still to do, cell by cell: all of it, or what a killed run left."""
    traces: dict[tuple[str, str, int], Trace]
    """(suite, sample, epoch) -> trace; grows as the reference answers."""
    answers: dict[tuple[str, str, str, int], Record]
    """(variant, suite, sample, epoch) -> what was answered, of suites whose answers the reference scores; grows."""
    engine: Callable[[Variant], Engine]
    """A fresh engine, not started."""
    preflight: Callable[[Engine], Awaitable[bool]]
    """Prove the variant; False: it must not be run."""
    file: "Filing"


class Filing(ABC):
    """Where attempts go."""

    progress: Progress

    @abstractmethod
    def attempt(self, record: Record, attempt: Attempt) -> None:
        """File an attempt and what it brought."""

    @abstractmethod
    def trace(self, suite: str, trace: Trace) -> None:
        """File a reference continuation."""

    @abstractmethod
    def failure(self, variant: str, reason: str) -> None:
        """File that a variant's engine was lost: that variant is INVALID, the others go on."""

    @abstractmethod
    def event(self, variant: str, event: Event) -> None:
        """File what befell a variant's engine."""

    @abstractmethod
    def events(self, variant: str) -> list[Event]:
        """All that befell it in this run so far, also before it was resumed."""


class Desk:
    """Files attempts while the engine goes on: a disk that is waited for must not leave it idle. One thing at a time."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()

    def take(self, file: Callable[[], None], then: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Begin to file, and say so when it is on the disk. Wait for it with `settled`, whatever else happens."""
        return asyncio.create_task(self._file(file, then))

    async def _file(self, file: Callable[[], None], then: Callable[[], Awaitable[None]]) -> None:
        async with self._one:
            await asyncio.to_thread(file)
        await then()


async def settled(filings: Sequence[asyncio.Task[None]]) -> None:
    """Return when all is filed, also for who is cancelled meanwhile: what was filed must count, or it is made twice.

    Raises:
        RunError: something could not be filed.
    """
    cancelled: asyncio.CancelledError | None = None
    while open_ := [filing for filing in filings if not filing.done()]:
        try:
            await asyncio.wait(open_)
        except asyncio.CancelledError as error:
            cancelled = error
    for filing in filings:
        filing.result()
    if cancelled is not None:
        raise cancelled


class Runner(ABC):
    """Carries out the pending cells of a plan."""

    def __init__(self, engines: int, concurrency: int) -> None:
        self.engines = engines
        self.concurrency = concurrency

    @abstractmethod
    async def run(self, work: Work) -> None:
        """Return when every pending attempt has been filed, or its variant refused by preflight.

        Raises:
            RunError: the reference's engine was lost; what was filed stays, and the run can be resumed.
        """
