"""Does scoring keep an engine busy? The `kl` suite through the local runner, against an engine with a fixed service time.

    python benchmarks/busy.py                     16 slots, 0.25 s a call, 640 attempts: idle share of the slots
    python benchmarks/busy.py --service 0.05

The engine has as many slots as calls are in flight, so every pause between two calls of a lane shows as an idle slot: a
real engine holds a queue and hides them. Attempts are filed into a real run folder, durably. Idle is counted from the
first call to the last moment at which there was work for every slot; what the end of the run leaves idle (the last
calls end one by one) is printed beside it. A fixed service time is a clock, not work: on a busy machine the program
under test gets its share of the processors late, and the idle share grows. So the same is measured first of lanes that
do nothing but wait: what the machine itself leaves idle.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from slots import Bench, Slotted, SlottedOptions, clock

from evalrig.engine import Capabilities, Scoring
from evalrig.suites.kl import Kl, KlOptions
from evalrig.types import Message, Sample, Trace

TOKENS, TOP_K = 256, 50


class Scorer(Slotted):
    """Answers each scoring after a fixed time."""

    capabilities = Capabilities(prompt_logprobs=True, top_logprobs=TOP_K)

    def __init__(self, options: SlottedOptions, log: Path) -> None:
        super().__init__(options, log)
        rng = np.random.default_rng(0)
        self.top = -np.cumsum(rng.exponential(0.3, (TOKENS, TOP_K)), axis=1).astype(np.float32) - 0.1
        self.ids = np.tile(np.arange(TOP_K, dtype=np.int32) * 1000, (TOKENS, 1))

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        await self.serve()
        given = np.asarray(ids[start:], np.int32)
        return Scoring(token_ids=given, logprobs=self.top[:, 0], top_ids=self.ids, top_logprobs=self.top)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--service", type=float, default=0.25, help="seconds a call takes")
    parser.add_argument("--attempts", type=int, default=640)
    options = parser.parse_args()
    slots, service = options.slots, options.service
    idle = clock(slots, service, options.attempts * service / slots)
    print(f"idle of lanes that only wait, on this machine now: {100 * idle:.2f} %")
    samples = [Sample(id=f"p-{n:05d}", messages=(Message(role="user", content="?"),)) for n in range(options.attempts)]
    prompt, answer = tuple(range(64)), (7,) * TOKENS
    traces = {
        one.id: Trace(sample=one.id, epoch=0, prompt_ids=prompt, token_ids=answer, finish="length") for one in samples
    }
    bench = Bench(suite=Kl("kl", KlOptions(tokens=TOKENS, top_k=TOP_K)), samples=samples, traces=traces)
    with tempfile.TemporaryDirectory() as scratch:
        engine = Scorer(SlottedOptions(service=service), Path(scratch) / "engine.log")
        records, cpu = bench.run(engine, slots, Path(scratch))
    assert len(records) == options.attempts
    first, last = min(begin for begin, _ in engine.calls), max(end for _, end in engine.calls)
    full = sorted(begin for begin, _ in engine.calls)[-slots]  # from here on some slot has no next call
    print(f"{len(engine.calls)} calls, {slots} slots, {last - first:.2f} s from the first to the last")
    print(f"idle while there was work for every slot: {100 * engine.idle(slots, full):.2f} %")
    print(f"idle over the whole run, its end included: {100 * engine.idle(slots, last):.2f} %")
    print(f"processor: {1000 * cpu / options.attempts:.1f} ms an attempt")


if __name__ == "__main__":
    main()
