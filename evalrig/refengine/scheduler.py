"""Continuous batching: a compute thread that joins waiting jobs, runs one step over all of them, and lets finished ones
leave."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evalrig.refengine.arrays import F32
from evalrig.refengine.cache import BLOCK, OutOfPages, PagedCache
from evalrig.refengine.faults import LogitNoise
from evalrig.refengine.jobs import Job, JobSpec, Update
from evalrig.refengine.logprobs import row_logprobs
from evalrig.refengine.metrics import Counters
from evalrig.refengine.sampling import draw
from evalrig.refengine.step import Slice, Stepper, chunk_length
from evalrig.refengine.tokenizer import Tokenizer

HEAD_ROWS = 96
"""Rows of logits held at a time: a multiple of the exact mode's row count, and small enough to stay near the
processor."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the engine is."""

    running: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One job's share of a step: its tokens at positions first .. first + count, packed from row `start` on."""

    job: Job
    slice: Slice
    start: int
    first: int


class Scheduler:
    """Owns the stepper, the cache and the jobs. `submit` and `abort` may be called from any thread."""

    def __init__(
        self,
        stepper: Stepper,
        cache: PagedCache,
        tokenizer: Tokenizer,
        *,
        chunk: int,
        fault: LogitNoise | None = None,
    ) -> None:
        """`chunk`: most tokens a step; decoding jobs come first, prompts fill the rest. `fault`: what makes it wrong."""
        self.counters = Counters()
        self._stepper, self._cache, self._tokenizer, self._chunk = stepper, cache, tokenizer, chunk
        self._fault = fault
        self._wake = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._aborted: set[Job] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="refengine-compute", daemon=True)

    def start(self) -> None:
        """Starts the compute thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the compute thread after the step it is in, waiting at most `timeout_s`; jobs still open are failed."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def submit(self, spec: JobSpec, notify: Callable[[Update], None]) -> Job:
        """Queues a job. `notify` is called on the compute thread: for every token of a streamed job, else once at the
        end."""
        job = Job(spec, self._tokenizer, notify)
        with self._wake:
            self._waiting.append(job)
            self._wake.notify()
        return job

    def abort(self, job: Job) -> None:
        """Drops a job nobody waits for any more: its pages are free after the step in progress. Nothing happens if it
        is over."""
        with self._wake:
            if job.finish is None:
                self._aborted.add(job)
                self._wake.notify()

    def flush(self) -> bool:
        """Drops all kept prefixes; False (and nothing dropped) while jobs run or wait."""
        with self._wake:
            # With no job in the batch the compute thread waits for this lock, or has left the cache for this step.
            if self._running or self._waiting:
                return False
            self._cache.forget_prefixes()
            return True

    def load(self) -> Load:
        """Jobs in the batch and jobs in the queue, now."""
        return Load(running=len(self._running), waiting=len(self._waiting))

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or self._aborted or self._waiting or self._running)
                if self._stopping:
                    break
                self._drop_aborted()
                self._admit()
            if self._running:
                self._step()
        for job in [*self._running, *self._waiting]:
            self._fail(job, "the server is shutting down")

    def _drop_aborted(self) -> None:
        for job in self._aborted:
            if job in self._running:
                self._leave(job)
            elif job in self._waiting:
                self._waiting.remove(job)
            else:
                continue
            self.counters.aborted += 1
        self._aborted.clear()

    def _admit(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            try:
                job.sequence = self._cache.open(job.spec.most_tokens, job.spec.prompt[: job.spec.reusable])
            except OutOfPages:
                return
            job.cached = job.sequence.length
            self._running.append(self._waiting.popleft())
            job.clock.queued = job.clock.elapsed()
            self.counters.queue.observe(job.clock.queued)

    def _step(self) -> None:
        parts = self._plan()
        began = time.perf_counter()
        try:
            self._harvest(parts, self._stepper.run([part.slice for part in parts]))
        # The one boundary of the engine: whatever breaks inside a step is the fault of the engine, not of the clients.
        # The jobs in it are answered with an error, nobody else's job is touched, and the traceback is in the log.
        except Exception as error:  # noqa: BLE001
            _log.exception("step failed; %d requests in it are failed", len(parts))
            for part in parts:
                self._fail(part.job, f"{type(error).__name__}: {error}")
            return
        made = sum(part.job.output_ids != [] for part in parts)
        if made:
            self.counters.generation_rate = made / max(time.perf_counter() - began, 1e-9)
        self.counters.steps += 1

    def _plan(self) -> list[_Part]:
        """The next step: every decoding job, then prompts in order of arrival, as many tokens as fit."""
        parts: list[_Part] = []
        left, start, prefilling = self._chunk, 0, False
        decoding = [job for job in self._running if job.output_ids]
        for job in [*decoding, *(job for job in self._running if not job.output_ids)]:
            assert job.sequence is not None, "a running job has its place in the cache"
            first = job.sequence.length
            if not job.output_ids and not prefilling:
                # Decoding jobs may leave less room than a block; the first prompt in line still moves on.
                prefilling, left = True, max(left, BLOCK)
            count = 1 if job.output_ids else chunk_length(left, first, len(job.spec.prompt))
            if count == 0:
                continue
            work = Slice(sequence=job.sequence, tokens=job.tokens(first, count))
            parts.append(_Part(job=job, slice=work, start=start, first=first))
            start += count
            left -= count
        return parts

    def _harvest(self, parts: list[_Part], hidden: F32) -> None:
        """Turns the step's hidden states into logprobs and next tokens, computing logits only for the rows that need
        them."""
        wanted = [(part, offset) for part in parts for offset in self._rows_wanted(part)]
        for begin in range(0, len(wanted), HEAD_ROWS):
            batch = wanted[begin : begin + HEAD_ROWS]
            logits = self._stepper.logits(hidden[[part.start + offset for part, offset in batch]])
            for (part, offset), row in zip(batch, logits, strict=True):
                self._take(part.job, part.first + offset, row)
        for part in parts:
            self._report(part)

    @staticmethod
    def _rows_wanted(part: _Part) -> range | list[int]:
        spec, count = part.job.spec, len(part.slice.tokens)
        last = part.first + count == part.job.length
        wish = spec.wish
        if last and spec.max_new_tokens == 0 and (wish is None or (not wish.top and wish.ids is None)):
            last = False  # nobody asks what would follow
        start = len(spec.prompt) - 1 if wish is None else min(wish.start, len(spec.prompt) - 1)
        scored = range(max(0, start - part.first), count - (part.first + count == part.job.length))
        return [*scored, count - 1] if last else scored

    def _take(self, job: Job, position: int, row: F32) -> None:
        """Uses the logits at `position`, which tell about the token at the next one."""
        spec = job.spec
        if self._fault is not None:
            row = self._fault.onto(row, [*spec.prompt, *job.output_ids][: position + 1])
        if position + 1 < len(spec.prompt):
            if spec.wish is not None:
                job.input_rows.append(row_logprobs(row, spec.wish, spec.prompt[position + 1]))
            return
        token = draw(row, spec.sampling, position + 1, job.output_ids) if spec.max_new_tokens else None
        if spec.wish is not None:
            job.output_rows.append(row_logprobs(row, spec.wish, token))
        if token is not None:
            job.accept(token)
            self.counters.generation_tokens += 1

    def _report(self, part: _Part) -> None:
        """Tells the client what the step brought, and lets the job leave when it is done."""
        job = part.job
        if part.first + len(part.slice.tokens) < len(job.spec.prompt):
            return
        if part.first < len(job.spec.prompt):
            job.clock.prefilled = job.clock.elapsed()
            self.counters.prompt_tokens += len(job.spec.prompt)
            self.counters.cached_tokens += job.cached
            self.counters.first_token.observe(job.clock.prefilled)
            self.counters.prefill.observe(job.clock.prefilled - job.clock.queued)
        if job.spec.max_new_tokens == 0:
            job.only_scored()
        if job.finish is None:
            if job.spec.stream:
                job.notify(job.update())
            return
        self._leave(job, job.spec.prompt)
        job.clock.finished = job.clock.elapsed()
        self._count_finished(job)
        job.notify(job.update())

    def _count_finished(self, job: Job) -> None:
        self.counters.requests += 1
        self.counters.whole_request.observe(job.clock.finished)
        self.counters.decode.observe(job.clock.finished - job.clock.prefilled)
        if len(job.output_ids) > 1:
            self.counters.between_tokens.observe((job.clock.finished - job.clock.prefilled) / (len(job.output_ids) - 1))

    def _leave(self, job: Job, prompt: Sequence[int] = ()) -> None:
        """`prompt`: what may be kept of it."""
        if job.sequence is not None:
            self._cache.close(job.sequence, prompt)
            job.sequence = None
        if job in self._running:
            self._running.remove(job)

    def _fail(self, job: Job, message: str) -> None:
        if job.sequence is None and job.finish is not None:
            return  # it had ended, and been told so, before the step broke
        if job.sequence is not None:
            self._cache.distrust(job.sequence)
        self._leave(job)
        self.counters.failed += 1
        job.notify(Update(count=len(job.output_ids), text=job.text, error=message))
