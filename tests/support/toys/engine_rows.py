"""An embedded engine in this process, asked for whole rows: what its scheduler serves, without HTTP in between."""

import queue
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from evalrig.refengine.engine import Settings, Switches, start_engine
from evalrig.refengine.faults import LogitNoise
from evalrig.refengine.jobs import Job, JobSpec, Update
from evalrig.refengine.logprobs import LogprobWish
from evalrig.refengine.sampling import Sampling
from evalrig.refengine.scheduler import Scheduler

F32 = NDArray[np.float32]
POOL_BYTES = 8 << 20


@contextmanager
def started(
    model: Path, *, kv_cache: str = "f32", weights: str = "bf16", fault: LogitNoise | None = None
) -> Generator["Served"]:
    """An engine over a small model, and its rows; it ends with the context."""
    settings = Settings(
        model=model, weights=weights, kv_cache=kv_cache, pool_bytes=POOL_BYTES, switches=Switches(fault=fault)
    )
    with threadpool_limits(1):
        engine = start_engine(settings)
    try:
        yield Served(engine.scheduler, engine.model.architecture.vocabulary, engine.server_info())
    finally:
        engine.scheduler.stop(10)


class Served:
    """What a running scheduler answers; the prompts of a call are in the batch together."""

    def __init__(self, scheduler: Scheduler, vocabulary: int, told: Mapping[str, Any]) -> None:
        """`told`: the body of `/server_info`, or nothing."""
        self.told = told
        self._scheduler, self._vocabulary = scheduler, vocabulary
        self._news: queue.Queue[tuple[int, Update]] = queue.Queue()

    def rows(self, prompts: Sequence[Sequence[int]]) -> list[F32]:
        """Log-probabilities of the whole vocabulary after each token but the last, [len - 1, V] a prompt."""
        every = tuple(range(self._vocabulary))
        wish = LogprobWish(start=0, ids=every)
        jobs = self._run(prompts, [wish] * len(prompts))
        return [np.stack([_there(row.wanted) for row in job.input_rows]) for job in jobs]

    def top(self, prompts: Sequence[Sequence[int]], k: int) -> list[tuple[NDArray[np.int64], F32]]:
        """The k best after each token but the last, ids and log-probabilities [len - 1, k] a prompt."""
        jobs = self._run(prompts, [LogprobWish(start=0, top=k)] * len(prompts))
        return [
            (
                np.stack([_there(row.top_ids) for row in job.input_rows]),
                np.stack([_there(row.top_logprobs) for row in job.input_rows]),
            )
            for job in jobs
        ]

    def chosen(self, prompts: Sequence[Sequence[int]], start: int) -> list[NDArray[np.float64]]:
        """Log-probability of every token from position `start` >= 1 on."""
        jobs = self._run(prompts, [LogprobWish(start=start - 1)] * len(prompts))
        return [np.array([row.chosen for row in job.input_rows]) for job in jobs]

    def draw(
        self, prompts: Sequence[Sequence[int]], *, tokens: int, seed: int, temperature: float = 1.0
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        """Continuations, and the log-probability of each drawn token."""
        wishes = [LogprobWish(start=len(prompt)) for prompt in prompts]
        drawn = [Sampling(temperature=temperature, seed=seed + at) for at in range(len(prompts))]
        jobs = self._run(prompts, wishes, drawn, tokens)
        return [(list(job.output_ids), np.array([row.chosen for row in job.output_rows])) for job in jobs]

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        wishes: Sequence[LogprobWish],
        sampling: Sequence[Sampling] | None = None,
        tokens: int = 0,
    ) -> list[Job]:
        jobs: list[Job] = []
        for at, (prompt, wish) in enumerate(zip(prompts, wishes, strict=True)):
            spec = JobSpec(
                identity=str(at),
                prompt=tuple(prompt),
                max_new_tokens=tokens,
                sampling=Sampling() if sampling is None else sampling[at],
                wish=wish,
            )
            jobs.append(self._scheduler.submit(spec, lambda update, at=at: self._news.put((at, update))))
        open_jobs = set(range(len(jobs)))
        while open_jobs:
            at, update = self._news.get(timeout=60)
            assert update.error is None, update.error
            open_jobs.discard(at)
        return jobs


def _there(values: Any) -> Any:
    assert values is not None
    return values
