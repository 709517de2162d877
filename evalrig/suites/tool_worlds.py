"""Errands in worlds, run freely: did the model reach the goal, and nothing else?

A model gets tools over a state and works until it answers in words, or a limit ends it. The state decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from evalrig.arena import ErrandArena
from evalrig.engine import Engine
from evalrig.errors import UsageError
from evalrig.free_run import Ride
from evalrig.suite import Attempt
from evalrig.talk_suite import FAILURES
from evalrig.tool_suite import ToolOptions, ToolSuite
from evalrig.types import Metric, Sample, Trace
from evalrig.world import Errand


@dataclass(kw_only=True)
class ToolWorldsOptions(ToolOptions):
    """Keys of `suites.<name>.options`."""

    step_slack: int = 5
    """Turns a model may take beyond twice the calls that are needed."""


class ToolWorlds(ToolSuite):
    """Errands, freely."""

    Options = ToolWorldsOptions
    failures = FAILURES
    brief: ClassVar[Mapping[str, int]] = {"max_tokens": 64}
    metrics: tuple[Metric, ...] = (
        Metric(name="success", kind="binary", units="points", scale=100.0),
        Metric(name="steps_ratio", kind="continuous", units="needed calls per call made, 0 where it failed"),
    )

    def __init__(self, name: str, options: ToolWorldsOptions) -> None:
        super().__init__(name, options)
        self.slack = options.step_slack
        if options.step_slack < 1:
            raise UsageError(f"suites.{name}.options.step_slack: at least 1: an errand ends with an answer")

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """One errand in a state of its own."""
        world, errand = self.errands[sample.id]
        arena = ErrandArena(world, errand)
        limits = self.limits(sample, self.slack)
        taken = await self.ridden(engine, sample, epoch, arena, limits)
        made = await self.attempted(engine, sample, taken, errand.tools, errand.horizon)
        if "success" not in made.scores:
            return made
        return replace(made, scores={**made.scores, "steps_ratio": _ratio(taken, errand)})


def _ratio(taken: Ride, errand: Errand) -> float:
    calls = sum(len(message.tool_calls) for message in taken.messages)
    needed, used = errand.horizon + 1, calls + 1  # the answer is an act, too
    return taken.success * needed / max(needed, used)
