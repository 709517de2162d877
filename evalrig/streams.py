"""From stored token lists to estimates, attempt by attempt: what `analysis` needs of a run, and where in the run it came from.

Memory grows with the number of attempts, not with that of tokens.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.aligned import TopK
from evalrig.analysis.kl_map import GroupRow, group_rows
from evalrig.analysis.kl_stream import Chunk, StreamResult, gather
from evalrig.analysis.monte_carlo import Drawn
from evalrig.analysis.responses import Responses, Spoken, responses
from evalrig.analysis.token_classes import NAMES, TokenClass, classify
from evalrig.types import NO_ANSWER, Sample, Trace

Columns = Mapping[str, NDArray[Any]]

FIXED = "fixed"
"""Tag of a sample whose tokens nobody drew: a text that was given."""

UNTAGGED = "no source named"

ROWS = 10_000
"""Positions measured together."""

ROUNDING = 1e-3
RAW_MODES = ("", "raw_logprobs")


class Both(Protocol):
    """One attempt as two arms scored it; see `evidence.Joined`."""

    @property
    def sample(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def cluster(self) -> str: ...
    @property
    def reference(self) -> Columns: ...
    @property
    def candidate(self) -> Columns: ...


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


def streamed(joined: Iterable[Both], samples: Mapping[str, Sample], texts: Texts, alpha: float) -> Streamed | None:
    """All estimates of one arm, in one pass; None without a readable position."""
    clusters = sorted({sample.cluster or sample.id for sample in samples.values()})
    reader = _Reader(clusters, texts)
    sums = gather(reader.chunks(joined), max(1, len(clusters)), len(NAMES))
    if not sums.readable:
        return None
    return Streamed(
        result=sums.result(NAMES, alpha),
        sources=_by_source(sums.by_prompt(), samples, reader.number, alpha),
        places=tuple(reader.places),
        clusters=tuple(clusters),
        told=reader.told,
    )


def source(sample: Sample) -> str:
    """What a sample was taken from."""
    return next((tag for tag in sample.tags if tag != FIXED), UNTAGGED)


def _by_source(
    by_prompt: tuple[NDArray[np.float64], NDArray[np.float64]],
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
    for at, name in of.items():
        sums[at, names.index(name)], sizes[at, names.index(name)] = by_prompt[0][at], by_prompt[1][at]
    return group_rows(sums, sizes, names, alpha)


class _Reader:
    """Puts attempts together to chunks, and keeps where each began."""

    def __init__(self, clusters: Sequence[str], texts: Texts) -> None:
        self.number = {name: at for at, name in enumerate(clusters)}
        self.texts = texts
        self.places: list[Place] = []
        self.told = self._rows = 0

    def chunks(self, joined: Iterable[Both]) -> Iterator[Chunk]:
        """Chunks of about `ROWS` positions; lists of another length begin a new one."""
        held: list[Chunk] = []
        for both in joined:
            chunk = self._chunk(both)
            if held and (_widths(held[0]) != _widths(chunk) or sum(len(one.position) for one in held) >= ROWS):
                yield _together(held)
                held = []
            held.append(chunk)
        if held:
            yield _together(held)

    def _chunk(self, both: Both) -> Chunk:
        n = len(both.reference["logprob"])
        self.places.append(Place(row=self._rows, sample=both.sample, epoch=both.epoch))
        self._rows += n
        classes = self.texts.classes(both.sample, both.epoch)
        self.told += len(classes) == n > 0
        reference, candidate = _lists(both.reference), _lists(both.candidate)
        return Chunk(
            reference=reference,
            candidate=candidate,
            prompt=np.full(n, self.number[both.cluster]),
            position=np.arange(1, n + 1),
            token_class=classes.astype(np.int64) if len(classes) == n else np.full(n, -1),
            reference_logprob=_given(both.reference),
            candidate_logprob=_given(both.candidate),
        )


def _lists(side: Columns) -> TopK:
    """Rows that name a token twice, or no token, or with what is no logprob: counted as broken, not refused as a whole."""
    ids, logprobs = side["top_ids"], side["top_logprobs"]
    ordered = np.sort(ids, axis=1)
    broken = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1) | (ordered < 0).any(axis=1)
    broken |= (logprobs > ROUNDING).any(axis=1)
    if broken.any():
        ids = np.where(broken[:, None], np.arange(ids.shape[1], dtype=ids.dtype), ids)
        logprobs = np.where(broken[:, None], np.float32(np.nan), logprobs)
    return TopK(ids=ids, logprobs=logprobs)


def _given(side: Columns) -> NDArray[np.floating[Any]]:
    return np.where(side["logprob"] <= ROUNDING, side["logprob"], np.float32(np.nan))


def _widths(chunk: Chunk) -> tuple[int, int]:
    return chunk.reference.width, chunk.candidate.width


def _together(chunks: Sequence[Chunk]) -> Chunk:
    def side(lists: Sequence[TopK]) -> TopK:
        return TopK(
            ids=np.concatenate([one.ids for one in lists]), logprobs=np.concatenate([one.logprobs for one in lists])
        )

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(one, name) for one in chunks])

    return Chunk(
        reference=side([one.reference for one in chunks]),
        candidate=side([one.candidate for one in chunks]),
        prompt=column("prompt"),
        position=column("position"),
        token_class=column("token_class"),
        reference_logprob=column("reference_logprob"),
        candidate_logprob=column("candidate_logprob"),
    )


def spoken(joined: Iterable[Both], samples: Mapping[str, Sample], texts: Texts, modes: Sequence[str]) -> Responses:
    """The drawn responses of one arm. `modes`: what both engines say their log-probabilities are, "" where they do not.

    Suites draw traces at temperature 1 from the whole distribution (`suite.py`). A stream without an end was not drawn.
    """
    raw = all(mode in RAW_MODES for mode in modes)
    found = (_spoken(both, samples[both.sample], texts) for both in joined)
    return responses(found, Drawn(temperature=1.0, truncated=False, raw=raw))


def _spoken(both: Both, sample: Sample, texts: Texts) -> Spoken | None:
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
    )


def _calls(classes: NDArray[np.int8]) -> list[tuple[int, int]]:
    """Begin and end of each run of tool-call tokens; calls that touch are one step."""
    inside = np.concatenate([[False], np.isin(classes, (TokenClass.STRUCTURE, TokenClass.ARGUMENT)), [False]])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
