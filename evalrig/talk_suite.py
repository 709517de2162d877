"""What all suites of conversations with tools share: how tools are spoken of, how turns are drawn, and how an attempt failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from evalrig import steps
from evalrig.arena import Arena
from evalrig.ask import own_seed
from evalrig.dialect import Dialect, Protocol
from evalrig.engine import Capabilities, Engine, Sampling
from evalrig.errors import EngineError, UsageError
from evalrig.free_run import Limits, Ride, ride
from evalrig.suite import Attempt, Suite, ids_sha256
from evalrig.types import Message, Sample, State, Tool, Trajectory

PROTOCOLS: Final = ("auto", "native", "text")
FAILURES: Final = (*steps.ERRORS, "step_limit", "missed")
"""`missed`: every step was sound by itself, and they did not lead to the goal."""

CUT: Final = ("truncated", "step_limit")
"""Ends at a limit: score 0, in the denominator."""


@dataclass(kw_only=True)
class TalkOptions:
    """Keys of `suites.<name>.options` that all suites of conversations with tools have."""

    seed: int = 0
    protocol: str = "auto"
    """`native`: the engine's own tool calls; `text`: tools and calls as text; `auto`: native where the engine has tools."""
    max_tokens: int = 1024
    """Of one turn, thinking included."""
    temperature: float = 0.0
    stream: bool = False
    thinking: bool = False
    """The chat template opens a thinking block: a turn that never leaves it holds no act."""


class TalkSuite(Suite):
    """A suite of conversations with tools."""

    family = "tool calls"

    def __init__(self, name: str, options: Any) -> None:
        super().__init__(name, options)
        own: TalkOptions = options
        self.talk = own
        """What of the options is about talking."""
        for fits, key, words in (
            (own.protocol in PROTOCOLS, "protocol", f"no protocol {own.protocol!r}; known: {', '.join(PROTOCOLS)}"),
            (own.max_tokens >= 1, "max_tokens", "max_tokens is at least 1"),
            (0 <= own.temperature <= 2, "temperature", "temperature is in 0..2"),
        ):
            if not fits:
                raise UsageError(f"suites.{name}.options.{key}: {words}")

    def needs(self) -> Capabilities:
        """The engine's own tool calls, where they are asked for."""
        native = self.talk.protocol == "native"
        return Capabilities(chat=native, tools=native)

    def dialect(self, engine: Engine) -> Dialect:
        """How tools are spoken of with this engine."""
        chosen = self.talk.protocol
        if chosen == "auto":
            chosen = "native" if engine.able(engine.options).tools else "text"
        return Dialect(cast(Protocol, chosen), self.talk.stream, self.talk.thinking)

    def sampling(self, sample: str, epoch: int) -> Sampling:
        """Greedy, or drawn with a seed of the attempt's own, the same in every variant."""
        if not self.talk.temperature:
            return Sampling(max_tokens=self.talk.max_tokens)
        seed = own_seed(self.talk.seed, self.name, sample, epoch)
        return Sampling(max_tokens=self.talk.max_tokens, temperature=self.talk.temperature, seed=seed)

    async def ridden(self, engine: Engine, sample: Sample, epoch: int, arena: Arena, limits: Limits) -> Ride:
        """A free run in an arena of its own, which is closed however it ends."""
        try:
            return await ride(engine, arena, self.dialect(engine), self.sampling(sample.id, epoch), limits)
        finally:
            await arena.close()

    async def attempted(
        self, engine: Engine, sample: Sample, taken: Ride, tools: Sequence[Tool], needed: int
    ) -> Attempt:
        """The attempt that a free run makes: scored, or truncated where a limit ended it.

        `tools`: those on offer at first; `needed`: calls that the shortest way takes.
        """
        dialect, cut = self.dialect(engine), taken.end in CUT
        scores = {"errors": float(sum(bool(step.error) for step in taken.steps)), "steps": float(len(taken.steps))}
        return Attempt(
            trajectory=Trajectory(
                turns=taken.turns,
                answer=taken.answer,
                failure=failure(taken, needed),
                steps=taken.steps,
                protocol=dialect.protocol,
            ),
            scores=scores if cut else {"success": float(taken.success), **scores},
            state=State.TRUNCATED if cut else State.SCORED,
            prompt_sha256=await seen_sha256(engine, dialect, sample.messages, tools, taken.turns[0].prompt_tokens),
            retries=sum(turn.retries for turn in taken.turns),
        )


async def seen_sha256(
    engine: Engine, dialect: Dialect, messages: Sequence[Message], tools: Sequence[Tool], prompt_tokens: int
) -> str:
    """Digest of a first prompt: its token ids, as far as the engine tells them, and how many the route counted.

    Tools of the protocol `native` are in no ids that an engine tells, only in the count.
    """
    try:
        ids = await engine.tokenize(dialect.shown(messages, tools))
    except EngineError:
        if not engine.alive():
            raise
        ids = ()  # some routes tell no ids
    protocol = dialect.protocol.encode()
    return ids_sha256([*ids, prompt_tokens, *protocol])


def failure(taken: Ride, needed: int) -> str:
    """What decided: the limit that ended it, a call that was lost, the first step that was wrong by itself.

    `needed`: calls that the shortest way takes.
    """
    if taken.success:
        return ""
    if taken.end != "answered":
        return taken.end
    if taken.steps[-1].error:
        return taken.steps[-1].error
    sound = [step for step in taken.steps if not step.stopped and step.valid]
    if needed and not sound:
        first = next((step.error for step in taken.steps if step.error), "")
        return first or "gave_up"
    return next((step.error for step in taken.steps if step.error and step.error != "refused_call"), "missed")
