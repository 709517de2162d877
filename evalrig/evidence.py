"""From records to what gates judge: pairs by sample id, and distances token by token. Reads the run folder, nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.kl import merged_bucket
from evalrig.analysis.responses import Responses
from evalrig.gate import AuditRows, Distances, Evidence, Pairs
from evalrig.plan import Plan, SuitePlan
from evalrig.records import RunFolder
from evalrig.streams import Streamed, Texts, spoken, streamed
from evalrig.tokens import read_tokens
from evalrig.types import AGAIN, REFERENCE, RESCORED, Metric, Record, State

Columns = Mapping[str, NDArray[Any]]
ROUNDING = 1e-3
"""What rounding can do: a logprob above this is none, and probabilities further apart are not the same one."""
ZERO_STATES = (State.REFUSED, State.TRUNCATED)
"""Model behaviour: score 0, in the denominator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """One attempt as two arms scored it: columns of n rows `token`, `logprob`, `top_ids` and `top_logprobs` [n, K]."""

    sample: str
    epoch: int
    cluster: str
    reference: Columns
    candidate: Columns


class Gathered:
    """A run's records, read once; evidence is taken from them candidate by candidate."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.plan: Plan = folder.plan()
        self._texts: dict[str, Texts] = {}
        self._streamed: dict[tuple[str, str], Streamed | None] = {}
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
        """All pairs and distances of one candidate."""
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
            growths={
                suite.name: found.result.by_position.growth
                for suite in traced
                if (found := self.streamed(suite, candidate)) and found.result.by_position.growth
            },
            responses={suite.name: self.spoken(suite, candidate) for suite in traced},
        )

    def texts(self, suite: SuitePlan) -> Texts:
        """What the reference's traces say of their tokens; read once."""
        if suite.name not in self._texts:
            self._texts[suite.name] = Texts(self.folder.traces(suite.name))
        return self._texts[suite.name]

    def streamed(self, suite: SuitePlan, arm: str) -> Streamed | None:
        """Distances of one arm on one suite, measured once; None where nothing can be read."""
        key = suite.name, arm
        if key not in self._streamed:
            joined, samples, texts = self.joined(suite, arm), self.samples[suite.name], self.texts(suite)
            self._streamed[key] = streamed(joined, samples, texts, self.plan.header.alpha)
        return self._streamed[key]

    def spoken(self, suite: SuitePlan, arm: str) -> Responses:
        """The responses that the reference drew and that `arm` scored."""
        found = [self.folder.preflight(name) for name in (REFERENCE, arm)]
        modes = [str(one.fingerprint.flags.get("logprobs_mode", "")) if one else "" for one in found]
        return spoken(self.joined(suite, arm), self.samples[suite.name], self.texts(suite), modes)

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
        """Token by token, where both arms scored the same stream; None where nothing can be compared."""
        parts = [_distances(both.cluster, both.reference, both.candidate) for both in self.joined(suite, arm)]
        if not parts:
            return None
        return Distances(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in Distances.__slots__}
        )

    def joined(self, suite: SuitePlan, arm: str) -> Iterator[Joined]:
        """Attempt by attempt, what both arms gave the same stream; unlike streams are a validity finding."""
        left = (arm, f"{suite.name}{RESCORED}") if suite.rescored else (REFERENCE, suite.name)
        for sample, epoch in self._both(suite, arm):
            reference = read_tokens(tokens_file(self.folder, *left, sample, epoch))
            candidate = read_tokens(tokens_file(self.folder, arm, suite.name, sample, epoch))
            if np.array_equal(reference["token"], candidate["token"]):
                cluster = self.samples[suite.name][sample].cluster or sample
                yield Joined(sample=sample, epoch=epoch, cluster=cluster, reference=reference, candidate=candidate)

    def audit(self, suite: SuitePlan, arm: str) -> AuditRows | None:
        """Rows over the whole vocabulary of both arms; None where no position was audited."""
        reference: list[NDArray[np.float32]] = []
        candidate: list[NDArray[np.float32]] = []
        listed = 1
        for sample, epoch in self._both(suite, arm):
            files = [audit_file(self.folder, name, suite.name, sample, epoch) for name in (REFERENCE, arm)]
            if all(file.is_file() for file in files):
                left, right = (read_tokens(file) for file in files)
                alike = left["vocabulary"].shape[1] == right["vocabulary"].shape[1]  # else: a validity finding
                if alike and np.array_equal(left["token"], right["token"]):
                    reference.append(left["vocabulary"])
                    candidate.append(right["vocabulary"])
                    listed = read_tokens(tokens_file(self.folder, REFERENCE, suite.name, sample, epoch))[
                        "top_ids"
                    ].shape[1]
        if not reference:
            return None
        return AuditRows(reference=np.concatenate(reference), candidate=np.concatenate(candidate), listed=listed)

    def _both(self, suite: SuitePlan, arm: str) -> list[tuple[str, int]]:
        """(sample, epoch) that both arms scored, in a fixed order."""

        def scored(records: list[Record]) -> set[tuple[str, int]]:
            return {(r.sample, r.epoch) for r in records if r.state is State.SCORED}

        return sorted(scored(self.against(arm, suite)) & scored(self.records[arm, suite.name]))


def tokens_file(folder: RunFolder, variant: str, suite: str, sample: str, epoch: int) -> Path:
    """Top-K rows of one attempt."""
    path = folder.tokens_path(variant, suite, sample, epoch)
    return path.with_name(f"{path.name}.parquet")


def audit_file(folder: RunFolder, variant: str, suite: str, sample: str, epoch: int) -> Path:
    """Whole-vocabulary rows of one attempt."""
    path = folder.tokens_path(variant, suite, sample, epoch)
    return path.with_name(f"{path.name}.full.parquet")


def ambiguous(ids: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Rows [n] of top-K lists [n, K] that name a token twice, or what is no token."""
    ordered = np.sort(ids, axis=1)
    return (ordered[:, 1:] == ordered[:, :-1]).any(axis=1) | (ordered < 0).any(axis=1)


def misplaced(columns: Columns) -> int:
    """Rows whose list gives their token another logprob, or leaves it out though it belongs there: lists of elsewhere."""
    given, listed = columns["logprob"][:, None], columns["top_logprobs"]
    whole = np.isfinite(given) & (listed < np.inf).all(axis=1, keepdims=True)
    named = columns["top_ids"] == columns["token"][:, None]
    p, q = (np.exp(np.minimum(side, 0.0)) for side in (listed, given))
    unlike = named & (np.abs(p - q) > ROUNDING)
    absent = ~named.any(axis=1, keepdims=True) & (given > listed.min(axis=1, keepdims=True) + ROUNDING)
    return int((whole & (unlike.any(axis=1, keepdims=True) | absent)).sum())


def _has_distance(suite: SuitePlan) -> bool:
    return any(metric.kind == "distance" for metric in suite.metrics)


def _score(record: Record, metric: Metric) -> float | None:
    if record.state is State.SCORED:
        return record.scores.get(metric.name)
    return 0.0 if record.state in ZERO_STATES and metric.kind == "binary" else None


def _distances(cluster: str, reference: Columns, candidate: Columns) -> Distances:
    """Rows broken on either side keep their place with a NaN distance: validity counts them, nothing hides them."""
    broken = np.zeros(len(reference["logprob"]), np.bool_)
    for side in (reference, candidate):
        readable = (side["top_logprobs"] < np.inf).all(axis=1) & (side["logprob"] <= ROUNDING)
        broken |= ~readable | ambiguous(side["top_ids"])
    whole = ~broken
    rows = merged_bucket(
        *(side[name][whole] for side in (reference, candidate) for name in ("top_ids", "top_logprobs"))
    )
    n = len(broken)
    return Distances(
        kl=_spread(rows.kl, whole),
        prompt=np.full(n, cluster),
        position=np.arange(1, n + 1, dtype=np.int64),
        tail=_spread(rows.tail_reference, whole),
        same_top=_spread(rows.top1_same, whole) == 1.0,
        reference_logprob=reference["logprob"].astype(np.float64),
        candidate_logprob=candidate["logprob"].astype(np.float64),
    )


def _spread(values: NDArray[Any], whole: NDArray[np.bool_]) -> NDArray[np.float64]:
    spread = np.full(len(whole), np.nan)
    spread[whole] = values
    return spread
