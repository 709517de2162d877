"""From rows of logits to log-probabilities: of the token that followed, of the best K, of the ids asked for."""

from dataclasses import dataclass

import numpy as np

from evalrig.refengine.arrays import F32, I64

_PIECE = 64
"""Logits a piece when looking for the best K: the K-th best of the pieces' maxima bounds the K-th best logit from
below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobWish:
    """What a request wants to know at each position."""

    start: int
    """First prompt position with an entry (its own is always null, as in SGLang); the prompt's length for outputs
    only."""
    top: int = 0
    """How many of the best tokens; 0 for none."""
    ids: tuple[int, ...] | None = None
    """Token ids whose log-probability is wanted at every position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLogprobs:
    """The answer for one position; natural logarithms, untouched by temperature."""

    chosen: float
    """Of the token that stands there (NaN where none does: the position after a prompt that is only scored)."""
    top_ids: I64 | None
    """[K], best first, equal ones by rising id."""
    top_logprobs: F32 | None
    """[K]"""
    wanted: F32 | None
    """[len(wish.ids)], in the order asked for."""


def log_normaliser(row: F32) -> float:
    """log(sum(exp(row))) of one row of logits [vocabulary], summed in float64."""
    highest = row.max()
    return float(highest) + float(np.log(np.exp(row - highest).sum(dtype=np.float64)))


def best(row: F32, count: int) -> I64:
    """The ids of the `count` largest of `row` [vocabulary], largest first, equal ones by rising id: [count]."""
    pieces = len(row) // _PIECE
    if count * 4 > pieces:
        return np.argsort(-row, kind="stable")[:count]
    maxima = row[: pieces * _PIECE].reshape(pieces, _PIECE).max(axis=1)
    threshold = np.partition(maxima, pieces - count)[pieces - count]
    candidates = np.flatnonzero(row >= threshold)
    return candidates[np.argsort(-row[candidates], kind="stable")[:count]]


def row_logprobs(row: F32, wish: LogprobWish, token: int | None) -> RowLogprobs:
    """What `wish` asks about one row of logits [vocabulary], `token` being the one that followed."""
    normaliser = np.float64(log_normaliser(row))
    top = best(row, wish.top) if wish.top else None
    return RowLogprobs(
        chosen=float("nan") if token is None else float(np.float32(row[token] - normaliser)),
        top_ids=top,
        top_logprobs=None if top is None else (row[top] - normaliser).astype(np.float32),
        wanted=None if wish.ids is None else (row[list(wish.ids)] - normaliser).astype(np.float32),
    )
