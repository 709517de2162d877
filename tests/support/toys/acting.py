"""A scripted model (`kind: toys.acting`) that follows the world `chain`, and slips at a known share of its steps."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalrig.engine import Chat, Sampling
from evalrig.errors import EngineError
from evalrig.types import Completion, Message, ToolCall
from toys.engine import Toy, ToyOptions


@dataclass(kw_only=True)
class ActorOptions(ToyOptions):
    error_rate: float = 0.0
    """Share of steps at which one character of an id is wrong."""
    tool_calls: bool = True
    """The server parses calls; else they are text."""
    outgrown_after: int = 0
    """Characters of a conversation that the context holds; 0: all."""
    dead_after: int = 0
    """Acts after which every call fails."""


class Actor(Toy):
    """Pure in the conversation and its own seed: the same step slips in every order of attempts."""

    Options = ActorOptions
    options: ActorOptions  # type: ignore[assignment]

    @classmethod
    def able(cls, options: ActorOptions):  # type: ignore[no-untyped-def]
        return replace(cls.capabilities, tools=options.tool_calls)

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        system = chat.messages[0].content
        if "follow chains" not in system:
            return await super().chat(chat, sampling)
        self.acts = getattr(self, "acts", 0) + 1
        if 0 < self.options.dead_after < self.acts:
            raise EngineError(f"{self.variant.name}: HTTP 503")
        length = sum(len(message.content) for message in chat.messages)
        if 0 < self.options.outgrown_after < length:
            raise EngineError(f"{self.variant.name}: HTTP 400 The input is longer than the model's context length")
        await self._call()
        name, own = self._due(chat.messages)
        if name and self._slips(chat.messages):
            own = own[:-1] + ("0" if own[-1] != "0" else "1")
        return self._said_act(name, own, bool(chat.tools), length)

    def _due(self, messages: Sequence[Message]) -> tuple[str, str]:
        last = messages[-1].content.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
        if last.startswith("Begin at"):
            return "look", last.removeprefix("Begin at ").removesuffix(".")
        given = json.loads(last)
        for name in ("look", "stamp"):
            if name in given:
                return name, given[name]
        return ("look", given["error"].removeprefix("no id ")) if "error" in given else ("", "")

    def _slips(self, messages: Sequence[Message]) -> bool:
        text = f"{self.options.seed}/" + "/".join(message.content for message in messages[1:])
        return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) < self.options.error_rate * 16**8

    def _said_act(self, name: str, own: str, native: bool, length: int) -> Completion:
        counts: Any = {"prompt_tokens": length, "completion_tokens": 8}
        if not name:
            message = Message(role="assistant", content="All done.")
            return Completion(text=message.content, finish="stop", message=message, **counts)
        arguments = json.dumps({"id": own})
        if native:
            message = Message(
                role="assistant", content="", tool_calls=(ToolCall(id="call_0", name=name, arguments=arguments),)
            )
            return Completion(text="", finish="tool_calls", message=message, **counts)
        text = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        return Completion(text=text, finish="stop", message=Message(role="assistant", content=text), **counts)
