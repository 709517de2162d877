"""What the suites of conversations with tools share: worlds and their errands as samples, and how tools are spoken of."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from evalrig import steps
from evalrig.dialect import Dialect, Protocol
from evalrig.engine import Capabilities, Engine, Sampling
from evalrig.errors import EngineError, UsageError
from evalrig.forced_steps import opening
from evalrig.plugins import find, kinds, make
from evalrig.suite import Suite, ids_sha256
from evalrig.types import Message, Sample, Tool
from evalrig.world import Errand, World

PROTOCOLS: Final = ("auto", "native", "text")


@dataclass(kw_only=True)
class ToolOptions:
    """Keys of `suites.<name>.options` that all suites of conversations with tools have."""

    worlds: list[str] = field(default_factory=list[str])
    """Kinds on the shelf `evalrig/worlds/`, dotted modules, or paths of `.py` files; none: all on the shelf."""
    horizons: list[int] = field(default_factory=lambda: [5, 10, 20, 40, 80])
    """Calls that the shortest way needs."""
    per_horizon: int = 12
    """Errands of each world at each horizon."""
    seed: int = 0
    protocol: str = "auto"
    """`native`: the engine's own tool calls; `text`: tools and calls as text; `auto`: native where the engine has tools."""
    max_tokens: int = 1024
    """Of one turn, thinking included."""
    temperature: float = 0.0
    stream: bool = False
    thinking: bool = False
    """The chat template opens a thinking block: a turn that never leaves it holds no act."""


class ToolSuite(Suite):
    """A suite of conversations with tools over the errands of worlds."""

    family = "tool calls"
    options: ToolOptions

    def __init__(self, name: str, options: Any) -> None:
        super().__init__(name, options)
        self.errands: dict[str, tuple[World, Errand]] = {}
        """Sample id -> what it is about."""
        own: ToolOptions = options
        for fits, key, words in (
            (own.protocol in PROTOCOLS, "protocol", f"no protocol {own.protocol!r}; known: {', '.join(PROTOCOLS)}"),
            (own.max_tokens >= 1, "max_tokens", "max_tokens is at least 1"),
            (0 <= own.temperature <= 2, "temperature", "temperature is in 0..2"),
            (own.per_horizon >= 1, "per_horizon", "per_horizon is at least 1"),
            (all(h >= 0 for h in own.horizons) and own.horizons, "horizons", "name at least one, none below 0"),
            (len(set(own.horizons)) == len(own.horizons), "horizons", "one stands there twice; name each once"),
        ):
            if not fits:
                raise UsageError(f"suites.{name}.options.{key}: {words}")

    def needs(self) -> Capabilities:
        """The engine's own tool calls, where they are asked for."""
        native = self.options.protocol == "native"
        return Capabilities(chat=native, tools=native)

    def samples(self) -> list[Sample]:
        """An errand is a sample: what is asked, and a digest of all that it starts from and comes to."""
        self.errands = {}
        where = f"suites.{self.name}.options.worlds"
        rows: list[Sample] = []
        for kind in self.options.worlds or kinds("worlds"):
            world = make(find("worlds", kind, World, where))
            for horizon in self.options.horizons:
                for errand in world.errands(horizon, self.options.per_horizon, self.options.seed):
                    sample = _sample(world, errand, horizon)
                    if sample.id in self.errands:
                        raise UsageError(f"{where}: {kind}: two errands are called {sample.id!r}; name each once")
                    if wrong := steps.unfit(errand.tools):
                        raise UsageError(f"{where}: {kind}: {sample.id}: {wrong}")
                    self.errands[sample.id] = world, errand
                    rows.append(sample)
        return rows

    def dialect(self, engine: Engine) -> Dialect:
        """How tools are spoken of with this engine."""
        chosen = self.options.protocol
        if chosen == "auto":
            chosen = "native" if engine.able(engine.options).tools else "text"
        return Dialect(cast(Protocol, chosen), self.options.stream, self.options.thinking)

    def sampling(self, sample: str, epoch: int) -> Sampling:
        """Greedy, or drawn with a seed of the attempt's own, the same in every variant."""
        if not self.options.temperature:
            return Sampling(max_tokens=self.options.max_tokens)
        digest = hashlib.sha256(f"{self.options.seed}/{self.name}/{sample}/{epoch}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big") >> 1
        return Sampling(max_tokens=self.options.max_tokens, temperature=self.options.temperature, seed=seed)


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


def _sample(world: World, errand: Errand, horizon: int) -> Sample:
    whole = [errand.start, [[move.name, dict(move.arguments)] for move in errand.way], list(errand.answer)]
    offer = [[tool.name, tool.description, dict(tool.parameters)] for tool in errand.tools]
    digest = hashlib.sha256(json.dumps([whole, offer], sort_keys=True).encode()).hexdigest()
    return Sample(
        id=f"{world.name}.h{horizon:02d}.{errand.id}",
        messages=opening(world, errand),
        target=f"{errand.horizon} calls, sha256 {digest}",
        cluster=f"{world.name}.{errand.cluster}" if errand.cluster else "",
        tags=(world.name, f"horizon-{horizon}", *errand.tags),
    )
