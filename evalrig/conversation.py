"""Messages and tools in the JSON of OpenAI's chat route, which every engine's chat and template routes take."""

from collections.abc import Sequence
from typing import Any

from evalrig.types import Message, Tool
from evalrig.wire import characters


def conversation(
    messages: Sequence[Message], tools: Sequence[Tool], reasoning: str, answer: bool = True
) -> dict[str, Any]:
    """Keys `messages` and `tools`; no `tools` where there are none: vLLM refuses an empty list. `reasoning`: see `said`.

    `answer`: see `Engine.tokenize`; being ready for an answer is every engine's default and is not sent.
    """
    body: dict[str, Any] = {"messages": [said(message, reasoning) for message in messages]}
    body |= {"tools": [offered(tool) for tool in tools]} if tools else {}
    return body if answer else body | {"add_generation_prompt": False}


def said(message: Message, reasoning: str) -> dict[str, Any]:
    """As it came: arguments are sent back as the model wrote them, JSON or not. `reasoning`: its key; empty: none is taken."""
    made: dict[str, Any] = {"role": message.role, "content": characters(message.content)}
    if message.tool_calls:
        made["content"] = made["content"] or None
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        made["tool_call_id"] = message.tool_call_id
    if message.reasoning and reasoning:
        made[reasoning] = message.reasoning
    return made


def offered(tool: Tool) -> dict[str, Any]:
    """One function."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
