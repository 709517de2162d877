"""Filing beside the engine: one batch at a time, nothing lost when the run is cut short, errors told."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from evalrig.errors import RunError
from evalrig.runner import Answered, Desk, Paper, settled
from evalrig.types import Trace


def paper(number: int) -> Answered:
    return Answered(suite="kl", trace=Trace(sample="s", epoch=number, prompt_ids=(), token_ids=()))


def numbers(papers: Sequence[Paper]) -> list[int]:
    return [paper.trace.epoch for paper in papers if isinstance(paper, Answered)]


async def uncounted() -> None:
    pytest.fail("counted")


async def nothing() -> None: ...


def test_what_was_begun_is_filed_and_counted_though_its_lane_is_cancelled() -> None:
    """Otherwise the attempt is on the disk and made a second time."""
    filed: list[int] = []
    counted: list[int] = []

    async def test() -> None:
        def keep(papers: Sequence[Paper]) -> None:
            time.sleep(0.02)
            filed.extend(numbers(papers))

        desk = Desk(keep)

        async def ended(number: int) -> None:
            assert number in filed
            counted.append(number)

        filings = [desk.take(paper(n), lambda n=n: ended(n)) for n in range(4)]
        waiting = asyncio.create_task(settled(filings))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(test())
    assert filed == counted == [0, 1, 2, 3]


def test_what_comes_while_the_disk_is_busy_is_filed_together() -> None:
    batches: list[list[int]] = []

    async def test() -> None:
        def keep(papers: Sequence[Paper]) -> None:
            batches.append(numbers(papers))
            time.sleep(0.1)

        desk = Desk(keep)
        filings = [desk.take(paper(0), nothing)]
        while not batches:
            await asyncio.sleep(0.001)
        filings += [desk.take(paper(n), nothing) for n in range(1, 6)]
        await settled(filings)

    asyncio.run(test())
    assert batches == [[0], [1, 2, 3, 4, 5]]


def test_a_full_disk_is_told_and_not_counted() -> None:
    async def test() -> None:
        def full(_: Sequence[Paper]) -> None:
            raise RunError("cannot write")

        desk = Desk(full)
        filings = [desk.take(paper(n), uncounted) for n in range(3)]
        with pytest.raises(RunError, match="cannot write"):
            await settled(filings)
        assert all(isinstance(filing.exception(), RunError) for filing in filings)

    asyncio.run(test())


def test_a_batch_that_fails_does_not_hold_the_next_one_up() -> None:
    async def test() -> None:
        def once(papers: Sequence[Paper]) -> None:
            if numbers(papers) == [0]:
                raise RunError("cannot write")

        desk = Desk(once)
        with pytest.raises(RunError, match="cannot write"):
            await settled([desk.take(paper(0), uncounted)])
        await settled([desk.take(paper(1), nothing)])

    asyncio.run(test())


def test_the_loop_goes_on_while_the_disk_is_waited_for() -> None:
    async def test() -> int:
        filing, turns = Desk(lambda _: time.sleep(0.2)).take(paper(0), nothing), 0
        while not filing.done():
            await asyncio.sleep(0.005)
            turns += 1
        return turns

    assert asyncio.run(test()) > 3
