"""What the benchmarks of the runner share: an engine with a fixed service time and a slot for every call, and how long slots idle."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evalrig.engine import Capabilities, Engine, Launch, Sampling, Scoring
from evalrig.filing import Files
from evalrig.plan import Cell, Header, Plan, SuitePlan
from evalrig.progress import Plain
from evalrig.records import RunFolder
from evalrig.runner import Work
from evalrig.runners.local import Local
from evalrig.suite import Suite
from evalrig.types import Capacity, Completion, Fingerprint, Message, Record, Sample, Tool, Trace, Variant

ARM = "candidate"
VARIANT = Variant(name=ARM, role="candidate", engine="mock", weights="none")


@dataclass(kw_only=True)
class SlottedOptions:
    service: float
    """Seconds a call takes."""


class Slotted(Engine):
    """Every call takes the same time, however many are in flight; what it answers, a benchmark says."""

    Options = SlottedOptions
    capabilities = Capabilities()

    def __init__(self, options: SlottedOptions, log: Path) -> None:
        super().__init__(VARIANT, options, Launch(log=log, start_seconds=1, request_seconds=60))
        self.service = options.service
        self.calls: list[tuple[float, float]] = []
        """Begin and end of each."""

    async def serve(self) -> float:
        """One call; returns when it began."""
        began = time.perf_counter()
        await asyncio.sleep(self.service)
        self.calls.append((began, began + self.service))
        return began

    def idle(self, slots: int, until: float) -> float:
        """Share of the slots' time without a call, from the first call until then."""
        first = min(begin for begin, _ in self.calls)
        busy = sum(max(0.0, min(end, until) - min(begin, until)) for begin, end in self.calls)
        return 1 - busy / (slots * (until - first))

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
        return tuple(range(64))

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        raise NotImplementedError("no benchmark generates")

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        raise NotImplementedError("this benchmark scores nothing")


class _Quiet(Plain):
    """Says nothing."""

    def __init__(self) -> None:
        self._rows = {}

    def say(self, line: str) -> None:
        """Nothing."""

    def step(self, suite: str) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One suite's attempts of one candidate, through the local runner and into a real run folder."""

    suite: Suite
    samples: Sequence[Sample]
    traces: Mapping[str, Trace] = field(default_factory=dict[str, Trace])
    """Sample -> what the reference answered."""

    def run(self, engine: Slotted, slots: int, scratch: Path) -> tuple[list[Record], float]:
        """The records, and seconds of processor time."""
        name = self.suite.name
        folder = RunFolder.create(scratch, self._plan(), "", {}, {name: list(self.samples)})
        began = time.process_time()
        asyncio.run(Local(engines=1, concurrency=slots).run(self._work(folder, engine)))
        folder.close()
        return folder.records(ARM, name), time.process_time() - began

    def _plan(self) -> Plan:
        suite = SuitePlan(
            name=self.suite.name,
            kind=self.suite.name,
            family=self.suite.family,
            epochs=1,
            metrics=self.suite.metrics,
            traced=self.suite.traced,
            samples=tuple(sample.id for sample in self.samples),
            again=(),
            sha256="",
        )
        header = Header(run="bench", question="?", seed=0, alpha=0.05, model="mock", max_context=1024, note="")
        return Plan(
            header=header,
            config={},
            config_sha256="",
            variants=(VARIANT,),
            suites=(suite,),
            gates=(),
            unused_gates=(),
            cells=(),
        )

    def _work(self, folder: RunFolder, engine: Slotted) -> Work:
        name, ids = self.suite.name, tuple(sample.id for sample in self.samples)

        async def proved(_: Engine) -> bool:
            return True

        return Work(
            plan=folder.plan(),
            suites={name: self.suite},
            samples={name: {sample.id: sample for sample in self.samples}},
            pending={Cell(variant=ARM, suite=name, epoch=0, stage="attempt", samples=ids): ids},
            traces={(name, sample, 0): trace for sample, trace in self.traces.items()},
            answers={},
            engine=lambda _: engine,
            preflight=proved,
            file=Files(folder, _Quiet()),
        )


def clock(slots: int, service: float, seconds: float) -> float:
    """Idle share of lanes that only wait: what the machine itself leaves idle now."""
    rounds = max(1, round(seconds / service))

    async def lane() -> None:
        for _ in range(rounds):
            await asyncio.sleep(service)

    async def all_lanes() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(slots)))
        return time.perf_counter() - began

    return 1 - rounds * service / asyncio.run(all_lanes())
