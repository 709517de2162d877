"""Step by step along a given trajectory: at each step the model sees the given history, and its next act is compared."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalrig.arena import shown, told
from evalrig.dialect import Dialect, call_id
from evalrig.engine import Engine, Sampling
from evalrig.steps import canonical, compared
from evalrig.types import Completion, Message, Step, Tool, ToolCall
from evalrig.world import Errand, Move, ToolError, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a given trajectory: what was seen before it, and what was done."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    due: tuple[tuple[str, Mapping[str, Any]], ...]
    """Calls with their arguments; empty: an answer in words."""
    text: str = ""
    """The words, where the act was an answer."""


def stages(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Stage]:
    """A stage for each of the assistant's messages. One with calls that are no JSON is history, and never due."""
    found: list[Stage] = []
    for place, message in enumerate(messages):
        arguments = [canonical(call.arguments) for call in message.tool_calls]
        if message.role == "assistant" and None not in arguments:
            due = tuple((call.name, a or {}) for call, a in zip(message.tool_calls, arguments, strict=True))
            text = "" if due else message.content
            found.append(Stage(messages=tuple(messages[:place]), tools=tuple(tools), due=due, text=text))
    return found


def walked(world: World, errand: Errand) -> tuple[Message, ...]:
    """The conversation of an errand's shortest way, from the policy to an answer that says what it must."""
    state, way = copy.deepcopy(errand.start), list[Message]()
    for number, move in enumerate(errand.way):
        written = json.dumps(dict(move.arguments), ensure_ascii=False)
        call = ToolCall(id=call_id(number), name=move.name, arguments=written)
        try:
            given = shown(world.call(state, Move(name=move.name, arguments=json.loads(written))))
        except ToolError as error:
            given = told(str(error))
        way.append(Message(role="assistant", content="", tool_calls=(call,)))
        way.append(Message(role="tool", content=given, tool_call_id=call.id))
    return (*opening(world, errand), *way, Message(role="assistant", content=" ".join(errand.answer) or "Done."))


def opening(world: World, errand: Errand) -> tuple[Message, ...]:
    """What the model is told before its first step."""
    return Message(role="system", content=world.policy), Message(role="user", content=errand.request)


async def follow(
    engine: Engine,
    stages: Sequence[Stage],
    dialect: Dialect,
    sampling: Sampling,
    chosen: Sequence[int] | None = None,
) -> tuple[tuple[Completion, ...], tuple[Step, ...]]:
    """Every step by itself, or the `chosen` ones, each from the given history.

    Calls that run ahead along the way, each as it is due, are no departure. A turn that a limit cut agrees with nothing.
    """
    turns: list[Completion] = []
    steps: list[Step] = []
    for place in range(len(stages)) if chosen is None else chosen:
        stage = stages[place]
        said, message = await dialect.ask(engine, stage.messages, stage.tools, sampling)
        turns.append(said)
        steps.append(_step(said, message, stages[place:]))
    return tuple(turns), tuple(steps)


def _step(said: Completion, message: Message, ahead: Sequence[Stage]) -> Step:
    stage, calls = ahead[0], message.tool_calls
    step = compared(calls, message.content, stage.due, stage.tools, said.finish == "tool_calls")
    if said.finish == "length":
        return replace(step, error="truncated", named=False, stopped=False)
    if stage.due and len(calls) > len(stage.due):
        due, rest = list(stage.due), list(ahead[1:])
        while rest and rest[0].due and len(due) < len(calls):
            due += rest.pop(0).due
        further = compared(calls, message.content, due, stage.tools)
        step = step if further.error else further
    if step.error in ("wrong_tool", "wrong_arguments", "wrong_id") and any(
        later.due and not compared(calls, message.content, later.due, stage.tools).error for later in ahead[1:]
    ):
        return replace(step, error="wrong_order")
    return step
