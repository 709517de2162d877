"""Rounds of load: what every variant did with the same schedule, one after the other."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evalrig.plan import SuitePlan
from evalrig.proof import Preflight
from evalrig.types import AGAIN, EMULATED, REFERENCE, Capacity, Metric, Record, State

Floats = NDArray[np.float64]
LINE = 500
"""Letters kept of why a block did not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """One metric, round by round in the order in which they were run. NaN: no block, or a void one."""

    metric: Metric
    names: tuple[str, ...]
    reference: Floats
    candidate: Floats
    again: Floats
    """Of `reference_again`: against `reference` it shows what no difference looks like here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """All rounds of one suite, of one candidate."""

    rounds: Mapping[str, Rounds]
    """Metric -> rounds."""
    void: Mapping[str, tuple[str, ...]]
    """Variant -> why blocks of it did not count, one line a block."""
    capacity: Mapping[str, Capacity]
    """Variant -> what it holds."""
    emulated: str = ""
    """Why the engine's speed is no evidence; empty: it is. Its capacity counts all the same."""
    names: tuple[str, ...] = ()
    """The planned rounds, in the order in which they were run."""
    told: Mapping[str, Mapping[str, Floats]] = field(default_factory=dict[str, Mapping[str, Floats]])
    """Variant -> score -> [rounds], also of scores that are no metrics; NaN: missing, void, or not told."""
    missing: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict[str, NDArray[np.bool_]])
    """Variant -> [rounds]: no block, or one that does not count."""


def load_of(
    suite: SuitePlan,
    candidate: str,
    records: Mapping[str, Sequence[Record]],
    proofs: Mapping[str, Preflight | None],
) -> Load:
    """The rounds of one candidate; `records` and `proofs` by variant, for the reference, the candidate and the second run.

    A block that was void in one half is missing in both, for it says nothing about either; of the second run's halves the
    same. A round is a sample, or one epoch of it.
    """
    arms = (REFERENCE, candidate, AGAIN)
    filed = {arm: {_name(record, suite): record for record in records.get(arm, ())} for arm in arms}
    names = _in_order(suite, filed)
    scored = {arm: [_scored(filed[arm].get(name)) for name in names] for arm in arms}
    told = {arm: _told([_seen(filed[arm].get(name)) for name in names]) for arm in arms}
    return Load(
        rounds={metric.name: _rounds(metric, names, told, (candidate, AGAIN)) for metric in suite.metrics},
        void={arm: tuple(line for name in names if (line := _void(name, filed[arm].get(name)))) for arm in arms},
        capacity={arm: proof.capacity for arm in arms if (proof := proofs.get(arm)) is not None},
        emulated=emulated(proofs.values()),
        names=names,
        told=told,
        missing={arm: np.array([one is None for one in scored[arm]], np.bool_) for arm in arms},
    )


def emulated(proofs: Iterable[Preflight | None]) -> str:
    """Why the speed of these engines is no evidence, in the first one's words; empty: it is."""
    flags = (proof.fingerprint.flags.get(EMULATED) for proof in proofs if proof is not None)
    return next((str(flag) for flag in flags if flag), "")


def _name(record: Record, suite: SuitePlan) -> str:
    return f"{record.sample}/{record.epoch}" if suite.epochs > 1 else record.sample


def _in_order(suite: SuitePlan, filed: Mapping[str, Mapping[str, Record]]) -> tuple[str, ...]:
    """By when the reference's block began; rounds without one by another's, and those never run last, as planned."""
    epochs = [f"/{epoch}" for epoch in range(suite.epochs)] if suite.epochs > 1 else [""]
    planned = [f"{sample}{epoch}" for epoch in epochs for sample in suite.samples]

    def began(name: str) -> tuple[bool, str]:
        found = next((rows[name].provenance.started for rows in filed.values() if name in rows), "")
        return not found, found

    return tuple(sorted(planned, key=began))


def _scored(record: Record | None) -> Mapping[str, float] | None:
    return record.scores if record is not None and record.state is State.SCORED else None


def _seen(record: Record | None) -> Mapping[str, float] | None:
    """Also of a block in which the engine failed: its requests missed the limits of time, and must not drop out of that count."""
    return record.scores if record is not None and record.state in (State.SCORED, State.INFRA) else None


def _told(rows: Sequence[Mapping[str, float] | None]) -> dict[str, Floats]:
    scores = sorted({score for row in rows if row is not None for score in row})
    return {
        score: np.array([math.nan if row is None else row.get(score, math.nan) for row in rows]) for score in scores
    }


def _rounds(
    metric: Metric, names: tuple[str, ...], told: Mapping[str, Mapping[str, Floats]], others: tuple[str, str]
) -> Rounds:
    nothing = np.full(len(names), math.nan)
    reference, candidate, again = (told[arm].get(metric.score, nothing) for arm in (REFERENCE, *others))
    return Rounds(
        metric=metric,
        names=names,
        reference=reference,
        candidate=np.where(np.isnan(reference), math.nan, candidate),
        again=np.where(np.isnan(reference), math.nan, again),
    )


def _void(name: str, record: Record | None) -> str:
    """One line on a block that was run and does not count; empty: it counts, or there is none."""
    if record is None or record.state is State.SCORED:
        return ""
    kind = "void" if record.state is State.UNSCORED else record.state.value
    why = " ".join(record.trajectory.error.split()) or "no reason told"
    return f"{name}: {kind}: {why[:LINE]}"
