"""What happened along the steps of a suite's attempts, in both arms: from records to arrays. Pure; knows no engine.

An attempt is one (sample, epoch). Only attempts that no arm lost are read; what was lost is counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from evalrig.analysis.arrays import BoolArray, FloatArray, IntArray, sums_by
from evalrig.analysis.binary import mcnemar_midp
from evalrig.analysis.hazard import Tally
from evalrig.types import Record, State, Step

Of: TypeAlias = Literal["any", "invalid", "divergence"]
"""What counts as an error: any word of `steps.ERRORS`; a call that is not valid; a step other than the reference's."""
Key: TypeAlias = tuple[str, int]
"""Sample and epoch."""

MODEL = (State.SCORED, State.REFUSED, State.TRUNCATED)
"""Ends that are the model's own: their steps count. All others are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """One arm's steps, all attempts one after the other. Attempts without a step have only a place in `success`."""

    attempt: IntArray
    """[n], attempt of each step, 0 .. attempts - 1."""
    step: IntArray
    """[n], from 1."""
    wrong: IntArray
    """[n], place in `Horizon.words` of what was wrong; -1: nothing."""
    invalid: BoolArray
    """[n]"""
    apart: IntArray
    """[n], against the reference's own step: 1 another, 0 the same, -1 not comparable (after a free run has parted)."""
    success: FloatArray
    """[attempts], the score; NaN: none."""

    def errors(self, of: Of) -> tuple[BoolArray, BoolArray]:
        """Step by step [n]: is it an error, and was it at risk of one?"""
        if of == "divergence":
            return self.apart == 1, self.apart >= 0
        return (self.wrong >= 0 if of == "any" else self.invalid), np.ones(len(self.step), np.bool_)

    def tally(self, of: Of) -> Tally:
        """Errors and steps at risk of each attempt."""
        wrong, at_risk = self.errors(of)
        places = len(self.success)
        errors = sums_by(self.attempt, wrong.astype(np.float64), places)
        return Tally(errors=errors, steps=sums_by(self.attempt, at_risk.astype(np.float64), places))

    def first(self, of: Of) -> tuple[IntArray, BoolArray]:
        """Of each attempt with a step: the step of its first error, or the last at risk, and whether there was an error."""
        wrong, at_risk = self.errors(of)
        places = len(self.success)
        last, met = np.zeros(places, np.int64), np.full(places, np.iinfo(np.int64).max)
        np.maximum.at(last, self.attempt[at_risk], self.step[at_risk])
        np.minimum.at(met, self.attempt[wrong], self.step[wrong])
        some = last > 0
        return np.minimum(met, last)[some], (met <= last)[some]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Attempts that an arm did not bring to an end of the model's own."""

    planned: int
    reference: int
    candidate: int
    both: int

    @property
    def p(self) -> float:
        """p-value of "both arms lose attempts equally often" (McNemar mid-p)."""
        return mcnemar_midp(self.candidate - self.both, self.reference - self.both)

    @property
    def share(self) -> float:
        """Of the planned attempts, the larger of both arms."""
        return max(self.reference, self.candidate) / self.planned if self.planned else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """One suite's steps: a candidate beside the reference, and the reference's second run where it has one."""

    words: tuple[str, ...]
    """All errors that occurred, sorted."""
    cluster: IntArray
    """[attempts]"""
    reference: Walk
    candidate: Walk
    again: Walk
    """The reference's second run, on the same attempts; without steps where it was not made."""
    forced: bool
    """At every step it is known what was due: both arms went the same way, step by step."""
    lost: Lost

    @property
    def attempts(self) -> int:
        """Attempts in both arms."""
        return len(self.cluster)

    def sides(self, of: Of) -> tuple[Tally, Tally, IntArray] | None:
        """Tallies of reference and candidate, and the clusters of their attempts.

        A divergence is held against that of the reference's second run, on the attempts it has; None where there is none.
        """
        if of != "divergence":
            return self.reference.tally(of), self.candidate.tally(of), self.cluster
        ours, theirs = self.again.tally(of), self.candidate.tally(of)
        repeated = (ours.steps > 0) & (theirs.steps > 0)
        if not repeated.any():
            return None
        floor = Tally(errors=ours.errors[repeated], steps=ours.steps[repeated])
        return floor, Tally(errors=theirs.errors[repeated], steps=theirs.steps[repeated]), self.cluster[repeated]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """What is read of one suite: which attempts are owed, their clusters, and the score that tells success."""

    planned: Sequence[Key]
    cluster: Mapping[str, str]
    """By sample."""
    score: str


def horizon(
    owed: Attempts, reference: Iterable[Record], candidate: Iterable[Record], again: Iterable[Record] = ()
) -> Horizon | None:
    """Pair the arms' attempts by sample and epoch; None where no attempt of a pair has a step."""
    ours, theirs, second = (_ended(records) for records in (reference, candidate, again))
    planned = sorted(set(owed.planned))
    both = [key for key in planned if key in ours and key in theirs]
    if not any(ours[key].trajectory.steps or theirs[key].trajectory.steps for key in both):
        return None
    rows = [[arm.get(key) for key in both] for arm in (ours, theirs, second)]
    steps = [step for row in rows for record in row if record for step in record.trajectory.steps]
    words = tuple(sorted({step.error for step in steps} - {""}))
    forced = all(step.due for step in steps)
    number = {word: place for place, word in enumerate(words)} | {"": -1}
    walks = [_walk(row, rows[0], number, forced, owed.score) for row in rows]
    labels = [owed.cluster.get(sample) or sample for sample, _ in both]
    return Horizon(
        words=words,
        cluster=np.unique(np.array(labels), return_inverse=True)[1].astype(np.int64),
        reference=walks[0],
        candidate=walks[1],
        again=walks[2],
        forced=forced,
        lost=Lost(
            planned=len(planned),
            reference=sum(key not in ours for key in planned),
            candidate=sum(key not in theirs for key in planned),
            both=sum(key not in ours and key not in theirs for key in planned),
        ),
    )


def _ended(records: Iterable[Record]) -> dict[Key, Record]:
    return {(record.sample, record.epoch): record for record in records if record.state in MODEL}


def _walk(
    row: Sequence[Record | None], beside: Sequence[Record | None], number: Mapping[str, int], forced: bool, score: str
) -> Walk:
    taken = [record.trajectory.steps if record else () for record in row]
    given = [record.trajectory.steps if record else () for record in beside]
    steps = [step for one in taken for step in one]
    lengths = np.array([len(one) for one in taken], np.int64)
    apart = [mark for one, other in zip(taken, given, strict=True) for mark in _apart(one, other, forced)]
    return Walk(
        attempt=np.repeat(np.arange(len(taken)), lengths),
        step=np.concatenate([np.arange(1, n + 1, dtype=np.int64) for n in lengths] or [np.zeros(0, np.int64)]),
        wrong=np.array([number[step.error] for step in steps], np.int64),
        invalid=np.array([not step.valid for step in steps], np.bool_),
        apart=np.array(apart, np.int64),
        success=np.array([_success(record, score) for record in row], np.float64),
    )


def _apart(steps: Sequence[Step], beside: Sequence[Step], forced: bool) -> list[int]:
    """A free run that has parted once stands elsewhere: what it does from then on cannot be compared."""
    marks: list[int] = []
    parted = False
    for at, step in enumerate(steps):
        comparable = at < len(beside) and not parted
        unlike = comparable and step.said != beside[at].said
        marks.append(int(unlike) if comparable else -1)
        parted = parted or (unlike and not forced)
    return marks


def _success(record: Record | None, score: str) -> float:
    """Refused and truncated attempts score 0, as everywhere."""
    if record is None:
        return np.nan
    return record.scores.get(score, np.nan) if record.state is State.SCORED else 0.0
