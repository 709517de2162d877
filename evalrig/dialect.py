"""How a model is offered tools and how its calls are read: by the engine's own tool calls, or as text where a template has none."""

from collections.abc import Sequence
from typing import Literal

from evalrig.engine import Engine, Sampling
from evalrig.types import Completion, Message, Tool

Protocol = Literal["native", "text"]
"""`native`: OpenAI's `tools` on the chat route. `text`: tools are described in the system message, and calls come as
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, read from the text here."""


class Dialect:
    """One way to talk with one engine about tools. The choice is recorded."""

    def __init__(self, protocol: Protocol, stream: bool = False) -> None:
        self.protocol: Protocol = protocol
        self.stream = stream

    async def ask(
        self, engine: Engine, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling
    ) -> tuple[Completion, Message]:
        """One turn: what the engine said, and the same as a message with its calls, to be passed back."""
        raise NotImplementedError

    def shown(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """The conversation as it is sent: unchanged (`native`), or with tools, calls and results as text (`text`)."""
        raise NotImplementedError
