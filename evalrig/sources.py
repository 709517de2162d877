"""Where a token stream comes from: a prompt that the reference answers, a finished conversation, or a plain text.

The first tag of such a sample is its source. `FIXED` among the tags: what is scored was given, not sampled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from evalrig.errors import UsageError
from evalrig.types import FIXED, Message, Sample, Tool, ToolCall

T = TypeVar("T")
OWN = "own"
"""Source of the prompts that evalrig ships, and of the user's in their place."""
TEXT = "text"
STEP = "step:"
"""How the tag of a turn of a conversation begins that tells which of the assistant's turns it is, from 1."""
HOLDS = "id, kind, messages or prompt, tools"


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] = "{}"


class _Call(msgspec.Struct):
    function: _Function
    id: str = ""


class _Said(msgspec.Struct):
    """A message as OpenAI's chat route has it."""

    role: str
    content: str | None = None
    reasoning: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[_Call, ...] | None = None
    tool_call_id: str = ""


class _Offered(msgspec.Struct):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class _Tool(msgspec.Struct):
    function: _Offered


class _Prompt(msgspec.Struct):
    id: str
    kind: str = ""
    messages: tuple[_Said, ...] = ()
    prompt: str = ""
    tools: tuple[_Tool, ...] = ()


class _Text(msgspec.Struct):
    id: str
    text: str


def prompts(path: Path, where: str) -> list[Sample]:
    """A JSONL file of {id, kind, messages or prompt, tools}; a conversation that ends with the assistant's message is fixed.

    Messages and tools are OpenAI's. Of a finished conversation with tools every turn of the assistant is a sample of its
    own, in one cluster; of another one the last.

    Raises:
        UsageError: names file and line; `where` leads it.
    """
    rows: list[Sample] = []
    for at, row in _rows(path, _Prompt, where, HOLDS):
        if empty := next((one.role for one in row.messages if one.content is None and not one.tool_calls), ""):
            raise UsageError(f"{at}: a message of role {empty!r} without content; a line holds {HOLDS}")
        if bool(row.prompt) == bool(row.messages):
            raise UsageError(f"{at}: needs either `messages` or `prompt`; give one of them")
        if row.prompt and row.tools:
            raise UsageError(f"{at}: a `prompt` has no template that shows tools; give `messages`")
        messages = tuple(_message(one) for one in row.messages)
        tools = tuple(_tool(one.function) for one in row.tools)
        _can_be_shown(messages, at)
        sample = Sample(
            id=row.id,
            prompt=row.prompt,
            messages=messages,
            tools=tools,
            tags=(OWN, row.kind) if row.kind else (OWN,),
        )
        rows += _turns(sample, at) if messages and messages[-1].role == "assistant" else [sample]
    return rows


def _turns(sample: Sample, at: str) -> list[Sample]:
    """The fixed samples that a finished conversation gives."""
    fixed = replace(sample, tags=(*sample.tags, FIXED))
    said = [i for i, message in enumerate(sample.messages) if message.role == "assistant"]
    if len(sample.messages) < 2 or not all(written(sample.messages[i]) for i in said[-1:]):
        raise UsageError(f"{at}: a finished conversation has a question and an answer; give both")
    if not with_tools(sample):
        return [fixed]
    if said[0] == 0:
        raise UsageError(f"{at}: the assistant's first message answers nothing; begin with the user's")
    return [
        replace(
            fixed,
            id=f"{sample.id}.{turn}",
            messages=sample.messages[: i + 1],
            cluster=sample.id,
            tags=(*fixed.tags, f"{STEP}{turn}"),
        )
        for turn, i in enumerate(said, 1)
    ]


def with_tools(sample: Sample) -> bool:
    """It takes the engine's own template to show it: roles and contents are not all."""
    return bool(sample.tools) or any(message.tool_calls or message.reasoning for message in sample.messages)


def written(message: Message) -> str:
    """A message for people: its content, and what it calls."""
    calls = (f"{call.name}({call.arguments})" for call in message.tool_calls)
    return "\n".join(filter(None, (message.content, *calls)))


def texts(path: Path, where: str) -> list[Sample]:
    """A JSONL file of {id, text}, each scored whole after its first token.

    Raises:
        UsageError: names file and line; `where` leads it.
    """
    rows: list[Sample] = []
    for at, row in _rows(path, _Text, where, "id, text"):
        if not row.text:
            raise UsageError(f"{at}: an empty text; leave the line out")
        rows.append(Sample(id=row.id, prompt=row.text, tags=(TEXT, FIXED)))
    return rows


def borrowed(source: str, samples: Sequence[Sample], where: str) -> list[Sample]:
    """Samples of the suite `source` as prompts: its questions, without choices and targets, under `<source>.<id>`.

    `FIXED` stays only where there is a last turn of the assistant's that was given: elsewhere the tag is the lender's own word.
    """
    rows: list[Sample] = []
    for sample in samples:
        _can_be_shown(sample.messages, f"{where}: {source}, sample {sample.id!r}")
        name = f"{source}.{sample.id}"
        cluster = f"{source}.{sample.cluster}" if sample.cluster else ""
        given = bool(sample.messages) and sample.messages[-1].role == "assistant"
        tags = (source, *(tag for tag in sample.tags if given or tag != FIXED))
        rows.append(replace(sample, id=name, choices=(), target="", cluster=cluster, tags=tags))
    return rows


def _can_be_shown(messages: Sequence[Message], at: str) -> None:
    """Templates print a call's arguments as the object that they are; some servers refuse other text, some take it."""
    for call in (call for message in messages for call in message.tool_calls):
        try:
            msgspec.json.decode(call.arguments, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"{at}: the arguments of a call of {call.name!r} are no JSON object; correct them"
            ) from error


def _message(said: _Said) -> Message:
    calls = tuple(
        ToolCall(
            id=call.id or f"call_{n}",
            name=call.function.name,
            arguments=call.function.arguments
            if isinstance(call.function.arguments, str)
            else msgspec.json.encode(call.function.arguments).decode(),
        )
        for n, call in enumerate(said.tool_calls or ())
    )
    return Message(
        role=said.role,
        content=said.content or "",
        reasoning=said.reasoning or said.reasoning_content,
        tool_calls=calls,
        tool_call_id=said.tool_call_id,
    )


def _tool(offered: _Offered) -> Tool:
    return Tool(name=offered.name, description=offered.description, parameters=offered.parameters)


def _rows(path: Path, kind: type[T], where: str, holds: str) -> Iterator[tuple[str, T]]:
    """Each line that is not blank, with where it stands."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{where}: cannot read {str(path)!r}: {error.strerror}; give a JSONL file") from error
    for number, line in enumerate(lines, 1):
        at = f"{where}: {path} line {number}"
        if line.strip():
            try:
                yield at, msgspec.json.decode(line, type=kind)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise UsageError(f"{at}: {error}; a line holds {holds}") from error
