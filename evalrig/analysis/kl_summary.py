"""A summary of per-token KL values: mean over tokens with its error over prompts, and how far the tail can be read."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evalrig.analysis.arrays import FloatArray, IntArray, finite, vector, without_nan
from evalrig.analysis.clusters import cluster_index, cluster_t

TAIL_PROMPTS = 30
"""Prompts that must own a token above a quantile, or the quantile is that of a few prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KlTail:
    """Upper quantiles (order statistics, never interpolated) and what the mean owes to them; nats per token."""

    p99: float
    p99_resolved: bool
    """At least 30 prompts own a token at or above the quantile; else print "tail not resolved"."""
    p999: float
    p999_resolved: bool
    maximum: float
    winsorised_mean: float
    """Mean with every value above p99.9 set to p99.9."""
    top_share: float
    """Share of the total in the 0.1 % largest tokens (at least one token)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KlSummary:
    """Nats per token, values kept raw: clamp small negatives in display only."""

    tokens: int
    prompts: int
    mean: float
    low: float
    high: float
    """One-sided limits over prompts (CR1-t); infinite with one prompt. With infinite values `low` is the limit of the
    finite part (infinite values set to the largest finite one), which is below the limit of the whole."""
    median: float
    minimum: float
    """Below `kl.ALARM` it is an alarm."""
    infinite: int
    """Tokens to which the candidate gives probability 0; they stay in the mean."""
    tail: KlTail


@dataclass(frozen=True, slots=True, kw_only=True)
class OctaveRow:
    """KL at positions start..stop (both included, counted from 1)."""

    start: int
    stop: int
    tokens: int
    mean: float
    low: float
    high: float


LEVELS = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Quantiles that are printed; 1 is the largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """An order statistic of KL, nats, and whether it can be read."""

    level: float
    value: float
    owners: int
    """Prompts with a token at or above it."""

    @property
    def resolved(self) -> bool:
        """At least 30 owners; else it is that of a few prompts: print "tail not resolved". Never true of the largest."""
        return self.level < 1.0 and self.owners >= TAIL_PROMPTS


def quantiles(kl: ArrayLike, prompt: ArrayLike, levels: tuple[float, ...] = LEVELS) -> tuple[Quantile, ...]:
    """Quantiles of the values of all tokens [n], each with the prompt it belongs to; NaN and no tokens: ValueError."""
    values = without_nan(kl, "kl")
    if not values.size:
        raise ValueError("`kl`: no tokens; the distance of nothing is not 0")
    index = cluster_index(prompt, values.size)
    largest = np.full(int(index.max()) + 1, -np.inf)
    np.maximum.at(largest, index, values)
    found = [(level, _quantile(values, level)) for level in levels]
    return tuple(Quantile(level=level, value=at, owners=int((largest >= at).sum())) for level, at in found)


def winsorise(values: FloatArray) -> FloatArray:
    """Infinite values set to the largest finite one (0 if there is none): never more than the values given."""
    infinite = np.isposinf(values)
    if not infinite.any():
        return values
    kept = values[~infinite]
    return np.where(infinite, float(kept.max()) if kept.size else 0.0, values)


def summary(kl: ArrayLike, prompt: ArrayLike, alpha: float = 0.05) -> KlSummary:
    """Summarise the values of all tokens [n], each with the prompt it belongs to. NaN and no tokens raise ValueError.

    With very heavy tails (sd of the log near 3) the 90 % interval of the mean covers only about 77 to 85 %: read the
    winsorised mean and `top_share` beside it.
    """
    values = without_nan(kl, "kl")
    if not values.size:
        raise ValueError("`kl`: no tokens; the distance of nothing is not 0")
    index = cluster_index(prompt, values.size)
    mean, low, high = _limits(values, index, alpha)
    return KlSummary(
        tokens=values.size,
        prompts=int(index.max()) + 1,
        mean=mean,
        low=low,
        high=high,
        median=_quantile(values, 0.5),
        minimum=float(values.min()),
        infinite=int(np.isposinf(values).sum()),
        tail=_tail(values, index),
    )


def _tail(values: FloatArray, index: IntArray) -> KlTail:
    p99, p999 = _quantile(values, 0.99), _quantile(values, 0.999)
    top = np.sort(values)[-max(1, math.ceil(0.001 * values.size)) :]
    total = float(values.sum())
    top_share = 1.0 if math.isinf(total) else float(top.sum()) / total if total > 0 else 0.0
    return KlTail(
        p99=p99,
        p99_resolved=_owners(values, index, p99) >= TAIL_PROMPTS,
        p999=p999,
        p999_resolved=_owners(values, index, p999) >= TAIL_PROMPTS,
        maximum=float(values.max()),
        winsorised_mean=float(np.minimum(values, p999).mean()),
        top_share=top_share,
    )


def _owners(values: FloatArray, index: IntArray, quantile: float) -> int:
    return len(np.unique(index[values >= quantile]))


def _quantile(values: FloatArray, level: float) -> float:
    return float(np.quantile(values, level, method="higher"))


def _limits(values: FloatArray, index: IntArray, alpha: float) -> tuple[float, float, float]:
    t = cluster_t(winsorise(values), index, alpha)
    if np.isposinf(values).any():
        return math.inf, t.low, math.inf
    return t.estimate, t.low, t.high


def delta_p(reference_logprob: ArrayLike, candidate_logprob: ArrayLike) -> tuple[float, float]:
    """Mean and root mean square of the change in probability of the observed tokens [n] (fractions, not points)."""
    p = np.exp(_logprobs(reference_logprob, "reference_logprob"))
    q = np.exp(_logprobs(candidate_logprob, "candidate_logprob"))
    if p.shape != q.shape:
        raise ValueError(f"`candidate_logprob`: {q.size} tokens for {p.size} of the reference")
    change = finite(q - p, "change")
    return float(change.mean()), float(np.sqrt(np.mean(change**2)))


def _logprobs(logprobs: ArrayLike, name: str) -> FloatArray:
    """Log-probabilities of single tokens: -inf is allowed, NaN and +inf raise ValueError."""
    array = vector(logprobs, name)
    if not (array < np.inf).all():
        raise ValueError(f"`{name}`: log-probabilities hold NaN or +inf")
    return array


def by_octave(kl: ArrayLike, position: ArrayLike, prompt: ArrayLike, alpha: float = 0.05) -> list[OctaveRow]:
    """Mean KL by position 1-2, 3-4, 5-8, 9-16, ...: one row for each octave that holds tokens, error over prompts.

    `position` counts from 1, in the sequence or in the response, whichever the plot says.
    """
    values, places = without_nan(kl, "kl"), np.asarray(position, dtype=np.int64)
    index = cluster_index(prompt, values.size)
    if places.shape != values.shape or (places < 1).any():
        raise ValueError("`position`: expected one position per token, counted from 1")
    octave = octave_of(places.astype(np.float64))
    rows: list[OctaveRow] = []
    for power in np.unique(octave):
        here = octave == power
        mean, low, high = _limits(values[here], index[here], alpha)
        start, stop = octave_span(int(power))
        rows.append(OctaveRow(start=start, stop=stop, tokens=int(here.sum()), mean=mean, low=low, high=high))
    return rows


def octave_of(position: FloatArray) -> IntArray:
    """k for positions 2^(k-1)+1 .. 2^k, 1 for positions 1 and 2."""
    return np.maximum(np.frexp(position - 1.0)[1], 1).astype(np.int64)


def octave_span(power: int) -> tuple[int, int]:
    """First and last position of octave k."""
    stop = 1 << power
    return (1 if stop == 2 else stop // 2 + 1), stop
