"""A suite of coin tosses (`kind: toys.coins`): right or wrong by sample, epoch and variant, so that every mean is known."""

import hashlib
from dataclasses import dataclass

from evalrig.code_suite import metrics
from evalrig.engine import Engine
from evalrig.suite import Attempt, Suite
from evalrig.types import Completion, Metric, Sample, State, Trace, Trajectory


@dataclass(kw_only=True)
class CoinsOptions:
    k: int = 2
    """Of pass@k."""
    ungraded: str = ""
    """`variant/sample` whose first toss the grader lost."""
    worth: float = 1.0
    """What a right toss scores."""


class Coins(Suite):
    """A fair coin for each attempt."""

    Options = CoinsOptions
    family = "luck"
    metrics: tuple[Metric, ...] = metrics([1])

    def __init__(self, name: str, options: CoinsOptions) -> None:
        super().__init__(name, options)
        self.options: CoinsOptions = options
        self.metrics = metrics([1, options.k])

    def samples(self) -> list[Sample]:
        return [Sample(id=f"toss-{number:02d}", prompt=f"toss {number}") for number in range(40)]

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        variant = engine.variant.name
        said = Trajectory(turns=(Completion(text=variant, finish="stop"),))
        if f"{variant}/{sample.id}" == self.options.ungraded and epoch == 0:
            return Attempt(trajectory=said, state=State.UNSCORED)
        return Attempt(trajectory=said, scores={"solved": self.options.worth * heads(variant, sample.id, epoch)})


def heads(variant: str, sample: str, epoch: int) -> int:
    """1 or 0."""
    return hashlib.sha256(f"{variant}/{sample}/{epoch}".encode()).digest()[0] & 1
