"""Engines on this machine: a few processes side by side, fed from one board of cells so that none idles while work is left."""

import asyncio
import hashlib
import time
from collections import deque
from datetime import UTC, datetime

from evalrig.engine import Engine
from evalrig.errors import EngineError
from evalrig.plan import Cell
from evalrig.runner import Runner, Work
from evalrig.suite import Attempt, sound
from evalrig.types import AGAIN, REFERENCE, Provenance, Record, Sample, State, Trace, Trajectory, Variant


class Board:
    """Who may do what next. A cell is shared sample by sample, so two processes of one variant can finish it together."""

    def __init__(self, work: Work, join_above: int) -> None:
        self.work = work
        self.join_above = join_above
        self.left = {cell: deque(samples) for cell, samples in work.pending.items()}
        self.open = {cell: len(samples) for cell, samples in work.pending.items()}
        self.holders: dict[int, str] = {}
        """Slot -> the variant whose engine it keeps running."""
        self.busy: set[int] = set()
        # a resumed run may hold all of the reference's attempts: it was proved when it made them
        self.proved = set() if any(cell.variant == REFERENCE for cell in work.pending) else {REFERENCE}
        self.refused: set[str] = set()
        self.changed = asyncio.Condition()

    async def next(self, slot: int) -> Cell | None:
        """The cell this engine process should work on; waits while others must finish first; None: nothing is left."""
        async with self.changed:
            self.busy.discard(slot)
            self.changed.notify_all()
            while True:
                todo = [cell for cell, rest in self.left.items() if rest and cell.variant not in self.refused]
                if not todo or REFERENCE in self.refused:
                    return None
                ready = [cell for cell in todo if self._ready(cell)]
                if cell := self._pick(slot, ready):
                    self.holders[slot] = cell.variant
                    self.busy.add(slot)
                    return cell
                if not self.busy:
                    raise EngineError("no cell can start: the reference's traces are incomplete")
                await self.changed.wait()

    async def note(
        self, *, proved: str = "", refused: str = "", ended: Cell | None = None, gone: int | None = None
    ) -> None:
        """Tell the others what changed."""
        async with self.changed:
            if proved:
                self.proved.add(proved)
            if refused:
                self.refused.add(refused)
            if ended:
                self.open[ended] -= 1
            if gone is not None:
                self.holders.pop(gone, None)
                self.busy.discard(gone)
            self.changed.notify_all()

    def _ready(self, cell: Cell) -> bool:
        if cell.variant != REFERENCE and REFERENCE not in self.proved:
            return False  # a candidate is proved against the reference
        if cell.stage == "trace":
            return True
        traces = [c for c in self.open if c.stage == "trace" and c.suite == cell.suite and c.epoch == cell.epoch]
        return not any(self.open[trace] for trace in traces)

    def _pick(self, slot: int, ready: list[Cell]) -> Cell | None:
        mine = self.holders.get(slot)
        others = {variant for other, variant in self.holders.items() if other != slot}
        if same := [cell for cell in ready if cell.variant == mine]:
            return same[0]
        if free := [cell for cell in ready if cell.variant not in others]:
            return free[0]
        crowded = max(ready, key=lambda cell: len(self.left[cell]), default=None)
        worth = crowded is not None and (len(self.left[crowded]) > self.join_above or not self.busy)
        return crowded if worth else None


class Local(Runner):
    """`runner.engines` processes, `runner.concurrency` attempts in flight in each."""

    async def run(self, work: Work) -> None:
        """See `Runner.run`."""
        board = Board(work, join_above=2 * self.concurrency)
        try:
            async with asyncio.TaskGroup() as group:
                for slot in range(self.engines):
                    group.create_task(self._slot(slot, board))
        except ExceptionGroup as errors:
            raise _first(errors) from None

    async def _slot(self, slot: int, board: Board) -> None:
        """One engine process after the other, until the board has nothing left for this slot."""
        engine: Engine | None = None
        try:
            while cell := await board.next(slot):
                if engine is not None and (engine.variant.name != cell.variant or not engine.alive()):
                    await engine.stop()
                    engine = None
                try:
                    if engine is None:
                        engine = await self._start(board.work, cell.variant)
                        if not await board.work.preflight(engine):
                            await board.note(refused=cell.variant)
                            continue
                        await board.note(proved=cell.variant)
                    await self._cell(engine, cell, board)
                except EngineError as error:
                    if cell.variant in (REFERENCE, AGAIN):
                        raise  # without them nothing can be compared
                    board.work.file.failure(cell.variant, str(error))
                    await board.note(refused=cell.variant)
        finally:
            if engine is not None:
                await engine.stop()
            await board.note(gone=slot)

    async def _start(self, work: Work, name: str) -> Engine:
        variant = next(variant for variant in work.plan.variants if variant.name == name)
        engine = work.engine(variant)
        began = time.monotonic()
        try:
            await engine.start()
        except BaseException:
            await engine.stop()
            raise
        work.file.progress.say(f"{name}: engine ready after {time.monotonic() - began:.1f} s")
        return engine

    async def _cell(self, engine: Engine, cell: Cell, board: Board) -> None:
        """Attempts of one cell in this engine, some in flight, until none is left to take."""
        queue = board.left[cell]

        async def lane() -> None:
            while queue:
                await _one(engine, cell, queue.popleft(), board.work)
                await board.note(ended=cell)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._lanes(engine.variant), len(queue))):
                    group.create_task(lane())
        except ExceptionGroup as errors:
            raise _first(errors) from None

    def _lanes(self, variant: Variant) -> int:
        """`reference_again` runs in another batch composition: that difference is the noise floor."""
        if variant.name != AGAIN:
            return self.concurrency
        return self.concurrency * 2 // 3 if self.concurrency > 1 else 2


async def _one(engine: Engine, cell: Cell, sample_id: str, work: Work) -> None:
    sample = work.samples[cell.suite][sample_id]
    if cell.stage == "trace":
        await _trace(engine, cell, sample, work)
        return
    started, began = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    attempt = await _attempt(engine, cell, sample_id, work)
    provenance = Provenance(
        started=started,
        seconds=round(time.monotonic() - began, 4),
        retries=attempt.retries,
        prompt_sha256=attempt.prompt_sha256,
        tokens_sha256=_stream_sha256(work.traces.get((cell.suite, sample_id, cell.epoch))),
    )
    record = Record(
        variant=cell.variant,
        suite=cell.suite,
        sample=sample_id,
        epoch=cell.epoch,
        state=attempt.state,
        scores=attempt.scores,
        trajectory=attempt.trajectory,
        provenance=provenance,
    )
    work.file.attempt(record, attempt)


async def _trace(engine: Engine, cell: Cell, sample: Sample, work: Work) -> None:
    """The reference's answer. One that fails is missing in every arm; an engine that is gone ends the run."""
    seed = _seed(work.plan.header.seed, cell, sample.id)
    try:
        trace = await work.suites[cell.suite].trace(engine, sample, cell.epoch, seed)
    except EngineError as error:
        await _if_alive(engine, cell, error)
        work.file.progress.say(f"{cell.suite}: no reference answer to {sample.id}: {error}")
        return
    work.traces[cell.suite, sample.id, cell.epoch] = trace
    work.file.trace(cell.suite, trace)


async def _if_alive(engine: Engine, cell: Cell, error: EngineError) -> None:
    await asyncio.sleep(0.2)  # a dying process needs a moment before it counts as dead
    if not engine.alive():
        raise EngineError(f"{engine.variant.name}: the engine died during `{cell.suite}`: {error}") from error


async def _attempt(engine: Engine, cell: Cell, sample_id: str, work: Work) -> Attempt:
    suite, trace = work.suites[cell.suite], work.traces.get((cell.suite, sample_id, cell.epoch))
    if suite.traced and trace is None:
        return Attempt(trajectory=Trajectory(error="the reference gave no answer to score"), state=State.INFRA)
    try:
        attempt = await suite.attempt(engine, work.samples[cell.suite][sample_id], cell.epoch, trace)
        return sound(attempt, suite)
    except EngineError as error:
        await _if_alive(engine, cell, error)
        return Attempt(trajectory=Trajectory(error=str(error)), state=State.INFRA)


def _stream_sha256(trace: Trace | None) -> str:
    return hashlib.sha256(repr((trace.prompt_ids, trace.token_ids)).encode()).hexdigest() if trace else ""


def _seed(seed: int, cell: Cell, sample: str) -> int:
    """One seed per (run, suite, sample, epoch): independent of order and of resuming."""
    digest = hashlib.sha256(f"{seed}/{cell.suite}/{sample}/{cell.epoch}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first real error in a group of them: engines failing together fail for one reason."""
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
