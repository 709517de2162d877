"""Engines on this machine: a few processes side by side, fed from one board of cells so that none idles while work is left.

A process that crashes or hangs is started again (`watch.py`); the attempts it had in flight go back to the board.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from evalrig.ask import own_seed
from evalrig.engine import Engine
from evalrig.errors import EngineError
from evalrig.plan import Cell
from evalrig.rounds import Places, Rounds
from evalrig.runner import Answered, Desk, Paper, Runner, Work, ended, settled
from evalrig.suite import Attempt, sound
from evalrig.types import AGAIN, NO_ANSWER, REFERENCE, Sample, State, Trace, Trajectory, Variant
from evalrig.watch import Fell, Tail, Watch, begin_watch

SILENT_ATTEMPTS = 20
"""Unanswered attempts in a row after which a running engine counts as lost: a hung one must not eat the night."""

UNFILED = 8
"""Attempts a lane may have waiting for the disk while it makes the next: a disk that is slow at times leaves no engine idle."""


class Board:
    """Who may do what next. A cell is shared sample by sample, so two processes of one variant can finish it together."""

    def __init__(self, work: Work, join_above: int) -> None:
        self.work = work
        self.join_above = join_above
        pending = {cell: samples for cell, samples in work.pending.items() if cell.stage != "block"}
        self.left = {cell: deque(samples) for cell, samples in pending.items()}
        self.open = {cell: len(samples) for cell, samples in pending.items()}
        self.holders: dict[int, str] = {}
        """Slot -> the variant whose engine it keeps running."""
        self.busy: set[int] = set()
        # a resumed run may hold all of the reference's attempts: it was proved when it made them
        owes = any(cell.variant == REFERENCE and cell.stage != "rescore" for cell in pending)
        asked = any(cell.stage != "block" for cell in (*work.plan.cells, *pending))
        self.proved = {REFERENCE} if asked and not owes else set()
        self.refused: set[str] = set()
        self.retired: set[tuple[int, str]] = set()
        """(slot, variant): this slot could not run it, while another slot does."""
        self.tails: dict[Path, Tail] = {}
        """Log -> where it was read to: two processes of a variant write to one."""
        self.changed = asyncio.Condition()
        self.desk = Desk(work.file.keep)

    async def next(self, slot: int) -> Cell | None:
        """The cell this engine process should work on; waits while others must finish first; None: nothing is left."""
        async with self.changed:
            self.busy.discard(slot)
            self.changed.notify_all()
            while True:
                todo = [cell for cell, rest in self.left.items() if rest and not {cell.variant, cell.of} & self.refused]
                if not todo or REFERENCE in self.refused:
                    return None
                todo = [cell for cell in todo if (slot, cell.variant) not in self.retired]
                if not todo:
                    return None
                ready = [cell for cell in todo if self._ready(cell)]
                if cell := self._pick(slot, ready):
                    self.holders[slot] = cell.variant
                    self.busy.add(slot)
                    return cell
                if not self.busy:
                    raise EngineError("no cell can start: the reference's traces are incomplete")
                await self.changed.wait()

    async def ended(self, cell: Cell) -> None:
        """An attempt was filed. It counts before anything is waited for: who is cancelled here has ended it all the same."""
        self.open[cell] -= 1
        await self.note()

    async def note(self, *, proved: str = "", refused: str = "", gone: int | None = None) -> None:
        """Tell the others what changed."""
        async with self.changed:
            if proved:
                self.proved.add(proved)
            if refused:
                self.refused.add(refused)
            if gone is not None:
                self.holders.pop(gone, None)
                self.busy.discard(gone)
            self.changed.notify_all()

    async def give_up(self, slot: int, variant: str) -> bool:
        """This slot cannot run the variant. True where another slot does, or did all of it: then only this slot lets go."""
        async with self.changed:
            elsewhere = any(held == variant for other, held in self.holders.items() if other != slot)
            if not elsewhere and any(left for cell, left in self.open.items() if cell.variant == variant):
                return False
            self.holders.pop(slot, None)
            self.retired.add((slot, variant))
            self.changed.notify_all()
            return True

    def _ready(self, cell: Cell) -> bool:
        if cell.variant != REFERENCE and REFERENCE not in self.proved:
            return False  # a candidate is proved against the reference
        if cell.stage == "trace":
            return True
        if cell.stage == "rescore":
            said = (cell.of, cell.suite, cell.epoch, "attempt")
            return not any(left for c, left in self.open.items() if (c.variant, c.suite, c.epoch, c.stage) == said)
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
        places = Places(tails=board.tails, proved=board.proved, refused=board.refused)
        await Rounds(work, self.engines, places).run()

    async def _slot(self, slot: int, board: Board) -> None:
        """One engine process after the other, until the board has nothing left for this slot."""
        watch: Watch | None = None
        try:
            while cell := await board.next(slot):
                if watch is not None and watch.variant != cell.variant:
                    await watch.close()
                    watch = None
                try:
                    watch = watch or await begin_watch(board.work, cell.variant, board.tails)
                    await self._work(watch, cell, board)
                except EngineError as error:
                    await _failed(slot, watch, cell, board, error)
                watch = None if watch is None or watch.ended else watch
            if watch is not None:
                await watch.close()
        finally:
            if watch is not None:
                await watch.stop()
            await board.note(gone=slot)

    async def _work(self, watch: Watch, cell: Cell, board: Board) -> None:
        """One cell, after the proof that the engine is what it should be."""
        if not watch.proved:
            watch.proved = await watch.during(board.work.preflight(watch.engine), "preflight")
            if not watch.proved:
                await board.note(refused=cell.variant)
                return
            await board.note(proved=cell.variant)
        await watch.during(self._cell(watch, cell, board), f"`{cell.suite}`")

    async def _cell(self, watch: Watch, cell: Cell, board: Board) -> None:
        """Attempts of one cell in this engine, some in flight, until none is left to take."""
        queue = board.left[cell]
        filings: list[asyncio.Task[None]] = []

        async def lane() -> None:
            unfiled: deque[asyncio.Task[None]] = deque()
            while queue:
                sample = queue.popleft()
                try:
                    answered, paper = await _one(watch.engine, cell, sample, board.work)
                except BaseException:
                    queue.appendleft(sample)  # not filed: another process may make it
                    watch.unfinished += 1
                    raise
                filing = board.desk.take(paper, lambda: board.ended(cell))
                filings.append(filing)
                unfiled.append(filing)
                watch.silent = 0 if answered else watch.silent + 1
                if len(unfiled) > UNFILED:
                    await asyncio.shield(unfiled.popleft())  # a disk that is too slow for the engine holds it back
                if watch.silent >= SILENT_ATTEMPTS:
                    text = f"{cell.variant}: {watch.silent} attempts in a row got no answer, the last of `{cell.suite}`"
                    raise Fell(text, "silent")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._lanes(watch.engine.variant), len(queue))):
                    group.create_task(lane())
        except ExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            await settled(filings)

    def _lanes(self, variant: Variant) -> int:
        """`reference_again` runs in another batch composition: that difference is the noise floor."""
        if variant.name != AGAIN:
            return self.concurrency
        return self.concurrency * 2 // 3 if self.concurrency > 1 else 2


async def _failed(slot: int, watch: Watch | None, cell: Cell, board: Board, error: EngineError) -> None:
    """An engine did not start, fell, or failed otherwise: another process takes its place, or it is lost."""
    final = error if watch is None else await watch.recover(error)
    if final is not None:
        await _lost(slot, watch is not None and not watch.ended, cell, board, final)


async def _lost(slot: int, running: bool, cell: Cell, board: Board, error: EngineError) -> None:
    """An engine process is gone: its variant's other process goes on alone, or a candidate is given up, or the run ends."""
    if not running and await board.give_up(slot, cell.variant):
        board.work.file.progress.say(f"{error}; the other process of {cell.variant} goes on")
        return
    if cell.variant in (REFERENCE, AGAIN):
        raise error  # without them nothing can be compared
    board.work.file.failure(cell.variant, str(error))
    await board.note(refused=cell.variant)


async def _one(engine: Engine, cell: Cell, sample_id: str, work: Work) -> tuple[bool, Paper]:
    """One attempt: did the engine answer, and what is to be filed."""
    sample = work.samples[cell.suite][sample_id]
    if cell.stage == "trace":
        return await _trace(engine, cell, sample, work)
    started, began = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    attempt = await _attempt(engine, cell, sample_id, work)
    stream = attempt.tokens_sha256 or _stream_sha256(work.traces.get((cell.suite, sample_id, cell.epoch)))
    paper = ended(cell, sample_id, replace(attempt, tokens_sha256=stream), started, time.monotonic() - began)
    if work.suites[cell.suite].rescored:
        work.answers[(*cell.filed, sample_id, cell.epoch)] = paper.record
    return attempt.state is not State.INFRA, paper


async def _trace(engine: Engine, cell: Cell, sample: Sample, work: Work) -> tuple[bool, Paper]:
    """The reference's answer. One that fails is filed as such and missing in every arm; a lost engine ends the run."""
    seed = _seed(work.plan.header.seed, cell, sample.id)
    try:
        trace = await work.suites[cell.suite].trace(engine, sample, cell.epoch, seed)
        trace = replace(trace, pieces=trace.pieces or await _pieces(engine, trace.token_ids))
    except EngineError as error:
        await _if_alive(engine, cell, error)
        trace = Trace(
            sample=sample.id, epoch=cell.epoch, prompt_ids=(), token_ids=(), text=str(error), finish=NO_ANSWER
        )
    work.traces[cell.suite, sample.id, cell.epoch] = trace
    return trace.finish != NO_ANSWER, Answered(suite=cell.suite, trace=trace)


async def _pieces(engine: Engine, ids: Sequence[int]) -> tuple[str, ...]:
    """Texts for the maps of the report. Without them it has fewer maps, which is no reason to lose an answer."""
    try:
        found = await engine.pieces(ids)
    except EngineError:
        return ()
    return found if len(found) == len(ids) else ()


async def _if_alive(engine: Engine, cell: Cell, error: EngineError) -> None:
    await asyncio.sleep(0.2)  # a dying process needs a moment before it counts as dead
    if not engine.alive():
        raise EngineError(f"{engine.variant.name}: the engine died during `{cell.suite}`: {error}") from error


async def _attempt(engine: Engine, cell: Cell, sample_id: str, work: Work) -> Attempt:
    suite, trace = work.suites[cell.suite], work.traces.get((cell.suite, sample_id, cell.epoch))
    if trace is not None and trace.finish == NO_ANSWER:
        return Attempt(trajectory=Trajectory(error=f"the reference gave no answer: {trace.text}"), state=State.INFRA)
    try:
        if cell.stage == "rescore":
            return await _rescored(engine, cell, sample_id, work)
        attempt = await suite.attempt(engine, work.samples[cell.suite][sample_id], cell.epoch, trace)
        return sound(attempt, suite)
    except EngineError as error:
        await _if_alive(engine, cell, error)
        return Attempt(trajectory=Trajectory(error=str(error)), state=State.INFRA)


async def _rescored(engine: Engine, cell: Cell, sample_id: str, work: Work) -> Attempt:
    """The reference on what another variant answered; what that one did not answer is missing here, too."""
    record = work.answers[cell.of, cell.suite, sample_id, cell.epoch]
    if record.state is not State.SCORED:
        return Attempt(trajectory=Trajectory(error=f"{cell.of} gave no answer"), state=record.state)
    suite = work.suites[cell.suite]
    said = record.trajectory.turns[0]
    return sound(await suite.rescore(engine, work.samples[cell.suite][sample_id], said), suite)


def _stream_sha256(trace: Trace | None) -> str:
    return hashlib.sha256(repr((trace.prompt_ids, trace.token_ids)).encode()).hexdigest() if trace else ""


def _seed(seed: int, cell: Cell, sample: str) -> int:
    """One seed per (run, suite, sample, epoch): independent of order and of resuming."""
    return own_seed(seed, cell.suite, sample, cell.epoch)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first real error in a group of them: engines failing together fail for one reason."""
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
