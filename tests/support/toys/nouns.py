"""Small plans, records, pairs and findings, for tests that need no engine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evalrig.analysis.kl_sums import FROM_LISTS, StreamSums
from evalrig.config.load import dump, tree
from evalrig.config.schema import EngineConfig, GateConfig, RunConfig, SuiteConfig, VariantConfig
from evalrig.gate import Distances, Evidence, Pairs
from evalrig.plan import GatePlan, Plan, SuiteFacts, choose, make_plan
from evalrig.records import RunFolder
from evalrig.types import Check, CheckOutcome, Metric, Record, Sample, State, Trajectory, Variant

ACCURACY = Metric(name="accuracy", kind="binary", units="points", scale=100.0, chance=0.5)
LEAD = Metric(name="lead", kind="continuous", units="nats")
KL = Metric(name="kl", kind="distance", units="nats/token")


def samples(count: int, prefix: str = "s") -> list[Sample]:
    return [Sample(id=f"{prefix}-{n:03d}", prompt=f"question {n}", target="x") for n in range(count)]


def run_config(**suites: SuiteConfig) -> RunConfig:
    """A run of the given suites, by default one of twelve samples."""
    chosen = suites or {"quiz": SuiteConfig(kind="quiz", again=0.5)}
    gates = {
        f"{name}_gate": GateConfig(kind="noninferior", suite=name, metric="accuracy", margin=0.1) for name in chosen
    }
    return RunConfig(
        name="small",
        question="?",
        engine=EngineConfig(kind="toys.engine"),
        reference=VariantConfig(weights="toy"),
        candidates={"cheap": VariantConfig()},
        suites=chosen,
        gates=gates,
    )


def small_plan(
    config: RunConfig | None = None, given: Mapping[str, Sequence[Sample]] | None = None, traced: Sequence[str] = ()
) -> Plan:
    """A plan as `assemble` makes it, without looking anything up."""
    config = config or run_config()
    facts = {
        name: SuiteFacts(
            kind=suite.kind,
            family="knowledge",
            metrics=(ACCURACY,),
            traced=name in traced,
            samples=tuple(choose((given or {}).get(name, samples(12)), suite.samples, config.seed, name)),
        )
        for name, suite in config.suites.items()
    }
    variants = [
        Variant(name="reference", role="reference", engine="toys.engine", weights="toy"),
        *(Variant(name=name, role="candidate", engine="toys.engine", weights="toy") for name in config.candidates),
        Variant(name="reference_again", role="again", engine="toys.engine", weights="toy"),
    ]
    return make_plan(config, dump(config), tree(config), variants, facts)


def small_folder(output: Path, plan: Plan | None = None) -> RunFolder:
    plan = plan or small_plan()
    config = run_config()
    return RunFolder.create(output, plan, dump(config), {}, {suite.name: samples(12) for suite in plan.suites})


def record(sample: str = "s-000", variant: str = "cheap", suite: str = "quiz", **more: Any) -> Record:
    filled: dict[str, Any] = {"state": State.SCORED, "scores": {"accuracy": 1.0}, "trajectory": Trajectory(), **more}
    return Record(variant=variant, suite=suite, sample=sample, epoch=filled.pop("epoch", 0), **filled)


def gate_plan(kind: str, metric: str, margin: float = 0.05, **more: Any) -> GatePlan:
    return GatePlan(name=f"{metric}_gate", kind=kind, suite="quiz", metric=metric, margin=margin, gating=True, **more)


def pairs(reference: ArrayLike, candidate: ArrayLike, metric: Metric = ACCURACY) -> Pairs:
    arms = np.asarray(reference, np.float64), np.asarray(candidate, np.float64)
    names = tuple(f"s-{n:04d}" for n in range(len(arms[0])))
    return Pairs(
        metric=metric,
        samples=names,
        clusters=np.array(names, dtype=np.str_),
        reference=arms[0],
        candidate=arms[1],
    )


def distances(kl: np.ndarray, prompts: int = 30) -> Distances:
    """Tokens with these distances, spread evenly over prompts."""
    readable = ~np.isnan(kl)
    values, prompt = np.asarray(kl, np.float64)[readable], (np.arange(len(kl)) % prompts)[readable]
    sums = StreamSums(prompts, 0)
    measures = np.vstack([values, np.zeros((FROM_LISTS - 1, len(values)))])
    sums.add(measures, prompt, np.ones(len(values)), prompt * 0 - 1, prompt * 0)
    sums.count(len(kl), len(values))
    return Distances(
        found=sums.result((), 0.05) if len(values) else None,
        by_prompt=sums.by_prompt(),
        tokens=len(kl),
        broken=sums.broken,
        same=False,
    )


def evidence(
    pairs_by_metric: Mapping[str, Pairs] | None = None, tokens: Distances | None = None, floor: Distances | None = None
) -> Evidence:
    return Evidence(
        candidate="cheap",
        alpha=0.05,
        pairs={("quiz", name): found for name, found in (pairs_by_metric or {}).items()},
        distances={} if tokens is None else {"quiz": tokens},
        audits={},
        floors={} if floor is None else {"quiz": floor},
    )


def check(outcome: CheckOutcome, gate: str = "g", gating: bool = True, **more: Any) -> Check:
    p_nogo = 0.001 if outcome is CheckOutcome.FAILED else 1.0
    filled: dict[str, Any] = {"suite": "quiz", "reason": f"{gate} says {outcome}", "p_nogo": p_nogo, **more}
    return Check(gate=gate, outcome=outcome, gating=gating, **filled)
