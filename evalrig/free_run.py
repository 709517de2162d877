"""One attempt in an arena, freely: the model calls tools until it answers in words, or a limit ends it. Every end has a reason."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalrig.arena import Arena, told
from evalrig.dialect import Dialect
from evalrig.engine import Engine, Sampling
from evalrig.errors import EngineError
from evalrig.steps import canonical, complaint, taken
from evalrig.types import Completion, Message, Step, Tool, ToolCall
from evalrig.world import ToolError

ENDS = ("answered", "step_limit", "loop", "truncated", "gave_up")
"""Why it ended. `truncated`: a turn was cut, or the conversation outgrew the context. `gave_up`: an answer in words before
anything was reached that the goal needs is the suite's to say."""

_TOO_LONG = re.compile(r"context (length|size)|maximum allowed length")
"""How SGLang, vLLM, llama.cpp and refengine refuse a conversation that has outgrown them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one attempt."""

    steps: int
    """Turns of the model over all of the user's requests."""
    repeats: int = 3
    """The same calls with the same results so often in a row are a loop."""
    tokens: int = 0
    """Generated over all turns; 0: no limit but that of each turn."""
    per_request: int = 0
    """Turns of the model for one request of the user's; 0: no limit but that over all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ride:
    """What one attempt was."""

    turns: tuple[Completion, ...]
    steps: tuple[Step, ...]
    end: str
    answer: str
    success: bool
    detail: str = ""
    messages: tuple[Message, ...] = ()
    """The whole conversation, with the calls as they were written and what they gave."""


class _Course:
    """One attempt while it goes on."""

    def __init__(self, engine: Engine, arena: Arena, dialect: Dialect, sampling: Sampling, limits: Limits) -> None:
        self.engine, self.arena, self.dialect = engine, arena, dialect
        self.sampling, self.limits = sampling, limits
        self.messages: list[Message] = [Message(role="system", content=arena.system)] if arena.system else []
        self.turns: list[Completion] = []
        self.steps: list[Step] = []
        self.seen: list[tuple[str, ...]] = []
        """Calls and results, turn by turn."""

    async def request(self, words: str) -> tuple[str, str]:
        """One request of the user's, up to an answer: the end and the answer."""
        self.messages.append(Message(role="user", content=words))
        tools = self.arena.tools()
        last = min(self.limits.steps, len(self.turns) + (self.limits.per_request or self.limits.steps))
        while len(self.turns) < last:
            said, message = await self._ask(tools)
            if said is None:
                return "truncated", ""
            step = taken(message.tool_calls, message.content, tools, said.finish == "tool_calls")
            if said.finish == "length" or self._spent():
                self.steps.append(replace(step, error="truncated", stopped=False))
                return "truncated", message.content
            if not message.tool_calls:
                self.steps.append(step)
                return "answered", message.content
            results, refused = await self._carry_out(message.tool_calls, tools)
            step = replace(step, error=step.error or ("refused_call" if refused else ""))
            looped = self._looped((step.said, *results))
            self.steps.append(replace(step, error="loop") if looped else step)
            if looped:
                return "loop", message.content
        return "step_limit", ""

    async def _ask(self, tools: Sequence[Tool]) -> tuple[Completion | None, Message]:
        """One turn; None: the conversation has outgrown the context since it began."""
        try:
            said, message = await self.dialect.ask(self.engine, self.messages, tools, self.sampling)
        except EngineError as error:
            if not self.turns or not _TOO_LONG.search(str(error)):
                raise
            self.steps.append(Step(error="truncated"))
            return None, Message(role="assistant", content="")
        self.turns.append(said)
        self.messages.append(message)
        return said, message

    async def _carry_out(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> tuple[list[str], bool]:
        """What each call gives, in their order, told to the model; True: some tool said no."""
        results: list[str] = []
        refused = False
        for call in calls:
            _, wrong = complaint(call, tools)
            try:
                given = told(wrong) if wrong else await self.arena.call(call.name, canonical(call.arguments) or {})
            except ToolError as error:
                given, refused = told(str(error)), True
            results.append(given)
            self.messages.append(Message(role="tool", content=given, tool_call_id=call.id))
        return results, refused

    def _looped(self, seen: tuple[str, ...]) -> bool:
        self.seen.append(seen)
        last = self.seen[-self.limits.repeats :]
        return len(last) == self.limits.repeats > 1 and len(set(last)) == 1

    def _spent(self) -> bool:
        return 0 < self.limits.tokens < sum(turn.completion_tokens for turn in self.turns)


async def ride(engine: Engine, arena: Arena, dialect: Dialect, sampling: Sampling, limits: Limits) -> Ride:
    """Let a model work in an arena. An `EngineError` passes through: it is no end of the model's.

    Arguments are parsed to JSON values before the arena sees them; calls that cannot be carried out come back to the model
    with what was wrong. Who opened the arena closes it.
    """
    course = _Course(engine, arena, dialect, sampling, limits)
    end, answer = "answered", ""
    while end == "answered" and (words := arena.request()) is not None:
        end, answer = await course.request(words)
    found = await arena.judge(answer) if end == "answered" else None
    return Ride(
        turns=tuple(course.turns),
        steps=tuple(course.steps),
        end=end,
        answer=answer,
        success=found is not None and found.success,
        detail=found.detail if found is not None else f"ended by {end}",
        messages=tuple(course.messages),
    )
