"""A suite whose answers are always the same program: what the sandbox makes of it is the score."""

from dataclasses import dataclass
from typing import ClassVar

from evalrig.engine import Engine, Sampling
from evalrig.sandbox import Booth, Limits
from evalrig.suite import Attempt, Suite
from evalrig.types import Metric, Sample, Trace, Trajectory


@dataclass(kw_only=True)
class Options:
    """Of the suite."""

    program: str = "print('passed')"
    count: int = 12
    wall_seconds: float = 60.0


class Programs(Suite):
    """Runs `program` for every sample."""

    Options: ClassVar[type] = Options
    family = "coding"
    runs_code = True
    metrics = (Metric(name="solved", kind="binary", units="points", scale=100.0),)
    booth: Booth

    def samples(self) -> list[Sample]:
        return [Sample(id=f"p-{n:02d}", prompt=f"problem {n}") for n in range(self.options.count)]

    def equip(self, booth: Booth) -> None:
        self.booth = booth

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        said = await engine.generate(await engine.tokenize(sample.prompt), Sampling(max_tokens=4))
        ran = await self.booth.run(self.options.program, b"", Limits(wall_seconds=self.options.wall_seconds))
        scores = {"solved": float(ran.ended == "exit" and ran.stdout == b"passed\n")}
        return Attempt(trajectory=Trajectory(turns=(said,)), scores=scores, sandbox=self.booth.label)
