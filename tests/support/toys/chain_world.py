"""A world with one thread: every `look` gives the id to look at next, the last one is stamped. Ids must be copied exactly."""

import random
from typing import Any, ClassVar

from evalrig.types import Tool
from evalrig.world import Errand, Move, State, ToolError, World


def tool(name: str, description: str) -> Tool:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string", "pattern": "^[0-9a-f]{8}$"}},
        "required": ["id"],
        "additionalProperties": False,
    }
    return Tool(name=name, description=description, parameters=schema)


TOOLS = (tool("look", "What lies under an id"), tool("lock", "Locks an id"), tool("stamp", "Stamps an id"))


class Chain(World):
    name: ClassVar[str] = "chain"
    policy: ClassVar[str] = "You follow chains. Look up every id, stamp the last one, then say done."

    def errands(self, horizon: int, count: int, seed: int) -> list[Errand]:
        return [self._errand(horizon, number, random.Random(f"{horizon}/{number}/{seed}")) for number in range(count)]

    def _errand(self, horizon: int, number: int, rng: random.Random) -> Errand:
        ids = [f"{rng.randrange(16**7):07x}{rng.randrange(10)}" for _ in range(max(1, horizon - 1))]
        start: State = {"next": dict(zip(ids, [*ids[1:], ""], strict=True)), "stamped": [], "locked": [], "marks": {}}
        way = tuple(Move(name="look", arguments={"id": each}) for each in ids[: horizon - 1])
        return Errand(
            id=f"{number:04d}",
            request=f"Begin at {ids[0]}.",
            start=start,
            tools=TOOLS,
            way=(*way, Move(name="stamp", arguments={"id": ids[-1]})),
            answer=("done",),
            tags=("ids",),
            cluster=f"thread-{number % 7}",
        )

    def call(self, state: State, move: Move) -> Any:
        own: str = move.arguments["id"]
        if own not in state["next"]:
            raise ToolError(f"no id {own}")
        if move.name == "look":
            follows = state["next"][own]
            return {"look": follows} if follows else {"stamp": own}
        state["locked" if move.name == "lock" else "stamped"].append(own)
        return {"done": True}
