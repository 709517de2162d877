"""From records to what gates judge: pairs by sample id, and distances token by token. Reads the run folder, nothing else."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.kl import Audit
from evalrig.distance import Joined, lost, measured
from evalrig.gate import Distances, Evidence, Pairs
from evalrig.plan import Plan, SuitePlan
from evalrig.records import AUDIT, ROWS, RunFolder
from evalrig.tokens import Columns, TokenFile, key_of
from evalrig.types import AGAIN, REFERENCE, Metric, Record, State

ZERO_STATES = (State.REFUSED, State.TRUNCATED)
"""Model behaviour: score 0, in the denominator."""


class Gathered:
    """A run's records, read once; evidence is taken from them candidate by candidate."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.plan: Plan = folder.plan()
        self.samples = {suite.name: {s.id: s for s in folder.samples(suite.name)} for suite in self.plan.suites}
        self.records: dict[tuple[str, str], list[Record]] = {
            (variant.name, suite.name): folder.records(variant.name, suite.name)
            for variant in self.plan.variants
            for suite in self.plan.suites
        }
        self._evidence: dict[str, Evidence] = {}
        self._files: dict[tuple[str, str, str], TokenFile] = {}
        self._distances: dict[tuple[str, str], Distances | None] = {}

    def planned(self, variant: str, suite: SuitePlan) -> set[tuple[str, int]]:
        """(sample, epoch) that a variant owes."""
        return {(name, epoch) for name in self.plan.expected(variant, suite) for epoch in range(suite.epochs)}

    def absent(self, variant: str, suite: SuitePlan) -> int:
        """Planned attempts without a record."""
        records = self.records[variant, suite.name]
        return len(self.planned(variant, suite) - {(record.sample, record.epoch) for record in records})

    def evidence(self, candidate: str) -> Evidence:
        """All pairs and distances of one candidate, read once."""
        if candidate not in self._evidence:
            self._evidence[candidate] = self._read(candidate)
        return self._evidence[candidate]

    def _read(self, candidate: str) -> Evidence:
        pairs = {
            (suite.name, metric.name): self.pairs(suite, metric, candidate, suite.samples)
            for suite in self.plan.suites
            for metric in suite.metrics
            if metric.kind != "distance"
        }
        traced = [suite for suite in self.plan.suites if _has_distance(suite)]
        distances = {suite.name: self.distances(suite, candidate) for suite in traced}
        audits = {suite.name: self.audit(suite, candidate) for suite in traced}
        return Evidence(
            candidate=candidate,
            alpha=self.plan.header.alpha,
            pairs=pairs,
            distances={name: found for name, found in distances.items() if found is not None},
            audits={name: found for name, found in audits.items() if found is not None},
            floors=self.floors,
        )

    @cached_property
    def floors(self) -> dict[str, Distances]:
        """Reference against `reference_again`, the same for every candidate."""
        found = {suite.name: self.distances(suite, AGAIN) for suite in self.plan.suites if _has_distance(suite)}
        return {name: floor for name, floor in found.items() if floor is not None}

    def pairs(self, suite: SuitePlan, metric: Metric, arm: str, ids: Sequence[str]) -> Pairs:
        """Reference and `arm` on the planned samples `ids`, paired by id: a row lost in one arm moves no other."""
        ordered = tuple(sorted(ids))
        of = self.samples[suite.name]
        return Pairs(
            metric=metric,
            samples=ordered,
            clusters=np.array([of[name].cluster or name for name in ordered], dtype=np.str_),
            reference=self._scores(REFERENCE, suite, metric, ordered),
            candidate=self._scores(arm, suite, metric, ordered),
        )

    def _scores(self, arm: str, suite: SuitePlan, metric: Metric, ids: Sequence[str]) -> NDArray[np.float64]:
        """Mean over epochs by sample; NaN where any epoch is missing, so that an arm cannot drop its bad ones."""
        found: dict[str, dict[int, float]] = {}
        for record in self.records[arm, suite.name]:
            value = _score(record, metric)
            if value is not None:
                found.setdefault(record.sample, {})[record.epoch] = value
        whole = {name: epochs for name, epochs in found.items() if len(epochs) == suite.epochs}
        return np.array([np.mean(list(whole[name].values())) if name in whole else np.nan for name in ids], np.float64)

    def distances(self, suite: SuitePlan, arm: str) -> Distances | None:
        """Token by token, where both arms scored the same stream, read once; None where nothing can be compared."""
        if (suite.name, arm) not in self._distances:
            numbers = {name: number for number, name in enumerate(self.prompts(suite))}
            found = measured(self.joined(suite, arm), numbers, self.plan.header.alpha)
            self._distances[suite.name, arm] = found
        return self._distances[suite.name, arm]

    def prompts(self, suite: SuitePlan) -> tuple[str, ...]:
        """Names of the prompts (clusters) of a suite; a prompt's number is its place here."""
        return tuple(sorted({self._cluster(suite, name) for name in self.samples[suite.name]}))

    def joined(self, suite: SuitePlan, arm: str) -> Iterator[Joined]:
        """Attempt by attempt, what both arms gave the same stream; unlike streams are a validity finding."""
        for ours, theirs in self._both(suite, arm):
            reference, candidate = self.columns(ours), self.columns(theirs)
            if np.array_equal(reference["token"], candidate["token"]):
                cluster = self._cluster(suite, ours.sample)
                yield Joined(
                    sample=ours.sample, epoch=ours.epoch, cluster=cluster, reference=reference, candidate=candidate
                )

    def audit(self, suite: SuitePlan, arm: str) -> Audit | None:
        """What the lists lose, by the rows over the whole vocabulary; None where there are none, or broken ones."""
        return lost(self._audited(suite, arm))

    def _audited(self, suite: SuitePlan, arm: str) -> Iterator[tuple[Columns, Columns, int]]:
        width = self.width(suite)
        for ours, theirs in self._both(suite, arm):
            if self.holds(ours, AUDIT) and self.holds(theirs, AUDIT):
                reference, candidate = self.columns(ours, AUDIT), self.columns(theirs, AUDIT)
                if np.array_equal(reference["token"], candidate["token"]):
                    yield reference, candidate, width

    def width(self, suite: SuitePlan) -> int:
        """Entries of the reference's stored lists; 0 where none are."""
        scored = [r for r in self.records[REFERENCE, suite.name] if r.state is State.SCORED]
        return int(self.columns(scored[0])["top_ids"].shape[1]) if scored else 0

    def columns(self, record: Record, kind: str = ROWS) -> Columns:
        """What is on disk of an attempt; UsageError where nothing is."""
        return self._file(record, kind).read(key_of(record))

    def holds(self, record: Record, kind: str) -> bool:
        """Is there something on disk of an attempt?"""
        return key_of(record) in self._file(record, kind).places

    def in_file_order(self, records: Iterable[Record]) -> list[Record]:
        """Scored attempts of one arm of one suite, in the order in which their tokens lie on disk."""
        scored = [record for record in records if record.state is State.SCORED]
        places = self._file(scored[0], ROWS).places if scored else {}
        return sorted(scored, key=lambda record: places.get(key_of(record), (0, 0)))

    def _file(self, record: Record, kind: str) -> TokenFile:
        where = (record.variant, record.suite, kind)
        if where not in self._files:
            self._files[where] = self.folder.tokens(*where)
        return self._files[where]

    def _cluster(self, suite: SuitePlan, sample: str) -> str:
        return self.samples[suite.name][sample].cluster or sample

    def _both(self, suite: SuitePlan, arm: str) -> list[tuple[Record, Record]]:
        """Records of the attempts that both arms scored, in the order of the reference's file."""
        theirs = {(r.sample, r.epoch): r for r in self.records[arm, suite.name] if r.state is State.SCORED}
        ours = self.in_file_order(self.records[REFERENCE, suite.name])
        return [(r, theirs[r.sample, r.epoch]) for r in ours if (r.sample, r.epoch) in theirs]


def _has_distance(suite: SuitePlan) -> bool:
    return any(metric.kind == "distance" for metric in suite.metrics)


def _score(record: Record, metric: Metric) -> float | None:
    if record.state is State.SCORED:
        return record.scores.get(metric.name)
    return 0.0 if record.state in ZERO_STATES and metric.kind == "binary" else None
