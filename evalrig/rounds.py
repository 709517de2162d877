"""Rounds of load: every variant runs the same block, one after the other in random order, with nothing else on the machine.

Where the engines of all variants fit side by side they are kept up. Else every variant is started anew for each round, so that
the differences between starts are part of the noise and not of a variant; on that start it runs all blocks of the round, of
all suites, for a start of a large model takes minutes.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from evalrig.errors import EngineError
from evalrig.plan import Cell
from evalrig.runner import Ended, Work, ended
from evalrig.suite import Attempt, sound
from evalrig.types import AGAIN, REFERENCE, State, Trajectory
from evalrig.watch import Fell, Tail, Watch, begin_again, begin_watch

SILENT_BLOCKS: Final = 3
"""Failed blocks in a row after which a running engine counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a variant does in one round."""

    variant: str
    blocks: tuple[tuple[Cell, str], ...]
    """Cells with the sample of each block."""
    filed: tuple[tuple[Cell, str], ...] = ()
    """Those of which an earlier session left a record: made hours ago, they are no half of a block that is made now."""

    @property
    def owed(self) -> bool:
        """A block has no record."""
        return len(self.filed) < len(self.blocks)


@dataclass(slots=True, kw_only=True)
class Places:
    """Where logs were read to, and which variants are proved, or must not be run: what other stages of a run know of it."""

    tails: dict[Path, Tail] = field(default_factory=dict[Path, Tail])
    proved: set[str] = field(default_factory=set[str])
    refused: set[str] = field(default_factory=set[str])


def rounds_of(work: Work, whole: bool) -> Iterator[tuple[Turn, ...]]:
    """The rounds that are not complete, each with all its turns; their order is drawn from the run's seed.

    `whole`: all blocks of a round, of all concurrencies and suites, are one turn, as samples of the same cluster. Else each block
    is, and pairs of blocks lie as near together as can be.
    """
    cells = [cell for cell in work.plan.cells if cell.stage == "block"]
    rounds: dict[str, list[tuple[Cell, str]]] = {}
    for suite in dict.fromkeys(cell.suite for cell in cells):
        own = [cell for cell in cells if cell.suite == suite]
        for sample in work.plan.suite(suite).samples:
            cluster = work.samples[suite][sample].cluster if whole else ""
            blocks = [(cell, sample) for cell in own if sample in cell.samples]
            rounds.setdefault(cluster or f"{suite}/{sample}", []).extend(blocks)
    owed = {(cell, sample) for cell, samples in work.pending.items() for sample in samples}
    for key, blocks in rounds.items():
        names = [variant.name for variant in work.plan.variants]
        random.Random(f"{work.plan.header.seed}/{key}/order").shuffle(names)
        turns = [_turn(name, blocks, owed) for name in names]
        if any(turn.owed for turn in turns):
            yield tuple(turn for turn in turns if turn.blocks)


def _turn(name: str, blocks: Sequence[tuple[Cell, str]], owed: Collection[tuple[Cell, str]]) -> Turn:
    own = tuple(one for one in blocks if one[0].variant == name)
    return Turn(variant=name, blocks=own, filed=tuple(one for one in own if one not in owed))


class Rounds:
    """Carries the rounds out; `engines` processes fit side by side."""

    def __init__(self, work: Work, engines: int, places: Places) -> None:
        self._work = work
        self._places = places
        self._up: dict[str, Watch] = {}
        self._silent: Counter[str] = Counter()
        """Failed blocks in a row, by variant."""
        self._kept = len({variant.name for variant in work.plan.variants} - places.refused) <= engines

    async def run(self) -> None:
        """Return when every round was filed, or its variants given up.

        Raises:
            RunError: the reference's engine was lost, or something could not be filed. What was filed stays.
        """
        try:
            for one in rounds_of(self._work, whole=not self._kept):
                if not await self._round(one):
                    return
            for watch in self._up.values():
                await watch.close()
        finally:
            for watch in self._up.values():
                await watch.stop()

    async def _round(self, turns: tuple[Turn, ...]) -> bool:
        """One round, filed together: of a round that is cut short nothing counts. False: the reference must not be run."""
        if not any(turn.owed and turn.variant not in self._places.refused for turn in turns):
            return REFERENCE not in self._places.refused  # made again it would lack the same
        self._withdraw(turns)
        papers: list[Ended] = []
        for place, turn in enumerate(turns, 1):
            if REFERENCE not in self._places.proved and turn.variant != REFERENCE:
                await self._prove_reference()
            if REFERENCE in self._places.refused:
                return False
            papers += await self._turn(turn, f"turn {place} of {len(turns)} in its round")
        if papers:
            filing = asyncio.ensure_future(asyncio.to_thread(self._work.file.keep, papers))
            try:
                await asyncio.shield(filing)
            except asyncio.CancelledError:
                await filing  # what was begun is filed whole, or it is made twice
                raise
        return REFERENCE not in self._places.refused

    def _withdraw(self, turns: tuple[Turn, ...]) -> None:
        """What is filed of a round that is made again counts no more, before its first block is written over."""
        filed = [one for turn in turns for one in turn.filed]
        for cell, sample in filed:
            self._work.file.withdraw(cell.variant, cell.suite, [sample])
        for suite, sample in dict.fromkeys((cell.suite, sample) for cell, sample in filed):
            self._work.file.progress.say(f"{suite} {sample}: lacks a block; all variants make it again, at one time")

    async def _turn(self, turn: Turn, place: str) -> list[Ended]:
        """The blocks of one variant, on one start unless it dies; those after it was given up are not made."""
        papers: list[Ended] = []
        for cell, sample in turn.blocks:
            paper = None if turn.variant in self._places.refused else await self._block(cell, sample, place)
            papers += [paper] if paper else []
        if not self._kept and (watch := self._up.get(turn.variant)) is not None:
            await self._let_go(watch)
        return papers

    async def _prove_reference(self) -> None:
        """A candidate is proved against the reference, whichever comes first in a round."""
        if (watch := await self._proved(REFERENCE)) is not None and not self._kept:
            await self._let_go(watch)

    async def _block(self, cell: Cell, sample: str, place: str) -> Ended | None:
        """One block; None: its variant was given up, or must not be run."""
        while True:
            watch = await self._proved(cell.variant)
            if watch is None:
                return None
            try:
                paper = await watch.during(self._one(watch, cell, sample, place), f"`{cell.suite}`")
                if self._silent[cell.variant] >= SILENT_BLOCKS:
                    self._silent[cell.variant] = 0
                    raise Fell(f"{cell.variant}: {SILENT_BLOCKS} blocks in a row failed", "silent")
            except EngineError as error:
                watch.unfinished = 1
                if not await self._again(watch, error):
                    return None
                continue
            return await asyncio.to_thread(self._work.file.lay_down, paper)

    async def _proved(self, name: str) -> Watch | None:
        """The variant's engine, started and proved where it is not up; None: it cannot be had, or is not what it should be."""
        while name not in self._up:
            if name in self._places.refused:
                return None
            # What never started has a wrong flag or no room; a start that failed after others is a fall as any other.
            begin = begin_again if name in self._places.proved else begin_watch
            try:
                watch = await begin(self._work, name, self._places.tails)
            except EngineError as error:
                self._give_up(name, error)
                return None
            self._up[name] = watch
            try:
                admitted = await watch.during(self._work.preflight(watch.engine), "preflight")
            except EngineError as error:
                if not await self._again(watch, error):
                    return None
                continue
            if not admitted:
                self._places.refused.add(name)
                await self._let_go(watch)
                return None
            watch.proved = True
            self._places.proved.add(name)
        return self._up[name]

    async def _again(self, watch: Watch, error: EngineError) -> bool:
        """After a failure: may another process take its place? Else the variant is given up."""
        final = await watch.recover(error)
        self._up.pop(watch.variant, None)
        if not watch.ended:
            await watch.stop()
        if final is None:
            return True
        self._give_up(watch.variant, final)
        return False

    def _give_up(self, name: str, error: EngineError) -> None:
        if name in (REFERENCE, AGAIN):
            raise error  # without them nothing can be compared
        self._work.file.failure(name, str(error))
        self._places.refused.add(name)

    async def _let_go(self, watch: Watch) -> None:
        del self._up[watch.variant]
        try:
            await watch.close()
        finally:
            await watch.stop()

    async def _one(self, watch: Watch, cell: Cell, sample: str, place: str) -> Ended:
        """One block as a record. How its process came about is told with it."""
        started, began = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
        attempt = await self._attempt(watch, cell, sample)
        how = "an engine that was kept up" if self._kept else "an engine started for this round"
        said = replace(attempt, trajectory=replace(attempt.trajectory, answer=f"{place}, on {how}"))
        paper = ended(cell, sample, said, started, time.monotonic() - began)
        self._silent[cell.variant] = self._silent[cell.variant] + 1 if attempt.state is State.INFRA else 0
        if attempt.state is not State.SCORED:
            self._work.file.progress.say(f"{cell.variant}, {cell.suite} {sample}: {attempt.trajectory.error}")
        return paper

    async def _attempt(self, watch: Watch, cell: Cell, sample: str) -> Attempt:
        suite, engine = self._work.suites[cell.suite], watch.engine
        try:
            attempt = sound(
                await suite.attempt(engine, self._work.samples[cell.suite][sample], cell.epoch, None), suite
            )
        except EngineError as error:
            attempt = Attempt(trajectory=Trajectory(error=str(error)), state=State.INFRA)
        if attempt.state is State.INFRA:
            await asyncio.sleep(0.2)  # a dying process needs a moment before it counts as dead
        if not engine.alive():  # also where all was answered: it was dying meanwhile
            error = attempt.trajectory.error or "after its last answer"
            raise EngineError(f"{cell.variant}: the engine died during `{cell.suite}`: {error}")
        return attempt
