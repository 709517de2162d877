"""Prefill and decode apart: the slope of the first token over the prompt's length, and the rate of one batch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from evalrig.analysis.windows import decoded_within, one_batch
from evalrig.loadgen.served import Floats, Requests, Served

SPARE = 4
"""Requests beyond the number of coefficients that a fit needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """One number with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Seconds to the first token = start + slope x tokens of the prompt."""

    start: Coefficient
    slope: Coefficient
    """Seconds a token."""
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """While all requests of a block decode at once."""

    seconds: float
    """Length of the window."""
    tokens_per_second: float
    """Of all requests together."""
    streams: int


def alone(rows: Requests) -> NDArray[np.bool_]:
    """Good requests [n] that shared the engine with no other, and whose prompt was in no cache: their first token waited for
    their own prompt and nothing else."""
    cold = rows.ok & (rows.prompt_tokens > 0) & (rows.cached_tokens <= 0)
    order = np.argsort(rows.sent)  # never sent: last, as NaN
    ended = np.where(np.isnan(rows.last), np.inf, rows.last)[order]
    before = np.concatenate([[-np.inf], np.maximum.accumulate(ended)[:-1]])
    after = np.concatenate([rows.sent[order][1:], [np.inf]])
    free = np.zeros(len(cold), np.bool_)
    free[order] = (rows.sent[order] >= before) & ~(after < ended)
    return cold & free


def prefill(served: Served, alpha: float = 0.05) -> Prefill | None:
    """From requests for one token that were alone, counted from when they were sent; two-sided intervals at 1 - alpha. Those
    whose prompt was cached are left out. None: other answers, too few requests, or prompts of one length."""
    rows = served.requests
    cold = alone(rows)
    if not cold.any() or (rows.tokens[rows.ok] != 1).any():
        return None
    length = rows.prompt_tokens[cold].astype(float)
    found = _fit([np.ones_like(length), length], (rows.first - rows.sent)[cold], alpha)
    return None if found is None else Prefill(start=found[0], slope=found[1], n=int(cold.sum()))


def decode(served: Served) -> Decode | None:
    """From the last first token to the first finish, counts interpolated at both edges. None: there is no such time, or no
    `usage`."""
    window = one_batch(served)
    tokens = None if window is None else decoded_within(served, window)
    if window is None or not tokens:
        return None
    return Decode(
        seconds=window.seconds, tokens_per_second=tokens / window.seconds, streams=int(served.requests.ok.sum())
    )


def phases_of(served: Served) -> dict[str, float]:
    """Scores of the phases that a block shows: `prefill_slope` (s/token), `decode_seconds` (s/step of all streams)."""
    scores: dict[str, float] = {}
    slope = prefill(served)
    if slope is not None:
        scores["prefill_slope"] = slope.slope.value
    batch = decode(served)
    if batch is not None:
        scores["decode_tokens_per_second"] = batch.tokens_per_second
        scores["decode_seconds"] = batch.streams / batch.tokens_per_second
    return scores


def _fit(columns: list[Floats], y: ArrayLike, alpha: float) -> list[Coefficient] | None:
    """Ordinary least squares with HC3 errors and t limits. Columns are scaled first: their units lie far apart."""
    x, seen = np.stack(columns, axis=1), np.asarray(y, float)
    n, k = x.shape
    if n < k + SPARE:
        return None
    scale = np.abs(x).max(axis=0)
    scaled = x / scale
    if np.linalg.matrix_rank(scaled, tol=1e-9 * np.sqrt(n)) < k:
        return None
    inverse = np.linalg.inv(scaled.T @ scaled)
    weights = inverse @ scaled.T @ seen
    leverage = np.einsum("ij,jk,ik->i", scaled, inverse, scaled)
    residual = (seen - scaled @ weights) / np.maximum(1 - leverage, 1e-9)
    error = np.sqrt(np.diag(inverse @ (scaled.T * residual**2) @ scaled @ inverse))
    reach = stats.t.ppf(1 - alpha / 2, n - k) * error
    return [
        Coefficient(value=float(w / s), low=float((w - r) / s), high=float((w + r) / s))
        for w, r, s in zip(weights, reach, scale, strict=True)
    ]
