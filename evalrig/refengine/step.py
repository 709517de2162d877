"""One ragged step: any mixture of prompt chunks and single new tokens, packed into one pass through the decoder."""

from collections.abc import Sequence as Series
from dataclasses import dataclass

import numpy as np

from evalrig.refengine.arrays import F32, I64
from evalrig.refengine.cache import BLOCK, GROUP_TOKENS, CachedSequence, PagedCache
from evalrig.refengine.model import Layer, Model

EXACT_ROWS = 12
"""In exact mode a matrix product always has a multiple of this many rows, so that the library's kernel takes the same
path for a row whatever else is in the batch. The self-check at start tells whether that is enough with the kernel in
use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The next tokens of one sequence; the first lands at position `sequence.length`."""

    sequence: CachedSequence
    tokens: Series[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """A part of a slice inside one attention block: packed rows start..stop are positions first..end of the
    sequence."""

    start: int
    stop: int
    sequence: CachedSequence
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Segments of one row each that end in the same attention block, so that who else decodes cannot change a shape."""

    rows: I64
    """Their packed rows: [n]."""
    sequences: tuple[CachedSequence, ...]
    width: int
    """The end of that block: how many positions are attended."""
    mask: F32
    """[n, 1, 1, width]: -inf where a sequence has no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A step's index arrays; N packed rows."""

    tokens: I64
    positions: I64
    slots: tuple[I64, I64]
    chunks: tuple[_Segment, ...]
    """Segments of more than one row, attended one by one."""
    groups: tuple[_Group, ...]
    """Single rows of sequences about equally long, attended together."""


class Stepper:
    """Runs steps of one model over one cache. Not thread-safe: one compute thread owns it."""

    def __init__(self, model: Model, cache: PagedCache, *, context: int, exact: bool) -> None:
        """`context` is the longest sequence in tokens; `exact` pads matrix products to EXACT_ROWS rows."""
        shape = model.architecture
        self.exact = exact
        self._model, self._cache = model, cache
        self._epsilon = np.float32(shape.norm_epsilon)
        self._scale = np.float32(shape.head_dim**-0.5)
        periods = shape.rope.base ** (np.arange(0, shape.head_dim, 2) / shape.head_dim)
        if shape.rope.divisors:
            periods = periods * np.asarray(shape.rope.divisors)
        angles = np.arange(context)[:, None] / periods
        self._cos: F32 = np.concatenate([np.cos(angles)] * 2, axis=1).astype(np.float32)[:, None]
        self._sin: F32 = np.concatenate([-np.sin(angles), np.sin(angles)], axis=1).astype(np.float32)[:, None]
        self._future: F32 = np.triu(np.full((BLOCK, BLOCK), -np.inf, np.float32), 1)
        self._logits: F32 = np.empty((0, shape.vocabulary), np.float32)

    def run(self, work: Series[Slice]) -> F32:
        """Appends each slice to its sequence; returns the final hidden states, packed in the order of `work`: [N,
        width].

        PageTagError when a page that the step would touch is not the sequence's own; nothing is computed then.
        """
        plan = self._plan(work)
        rows = len(plan.tokens)
        hidden: F32 = np.zeros((self._padded(rows), self._model.architecture.width), np.float32)
        hidden[:rows] = self._model.embedding[:, plan.tokens].T
        for index, layer in enumerate(self._model.layers):
            self._attend(index, layer, hidden, plan)
            self._feed_forward(layer, hidden)
        for item in work:
            item.sequence.length += len(item.tokens)
        return self._normalise(hidden[:rows], self._model.norm)

    def logits(self, hidden: F32) -> F32:
        """Logits [n, vocabulary] of final hidden states [n, width]; valid until the next call."""
        rows = len(hidden)
        padded = np.zeros((self._padded(rows), hidden.shape[1]), np.float32)
        padded[:rows] = hidden
        if len(self._logits) < len(padded):
            self._logits = np.empty((len(padded), self._logits.shape[1]), np.float32)
        return np.matmul(padded, self._model.head, out=self._logits[: len(padded)])[:rows]

    def _padded(self, rows: int) -> int:
        if self.exact:
            return -(-rows // EXACT_ROWS) * EXACT_ROWS
        # A single row runs as a matrix-vector product; two or three cost more than four, which a kernel takes at a
        # time.
        return rows if rows == 1 else -(-rows // 4) * 4

    def _plan(self, work: Series[Slice]) -> _Plan:
        ends = [item.sequence.length + len(item.tokens) for item in work]
        for item, end in zip(work, ends, strict=True):
            self._cache.grow(item.sequence, end)
        sequences = [item.sequence for item in work]
        self._cache.check(sequences, ends)
        segments = _segments(work)
        positions = np.concatenate([np.arange(s.first, s.end) for s in segments])
        rows = np.repeat(np.array([one.row for one in sequences]), [len(item.tokens) for item in work])
        return _Plan(
            tokens=np.concatenate([np.asarray(item.tokens, dtype=np.int64) for item in work]),
            positions=positions,
            slots=self._cache.slots(rows, positions),
            chunks=tuple(s for s in segments if s.stop - s.start > 1),
            groups=_groups([s for s in segments if s.stop - s.start == 1]),
        )

    def _attend(self, index: int, layer: Layer, hidden: F32, plan: _Plan) -> None:
        shape, rows = self._model.architecture, len(plan.tokens)
        rotated = (shape.heads + shape.kv_heads) * shape.head_dim
        projected = self._normalise(hidden, layer.attention_norm) @ layer.qkv
        if layer.qkv_bias is not None:
            projected += layer.qkv_bias
        both = projected[:rows, :rotated].reshape(rows, -1, shape.head_dim)
        if layer.head_norms is not None:
            both = self._normalise(both, layer.head_norms)
        both = self._rotate(both, plan.positions)
        queries = both[:, : shape.heads] * self._scale
        values = projected[:rows, rotated:].reshape(rows, shape.kv_heads, shape.head_dim)
        self._cache.write(index, plan.slots, both[:, shape.heads :], values)
        mixed = np.zeros((len(hidden), layer.output.shape[0]), np.float32)
        for segment in plan.chunks:
            mixed[segment.start : segment.stop] = self._attend_chunk(index, queries, segment)
        for group in plan.groups:
            mixed[group.rows] = self._attend_group(index, queries, group)
        hidden += mixed @ layer.output

    def _attend_chunk(self, index: int, queries: F32, segment: _Segment) -> F32:
        shape, rows = self._model.architecture, segment.stop - segment.start
        keys, values = self._cache.read(index, segment.sequence, segment.end)
        group = shape.heads // shape.kv_heads
        mine = queries[segment.start : segment.stop].reshape(rows, shape.kv_heads, group, shape.head_dim)
        weights = mine.transpose(1, 2, 0, 3).reshape(shape.kv_heads, group * rows, shape.head_dim) @ keys
        weights.reshape(shape.kv_heads, group, rows, segment.end)[..., segment.first :] += self._future[:rows, :rows]
        _softmax(weights)
        mixed: F32 = np.matmul(weights, values).reshape(shape.kv_heads, group, rows, shape.head_dim)
        return mixed.transpose(2, 0, 1, 3).reshape(rows, -1)

    def _attend_group(self, index: int, queries: F32, group: _Group) -> F32:
        shape, rows = self._model.architecture, len(group.rows)
        keys, values = self._cache.read_group(index, group.sequences, group.width)
        weights = queries[group.rows].reshape(rows, shape.kv_heads, -1, shape.head_dim) @ keys
        weights += group.mask
        _softmax(weights)
        mixed: F32 = np.matmul(weights, values).reshape(rows, -1)
        return mixed

    def _feed_forward(self, layer: Layer, hidden: F32) -> None:
        both = self._normalise(hidden, layer.mlp_norm) @ layer.gate_up
        middle = both.shape[1] // 2
        gate, up = both[:, :middle], both[:, middle:]
        activated = np.exp(-gate)
        activated += 1
        np.divide(gate, activated, out=activated)
        activated *= up
        hidden += activated @ layer.down

    def _normalise(self, rows: F32, weight: F32) -> F32:
        mean = np.mean(rows * rows, axis=-1, keepdims=True)
        return rows * (1 / np.sqrt(mean + self._epsilon)) * weight

    def _rotate(self, heads: F32, positions: I64) -> F32:
        half = heads.shape[-1] // 2
        swapped = np.concatenate([heads[..., half:], heads[..., :half]], axis=-1)
        swapped *= self._sin[positions]
        turned = heads * self._cos[positions]
        turned += swapped
        return turned


def _softmax(weights: F32) -> None:
    """In place, over the last axis."""
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)


def _segments(work: Series[Slice]) -> list[_Segment]:
    """The slices cut at multiples of BLOCK positions, in packed order."""
    segments: list[_Segment] = []
    for item in work:
        first, end = item.sequence.length, item.sequence.length + len(item.tokens)
        while first < end:
            start, cut = (segments[-1].stop if segments else 0), min(end, _block_end(first))
            stop = start + cut - first
            segments.append(_Segment(start=start, stop=stop, sequence=item.sequence, first=first, end=cut))
            first = cut
    return segments


def _groups(singles: Series[_Segment]) -> tuple[_Group, ...]:
    """Single rows grouped by the attention block they end in, no group larger than the cache gathers at a time."""
    by_width: dict[int, list[_Segment]] = {}
    for segment in singles:
        by_width.setdefault(_block_end(segment.first), []).append(segment)
    groups: list[_Group] = []
    for width, members in by_width.items():
        most = max(1, GROUP_TOKENS // width)
        groups.extend(_group(members[begin : begin + most], width) for begin in range(0, len(members), most))
    return tuple(groups)


def _group(members: Series[_Segment], width: int) -> _Group:
    ends = np.array([segment.end for segment in members])
    missing = np.arange(width) >= ends[:, None]
    return _Group(
        rows=np.array([segment.start for segment in members]),
        sequences=tuple(segment.sequence for segment in members),
        width=width,
        mask=np.where(missing, np.float32(-np.inf), np.float32(0))[:, None, None],
    )


def _block_end(position: int) -> int:
    return (position // BLOCK + 1) * BLOCK


def chunk_length(left: int, done: int, end: int) -> int:
    """Tokens of a prompt of `end` tokens, `done` of them cached, that go into a step with room for `left`.

    All the rest, or as many as end on a multiple of BLOCK; 0 when not even one block ends in the room left.
    """
    length = min(left, end - done)
    if done + length == end:
        return length
    return max(0, (done + length) // BLOCK * BLOCK - done)
