"""The chat route, rung by rung: a dozen short requests that show what it does before anything is measured through it.

A rung that the engine refuses is an outcome. What each outcome means for the verdict is judged in `likeness.py`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from evalrig.engine import Chat, Engine, Penalties, Sampling
from evalrig.errors import EngineError
from evalrig.proof import Rung, RungOutcome
from evalrig.types import Completion, Message, Tool, ToolCall

PLAIN: Final = Chat(messages=(Message(role="user", content="Write the numbers from one to nine as words."),))
SHORT: Final = Sampling(max_tokens=16)
HOT: Final = replace(SHORT, max_tokens=8, temperature=0.8, top_p=0.9, top_k=20)
PENALISED: Final = replace(HOT, min_p=0.05, penalties=Penalties(presence=0.1, frequency=0.1, repetition=1.05))
FORCED: Final = Sampling(max_tokens=48)
"""A whole call in the wordiest format takes about thirty tokens; a shorter limit would only show that it was cut."""
WEATHER: Final = Tool(
    name="get_weather",
    description="Get the weather in a city",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
QUESTION: Final = Message(role="user", content="What is the weather in Paris?")
HISTORY: Final = (
    QUESTION,
    Message(
        role="assistant",
        content="",
        tool_calls=(ToolCall(id="call_0", name=WEATHER.name, arguments='{"city": "Paris"}'),),
    ),
    Message(role="tool", content='{"weather": "rain, 9 C"}', tool_call_id="call_0"),
)
MARKS: Final = ("<think>", "</think>", "[THINK]", "<|channel|>")
"""Of reasoning that no parser took out."""


async def climb(engine: Engine) -> tuple[Rung, ...]:
    """Every rung that the engine's capabilities name. Raises `EngineError` only where the engine is gone."""
    ladder = Ladder(engine)
    await ladder.words()
    if engine.able(engine.options).tools and ladder.speaks:
        await ladder.calls()
    return tuple(ladder.rungs)


class Ladder:
    """The rungs so far."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rungs: list[Rung] = []
        self.speaks = False
        """The plainest chat was answered: without it no other rung is tried."""

    async def words(self) -> None:
        """Answers in words: whole, streamed, stopped, sampled."""
        plain = await self._ask("chat", PLAIN, SHORT, _answered)
        if plain is None:
            return
        self.speaks = True
        self.rungs.append(_reasoning(plain))
        await self._counted(plain)
        await self._ask("stream", replace(PLAIN, stream=True), SHORT, lambda streamed: _same(plain, streamed))
        if stop := plain.text.strip()[2:6]:
            told = replace(SHORT, stop=(stop,))
            await self._ask("stop string", PLAIN, told, lambda stopped: _stopped(stopped, stop))
        else:
            self.rungs.append(Rung(name="stop string", outcome=RungOutcome.NONE, detail="the answer is too short"))
        seeded = replace(HOT, seed=7)
        hot = await self._ask("temperature, top_p, top_k, seed", PLAIN, seeded, _answered)
        if hot is not None and self._engine.able(self._engine.options).seed:
            await self._ask("same seed", PLAIN, seeded, lambda again: _same(hot, again))
        await self._ask("min_p, penalties", PLAIN, replace(PENALISED, seed=7), _answered)

    async def calls(self) -> None:
        """A tool call in every way it can be asked for, and an answer from its result."""
        for choice, words in (("auto", "auto"), ("required", "required"), (WEATHER.name, "named")):
            chat = Chat(messages=(QUESTION,), tools=(WEATHER,), tool_choice=choice)
            await self._ask(f"tool, {words}", chat, FORCED, _called)
            await self._ask(f"tool, {words}, stream", replace(chat, stream=True), FORCED, _called)
        await self._ask("tool result", Chat(messages=HISTORY, tools=(WEATHER,)), SHORT, _answered)

    async def _counted(self, plain: Completion) -> None:
        """The chat route and the tokeniser take a conversation for the same tokens."""
        if not self._engine.able(self._engine.options).prompt_logprobs:
            return  # nobody to ask

        async def tokenised() -> Rung:
            tokens = len(await self._engine.tokenize(PLAIN.messages))
            same = tokens == plain.prompt_tokens
            detail = "" if same else f"the chat route counts {plain.prompt_tokens} prompt tokens, the template {tokens}"
            return Rung(name="template", outcome=RungOutcome.PASSED if same else RungOutcome.DIFFERS, detail=detail)

        await self._rung("template", tokenised)

    async def _ask(
        self, name: str, chat: Chat, sampling: Sampling, judge: Callable[[Completion], tuple[RungOutcome, str]]
    ) -> Completion | None:
        given: list[Completion] = []

        async def answered() -> Rung:
            given.append(await self._engine.chat(chat, sampling))
            outcome, detail = judge(given[0])
            return Rung(name=name, outcome=outcome, detail=detail, prompt_tokens=given[0].prompt_tokens)

        await self._rung(name, answered)
        return given[0] if given else None

    async def _rung(self, name: str, take: Callable[[], Awaitable[Rung]]) -> None:
        try:
            self.rungs.append(await take())
        except EngineError as error:
            if not self._engine.alive():
                raise
            self.rungs.append(Rung(name=name, outcome=RungOutcome.REFUSED, detail=str(error)[:200]))


def _answered(answer: Completion) -> tuple[RungOutcome, str]:
    return RungOutcome.PASSED, ""


def _same(one: Completion, other: Completion) -> tuple[RungOutcome, str]:
    """The same words, reasoning, ending and token counts."""
    unlike = [
        name
        for name, a, b in (
            ("text", one.text, other.text),
            ("reasoning", one.message and one.message.reasoning, other.message and other.message.reasoning),
            ("finish reason", one.finish, other.finish),
            ("prompt tokens", one.prompt_tokens, other.prompt_tokens),
            ("answer's tokens", one.completion_tokens, other.completion_tokens),
        )
        if a != b
    ]
    return (RungOutcome.DIFFERS, f"{', '.join(unlike)}") if unlike else (RungOutcome.PASSED, "")


def _stopped(answer: Completion, stop: str) -> tuple[RungOutcome, str]:
    if stop in answer.text:
        return RungOutcome.IGNORED, f"the answer goes on past {stop!r}"
    if answer.finish != "stop":
        return RungOutcome.DIFFERS, "another answer than before, without the stop string"
    return RungOutcome.PASSED, ""


def _called(answer: Completion) -> tuple[RungOutcome, str]:
    calls = answer.message.tool_calls if answer.message else ()
    if calls:
        other = [call.name for call in calls if call.name != WEATHER.name]
        return (RungOutcome.DIFFERS, f"called {other[0]!r}") if other else (RungOutcome.PASSED, "")
    return (RungOutcome.CUT, "") if answer.finish == "length" else (RungOutcome.NO_CALL, "")


def _reasoning(answer: Completion) -> Rung:
    """Of the plain answer: short as it is, a model that reasons has begun to."""
    if mark := next((mark for mark in MARKS if mark in answer.text), ""):
        return Rung(name="reasoning apart", outcome=RungOutcome.MIXED, detail=f"{mark} stands in the content")
    kept = bool(answer.message and answer.message.reasoning)
    return Rung(name="reasoning apart", outcome=RungOutcome.PASSED if kept else RungOutcome.NONE)
