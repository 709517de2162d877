"""From records to what gates judge: pairs by sample id, and distances token by token. Reads the run folder, nothing else."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.repeated import chance_of_all, chance_of_any
from evalrig.distance import Audited, Joined, audited
from evalrig.gate import Answers, Distances, Evidence, Pairs
from evalrig.horizon import Attempts, Horizon, horizon
from evalrig.loads import Load, load_of
from evalrig.plan import Plan, SuitePlan
from evalrig.records import AUDIT, ROWS, RunFolder
from evalrig.streams import Reading, Streamed, Texts, read
from evalrig.tokens import Columns, TokenFile, key_of
from evalrig.types import AGAIN, REFERENCE, RESCORED, SUCCESS, UNGRADED, Metric, Record, State

ZERO_STATES = (State.REFUSED, State.TRUNCATED)
"""Model behaviour: score 0, in the denominator."""
Valued: TypeAlias = Callable[[Record], float | None]
"""What one attempt counts for; None: it is missing."""


class Gathered:
    """A run's records, read once; evidence is taken from them candidate by candidate."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.plan: Plan = folder.plan()
        self._texts: dict[str, Texts] = {}
        self._readings: dict[tuple[str, str], Reading] = {}
        self._audited: dict[tuple[str, str], Audited | None] = {}
        self._horizons: dict[tuple[str, str], Horizon | None] = {}
        self.samples = {suite.name: {s.id: s for s in folder.samples(suite.name)} for suite in self.plan.suites}
        self.records: dict[tuple[str, str], list[Record]] = {
            (variant.name, suite.name): folder.records(variant.name, suite.name)
            for variant in self.plan.variants
            for suite in self.plan.suites
        }
        self.rescored: dict[tuple[str, str], list[Record]] = {
            (variant.name, suite.name): folder.records(variant.name, f"{suite.name}{RESCORED}")
            for variant in self.plan.variants
            for suite in self.plan.suites
            if suite.rescored
        }
        self._evidence: dict[str, Evidence] = {}
        self._files: dict[tuple[str, str, str], TokenFile] = {}

    def against(self, arm: str, suite: SuitePlan) -> list[Record]:
        """The reference's records on the streams that an arm's are about."""
        return self.rescored[arm, suite.name] if suite.rescored else self.records[REFERENCE, suite.name]

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
            if metric.kind not in ("distance", "ratio")
        }
        traced = [suite for suite in self.plan.suites if _has_distance(suite)]
        distances = {suite.name: self.distances(suite, candidate) for suite in traced}
        audits = {suite.name: self.audited(suite, candidate) for suite in traced}
        streamed = {suite.name: self.streamed(suite, candidate) for suite in traced}
        growths = {name: found.result.by_position.growth for name, found in streamed.items() if found is not None}
        horizons = {suite.name: self.horizon(suite, candidate) for suite in self.plan.suites if not suite.blocks}
        return Evidence(
            candidate=candidate,
            alpha=self.plan.header.alpha,
            pairs=pairs,
            distances={name: found for name, found in distances.items() if found is not None},
            audits={name: found.audit for name, found in audits.items() if found is not None},
            floors=self.floors,
            failures={
                (suite.name, word): self.failing(suite, word, candidate, suite.samples)
                for suite in self.plan.suites
                for word in suite.failures
            },
            answers={
                suite.name: Answers(growth=growths.get(suite.name), responses=self.reading(suite, candidate).responses)
                for suite in traced
            },
            horizons={name: found for name, found in horizons.items() if found is not None},
            loads={suite.name: self.load(suite, candidate) for suite in self.plan.suites if suite.blocks},
        )

    def load(self, suite: SuitePlan, candidate: str) -> Load:
        """Round by round, what the candidate, the reference and its second run did with the same load."""
        arms = (REFERENCE, candidate, AGAIN)
        records = {arm: self.records[arm, suite.name] for arm in arms if (arm, suite.name) in self.records}
        return load_of(suite, candidate, records, {arm: self.folder.preflight(arm) for arm in arms})

    def horizon(self, suite: SuitePlan, arm: str) -> Horizon | None:
        """Step by step, `arm` beside the reference, read once; None where no attempt has steps."""
        key = suite.name, arm
        if key not in self._horizons:
            of = self.samples[suite.name]
            owed = Attempts(
                planned=sorted(self.planned(arm, suite)),
                cluster={name: sample.cluster for name, sample in of.items()},
                score=_success(suite),
            )
            reference, candidate, again = (self.records[name, suite.name] for name in (REFERENCE, arm, AGAIN))
            self._horizons[key] = horizon(owed, reference, candidate, again)
        return self._horizons[key]

    def texts(self, suite: SuitePlan) -> Texts:
        """What the reference's traces say of their tokens; read once."""
        if suite.name not in self._texts:
            self._texts[suite.name] = Texts(self.folder.traces(suite.name))
        return self._texts[suite.name]

    def reading(self, suite: SuitePlan, arm: str) -> Reading:
        """One pass over all that both arms say of the same tokens of a suite, made once: for gates and report alike."""
        key = suite.name, arm
        if key not in self._readings:
            found = [self.folder.preflight(name) for name in (REFERENCE, arm)]
            modes = [str(one.fingerprint.flags.get("logprobs_mode", "")) if one else "" for one in found]
            joined, samples, texts = self.joined(suite, arm), self.samples[suite.name], self.texts(suite)
            self._readings[key] = read(joined, samples, texts, modes, self.plan.header.alpha)
        return self._readings[key]

    def distances(self, suite: SuitePlan, arm: str) -> Distances | None:
        """Token by token, where both arms scored the same stream; None where nothing can be compared."""
        return self.reading(suite, arm).distances

    def streamed(self, suite: SuitePlan, arm: str) -> Streamed | None:
        """Maps of these distances; None where nothing can be read."""
        return self.reading(suite, arm).streamed

    @cached_property
    def floors(self) -> dict[str, Distances]:
        """Reference against `reference_again`, the same for every candidate."""
        found = {suite.name: self.distances(suite, AGAIN) for suite in self.plan.suites if _has_distance(suite)}
        return {name: floor for name, floor in found.items() if floor is not None}

    def pairs(self, suite: SuitePlan, metric: Metric, arm: str, ids: Sequence[str]) -> Pairs:
        """Reference and `arm` on the planned samples `ids`, paired by id: a row lost in one arm moves no other."""
        return self._paired(suite, metric, arm, ids, lambda record: _score(record, metric))

    def failing(self, suite: SuitePlan, word: str, arm: str, ids: Sequence[str]) -> Pairs:
        """As `pairs`, with the share of a sample's attempts that failed in one way in place of a score: less is better."""
        failure = Metric(name=word, kind="binary", units="points", scale=100.0)
        return self._paired(suite, failure, arm, ids, lambda record: _failed_so(record, word))

    def _paired(self, suite: SuitePlan, metric: Metric, arm: str, ids: Sequence[str], value_of: Valued) -> Pairs:
        ordered = tuple(sorted(ids))
        of = self.samples[suite.name]
        ours, theirs = (self._values(name, suite, metric, value_of, ordered) for name in (REFERENCE, arm))
        ungraded = self._ungraded(REFERENCE, suite) | self._ungraded(arm, suite)
        lost = np.array([name in ungraded for name in ordered], np.bool_)
        return Pairs(
            metric=metric,
            samples=ordered,
            clusters=np.array([of[name].cluster or name for name in ordered], dtype=np.str_),
            reference=np.where(lost, np.nan, ours),
            candidate=np.where(lost, np.nan, theirs),
        )

    def _ungraded(self, arm: str, suite: SuitePlan) -> set[str]:
        """Samples on which the grader failed: that says nothing of the arm, so they are missing in both."""
        return {record.sample for record in self.records[arm, suite.name] if record.state is State.UNSCORED}

    def _values(
        self, arm: str, suite: SuitePlan, metric: Metric, value_of: Valued, ids: Sequence[str]
    ) -> NDArray[np.float64]:
        """One number a sample of its epochs; NaN where any epoch is missing, so that an arm cannot drop its bad ones."""
        found: dict[str, dict[int, float]] = {}
        for record in self.records[arm, suite.name]:
            value = value_of(record)
            if value is not None:
                found.setdefault(record.sample, {})[record.epoch] = value
        whole = {name: epochs for name, epochs in found.items() if len(epochs) == suite.epochs}
        return np.array([_reduced(list(whole[name].values()), metric) if name in whole else np.nan for name in ids])

    def joined(self, suite: SuitePlan, arm: str) -> Iterator[Joined]:
        """Attempt by attempt, what both arms gave the same stream; unlike streams are a validity finding."""
        for ours, theirs in self._both(suite, arm).values():
            reference, candidate = self.columns(ours), self.columns(theirs)
            if np.array_equal(reference["token"], candidate["token"]):
                yield Joined(
                    sample=ours.sample,
                    epoch=ours.epoch,
                    cluster=self._cluster(suite, ours.sample),
                    reference=reference,
                    candidate=candidate,
                    success=ours.scores.get(SUCCESS, math.nan if UNGRADED in ours.scores else None),
                )

    def audited(self, suite: SuitePlan, arm: str) -> Audited | None:
        """What the lists lose, by the rows over the whole vocabulary, read once; None where there are none, or broken ones."""
        key = suite.name, arm
        if key not in self._audited:
            self._audited[key] = audited(self._whole_rows(suite, arm))
        return self._audited[key]

    def _whole_rows(self, suite: SuitePlan, arm: str) -> Iterator[tuple[Columns, Columns, int]]:
        """Both arms' audited rows, attempt by attempt, over one vocabulary: another one is a validity finding."""
        width = self.width(suite)
        for ours, theirs in self._both(suite, arm).values() if width else ():
            if self.holds(ours, AUDIT) and self.holds(theirs, AUDIT):
                reference, candidate = self.columns(ours, AUDIT), self.columns(theirs, AUDIT)
                alike = reference["vocabulary"].shape[1] == candidate["vocabulary"].shape[1]
                if alike and np.array_equal(reference["token"], candidate["token"]):
                    yield reference, candidate, width

    def pair(self, suite: SuitePlan, arm: str, sample: str, epoch: int) -> tuple[Columns, Columns]:
        """What both arms gave one attempt that both scored; KeyError: there is none."""
        ours, theirs = self._both(suite, arm)[sample, epoch]
        return self.columns(ours), self.columns(theirs)

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

    def _both(self, suite: SuitePlan, arm: str) -> dict[tuple[str, int], tuple[Record, Record]]:
        """Attempts that both arms scored, by name: which ended first must not show in what is summed and reported."""
        ours, theirs = (
            {(r.sample, r.epoch): r for r in records if r.state is State.SCORED}
            for records in (self.against(arm, suite), self.records[arm, suite.name])
        )
        return {name: (ours[name], theirs[name]) for name in sorted(ours.keys() & theirs.keys())}


def _success(suite: SuitePlan) -> str:
    """The score that tells how an attempt ended: right or wrong, else a share; empty: none does."""
    ranked = sorted(suite.metrics, key=lambda metric: metric.kind != "binary")
    return next((metric.name for metric in ranked if metric.units == "points"), "")


def _has_distance(suite: SuitePlan) -> bool:
    return any(metric.kind == "distance" for metric in suite.metrics)


def _reduced(epochs: Sequence[float], metric: Metric) -> float:
    if metric.over == "mean":
        return float(np.mean(epochs))
    chance = chance_of_any if metric.over == "any" else chance_of_all
    return chance(round(sum(epochs)), len(epochs), metric.k)


def _score(record: Record, metric: Metric) -> float | None:
    if record.state is State.SCORED:
        return record.scores.get(metric.score)
    return 0.0 if record.state in ZERO_STATES and metric.kind == "binary" else None


def failure_of(record: Record) -> str | None:
    """How an attempt failed; empty: it did not; None: it is missing. What a limit cut or the model declined failed by that."""
    if record.state is State.SCORED:
        return record.trajectory.failure
    return record.trajectory.failure or record.state.value if record.state in ZERO_STATES else None


def _failed_so(record: Record, word: str) -> float | None:
    failure = failure_of(record)
    return None if failure is None else float(failure == word)
