"""How long do conversations in a world get? Mean characters, by world and horizon.

    python benchmarks/worlds.py

Prompt: policy, request and the tools on offer as compact JSON. Conversation: that, and every call and result on the shortest way. Errands
that cannot be done are left out. About 3.5 characters make a token; the chat template adds its own.
"""

import copy
import json
from statistics import mean

from evalrig.plugins import find, kinds, make
from evalrig.world import Errand, World

HORIZONS = (5, 10, 20, 40, 80)
ERRANDS = 50


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)


def prompt(world: World, errand: Errand) -> int:
    tools = [{"name": it.name, "description": it.description, "parameters": it.parameters} for it in errand.tools]
    return len(world.policy) + len(errand.request) + len(compact(tools))


def conversation(world: World, errand: Errand) -> int:
    given = world.walk(copy.deepcopy(errand.start), errand.way)
    calls = [{"name": move.name, "arguments": move.arguments} for move in errand.way]
    return prompt(world, errand) + sum(len(compact(it)) for it in (*calls, *given))


def main() -> None:
    print(f"{'world':14}{'horizon':>8}{'prompt':>9}{'conversation':>14}{'tools':>7}")
    for kind in kinds("worlds"):
        world: World = make(find("worlds", kind, World, "benchmark"))
        for horizon in HORIZONS:
            errands = [it for it in world.errands(horizon, ERRANDS, 0) if not it.answer]
            prompts, whole = mean(prompt(world, it) for it in errands), mean(conversation(world, it) for it in errands)
            print(f"{kind:14}{horizon:8}{prompts:9.0f}{whole:14.0f}{mean(len(it.tools) for it in errands):7.1f}")


if __name__ == "__main__":
    main()
