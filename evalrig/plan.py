"""From a run file to the list of what will be done. Pure, and fixed before the first request: order, samples, gates.

A cell is one variant's work on one suite and epoch. Cells, not variants, are queued, so that every engine
process stays busy to the end.
"""

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from evalrig.config.schema import RunConfig
from evalrig.types import AGAIN, REFERENCE, RESCORED, Metric, Sample, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteFacts:
    """What planning needs to know of a suite: everything but its code."""

    kind: str
    family: str
    metrics: tuple[Metric, ...]
    traced: bool
    samples: tuple[Sample, ...]
    chat: bool = False
    """It asks through the engine's chat route."""
    rescored: bool = False
    failures: tuple[str, ...] = ()
    """Words for how its attempts fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePlan:
    """One suite as it will be run."""

    name: str
    kind: str
    family: str
    epochs: int
    metrics: tuple[Metric, ...]
    traced: bool
    samples: tuple[str, ...]
    """Sample ids in the order of the run: a seeded permutation."""
    again: tuple[str, ...]
    """The seeded share that `reference_again` repeats, in another order."""
    sha256: str
    """Digest of the chosen samples with prompts and targets."""
    rescored: bool = False
    """Every variant answers by itself, and the reference scores what the others said."""
    failures: tuple[str, ...] = ()
    """Words for how its attempts fail."""
    clusters: int = 0
    """Groups of samples that share text, single ones counted; 0: planned before they were counted."""

    @property
    def blocks(self) -> bool:
        """Its attempts are blocks of load, its samples rounds."""
        return any(metric.kind == "ratio" for metric in self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePlan:
    """One gate as registered."""

    name: str
    kind: str
    suite: str
    metric: str
    margin: float
    gating: bool
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One variant's work on one suite and epoch."""

    variant: str
    suite: str
    epoch: int
    stage: Literal["trace", "attempt", "rescore", "block"]
    """`trace`: the reference answers, for all to score; done before any attempt of that suite. `rescore`: the reference
    scores what `of` answered in its attempts. `block`: rounds of load, when all else is done."""
    samples: tuple[str, ...]
    of: str = ""
    """Of a `rescore`: the variant whose answers they are."""

    @property
    def filed(self) -> tuple[str, str]:
        """Variant and suite under which its attempts are filed: a rescoring with the answers it is of."""
        return (self.of, f"{self.suite}{RESCORED}") if self.of else (self.variant, self.suite)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a run is about."""

    run: str
    question: str
    seed: int
    alpha: float
    model: str
    max_context: int
    note: str
    rehearsal: tuple[str, ...] = ()
    """What was replaced for a rehearsal; empty: a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that is decided before the first request."""

    header: Header
    config: Mapping[str, Any]
    """The resolved run file as a tree."""
    config_sha256: str
    """Of the bytes of `run.yaml`."""
    variants: tuple[Variant, ...]
    suites: tuple[SuitePlan, ...]
    gates: tuple[GatePlan, ...]
    unused_gates: tuple[str, ...]
    """Gates of the policy whose suite is not in this run, or has not their metric: named, not silently dropped."""
    cells: tuple[Cell, ...]
    chats: tuple[str, ...] = ()
    """Suites that ask through the engine's chat route."""

    def suite(self, name: str) -> SuitePlan:
        """The suite of that name."""
        return next(suite for suite in self.suites if suite.name == name)

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of the candidates, in the order of the run file."""
        return tuple(variant.name for variant in self.variants if variant.role == "candidate")

    def expected(self, variant: str, suite: SuitePlan) -> tuple[str, ...]:
        """The samples a variant attempts in each epoch of a suite."""
        return suite.again if variant == AGAIN else suite.samples


def sample_digest(samples: Sequence[Sample]) -> str:
    """sha256 over everything a sample asks and expects."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr(sample).encode())
    return digest.hexdigest()


def choose(samples: Sequence[Sample], limit: int | None, seed: int, suite: str) -> list[Sample]:
    """A seeded permutation, cut to `limit`: random order is what makes looking at a prefix legal."""
    order = list(samples)
    random.Random(f"{seed}/{suite}/order").shuffle(order)
    return order[:limit]


def make_plan(
    config: RunConfig,
    text: str,
    config_tree: Mapping[str, Any],
    variants: Sequence[Variant],
    facts: Mapping[str, SuiteFacts],
) -> Plan:
    """Decide everything. `text` is the resolved run file as it will be stored; `facts` by suite name."""
    suites = tuple(_suite_plan(config, name, fact) for name, fact in facts.items())
    gates = {
        name: GatePlan(
            name=name,
            kind=gate.kind,
            suite=gate.suite,
            metric=gate.metric,
            margin=gate.margin,
            gating=gate.gating,
            options=gate.options,
        )
        for name, gate in config.gates.items()
    }
    used = {name for name, gate in gates.items() if _used(gate, suites)}
    return Plan(
        header=Header(
            run=config.name,
            question=config.question,
            seed=config.seed,
            alpha=config.alpha,
            model=config.scope.model,
            max_context=config.scope.max_context,
            note=config.scope.note,
            rehearsal=tuple(config.rehearsal.replaced),
        ),
        config=config_tree,
        config_sha256=hashlib.sha256(text.encode()).hexdigest(),
        variants=tuple(variants),
        suites=suites,
        gates=tuple(gate for name, gate in gates.items() if name in used),
        unused_gates=tuple(name for name in gates if name not in used),
        cells=tuple(_cells(variants, suites)),
        chats=tuple(name for name, fact in facts.items() if fact.chat),
    )


def _used(gate: GatePlan, suites: Sequence[SuitePlan]) -> bool:
    """Its suite is there, and with its metric; a gating gate is never dropped for a metric."""
    metrics = [{metric.name for metric in suite.metrics} for suite in suites if suite.name == gate.suite]
    return bool(metrics) and (gate.gating or not gate.metric or gate.metric in metrics[0])


def _suite_plan(config: RunConfig, name: str, fact: SuiteFacts) -> SuitePlan:
    suite = config.suites[name]
    chosen = list(fact.samples)
    ids = [sample.id for sample in chosen]
    repeated = _repeated(random.Random(f"{config.seed}/{name}/again"), fact, suite.again)
    if sorted(repeated, key=ids.index) == repeated:
        repeated.reverse()  # of few samples the draw can come out in the first run's order
    return SuitePlan(
        name=name,
        kind=fact.kind,
        family=fact.family,
        epochs=suite.epochs,
        metrics=fact.metrics,
        traced=fact.traced,
        samples=tuple(ids),
        again=tuple(repeated),
        sha256=sample_digest(chosen),
        rescored=fact.rescored,
        failures=fact.failures,
        clusters=len({sample.cluster or sample.id for sample in chosen}),
    )


def _repeated(draw: random.Random, fact: SuiteFacts, share: float) -> list[str]:
    """Samples of the second run; of a load whole rounds, with every concurrency."""
    if not any(metric.kind == "ratio" for metric in fact.metrics):
        return draw.sample([sample.id for sample in fact.samples], math.ceil(len(fact.samples) * share))
    rounds = list(dict.fromkeys(sample.cluster or sample.id for sample in fact.samples))
    drawn = set(draw.sample(rounds, math.ceil(len(rounds) * share)))
    return [sample.id for sample in fact.samples if (sample.cluster or sample.id) in drawn]


def _cells(variants: Sequence[Variant], suites: Sequence[SuitePlan]) -> list[Cell]:
    """Traces, then variant by variant, `reference_again` as far from the first reference run as can be; rescorings; load."""
    order = sorted(variants, key=lambda variant: ("reference", "candidate", "again").index(variant.role))
    cells = [
        Cell(variant=REFERENCE, suite=suite.name, epoch=epoch, stage="trace", samples=suite.samples)
        for suite in suites
        if suite.traced
        for epoch in range(suite.epochs)
    ]
    for variant in order:
        for suite in (suite for suite in suites if not suite.blocks):
            ids = suite.again if variant.role == "again" else suite.samples
            cells += [
                Cell(variant=variant.name, suite=suite.name, epoch=epoch, stage="attempt", samples=ids)
                for epoch in range(suite.epochs)
            ]
    rescored = [cell for cell in cells if cell.stage == "attempt" and cell.variant != REFERENCE]
    names = {suite.name for suite in suites if suite.rescored}
    for cell in rescored:
        if cell.suite in names:
            cells.append(replace(cell, variant=REFERENCE, stage="rescore", of=cell.variant))
    return [*cells, *_blocks(order, suites)]


def _blocks(variants: Sequence[Variant], suites: Sequence[SuitePlan]) -> list[Cell]:
    """Rounds of load, suite by suite: nothing else may run meanwhile, so they come last."""
    return [
        Cell(
            variant=variant.name,
            suite=suite.name,
            epoch=0,
            stage="block",
            samples=suite.again if variant.role == "again" else suite.samples,
        )
        for suite in suites
        if suite.blocks
        for variant in variants
    ]
