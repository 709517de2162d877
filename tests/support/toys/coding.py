"""A suite that fails in several ways (`kind: toys.coding`), without programs: what an attempt does is drawn from its id.

Every variant solves the same problems; `slow` says of a variant which share of its wrong answers runs into the time limit instead.
"""

import hashlib
from dataclasses import dataclass, field

from evalrig.engine import Engine, Sampling
from evalrig.errors import EngineError
from evalrig.suite import Attempt, Suite, ids_sha256
from evalrig.types import Metric, Sample, State, Trace, Trajectory


@dataclass(kw_only=True)
class CodingOptions:
    problems: int = 200
    slow: dict[str, float] = field(default_factory=dict[str, float])
    """Variant -> share of its wrong answers that time out; default: none."""
    broken: dict[str, float] = field(default_factory=dict[str, float])
    """Variant -> share of what the others solve that it gets wrong."""
    silent: dict[str, int] = field(default_factory=dict[str, int])
    """Variant -> every so many problems the engine fails."""


class Coding(Suite):
    """Half of the problems are solved, a few are cut by a limit, the rest fails."""

    Options = CodingOptions
    family = "coding"
    failures = ("syntax_error", "wrong_answer", "timeout", "truncated")
    metrics: tuple[Metric, ...] = (Metric(name="solved", kind="binary", units="points", scale=100.0),)

    def samples(self) -> list[Sample]:
        return [Sample(id=f"c-{n:03d}", prompt=f"problem {n}") for n in range(self.options.problems)]

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        name, number = engine.variant.name, int(sample.id[2:])
        if (every := self.options.silent.get(name, 0)) and number % every == 0:
            raise EngineError(f"{name}: HTTP 503")
        ids = await engine.tokenize(sample.prompt)
        said = await engine.generate(ids, Sampling(max_tokens=2))
        failure = self._failure(sample.id, self.options.slow.get(name, 0.0), self.options.broken.get(name, 0.0))
        cut = failure == "truncated"
        return Attempt(
            trajectory=Trajectory(turns=(said,), answer=said.text, failure=failure),
            scores={} if cut else {"solved": float(not failure)},
            state=State.TRUNCATED if cut else State.SCORED,
            prompt_sha256=ids_sha256(ids),
        )

    def _failure(self, sample: str, slow: float, broken: float) -> str:
        draw, late = (_share(f"{sample}/{what}") for what in ("fails", "late"))
        if draw < 0.5:
            return "wrong_answer" if late < broken else ""
        if draw < 0.53:
            return "truncated"
        return "timeout" if late < slow else "syntax_error" if draw < 0.6 else "wrong_answer"


def _share(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
