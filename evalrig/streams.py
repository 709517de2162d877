"""One pass over what two arms say of the same tokens: distances for the gates, maps and whole responses for the report.

Kept are sums, and where each attempt began; memory grows with the number of attempts, not with that of tokens.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.clusters import ClusterSums
from evalrig.analysis.kl_map import GroupRow, group_rows
from evalrig.analysis.kl_stream import StreamResult
from evalrig.analysis.monte_carlo import Drawn
from evalrig.analysis.responses import Responses, ResponseSums, Spoken
from evalrig.analysis.token_classes import classify
from evalrig.distance import CALLS, ROUNDING, Joined, measured
from evalrig.gate import Distances
from evalrig.sources import STEP
from evalrig.tokens import Columns
from evalrig.types import NO_ANSWER, Sample, Trace

FIXED = "fixed"
"""Tag of a sample whose tokens nobody drew: a text that was given."""

UNTAGGED = "no source named"

RAW_MODES = ("", "raw_logprobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an attempt's rows begin among all of a stream."""

    row: int
    sample: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """One arm's distances on one suite."""

    result: StreamResult
    sources: tuple[GroupRow, ...]
    """By what the samples are tagged with; empty where all are of one source."""
    places: tuple[Place, ...]
    clusters: tuple[str, ...]
    """Name of each prompt number."""
    told: int
    """Attempts whose tokens have texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that one pass over one arm's tokens on one suite found."""

    distances: Distances | None
    """None: no attempt was scored by both arms."""
    streamed: Streamed | None
    """None: no position could be read."""
    responses: Responses


class Texts:
    """What a suite's traces say of their tokens."""

    def __init__(self, traces: Iterable[Trace]) -> None:
        self._classes: dict[tuple[str, int], NDArray[np.int8]] = {}
        self.traces = {(trace.sample, trace.epoch): trace for trace in traces if trace.finish != NO_ANSWER}

    def pieces(self, sample: str, epoch: int) -> tuple[str, ...]:
        """Texts of the scored tokens; empty: not told."""
        trace = self.traces.get((sample, epoch))
        return trace.pieces if trace and len(trace.pieces) == len(trace.token_ids) else ()

    @cached_property
    def words(self) -> dict[int, str]:
        """Text of every token id that some trace holds."""
        told = (trace for trace in self.traces.values() if len(trace.pieces) == len(trace.token_ids))
        return {i: piece for trace in told for i, piece in zip(trace.token_ids, trace.pieces, strict=True)}

    def classes(self, sample: str, epoch: int) -> NDArray[np.int8]:
        """Class of each scored token; empty: not told."""
        if (found := self._classes.get((sample, epoch))) is None:
            found = self._classes[sample, epoch] = classify(self.pieces(sample, epoch))
        return found


def read(
    joined: Iterable[Joined], samples: Mapping[str, Sample], texts: Texts, modes: Sequence[str], alpha: float
) -> Reading:
    """All estimates of one arm. `modes`: what both engines say their log-probabilities are, "" where they do not.

    Suites draw traces at temperature 1 from the whole distribution (`suite.py`). A stream without an end was not drawn.
    """
    clusters = sorted({sample.cluster or sample.id for sample in samples.values()})
    number = {name: at for at, name in enumerate(clusters)}
    places: list[Place] = []
    spoken, told = ResponseSums(), [0, 0]

    def watched() -> Iterator[Joined]:
        for both in joined:
            n, classes = len(both.reference["token"]), texts.classes(both.sample, both.epoch)
            places.append(Place(row=told[1], sample=both.sample, epoch=both.epoch))
            told[0] += len(classes) == n > 0
            told[1] += n
            spoken.add(_spoken(both, samples[both.sample], texts))
            yield replace(both, step=step(samples[both.sample]))

    found = measured(watched(), number, alpha, lambda both: texts.classes(both.sample, both.epoch))
    raw = all(mode in RAW_MODES for mode in modes)
    streamed = None
    if found is not None and found.found is not None:
        streamed = Streamed(
            result=found.found,
            sources=_by_source(found.by_prompt, samples, number, alpha),
            places=tuple(places),
            clusters=tuple(clusters),
            told=told[0],
        )
    drawn = Drawn(temperature=1.0, truncated=False, raw=raw)
    return Reading(distances=found, streamed=streamed, responses=spoken.result(drawn))


def source(sample: Sample) -> str:
    """What a sample was taken from."""
    return next((tag for tag in sample.tags if tag != FIXED), UNTAGGED)


def step(sample: Sample) -> int:
    """Step of a conversation that a sample is, from 1; 0: it is none, or nobody says which."""
    return next(
        (int(number) for tag in sample.tags if (number := tag.removeprefix(STEP)) != tag and number.isdecimal()), 0
    )


def _by_source(
    by_prompt: ClusterSums,
    samples: Mapping[str, Sample],
    number: Mapping[str, int],
    alpha: float,
) -> tuple[GroupRow, ...]:
    """A cluster with samples of two sources counts to the first by name: it cannot be split."""
    of: dict[int, str] = {}
    for sample in samples.values():
        at = number[sample.cluster or sample.id]
        of[at] = min(of.get(at, source(sample)), source(sample))
    names = sorted(set(of.values()))
    if len(names) < 2:
        return ()
    sums, sizes = (np.zeros((len(number), len(names))) for _ in range(2))
    filled = by_prompt.filled
    for at, name in of.items():
        sums[at, names.index(name)], sizes[at, names.index(name)] = filled[at], by_prompt.sizes[at]
    return group_rows(sums, sizes, names, alpha)


def _spoken(both: Joined, sample: Sample, texts: Texts) -> Spoken | None:
    trace = texts.traces.get((both.sample, both.epoch))
    if trace is None or not trace.finish or FIXED in sample.tags:
        return None
    p, q = (_given(side) for side in (both.reference, both.candidate))
    classes = texts.classes(both.sample, both.epoch)
    return Spoken(
        prompt=both.cluster,
        reference_logprob=p,
        candidate_logprob=q,
        cut=trace.finish == "length",
        calls=_calls(classes) if len(classes) == len(p) else (),
        success=both.success,
        source=source(sample),
    )


def _given(side: Columns) -> NDArray[np.floating[Any]]:
    return np.where(side["logprob"] <= ROUNDING, side["logprob"], np.float32(np.nan))


def _calls(classes: NDArray[np.int8]) -> list[tuple[int, int]]:
    """Begin and end of each run of tool-call tokens; calls that touch are one step."""
    inside = np.concatenate([[False], np.isin(classes, CALLS), [False]])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
