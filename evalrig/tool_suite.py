"""What the suites of conversations with tools share: worlds and their errands as samples, and how tools are spoken of."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from evalrig import steps
from evalrig.errors import UsageError
from evalrig.forced_steps import opening
from evalrig.free_run import Limits
from evalrig.plugins import find, kinds, make
from evalrig.talk_suite import TalkOptions, TalkSuite
from evalrig.types import Sample
from evalrig.world import Errand, World


@dataclass(kw_only=True)
class ToolOptions(TalkOptions):
    """Keys of `suites.<name>.options` that all suites of conversations with tools have."""

    worlds: list[str] = field(default_factory=list[str])
    """Kinds on the shelf `evalrig/worlds/`, dotted modules, or paths of `.py` files; none: all on the shelf."""
    horizons: list[int] = field(default_factory=lambda: [5, 10, 20, 40, 80])
    """Calls that the shortest way needs."""
    per_horizon: int = 12
    """Errands of each world at each horizon."""


class ToolSuite(TalkSuite):
    """A suite of conversations with tools over the errands of worlds."""

    options: ToolOptions

    def __init__(self, name: str, options: Any) -> None:
        super().__init__(name, options)
        self.errands: dict[str, tuple[World, Errand]] = {}
        """Sample id -> what it is about."""
        self._needed: dict[str, int] = {}
        """Sample id -> calls needed; of an errand that cannot be done, those of its kin that can: finding out takes steps, too."""
        own: ToolOptions = options
        for fits, key, words in (
            (own.per_horizon >= 1, "per_horizon", "per_horizon is at least 1"),
            (all(h >= 0 for h in own.horizons) and own.horizons, "horizons", "name at least one, none below 0"),
            (len(set(own.horizons)) == len(own.horizons), "horizons", "one stands there twice; name each once"),
        ):
            if not fits:
                raise UsageError(f"suites.{name}.options.{key}: {words}")

    def samples(self) -> list[Sample]:
        """An errand is a sample: what is asked, and a digest of all that it starts from and comes to."""
        self.errands, self._needed = {}, {}
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
                    self._needed[sample.id] = errand.horizon or horizon
                    rows.append(sample)
        return rows

    def limits(self, sample: Sample, slack: int) -> Limits:
        """Turns of one attempt: twice the calls that are needed, and `slack`."""
        return Limits(steps=2 * self._needed[sample.id] + slack)


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
