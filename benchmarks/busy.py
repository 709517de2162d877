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
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evalrig.engine import Capabilities, Engine, Launch, Sampling, Scoring
from evalrig.filing import Files
from evalrig.plan import Cell, Header, Plan, SuitePlan
from evalrig.progress import Plain
from evalrig.records import RunFolder
from evalrig.runner import Work
from evalrig.runners.local import Local
from evalrig.suites.kl import Kl, KlOptions
from evalrig.types import Capacity, Completion, Fingerprint, Message, Sample, Tool, Trace, Variant

ARM = "candidate"
PROMPT, TOKENS, TOP_K = 64, 256, 50


@dataclass(kw_only=True)
class MockOptions:
    service: float


class Mock(Engine):
    """Answers each scoring after a fixed time."""

    Options = MockOptions
    capabilities = Capabilities(prompt_logprobs=True, top_logprobs=TOP_K)

    def __init__(self, variant: Variant, options: MockOptions, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self.service = options.service
        self.calls: list[tuple[float, float]] = []
        """Begin and end of each."""
        rng = np.random.default_rng(0)
        self.top = -np.cumsum(rng.exponential(0.3, (TOKENS, TOP_K)), axis=1).astype(np.float32) - 0.1
        self.ids = np.tile(np.arange(TOP_K, dtype=np.int32) * 1000, (TOKENS, 1))

    async def start(self) -> None:
        """See `Engine.start`."""

    async def stop(self) -> None:
        """See `Engine.stop`."""

    def alive(self) -> bool:
        return True

    async def fingerprint(self) -> Fingerprint:
        return Fingerprint(engine="mock", version="1", weights="bf16", kv_cache="bf16")

    async def capacity(self) -> Capacity:
        return Capacity()

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        return tuple(range(PROMPT))

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        raise NotImplementedError("the reference has answered already")

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        began = time.perf_counter()
        await asyncio.sleep(self.service)
        self.calls.append((began, began + self.service))
        given = np.asarray(ids[start:], np.int32)
        return Scoring(token_ids=given, logprobs=self.top[:, 0], top_ids=self.ids, top_logprobs=self.top)


def work(folder: RunFolder, samples: list[Sample], engine: Mock) -> Work:
    """All attempts of one variant, the reference's answers being there."""
    kl = Kl("kl", KlOptions(tokens=TOKENS, top_k=TOP_K))
    names = tuple(sample.id for sample in samples)
    cell = Cell(variant=ARM, suite="kl", epoch=0, stage="attempt", samples=names)
    traces = {
        ("kl", name, 0): Trace(
            sample=name, epoch=0, prompt_ids=tuple(range(PROMPT)), token_ids=(7,) * TOKENS, finish="length"
        )
        for name in names
    }

    async def proved(_: Engine) -> bool:
        return True

    return Work(
        plan=folder.plan(),
        suites={"kl": kl},
        samples={"kl": {sample.id: sample for sample in samples}},
        pending={cell: names},
        traces=traces,
        answers={},
        engine=lambda _: engine,
        preflight=proved,
        file=Files(folder, Quiet()),
    )


class Quiet(Plain):
    """Says nothing."""

    def __init__(self) -> None:
        self._rows = {}

    def say(self, line: str) -> None:
        """Nothing."""

    def step(self, suite: str) -> None:
        """Nothing."""


def plan(samples: list[Sample], variant: Variant) -> Plan:
    """One suite, one candidate."""
    names = tuple(sample.id for sample in samples)
    suite = SuitePlan(
        name="kl",
        kind="kl",
        family="token distribution",
        epochs=1,
        metrics=Kl.metrics,
        traced=True,
        samples=names,
        again=(),
        sha256="",
    )
    header = Header(run="busy", question="?", seed=0, alpha=0.05, model="mock", max_context=1024, note="")
    return Plan(
        header=header,
        config={},
        config_sha256="",
        variants=(variant,),
        suites=(suite,),
        gates=(),
        unused_gates=(),
        cells=(),
    )


def report(calls: list[tuple[float, float]], slots: int) -> None:
    """Idle share of all slots while there was work for each, and of the whole run."""
    first, last = min(begin for begin, _ in calls), max(end for _, end in calls)
    full = sorted(begin for begin, _ in calls)[-slots]  # from here on some slot has no next call
    busy = sum(max(0.0, min(end, full) - min(begin, full)) for begin, end in calls)
    whole = sum(end - begin for begin, end in calls)
    print(f"{len(calls)} calls, {slots} slots, {last - first:.2f} s from the first to the last")
    print(f"idle while there was work for every slot: {100 * (1 - busy / (slots * (full - first))):.2f} %")
    print(f"idle over the whole run, its end included: {100 * (1 - whole / (slots * (last - first))):.2f} %")


def clock(slots: int, service: float, rounds: int) -> None:
    """Idle share of lanes that only wait."""

    async def lane() -> None:
        for _ in range(rounds):
            await asyncio.sleep(service)

    async def all_lanes() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(slots)))
        return time.perf_counter() - began

    print(
        f"idle of lanes that only wait, on this machine now: {100 * (1 - rounds * service / asyncio.run(all_lanes())):.2f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--service", type=float, default=0.25, help="seconds a call takes")
    parser.add_argument("--attempts", type=int, default=640)
    options = parser.parse_args()
    samples = [Sample(id=f"p-{n:05d}", messages=(Message(role="user", content="?"),)) for n in range(options.attempts)]
    clock(options.slots, options.service, options.attempts // options.slots)
    variant = Variant(name=ARM, role="candidate", engine="mock", weights="none")
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch), plan(samples, variant), "", {}, {"kl": samples})
        launch = Launch(log=folder.variant_path(ARM) / "engine.log", start_seconds=1, request_seconds=60)
        engine = Mock(variant, MockOptions(service=options.service), launch)
        cpu = time.process_time()
        asyncio.run(Local(engines=1, concurrency=options.slots).run(work(folder, samples, engine)))
        folder.close()
        assert len(folder.records(ARM, "kl")) == options.attempts
        report(engine.calls, options.slots)
        print(f"processor: {1000 * (time.process_time() - cpu) / options.attempts:.1f} ms an attempt")


if __name__ == "__main__":
    main()
