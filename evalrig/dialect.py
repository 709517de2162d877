"""How a model is offered tools and how its calls are read: by the engine's own tool calls, or as text where a template has none."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Final, Literal

from evalrig.engine import Chat, Engine, Sampling
from evalrig.steps import canonical, objects
from evalrig.types import Completion, Message, Tool, ToolCall

Protocol = Literal["native", "text"]
"""`native`: OpenAI's `tools` on the chat route. `text`: tools are described in the system message, and calls come as
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, read from the text here."""

STOPS: Final = ("<tool_response>", "\nObservation:")
"""Where a model begins to make up what a tool gives: its turn ended before."""

_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_REACT = re.compile(
    r"^[ \t]*Action:[ \t]*([^\n]*)\n+[ \t]*Action Input:[ \t]*(.*?)(?=^[ \t]*(?:Action|Thought|Observation|Final Answer):|\Z)",
    re.DOTALL | re.MULTILINE,
)
_FINAL = re.compile(r"^[ \t]*Final Answer:[ \t]*", re.MULTILINE)


class Dialect:
    """One way to talk with one engine about tools. The choice is recorded."""

    def __init__(self, protocol: Protocol, stream: bool = False, thinking: bool = False) -> None:
        """`thinking`: the chat template opens a thinking block, so that a text which never leaves it holds no act."""
        self.protocol: Protocol = protocol
        self.stream = stream
        self.thinking = thinking

    async def ask(
        self, engine: Engine, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling
    ) -> tuple[Completion, Message]:
        """One turn: what the engine said, and the same as a message with its calls, to be passed back.

        Arguments are as the model wrote them, which may be no JSON. Of a turn that a limit cut no call is kept.
        """
        shown = self.shown(messages, tools)
        if self.protocol == "native":
            said = await engine.chat(Chat(messages=shown, tools=tuple(tools), stream=self.stream), sampling)
            found = said.message or Message(role="assistant", content=said.text)
        else:
            said = await self._spoken(engine, shown, sampling)
            found = _read(said, tools, self.thinking)
        calls = () if said.finish == "length" else _named(found.tool_calls, messages)
        return said, replace(found, tool_calls=calls)

    def shown(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """The conversation as it is sent.

        `native`: unchanged, but for arguments that are no JSON object: servers refuse the whole conversation for them, so
        what was written stands there as a string. `text`: tools, calls and what they gave as text, in the roles that every
        template has.
        """
        if self.protocol == "native":
            return tuple(_readable(message) for message in messages)
        return tuple(_merged(_offered(messages, tools)))

    def call_text(self, calls: Sequence[ToolCall]) -> str:
        """How calls are written in the protocol `text`."""
        return _written(calls)

    async def _spoken(self, engine: Engine, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Through the chat route without tools; where there is none, by continuing the template's token ids."""
        sampling = replace(sampling, stop=(*sampling.stop, *STOPS))
        if engine.able(engine.options).chat:
            return await engine.chat(Chat(messages=messages, stream=self.stream), sampling)
        return await engine.generate(await engine.tokenize(messages), sampling)


def _named(calls: Sequence[ToolCall], before: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Every call with an id of its own: a result names the call that it answers. What the engine gave is kept where it can be."""
    used = {call.id for message in before for call in message.tool_calls}
    free = (own for own in map(call_id, count(len(used))) if own not in used)
    found: dict[str, ToolCall] = {}
    for call in calls:
        own = call.id if call.id and call.id not in found else next(free)
        found[own] = replace(call, id=own)
    return tuple(found.values())


def call_id(number: int) -> str:
    """Of a call that has none. Nine letters and digits: what the strictest template takes."""
    return f"call{number:05d}"


def _readable(message: Message) -> Message:
    if all(canonical(call.arguments) is not None for call in message.tool_calls):
        return message
    calls = (
        call if canonical(call.arguments) is not None else replace(call, arguments=_quoted(call.arguments))
        for call in message.tool_calls
    )
    return replace(message, tool_calls=tuple(calls))


def _quoted(arguments: str) -> str:
    return json.dumps({"unreadable": arguments}, ensure_ascii=False)


def _offered(messages: Sequence[Message], tools: Sequence[Tool]) -> Iterator[Message]:
    """Messages with text alone. The first is the system's, with the tools behind its own words."""
    rest = list(messages)
    words = rest.pop(0).content if rest and rest[0].role == "system" else ""
    if offer := _offer(tools):
        words = f"{words}\n\n{offer}" if words else offer
    if words:
        yield Message(role="system", content=words)
    for message in rest:
        if message.role == "tool":
            yield Message(role="user", content=f"<tool_response>\n{message.content}\n</tool_response>")
        else:
            yield Message(role=message.role, content=_with_calls(message))


def _with_calls(message: Message) -> str:
    """As the model wrote it where its text holds the calls, else with the calls behind the words."""
    said = message.content
    if not message.tool_calls or _HERMES.search(said) or _REACT.search(said) or any(objects(said)):
        return said
    return "\n".join(part for part in (said, _written(message.tool_calls)) if part)


def _merged(messages: Iterator[Message]) -> Iterator[Message]:
    """What several calls gave is one message of the user's: many templates want the roles to take turns."""
    last: Message | None = None
    for message in messages:
        if last is not None and last.role == message.role == "user" and message.content.startswith("<tool_response>"):
            last = replace(last, content=f"{last.content}\n{message.content}")
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last


def _offer(tools: Sequence[Tool]) -> str:
    if not tools:
        return ""
    lines = "\n".join(
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
            ensure_ascii=False,
            separators=(",", ":"),
        )
        for tool in tools
    )
    form = '<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>'
    return (
        f"You can call these tools, each given as JSON with the schema of its arguments:\n{lines}\n\n"
        f"To call a tool, write\n{form}\nand stop; what it gives comes back to you. "
        "When no call is left to make, answer in words."
    )


def _written(calls: Sequence[ToolCall]) -> str:
    return "\n".join(f"<tool_call>\n{_one(call)}\n</tool_call>" for call in calls)


def _one(call: ToolCall) -> str:
    if canonical(call.arguments) is None:
        return call.arguments
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments or "{}"}}}'


def _read(said: Completion, tools: Sequence[Tool], thinking: bool = False) -> Message:
    """The calls in a text, thinking left aside: in tags, as ReAct's lines, or as bare JSON and nothing else."""
    own = said.message or Message(role="assistant", content=said.text)
    before, left, text = own.content.rpartition("</think>")
    reasoning = own.reasoning or before.removeprefix("<think>").strip() if left else own.reasoning
    if thinking and not left and not own.reasoning:
        text = ""
    for stop in STOPS:
        text = text.partition(stop)[0]
    text = text.partition("<think>")[0].strip()  # thinking that never ends is no act
    calls = [_hermes(block[1]) for block in _HERMES.finditer(text)]
    calls = calls or [_react(found[1], found[2]) for found in _REACT.finditer(text)]
    calls = calls or list(_bare(text, tools))
    words = text if calls else _FINAL.split(text)[-1]
    return Message(role="assistant", content=words, reasoning=reasoning, tool_calls=tuple(calls))


def _hermes(block: str) -> ToolCall:
    """One block; one that cannot be read keeps its text as arguments, which are then no JSON."""
    for found in (block, _inside(block)):
        try:
            value = json.loads(found)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            return _call(block, value)
    return ToolCall(id="", name="", arguments=block.strip())


def _inside(block: str) -> str:
    """Without the fence around it. By hand: a pattern takes forever over thousands of blank lines, which models do write."""
    whole = block.strip()
    first, _, rest = whole.partition("\n")
    last = rest.rpartition("\n")[2]
    if first.rstrip() in ("```", "```json") and last.strip() == "```":
        return rest.removesuffix(last).strip()
    return block


def _call(block: str, value: dict[str, object]) -> ToolCall:
    """Arguments as an object, or as a string that holds one (some models quote them)."""
    arguments = value.get("arguments", value.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if canonical(_inside(block)) is None:  # a key twice: which one was meant?
        text = block.strip()
    name = str(value["name"]).encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # no file holds half a pair
    return ToolCall(id="", name=name, arguments=text)


def _react(name: str, arguments: str) -> ToolCall:
    return ToolCall(id="", name=name.strip("`*\"' \t"), arguments=_inside(arguments).strip())


def _bare(text: str, tools: Sequence[Tool]) -> Iterator[ToolCall]:
    """A text that is one call as JSON and nothing else, fenced or not."""
    inner = _inside(text).strip()
    for value in objects(inner):
        whole = inner.startswith("{") and canonical(inner) is not None
        if whole and any(tool.name == value.get("name") for tool in tools):
            yield _call(inner, value)
        return
