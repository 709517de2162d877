"""A worker process of `sharded`: started by it alone. Its standard input holds the job and then the start; when that ends, whoever
started it is gone, and it ends too."""

import asyncio
import math
import os
import pickle
import sys

from evalrig.loadgen.drive import Driver, stopped
from evalrig.loadgen.sharded import HEARD, IDLE, SAID, Job


async def work() -> None:
    """Prime, say that we are ready, wait for the start, run, hand over."""
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    job: Job = pickle.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(8), "big")))
    driver = Driver(job.address, job.schedule, job.stop)
    start: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    watch = asyncio.create_task(_watch(reader, start))
    listening = asyncio.create_task(driver.listen(lambda seconds: _tell(IDLE if math.isfinite(seconds) else HEARD)))
    try:
        await driver.prime()
        _tell(SAID)
        driven = await driver.run(await start)
    finally:
        await stopped(listening)
        await driver.close()
    watch.cancel()
    told = pickle.dumps(driven)
    sys.stdout.buffer.write(SAID + len(told).to_bytes(8, "big") + told)
    sys.stdout.buffer.flush()


def _tell(sign: bytes) -> None:
    os.write(sys.stdout.fileno(), sign)


async def _watch(reader: asyncio.StreamReader, start: "asyncio.Future[int]") -> None:
    """Tell the start; end the process when nobody is there any more."""
    try:
        start.set_result(int.from_bytes(await reader.readexactly(8), "big"))
        await reader.read()
    except asyncio.IncompleteReadError:
        pass
    os._exit(1)


if __name__ == "__main__":
    asyncio.run(work())
