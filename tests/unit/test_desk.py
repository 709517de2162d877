"""Filing beside the engine: one thing at a time, nothing lost when the run is cut short, errors told."""

import asyncio
import time

import pytest

from evalrig.errors import RunError
from evalrig.runner import Desk, settled


def test_what_was_begun_is_filed_and_counted_though_its_lane_is_cancelled() -> None:
    """Otherwise the attempt is on the disk and made a second time."""
    filed: list[int] = []
    counted: list[int] = []

    async def test() -> None:
        desk = Desk()

        def file(number: int) -> None:
            time.sleep(0.02)
            filed.append(number)

        async def ended(number: int) -> None:
            counted.append(number)

        filings = [desk.take(lambda n=n: file(n), lambda n=n: ended(n)) for n in range(4)]
        waiting = asyncio.create_task(settled(filings))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(test())
    assert filed == counted == [0, 1, 2, 3]


def test_a_full_disk_is_told_and_not_counted() -> None:
    async def test() -> None:
        def full() -> None:
            raise RunError("cannot write")

        async def ended() -> None:
            pytest.fail("counted")

        with pytest.raises(RunError, match="cannot write"):
            await settled([Desk().take(full, ended)])

    asyncio.run(test())


def test_the_loop_goes_on_while_the_disk_is_waited_for() -> None:
    async def test() -> int:
        async def ended() -> None: ...

        filing, turns = Desk().take(lambda: time.sleep(0.2), ended), 0
        while not filing.done():
            await asyncio.sleep(0.005)
            turns += 1
        return turns

    assert asyncio.run(test()) > 3
