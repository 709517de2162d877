"""Token ids of conversations with tools: what the chat template makes of tools and calls, and of a turn that is finished.

A template that has no place for tools, calls or results leaves them out without a word. So all three are looked for: the
tokens with them must be others than those without, or with another result (some templates refuse a call that has none).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalrig.engine import Engine
from evalrig.types import Message, Tool

TOOLS_UNSHOWN = (
    "the engine's chat template shows no tools: they would be dropped; leave the sample out or serve a model with"
)
CALLS_UNSHOWN = "the engine's chat template shows no tool calls: they would be dropped; leave the sample out"
RESULTS_UNSHOWN = "the engine's chat template shows no tool results: they would be dropped; leave the sample out"
REWRITTEN = "the engine's chat template writes what stands before the last turn otherwise once that turn is there"
EMPTY = "the engine's chat template writes nothing for the last turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Tokens of a conversation: what stands before, and those given after it (none where an answer is asked for)."""

    before: tuple[int, ...]
    given: tuple[int, ...] = ()
    fault: str = ""
    """Why these are not the tokens of that conversation; empty: they are."""


async def asked(engine: Engine, messages: Sequence[Message], tools: Sequence[Tool]) -> Turn:
    """A conversation that waits for an answer."""
    return Turn(before=await engine.tokenize(messages, tools), fault=await _unshown(engine, messages, tools))


async def finished(engine: Engine, messages: Sequence[Message], tools: Sequence[Tool]) -> Turn:
    """The last message as the template writes it, to the end of the turn, after all that stands before it.

    It begins where it leaves what the template writes ready for an answer: what that opens and the turn has not (an
    empty thinking block) is not of it. A line end after the turn is the template's, no model writes it.
    """
    earlier = messages[:-1]
    ready = await engine.tokenize(earlier, tools)
    stands = await engine.tokenize(earlier, tools, answer=False)
    whole = await engine.tokenize(messages, tools, answer=False)
    start = next((i for i, (a, b) in enumerate(zip(ready, whole, strict=False)) if a != b), min(len(ready), len(whole)))
    if whole[: len(stands)] != stands or start < len(stands):
        return Turn(before=ready, fault=REWRITTEN)
    given, blank = whole[start:], await engine.tokenize("\n")
    if blank and given[-len(blank) :] == blank:
        given = given[: -len(blank)]
    fault = await _unshown(engine, messages, tools) if given else EMPTY
    return Turn(before=whole[:start], given=given, fault=fault)


async def _unshown(engine: Engine, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """What the template leaves out; empty: nothing that was looked for."""
    whole = await engine.tokenize(messages, tools, answer=False)
    if tools and await engine.tokenize(messages, answer=False) == whole:
        return TOOLS_UNSHOWN
    for fault, other in ((CALLS_UNSHOWN, _without_calls(messages)), (RESULTS_UNSHOWN, _another_result(messages))):
        if other and await engine.tokenize(other, tools, answer=False) == whole:
            return fault
    return ""


def _without_calls(messages: Sequence[Message]) -> list[Message]:
    """The conversation without the calls of the first message that has some; empty: none has."""
    at = next((at for at, message in enumerate(messages) if message.tool_calls), None)
    return [] if at is None else [*messages[:at], replace(messages[at], tool_calls=()), *messages[at + 1 :]]


def _another_result(messages: Sequence[Message]) -> list[Message]:
    """The conversation with more in the first result of a tool; empty: there is none."""
    at = next((at for at, message in enumerate(messages) if message.role == "tool"), None)
    if at is None:
        return []
    return [*messages[:at], replace(messages[at], content=f"{messages[at].content} 7"), *messages[at + 1 :]]
