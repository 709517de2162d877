"""Do free runs with tools keep an engine busy, and apart from each other? `tool_worlds` through the local runner, against an
engine whose calls take a fixed time.

    python benchmarks/arena.py                                    1,000 attempts at concurrency 64, 2 s a call
    python benchmarks/arena.py --attempts 200 --service 0.2

The engine has as many slots as attempts are in flight, so every pause between two calls of an attempt shows as an idle slot.
Idle is counted from the first call until the last attempt begins: while there was work for every slot. The same is
measured first of lanes that do nothing but wait: what the machine itself leaves idle. The world changes whatever it can
reach, its arguments included; an attempt succeeds if its state at the end is its own work and nobody else's.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from evalrig.engine import Capabilities, Chat, Engine, Launch, Sampling, Scoring
from evalrig.filing import Files
from evalrig.plan import Cell, Header, Plan, SuitePlan
from evalrig.progress import Plain
from evalrig.records import RunFolder
from evalrig.runner import Work
from evalrig.runners.local import Local
from evalrig.suites.tool_worlds import ToolWorlds, ToolWorldsOptions
from evalrig.types import Capacity, Completion, Fingerprint, Message, Sample, Tool, ToolCall, Variant
from evalrig.world import Errand, Move, State, World

ARM, SUITE = "candidate", "tool_worlds"
MARK = Tool(
    name="mark",
    description="Marks an id",
    parameters={"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
)


class Marks(World):
    """One id after the other is marked. Keeps its arguments in the state, and changes them there."""

    name: ClassVar[str] = "marks"
    policy: ClassVar[str] = "Mark every id, one a call."

    def errands(self, horizon: int, count: int, seed: int) -> list[Errand]:
        rng = random.Random(f"{seed}/{horizon}")
        made: list[Errand] = []
        for number in range(count):
            ids = [f"{rng.randrange(10**9):09d}" for _ in range(horizon)]
            way = tuple(Move(name="mark", arguments={"id": own}) for own in ids)
            start: State = {"marks": [], "kept": []}
            made.append(Errand(id=f"{number:05d}", request=" ".join(ids), start=start, tools=(MARK,), way=way))
        return made

    def call(self, state: State, move: Move) -> Any:
        state["marks"].append(move.arguments["id"])
        state["kept"].append(move.arguments)
        state["kept"][0]["id"] = f"seen {len(state['marks'])}"
        return len(state["marks"])


@dataclass(kw_only=True)
class MockOptions:
    service: float


class Mock(Engine):
    """Marks the next id of the request, after a fixed time."""

    Options = MockOptions
    capabilities = Capabilities(chat=True, tools=True)

    def __init__(self, variant: Variant, options: MockOptions, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self.service = options.service
        self.calls: list[tuple[float, float]] = []
        """Begin and end of each."""
        self.began: list[float] = []
        """Begin of each attempt."""

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

    async def tokenize(self, prompt: str | Sequence[Message]) -> tuple[int, ...]:
        return tuple(range(64))

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        raise NotImplementedError("asked through the chat route")

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        raise NotImplementedError("nothing is scored")

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        began = time.perf_counter()
        done = sum(message.role == "tool" for message in chat.messages)
        if not done:
            self.began.append(began)
        await asyncio.sleep(self.service)
        self.calls.append((began, began + self.service))
        left = chat.messages[1].content.split()[done:]
        calls = tuple(ToolCall(id=f"c{done}", name="mark", arguments=json.dumps({"id": own})) for own in left[:1])
        message = Message(role="assistant", content="" if calls else "Done.", tool_calls=calls)
        return Completion(text=message.content, finish="tool_calls" if calls else "stop", message=message)


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
        name=SUITE,
        kind=SUITE,
        family="tool calls",
        epochs=1,
        metrics=ToolWorlds.metrics,
        traced=False,
        samples=names,
        again=(),
        sha256="",
    )
    header = Header(run="arena", question="?", seed=0, alpha=0.05, model="mock", max_context=1024, note="")
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


def work(folder: RunFolder, suite: ToolWorlds, samples: list[Sample], engine: Mock) -> Work:
    """All attempts of one variant."""
    names = tuple(sample.id for sample in samples)
    cell = Cell(variant=ARM, suite=SUITE, epoch=0, stage="attempt", samples=names)

    async def proved(_: Engine) -> bool:
        return True

    return Work(
        plan=folder.plan(),
        suites={SUITE: suite},
        samples={SUITE: {sample.id: sample for sample in samples}},
        pending={cell: names},
        traces={},
        answers={},
        engine=lambda _: engine,
        preflight=proved,
        file=Files(folder, Quiet()),
    )


def idle(engine: Mock, slots: int) -> float:
    """Share of the slots' time without a call, from the first call until the last attempt begins."""
    first, full = min(engine.began), max(engine.began)
    busy = sum(max(0.0, min(end, full) - min(begin, full)) for begin, end in engine.calls)
    return 1 - busy / (slots * (full - first))


def clock(slots: int, service: float, seconds: float) -> float:
    """Idle share of lanes that only wait, on this machine now."""
    rounds = max(1, round(seconds / service))

    async def lane() -> None:
        for _ in range(rounds):
            await asyncio.sleep(service)

    async def all_lanes() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(slots)))
        return time.perf_counter() - began

    return 1 - rounds * service / asyncio.run(all_lanes())


def measured(attempts: int, slots: int, service: float, horizon: int) -> tuple[Mock, list[float], float]:
    """The engine with its calls, the success of every attempt, and seconds of processor time."""
    options = ToolWorldsOptions(worlds=[__file__], horizons=[horizon], per_horizon=attempts, protocol="native")
    suite = ToolWorlds(SUITE, options)
    samples = suite.samples()
    variant = Variant(name=ARM, role="candidate", engine="mock", weights="none")
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch), plan(samples, variant), "", {}, {SUITE: samples})
        launch = Launch(log=folder.variant_path(ARM) / "engine.log", start_seconds=1, request_seconds=60)
        engine = Mock(variant, MockOptions(service=service), launch)
        cpu = time.process_time()
        asyncio.run(Local(engines=1, concurrency=slots).run(work(folder, suite, samples, engine)))
        folder.close()
        success = [record.scores.get("success", 0.0) for record in folder.records(ARM, SUITE)]
        return engine, success, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--service", type=float, default=2.0, help="seconds a call takes")
    parser.add_argument("--horizon", type=int, default=3, help="calls an errand needs, before its answer")
    options = parser.parse_args()
    print(f"idle of lanes that only wait: {100 * clock(options.slots, options.service, 10.0):.2f} %")
    engine, success, cpu = measured(options.attempts, options.slots, options.service, options.horizon)
    print(f"{len(success)} attempts, {sum(success):.0f} with a state of their own; {len(engine.calls)} calls")
    print(f"idle while there was work for every slot: {100 * idle(engine, options.slots):.2f} %")
    print(f"processor: {1000 * cpu / options.attempts:.1f} ms an attempt")


if __name__ == "__main__":
    main()
