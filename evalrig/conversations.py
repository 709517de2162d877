"""Recorded conversations with tools, as the user keeps them: JSONL of {id, messages, tools} in OpenAI's form.

Every message of the assistant is a step: what was seen before it, and what was done.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from evalrig.errors import UsageError, one_line
from evalrig.forced_steps import Stage
from evalrig.steps import canonical
from evalrig.types import Message, Tool, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One line of the file."""

    id: str
    stages: tuple[Stage, ...]
    """One a message of the assistant, in order; at least one."""


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _Text(msgspec.Struct):
    text: str
    type: Literal["text"] = "text"


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Text] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def message(self) -> Message:
        parts = self.content if isinstance(self.content, list) else []
        return Message(
            role=self.role,
            content="".join(part.text for part in parts) if parts else str(self.content or ""),
            reasoning=self.reasoning_content or self.reasoning or "",
            tool_calls=tuple(
                ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
                for call in self.tool_calls or ()
            ),
            tool_call_id=self.tool_call_id or "",
        )


class _Declared(msgspec.Struct):
    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})


class _Tool(msgspec.Struct):
    function: _Declared
    type: Literal["function"] = "function"


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    messages: list[_Message]
    tools: list[_Tool]


def read(path: Path, where: str) -> list[Conversation]:
    """All conversations of a file; blank lines are passed over.

    Raises:
        UsageError: the file cannot be read, or a line is no such conversation: `where`, file and line lead.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{where}: cannot read {str(path)!r}: {error.strerror}; give a JSONL file") from error
    found: dict[str, Conversation] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            at = f"{where}: {path} line {number}"
            conversation = _conversation(line, at)
            if conversation.id in found:
                raise UsageError(f"{at}: id {conversation.id!r} occurs twice; rename one")
            found[conversation.id] = conversation
    if not found:
        raise UsageError(f"{where}: {path} holds no conversation; give one a line")
    return list(found.values())


def _conversation(line: bytes, at: str) -> Conversation:
    try:
        read = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{at}: {one_line(str(error))}; a line holds id, messages and tools in OpenAI's form"
        ) from error
    if not read.id:
        raise UsageError(f"{at}: `id` is empty; name the conversation")
    tools = tuple(
        Tool(name=tool.function.name, description=tool.function.description, parameters=tool.function.parameters)
        for tool in read.tools
    )
    if len({tool.name for tool in tools}) < len(tools):
        raise UsageError(f"{at}: two tools have one name; rename one")
    messages = tuple(message.message() for message in read.messages)
    if fault := _disorder(messages):
        raise UsageError(f"{at}: {fault}")
    stages = [
        _stage(messages[:place], message, tools, f"{at}: message {place + 1}")
        for place, message in enumerate(messages)
        if message.role == "assistant"
    ]
    if not stages:
        raise UsageError(f"{at}: the assistant says nothing; record its messages too")
    return Conversation(id=read.id, stages=tuple(stages))


def _disorder(messages: Sequence[Message]) -> str:
    """What is wrong with the order of messages, or nothing. Calls are answered, each once, before anything else is said."""
    waiting = set[str]()
    for number, message in enumerate(messages, 1):
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                return f"message {number} answers no open call ({message.tool_call_id!r}); correct its tool_call_id"
            waiting.remove(message.tool_call_id)
            continue
        if waiting:
            return f"message {number} comes before the results of {sorted(waiting)}; add a `tool` message for each"
        if fault := _misplaced(messages[: number - 1], message):
            return f"message {number} {fault}"
        waiting = {call.id for call in message.tool_calls}
    return ""


def _misplaced(before: Sequence[Message], message: Message) -> str:
    if message.role != "assistant":
        return (
            f"is the {message.role}'s and has tool_calls; only the assistant calls tools" if message.tool_calls else ""
        )
    if all(each.role != "user" for each in before):
        return "is the assistant's before the user said anything; begin with the user's"
    if before[-1].role == "assistant":
        return "is the assistant's second in a row; join the two"
    if len({call.id for call in message.tool_calls}) < len(message.tool_calls):
        return "has two calls with one id; rename one"
    return ""


def _stage(before: tuple[Message, ...], message: Message, tools: tuple[Tool, ...], at: str) -> Stage:
    names = {tool.name for tool in tools}
    for call in message.tool_calls:
        if call.name not in names:
            raise UsageError(f"{at} calls {call.name!r}, which is not among the line's tools; add it there")
    if not message.tool_calls and not message.content.strip():
        raise UsageError(f"{at} has neither content nor tool_calls; leave it out")
    due = tuple((call.name, _arguments(call, at)) for call in message.tool_calls)
    return Stage(messages=before, tools=tools, due=due, text="" if due else message.content)


def _arguments(call: ToolCall, at: str) -> Mapping[str, Any]:
    try:
        arguments = json.loads(call.arguments, object_pairs_hook=_once, parse_constant=_never)
    except (ValueError, RecursionError) as error:
        fault = one_line(str(error)) or "nested too deep"
        raise UsageError(f"{at}: the arguments of {call.name!r} are no JSON: {fault}; correct them") from error
    if isinstance(arguments, dict) and canonical(call.arguments) is None:
        raise UsageError(
            f"{at}: the arguments of {call.name!r} nest too deep or hold what no argument can be; correct them"
        )
    if not isinstance(arguments, dict):
        raise UsageError(f"{at}: the arguments of {call.name!r} are no object; write them as {{...}}")
    return arguments


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(read := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return read


def _never(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
