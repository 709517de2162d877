"""What a pass over many positions adds up, and the estimates made of the sums. Driven by `kl_stream`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from evalrig.analysis import call_steps
from evalrig.analysis.arrays import BoolArray, FloatArray, IntArray
from evalrig.analysis.clusters import ClusterSums, sums_t
from evalrig.analysis.growth import Growth, LineSums, OctaveRatio, growth, line_points, ratio_of_octaves
from evalrig.analysis.histogram import LogHistogram
from evalrig.analysis.kl_map import QUARTILES, GroupRow, group_rows, quartile_names
from evalrig.analysis.kl_summary import (
    LEVELS,
    TAIL_PROMPTS,
    KlSummary,
    KlTail,
    OctaveRow,
    Quantile,
    octave_of,
    octave_span,
)

MEASURES = (
    "kl_low",
    "reverse_low",
    "tv_low",
    "tv_high",
    "js_low",
    "js_high",
    "tail_reference",
    "tail_candidate",
    "top1_same",
    "entropy_low",
    "delta_p",
    "delta_p_square",
)
"""Of each position; see `topk_bounds`. The last two, of the given token, only where its logprobs came with the chunk."""

FROM_LISTS = 10
"""So many of `MEASURES` every chunk has."""

WORST = 10

OCTAVES = 41

ENTROPIES = np.concatenate([[0.0], np.geomspace(1e-3, 12.0, 127)])
"""Lower edges of the groups that quartiles are made of, nats: each 8 % above the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRow:
    """A mean over tokens with its one-sided limits over prompts (CR1-t)."""

    name: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstToken:
    """A token far out, and where it stands."""

    kl: float
    prompt: int
    position: int
    row: int
    """Place among all positions given, from 0, the broken ones counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstPrompt:
    """A prompt with a high mean."""

    prompt: int
    mean: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPosition:
    """How the distance changes along the context."""

    octaves: tuple[OctaveRow, ...]
    growth: Growth | None
    ratio: OctaveRatio | None
    calls: tuple[GroupRow, ...]
    """Tokens of tool calls by the step of the conversation at which they stand, each against the calls of other steps; empty
    where no step is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """All that one pass over the positions yields."""

    summary: KlSummary
    quantiles: tuple[Quantile, ...]
    means: tuple[MeanRow, ...]
    """Of the measures that some chunk had, in the order of `MEASURES`."""
    by_position: ByPosition
    classes: tuple[GroupRow, ...]
    entropies: tuple[GroupRow, ...]
    """By quartile of the reference's entropy, a lower bound from top-K lists; the quartiles are near equal only."""
    worst_tokens: tuple[WorstToken, ...]
    worst_prompts: tuple[WorstPrompt, ...]
    broken: int
    """Positions left out because a number was NaN or +inf, or a list had no finite entry."""


class _Cells:
    """Sums, counts, and counts of infinite values, by prompt and some column."""

    def __init__(self, prompts: int, columns: int) -> None:
        self.columns = columns
        self.sums = np.zeros((prompts, columns))
        self.sizes = np.zeros((prompts, columns))
        self.infinite = np.zeros((prompts, columns), dtype=np.int32)

    def add(self, prompt: IntArray, column: IntArray | int, values: FloatArray, infinite: BoolArray | None) -> None:
        code = prompt * self.columns + column
        start = int(code.min())
        code = code - start
        if infinite is not None:
            values = np.where(infinite, 0.0, values)
            _fold(self.infinite, start, np.bincount(code, weights=infinite).astype(np.int32))
        _fold(self.sums, start, np.bincount(code, weights=values))
        _fold(self.sizes, start, np.bincount(code))

    def filled(self, largest: float) -> FloatArray:
        """Sums with each infinite value set to `largest`."""
        return self.sums + self.infinite * largest


def _fold(into: np.ndarray, start: int, part: np.ndarray) -> None:
    into.reshape(-1)[start : start + len(part)] += part.astype(into.dtype)


class StreamSums:
    """The running sums of one pass."""

    def __init__(self, prompts: int, classes: int) -> None:
        if prompts < 1:
            raise ValueError(f"`prompts`: {prompts!r}; at least one")
        self._means = [_Cells(prompts, 1) for _ in MEASURES]
        self._octaves = _Cells(prompts, OCTAVES)
        self._classes = _Cells(prompts, classes + 1)
        self._calls = _Cells(prompts, len(call_steps.NAMES))
        self._entropies = _Cells(prompts, len(ENTROPIES))
        self._line = [_Cells(prompts, 1) for _ in range(6)]
        self._largest_of = np.full(prompts, -np.inf)
        self._finite_largest = np.zeros(len(MEASURES))
        self._histogram = LogHistogram()
        self._minimum = math.inf
        self._worst: list[WorstToken] = []
        self._rows = self._readable = 0

    def add(
        self,
        values: FloatArray,
        prompt: IntArray,
        position: FloatArray,
        token_class: IntArray,
        call_step: IntArray,
    ) -> None:
        """Add positions: values [measures, n], all or the first `FROM_LISTS`, and the labels of each."""
        kl = values[0]
        if not kl.size:
            return
        for at, (cells, row) in enumerate(zip(self._means, values, strict=False)):
            infinite = np.isposinf(row)
            any_infinite = bool(infinite.any())
            cells.add(prompt, 0, row, infinite if any_infinite else None)
            finite = row[~infinite] if any_infinite else row
            if finite.size:
                self._finite_largest[at] = max(self._finite_largest[at], float(np.abs(finite).max()))
        infinite = np.isposinf(kl) if math.isinf(float(kl.max())) else None
        self._octaves.add(prompt, octave_of(position), kl, infinite)
        self._classes.add(prompt, np.where(token_class < 0, self._classes.columns - 1, token_class), kl, infinite)
        if (called := call_step > 0).any():
            some = None if infinite is None else infinite[called]
            self._calls.add(prompt[called], call_steps.group_of(call_step[called]), kl[called], some)
        entropy = np.searchsorted(ENTROPIES, np.maximum(values[9], 0.0), side="right") - 1
        self._entropies.add(prompt, entropy, kl, infinite)
        self._add_line(kl, position, prompt, infinite)
        np.maximum.at(self._largest_of, prompt, kl)
        self._histogram.add(kl)
        self._minimum = min(self._minimum, float(kl.min()))

    def _add_line(self, kl: FloatArray, position: FloatArray, prompt: IntArray, infinite: BoolArray | None) -> None:
        """The last two columns are what infinite values add once it is known what they count as."""
        gone = np.zeros(kl.shape) if infinite is None else infinite.astype(np.float64)
        x, y = line_points(kl if infinite is None else np.where(infinite, 0.0, kl), position)
        for cells, part in zip(self._line, (x, y, x * x, x * y, gone, gone * x), strict=True):
            cells.add(prompt, 0, part, None)

    def keep_worst(self, kl: FloatArray, prompt: IntArray, position: FloatArray, row: IntArray) -> None:
        """Keep the ten largest of all positions so far; `row` counts within what is being added. Call before `count`."""
        far = np.arange(kl.size) if kl.size <= WORST else _largest(kl)
        found = [
            WorstToken(kl=float(kl[i]), prompt=int(prompt[i]), position=int(position[i]), row=self._rows + int(row[i]))
            for i in far
        ]
        self._worst = sorted([*self._worst, *found], key=lambda token: (-token.kl, token.row))[:WORST]

    def count(self, rows: int, readable: int) -> None:
        """Count the positions just added, and how many of them could be read."""
        self._rows += rows
        self._readable += readable

    @property
    def rows(self) -> int:
        """Positions given."""
        return self._rows

    @property
    def broken(self) -> int:
        """Positions given that could not be read."""
        return self._rows - self._readable

    def result(self, names: Sequence[str], alpha: float) -> StreamResult:
        """The estimates. Raises ValueError without a readable position."""
        if not self._readable:
            raise ValueError("`chunks`: no readable position; the distance of nothing is not 0")
        largest = float(self._finite_largest[0])
        edges = self._entropy_edges()
        return StreamResult(
            summary=self._summary(alpha),
            quantiles=tuple(self._quantile(level) for level in LEVELS),
            means=tuple(self._mean(at, alpha) for at, cells in enumerate(self._means) if cells.sizes.any()),
            by_position=ByPosition(
                octaves=tuple(self._octave_rows(largest, alpha)),
                growth=growth(self._line_sums(largest), alpha),
                ratio=self._octave_ratio(alpha),
                calls=group_rows(self._calls.filled(largest), self._calls.sizes, call_steps.NAMES, alpha),
            ),
            classes=group_rows(self._classes.filled(largest), self._classes.sizes, names, alpha),
            entropies=self._quartiles(edges, largest, alpha),
            worst_tokens=tuple(self._worst),
            worst_prompts=self._worst_prompts(),
            broken=self.broken,
        )

    def by_prompt(self) -> ClusterSums:
        """KL by prompt, in the numbers of the chunks: for tests against another arm, prompt by prompt."""
        cells = self._means[0]
        sums, sizes, infinite = (table[:, 0].astype(np.float64) for table in (cells.sums, cells.sizes, cells.infinite))
        return ClusterSums(sums=sums, sizes=sizes, infinite=infinite, largest=float(self._finite_largest[0]))

    def _mean(self, at: int, alpha: float) -> MeanRow:
        cells, owns = self._means[at], self._means[at].sizes[:, 0] > 0
        largest = float(self._finite_largest[at])
        t = sums_t(cells.filled(largest)[owns, 0], cells.sizes[owns, 0], largest, alpha)
        if cells.infinite.any():
            return MeanRow(name=MEASURES[at], mean=math.inf, low=t.low, high=math.inf)
        return MeanRow(name=MEASURES[at], mean=t.estimate, low=t.low, high=t.high)

    def _summary(self, alpha: float) -> KlSummary:
        mean, p99, p999 = self._mean(0, alpha), self._quantile(0.99), self._quantile(0.999)
        return KlSummary(
            tokens=self._readable,
            prompts=int((self._means[0].sizes > 0).sum()),
            mean=mean.mean,
            low=mean.low,
            high=mean.high,
            median=self._histogram.quantile(0.5),
            minimum=self._minimum,
            infinite=int(self._means[0].infinite.sum()),
            tail=KlTail(
                p99=p99.value,
                p99_resolved=p99.owners >= TAIL_PROMPTS,
                p999=p999.value,
                p999_resolved=p999.owners >= TAIL_PROMPTS,
                maximum=self._histogram.largest,
                winsorised_mean=self._histogram.winsorised_mean(0.999),
                top_share=self._histogram.top_share(0.001),
            ),
        )

    def _quantile(self, level: float) -> Quantile:
        value = self._histogram.quantile(level)
        return Quantile(level=level, value=value, owners=int((self._largest_of >= value).sum()))

    def _octave_rows(self, largest: float, alpha: float) -> list[OctaveRow]:
        rows: list[OctaveRow] = []
        filled, sizes = self._octaves.filled(largest), self._octaves.sizes
        for power in np.flatnonzero(sizes.sum(axis=0)):
            owns = sizes[:, power] > 0
            t = sums_t(filled[owns, power], sizes[owns, power], largest, alpha)
            infinite = bool(self._octaves.infinite[:, power].any())
            start, stop = octave_span(int(power))
            rows.append(
                OctaveRow(
                    start=start,
                    stop=stop,
                    tokens=int(sizes[:, power].sum()),
                    mean=math.inf if infinite else t.estimate,
                    low=t.low,
                    high=math.inf if infinite else t.high,
                )
            )
        return rows

    def _octave_ratio(self, alpha: float) -> OctaveRatio | None:
        if self._octaves.infinite.any():
            return None
        return ratio_of_octaves(self._octaves.sums, self._octaves.sizes, alpha)

    def _line_sums(self, largest: float) -> LineSums:
        x, y, xx, xy, gone, gone_x = (cells.sums[:, 0] for cells in self._line)
        at_most = float(line_points(np.array([largest]), np.ones(1))[1][0])
        return LineSums(n=self._line[0].sizes[:, 0], x=x, y=y + gone * at_most, xx=xx, xy=xy + gone_x * at_most)

    def _entropy_edges(self) -> list[int]:
        """Columns of `ENTROPIES` at which the next quartile begins: those that part the tokens most evenly."""
        reached = np.cumsum(self._entropies.sizes.sum(axis=0)) / self._readable
        return [int(np.abs(reached - share / QUARTILES).argmin()) + 1 for share in range(1, QUARTILES)]

    def _quartiles(self, edges: list[int], largest: float, alpha: float) -> tuple[GroupRow, ...]:
        starts = [0, *edges, len(ENTROPIES)]
        sums, sizes = self._entropies.filled(largest), self._entropies.sizes
        parts = list(pairwise(starts))
        sums, sizes = (np.stack([table[:, a:b].sum(axis=1) for a, b in parts], axis=1) for table in (sums, sizes))
        limits = [float(ENTROPIES[min(edge, len(ENTROPIES) - 1)]) for edge in edges]
        return group_rows(sums, sizes, quartile_names(limits), alpha)

    def _worst_prompts(self) -> tuple[WorstPrompt, ...]:
        cells = self._means[0]
        with np.errstate(invalid="ignore", divide="ignore"):
            means = cells.sums[:, 0] / cells.sizes[:, 0]
        means = np.where(cells.infinite[:, 0] > 0, np.inf, np.where(cells.sizes[:, 0] > 0, means, -np.inf))
        order = [i for i in np.argsort(-means, kind="stable")[:WORST] if cells.sizes[i, 0]]
        return tuple(WorstPrompt(prompt=int(i), mean=float(means[i]), tokens=int(cells.sizes[i, 0])) for i in order)


def _largest(kl: FloatArray) -> IntArray:
    """Places of the ten largest; of equal ones the first."""
    least = np.partition(kl, -WORST)[-WORST]
    above, equal = np.flatnonzero(kl > least), np.flatnonzero(kl == least)
    return np.concatenate([above, equal[: WORST - len(above)]])
