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
import json
import random
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from slots import Bench, Slotted, SlottedOptions, clock

from evalrig.engine import Capabilities, Chat, Sampling
from evalrig.suites.tool_worlds import ToolWorlds, ToolWorldsOptions
from evalrig.types import Completion, Message, Tool, ToolCall
from evalrig.world import Errand, Move, State, World

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


class Marker(Slotted):
    """Marks the next id of the request, after a fixed time."""

    capabilities = Capabilities(chat=True, tools=True)

    def __init__(self, options: SlottedOptions, log: Path) -> None:
        super().__init__(options, log)
        self.last = 0.0
        """When the last attempt began."""

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        done = sum(message.role == "tool" for message in chat.messages)
        began = await self.serve()
        if not done:
            self.last = max(self.last, began)
        left = chat.messages[1].content.split()[done:]
        calls = tuple(ToolCall(id=f"c{done}", name="mark", arguments=json.dumps({"id": own})) for own in left[:1])
        message = Message(role="assistant", content="" if calls else "Done.", tool_calls=calls)
        return Completion(text=message.content, finish="tool_calls" if calls else "stop", message=message)


def measured(attempts: int, slots: int, service: float, horizon: int) -> tuple[Marker, list[float], float]:
    """The engine with its calls, the success of every attempt, and seconds of processor time."""
    options = ToolWorldsOptions(worlds=[__file__], horizons=[horizon], per_horizon=attempts, protocol="native")
    suite = ToolWorlds("tool_worlds", options)
    with tempfile.TemporaryDirectory() as scratch:
        engine = Marker(SlottedOptions(service=service), Path(scratch) / "engine.log")
        records, cpu = Bench(suite=suite, samples=suite.samples()).run(engine, slots, Path(scratch))
    return engine, [record.scores.get("success", 0.0) for record in records], cpu


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
    print(f"idle while there was work for every slot: {100 * engine.idle(options.slots, engine.last):.2f} %")
    print(f"processor: {1000 * cpu / options.attempts:.1f} ms an attempt")


if __name__ == "__main__":
    main()
