"""One ragged step: any mixture of prompt chunks and single new tokens, packed into one pass through the decoder."""

from collections.abc import Sequence as Series
from dataclasses import dataclass

import numpy as np

from evalrig.refengine.arrays import F32, I64
from evalrig.refengine.cache import CachedSequence, PagedCache
from evalrig.refengine.model import Layer, Model

EXACT_ROWS = 12
"""In exact mode a matrix product always has a multiple of this many rows, so that the library's kernel takes the same path
for a row whatever else is in the batch. The self-check at start tells whether that is enough with the kernel in use."""
BLOCK = 64
"""Attention runs in blocks cut at multiples of this many positions, and chunks of a prompt end on them: how a prompt is cut
into chunks then cannot change a bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The next tokens of one sequence; the first lands at position `sequence.length`."""

    sequence: CachedSequence
    tokens: Series[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """A part of a slice inside one attention block: packed rows start..stop are positions first..end of the sequence."""

    start: int
    stop: int
    sequence: CachedSequence
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A step's index arrays; N packed rows."""

    tokens: I64
    positions: I64
    slots: tuple[I64, I64]
    segments: tuple[_Segment, ...]


class Stepper:
    """Runs steps of one model over one cache. Not thread-safe: one compute thread owns it."""

    def __init__(self, model: Model, cache: PagedCache, *, context: int, exact: bool) -> None:
        """`context` is the longest sequence in tokens; `exact` pads matrix products to EXACT_ROWS rows."""
        shape = model.architecture
        self.pad = EXACT_ROWS if exact else 1
        self._model, self._cache = model, cache
        self._epsilon = np.float32(shape.norm_epsilon)
        self._scale = np.float32(shape.head_dim**-0.5)
        angles = np.arange(context)[:, None] / shape.rope_base ** (np.arange(0, shape.head_dim, 2) / shape.head_dim)
        self._cos: F32 = np.concatenate([np.cos(angles)] * 2, axis=1).astype(np.float32)[:, None]
        self._sin: F32 = np.concatenate([-np.sin(angles), np.sin(angles)], axis=1).astype(np.float32)[:, None]
        self._future: F32 = np.triu(np.full((BLOCK, BLOCK), -np.inf, np.float32), 1)
        self._logits: F32 = np.empty((0, shape.vocabulary), np.float32)

    def run(self, work: Series[Slice]) -> F32:
        """Appends each slice to its sequence; returns the final hidden states, packed in the order of `work`: [N, width].

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
        return -(-rows // self.pad) * self.pad

    def _plan(self, work: Series[Slice]) -> _Plan:
        segments: list[_Segment] = []
        for item in work:
            position, end = item.sequence.length, item.sequence.length + len(item.tokens)
            self._cache.grow(item.sequence, end)
            while position < end:
                start = segments[-1].stop if segments else 0
                stop = min(end, (position // BLOCK + 1) * BLOCK)
                segments.append(
                    _Segment(
                        start=start, stop=start + stop - position, sequence=item.sequence, first=position, end=stop
                    )
                )
                position = stop
        counts = [len(item.tokens) for item in work]
        self._cache.check([item.sequence for item in work], [item.sequence.length + len(item.tokens) for item in work])
        positions = np.concatenate([np.arange(s.first, s.end) for s in segments])
        rows = np.repeat(np.array([item.sequence.row for item in work]), counts)
        return _Plan(
            tokens=np.concatenate([np.asarray(item.tokens, dtype=np.int64) for item in work]),
            positions=positions,
            slots=self._cache.slots(rows, positions),
            segments=tuple(segments),
        )

    def _attend(self, index: int, layer: Layer, hidden: F32, plan: _Plan) -> None:
        shape, rows = self._model.architecture, len(plan.tokens)
        rotated = (shape.heads + shape.kv_heads) * shape.head_dim
        projected = self._normalise(hidden, layer.attention_norm) @ layer.qkv
        both = self._rotate(projected[:rows, :rotated].reshape(rows, -1, shape.head_dim), plan.positions)
        queries = both[:, : shape.heads] * self._scale
        values = projected[:rows, rotated:].reshape(rows, shape.kv_heads, shape.head_dim)
        self._cache.write(index, plan.slots, both[:, shape.heads :], values)
        mixed = np.zeros((len(hidden), layer.output.shape[0]), np.float32)
        for segment in plan.segments:
            mixed[segment.start : segment.stop] = self._attend_segment(index, queries, segment)
        hidden += mixed @ layer.output

    def _attend_segment(self, index: int, queries: F32, segment: _Segment) -> F32:
        shape, rows = self._model.architecture, segment.stop - segment.start
        keys, values = self._cache.read(index, segment.sequence, segment.end)
        group = shape.heads // shape.kv_heads
        mine = queries[segment.start : segment.stop].reshape(rows, shape.kv_heads, group, shape.head_dim)
        weights = mine.transpose(1, 2, 0, 3).reshape(shape.kv_heads, group * rows, shape.head_dim) @ keys
        if rows > 1:
            weights.reshape(shape.kv_heads, group, rows, segment.end)[..., segment.first :] += self._future[
                :rows, :rows
            ]
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = (weights @ values).reshape(shape.kv_heads, group, rows, shape.head_dim)
        return mixed.transpose(2, 0, 1, 3).reshape(rows, -1)

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


def chunk_length(left: int, done: int, end: int) -> int:
    """Tokens of a prompt of `end` tokens, `done` of them cached, that go into a step with room for `left`.

    All the rest, or as many as end on a multiple of BLOCK; 0 when not even one block ends in the room left.
    """
    length = min(left, end - done)
    if done + length == end:
        return length
    return max(0, (done + length) // BLOCK * BLOCK - done)
