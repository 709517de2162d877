"""The jobs of one HTTP request while they run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.requests import Request

from evalrig.refengine.engine import Engine
from evalrig.refengine.jobs import Job, JobSpec, Update


class EngineFailure(Exception):
    """A step broke; the request was in it. Answered with status 500."""


class ClientGone(Exception):
    """The client closed the connection before its answer was ready; there is nobody to answer."""


class Flight:
    """The jobs of one HTTP request while they run: news from the compute thread, and their end when the client
    leaves."""

    def __init__(self, engine: Engine, specs: Sequence[JobSpec]) -> None:
        self._engine = engine
        self._news: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.jobs: list[Job] = [
            engine.scheduler.submit(spec, self._listener(index)) for index, spec in enumerate(specs)
        ]

    def _listener(self, index: int) -> Callable[[Update], None]:
        def listen(update: Update) -> None:
            # After the loop is closed (the server is going down) nobody waits for the news.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._news.put_nowait, (index, update))

        return listen

    async def updates(self) -> AsyncIterator[tuple[int, Update]]:
        """(job's index, update), until every job has ended. EngineFailure when one broke. Leaving early aborts the
        rest."""
        open_jobs = set(range(len(self.jobs)))
        try:
            while open_jobs:
                index, update = await self._news.get()
                if update.error is not None:
                    open_jobs.discard(index)
                    raise EngineFailure(update.error)
                if update.finish is not None:
                    open_jobs.discard(index)
                yield index, update
        finally:
            for index in open_jobs:
                self._engine.scheduler.abort(self.jobs[index])

    async def finish(self, request: Request) -> list[tuple[Job, Update]]:
        """Every job with its last update, in order. ClientGone when the client left; the jobs are aborted then."""
        collecting = asyncio.ensure_future(self._collect())
        leaving = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                raise ClientGone
            return collecting.result()
        finally:
            for task in (collecting, leaving):
                task.cancel()
            await asyncio.gather(collecting, leaving, return_exceptions=True)

    async def _collect(self) -> list[tuple[Job, Update]]:
        last: dict[int, Update] = {}
        stream = self.updates()
        try:
            async for index, update in stream:
                last[index] = update
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
        return [(job, last[index]) for index, job in enumerate(self.jobs)]


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
