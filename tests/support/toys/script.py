"""An engine that says what a test wrote down, turn by turn, about one errand of the world `chain`."""

import json
from pathlib import Path
from typing import Any

from evalrig.engine import Chat, Launch, Sampling
from evalrig.errors import EngineError
from evalrig.types import Completion, Message, ToolCall, Variant
from toys.chain_world import Chain
from toys.engine import Toy, ToyOptions

CHAIN = Chain()
[ERRAND] = CHAIN.errands(3, 1, 0)
WAY = [("look", ERRAND.way[0].arguments), ("look", ERRAND.way[1].arguments), ("stamp", ERRAND.way[2].arguments)]


def acts(*calls: tuple[str, Any], content: str = "") -> Completion:
    made = tuple(
        ToolCall(id=f"call_{n}", name=name, arguments=given if isinstance(given, str) else json.dumps(given))
        for n, (name, given) in enumerate(calls)
    )
    message = Message(role="assistant", content=content, tool_calls=made)
    finish = "tool_calls" if calls else "stop"
    return Completion(text=content, finish=finish, message=message, completion_tokens=10)


DONE = acts(content="All done.")


class Script(Toy):
    """Says one thing after the other; the last one again and again."""

    def __init__(self, *said: Completion | str) -> None:
        variant = Variant(name="script", role="reference", engine="toys.engine", weights="toy")
        super().__init__(variant, ToyOptions(), Launch(log=Path(), start_seconds=1, request_seconds=1))
        self.said = list(said)
        self.asked: list[Chat] = []

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        self.asked.append(chat)
        said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if isinstance(said, str):
            raise EngineError(said)
        return said
