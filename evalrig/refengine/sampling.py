"""Choosing the next token. A draw depends on the logits, the seed, the branch and the position, never on the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalrig.refengine.arrays import F32, F64, I64
from evalrig.refengine.logprobs import best


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Of tokens that the answer already holds (not the prompt), on the logits; the defaults do nothing."""

    presence: float = 0.0
    """Taken off once."""
    frequency: float = 0.0
    """Taken off for every time it stands there."""
    repetition: float = 1.0
    """Divides a positive logit and multiplies a negative one, after the other two."""


NO_PENALTIES = Penalties()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """0: always the most likely token (the lowest id among equals)."""
    top_p: float = 1.0
    """Draw from the fewest most likely tokens whose probability reaches this, after temperature and top_k."""
    top_k: int = 0
    """Draw from this many most likely tokens; 0: from all."""
    min_p: float = 0.0
    """Draw from tokens at least this likely relative to the most likely one."""
    penalties: Penalties = NO_PENALTIES
    seed: int = 0
    """0 .. 2**64 - 1"""
    branch: int = 0
    """Which of several answers to one prompt; each has its own draws."""


def draw(row: F32, sampling: Sampling, position: int, answer: Sequence[int] = ()) -> int:
    """The token at `position`, from one row of logits [vocabulary]; `answer`: the tokens drawn before it."""
    if answer and sampling.penalties != NO_PENALTIES:
        row = _penalised(row, sampling.penalties, answer)
    if sampling.temperature == 0 or sampling.top_k == 1:
        return int(row.argmax())
    candidates = _candidates(row, sampling)
    logits = row if candidates is None else row[candidates]
    # float32 exponentials are as exact as the logits; the running sum is float64, or the tail would never be drawn.
    weights = np.exp((logits - row.max()) / np.float32(sampling.temperature))
    running = np.cumsum(weights, dtype=np.float64)
    if candidates is not None and sampling.top_p < 1:
        running = _nucleus(running, sampling.top_p)
    if candidates is not None and sampling.min_p > 0:
        running = running[: int(np.count_nonzero(weights >= sampling.min_p * weights[0]))]
    point = _uniform(sampling, position) * running[-1]
    index = min(int(np.searchsorted(running, point, side="right")), len(running) - 1)
    return index if candidates is None else int(candidates[index])


def _penalised(row: F32, penalties: Penalties, answer: Sequence[int]) -> F32:
    ids, counts = np.unique(np.asarray(answer), return_counts=True)
    lowered = row[ids] - penalties.presence - penalties.frequency * counts
    lowered = np.where(lowered > 0, lowered / penalties.repetition, lowered * penalties.repetition)
    changed = row.copy()
    changed[ids] = lowered
    return changed


def _candidates(row: F32, sampling: Sampling) -> I64 | None:
    """Token ids, best first, when the draw is restricted; None when every token may be drawn."""
    if 0 < sampling.top_k < len(row):
        return best(row, sampling.top_k)
    return best(row, len(row)) if sampling.top_p < 1 or sampling.min_p > 0 else None


def _nucleus(running: F64, top_p: float) -> F64:
    """The running sum up to and including the first token at which it reaches `top_p` of the whole."""
    return running[: int(np.searchsorted(running, top_p * running[-1], side="left")) + 1]


def _uniform(sampling: Sampling, position: int) -> float:
    key = np.array([sampling.seed, sampling.branch], dtype=np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key, counter=position)).random())
