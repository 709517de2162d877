"""Flips: the samples that one arm answers rightly and the other does not, with what both arms said."""

from collections.abc import Mapping, Sequence

import numpy as np

from evalrig.evidence import Gathered
from evalrig.gate import Pairs
from evalrig.plan import SuitePlan
from evalrig.report.shown import Flip, FlipGroup, Said, Side
from evalrig.report.words import count, cut, minus
from evalrig.types import AGAIN, REFERENCE, Completion, Metric, Record, Sample, State

MOST = 20
"""Flips shown for each candidate and metric; all are counted."""
LONGEST = 2000
"""Letters shown of one text."""


def flips(gathered: Gathered) -> tuple[FlipGroup, ...]:
    """Every candidate on every right-or-wrong metric."""
    return tuple(
        _group(gathered, suite, metric, candidate)
        for suite in gathered.plan.suites
        for metric in suite.metrics
        if metric.kind == "binary"
        for candidate in gathered.plan.candidates
    )


def _group(gathered: Gathered, suite: SuitePlan, metric: Metric, candidate: str) -> FlipGroup:
    pairs = gathered.pairs(suite, metric, candidate, suite.samples)
    lost, gained = _changed(pairs)
    arms = {name: _first(gathered.records[name, suite.name]) for name in (REFERENCE, candidate)}
    chosen = [(name, "loss") for name in lost] + [(name, "gain") for name in gained]
    items = [
        _flip(gathered.samples[suite.name][name], direction, {arm: records.get(name) for arm, records in arms.items()})
        for name, direction in chosen[:MOST]
    ]
    hidden = f"; the first {MOST} are shown, losses first" if len(chosen) > MOST else ""
    paired = int((np.isfinite(pairs.reference) & np.isfinite(pairs.candidate)).sum())
    return FlipGroup(
        candidate=candidate,
        suite=suite.name,
        metric=metric.name,
        summary=(
            f"{count(len(chosen), 'flip')} on {count(paired, 'sample')}: "
            f"{count(len(lost), 'loss', 'losses')}, {count(len(gained), 'gain')}{hidden}"
        ),
        noise=_noise(gathered, suite, metric),
        items=tuple(items),
    )


def _changed(pairs: Pairs) -> tuple[list[str], list[str]]:
    """Losses and gains among the samples that both arms scored."""
    difference = pairs.candidate - pairs.reference
    lost = [name for name, d in zip(pairs.samples, difference, strict=True) if d < 0]
    gained = [name for name, d in zip(pairs.samples, difference, strict=True) if d > 0]
    return lost, gained


def _noise(gathered: Gathered, suite: SuitePlan, metric: Metric) -> str:
    pairs = gathered.pairs(suite, metric, AGAIN, suite.again)
    both = int((np.isfinite(pairs.reference) & np.isfinite(pairs.candidate)).sum())
    if not both:
        return "the reference was not measured against itself"
    lost, gained = _changed(pairs)
    return f"the reference against itself: {count(len(lost) + len(gained), 'flip')} on {count(both, 'sample')}"


def _first(records: Sequence[Record]) -> dict[str, Record]:
    """The first epoch of each sample."""
    return {record.sample: record for record in sorted(records, key=lambda record: -record.epoch)}


def _flip(sample: Sample, direction: str, records: Mapping[str, Record | None]) -> Flip:
    prompt = sample.prompt or "\n".join(f"{message.role}: {message.content}" for message in sample.messages)
    return Flip(
        sample=sample.id,
        direction=direction,
        prompt=cut(prompt, LONGEST),
        target=cut(sample.target, LONGEST),
        sides=tuple(_side(arm, record, sample) for arm, record in records.items()),
    )


def _side(arm: str, record: Record | None, sample: Sample) -> Side:
    if record is None:
        return Side(arm=arm, state="no record", said=())
    trajectory = record.trajectory
    said = [_said(turn, trajectory.answer, sample) for turn in trajectory.turns]
    if not any(turn.text == trajectory.answer for turn in trajectory.turns) and trajectory.answer:
        said.append(Said(text=cut(trajectory.answer, LONGEST), logprob="", mark="answer as graded"))
    if trajectory.error:
        said.append(Said(text=cut(trajectory.error, LONGEST), logprob="", mark="error"))
    return Side(arm=arm, state=_state(record), said=tuple(said))


def _state(record: Record) -> str:
    """What became of an attempt that is more than its scores: how its program failed, or why it has none."""
    words = ["" if record.state is State.SCORED else record.state.value, record.trajectory.failure]
    return ", ".join(dict.fromkeys(word.replace("_", " ") for word in words if word))


def _said(turn: Completion, answer: str, sample: Sample) -> Said:
    scored = bool(turn.logprobs) and not turn.finish
    marks = ["chosen" if turn.text == answer else "", "right" if turn.text == sample.target else ""]
    return Said(
        text=cut(turn.text, LONGEST),
        logprob=minus(f"{sum(turn.logprobs):.2f}") if scored else "",
        mark=", ".join(filter(None, marks)) if scored else "",
    )
