"""What a runner is: it carries cells out, wherever engines can be had, and files each attempt as it ends."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from evalrig.engine import Engine
from evalrig.plan import Cell, Plan
from evalrig.progress import Progress
from evalrig.suite import Attempt, Suite
from evalrig.types import Event, Provenance, Record, Sample, Trace, Variant


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt that ended, and what it brought."""

    record: Record
    attempt: Attempt


def ended(cell: Cell, sample: str, attempt: Attempt, started: str, seconds: float) -> Ended:
    """An attempt as it is filed. `started`: UTC, ISO 8601; `seconds`: by the monotonic clock."""
    variant, suite = cell.filed
    return Ended(
        attempt=attempt,
        record=Record(
            variant=variant,
            suite=suite,
            sample=sample,
            epoch=cell.epoch,
            state=attempt.state,
            scores=attempt.scores,
            trajectory=attempt.trajectory,
            provenance=Provenance(
                started=started,
                seconds=round(seconds, 4),
                retries=attempt.retries,
                prompt_sha256=attempt.prompt_sha256,
                tokens_sha256=attempt.tokens_sha256,
                sandbox=attempt.sandbox,
            ),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A reference continuation."""

    suite: str
    trace: Trace


Paper: TypeAlias = Ended | Answered
"""What is filed of one attempt."""


class Filing(ABC):
    """Where attempts go."""

    progress: Progress

    @abstractmethod
    def keep(self, papers: Sequence[Paper]) -> None:
        """File these, durably when this returns; each file they touch is waited for once.

        Raises:
            RunError: they could not all be filed; those that were not are made again by who resumes.
        """

    @abstractmethod
    def lay_down(self, paper: Ended) -> Ended:
        """Put the bytes of a block of load on the disk; what comes back has a small record alone, and is filed by `keep`.

        Bytes without a record are those of a round that was cut short; they are written over when it is made again.

        Raises:
            RunError: they cannot be written.
        """

    @abstractmethod
    def withdraw(self, variant: str, suite: str, samples: Collection[str]) -> None:
        """These samples of an earlier session are made again: what is filed of them must count no more."""

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
    """Files attempts while the engine goes on: a disk that is waited for must not leave it idle.

    One batch at a time: all that came in while the disk was busy is filed together, so a slow disk is waited for less
    often.
    """

    def __init__(self, keep: Callable[[Sequence[Paper]], None]) -> None:
        self._keep = keep
        self._one = asyncio.Lock()
        self._waiting: list[Paper] = []
        self._batch: asyncio.Task[None] | None = None
        """Will file all that waits."""

    def take(self, paper: Paper, then: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Begin to file, and call `then` when it is on the disk. Wait for it with `settled`, whatever else happens."""
        self._waiting.append(paper)
        self._batch = self._batch or asyncio.create_task(self._keep_waiting())
        return asyncio.create_task(self._filed(self._batch, then))

    async def _keep_waiting(self) -> None:
        async with self._one:
            papers, self._waiting, self._batch = self._waiting, [], None
            await asyncio.to_thread(self._keep, papers)

    async def _filed(self, batch: asyncio.Task[None], then: Callable[[], Awaitable[None]]) -> None:
        await asyncio.shield(batch)
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
