"""A suite of attempts with steps for the toy engine (`kind: toys.stepped`): at each step the most likely next token is the act.

What is due is what the undamaged toy would say, but for every twelfth step, so that the reference errs too.
"""

from dataclasses import dataclass

from evalrig.engine import Capabilities, Engine
from evalrig.suite import Attempt, Suite
from evalrig.types import Metric, Sample, Step, Trace, Trajectory
from toys.engine import table, tokens

REFERENCE = table()


@dataclass(kw_only=True)
class SteppedOptions:
    tasks: int = 40
    free: bool = False
    """The steps say nothing of what was due."""


class Stepped(Suite):
    Options = SteppedOptions
    family = "tool calls"
    metrics: tuple[Metric, ...] = (Metric(name="success", kind="binary", units="points", scale=100.0),)

    def __init__(self, name: str, options: SteppedOptions) -> None:
        super().__init__(name, options)
        self.options: SteppedOptions = options

    def needs(self) -> Capabilities:
        return Capabilities(prompt_logprobs=True, top_logprobs=1)

    def samples(self) -> list[Sample]:
        return [Sample(id=f"task-{n:02d}", prompt=f"<task> & {n}") for n in range(self.options.tasks)]

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        number = int(sample.id.removeprefix("task-"))
        steps = tuple([await self._step(engine, sample, number, at) for at in range(4 + number % 9)])
        return Attempt(
            trajectory=Trajectory(steps=steps), scores={"success": float(sum(bool(s.error) for s in steps) < 2)}
        )

    async def _step(self, engine: Engine, sample: Sample, number: int, at: int) -> Step:
        ids = (*tokens(f"{sample.prompt} {at * at}{number}"), 2 + (7 * number + 3 * at) % 60)
        scoring = await engine.score((*ids, 0), len(ids), 1)
        assert scoring.top_ids is not None
        said = int(scoring.top_ids[0, 0])
        due = int(REFERENCE[ids[-1]].argmax()) if (number + 5 * at) % 12 else 1000
        broken = said != due and said % 7 == 0
        return Step(
            due="" if self.options.free else f"[{due}]",
            said=f"<{said}" if broken else f"[{said}]",
            error="bad_json" if broken else "wrong_tool" if said != due else "",
            named=said == due,
            valid=not broken,
            stopped=False,
        )
