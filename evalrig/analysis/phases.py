"""Prefill and decode apart: the slope of the first token over the prompt's length, the rate of one batch, and what a token of
each costs in ordinary traffic."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from evalrig.analysis.windows import decoded_within, one_batch
from evalrig.loadgen.served import Floats, Requests, Served

COSTS = ("request_start", "request_per_prompt", "request_per_output", "request_per_both")
"""Scores of a block: coefficients of `CostModel`, in seconds, s/token, s/token and s/token^2. They may be negative."""
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
class CostModel:
    """Seconds of a request = start + prompt x in + output x out + both x in x out."""

    start: Coefficient
    prompt: Coefficient
    """Seconds a token of the prompt."""
    output: Coefficient
    """Seconds a generated token, of an empty context."""
    both: Coefficient
    """Seconds more of a generated token for each token of the prompt: attention over the context."""
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


def cost_model(served: Served, unsaturated: NDArray[np.bool_] | None = None, alpha: float = 0.05) -> CostModel | None:
    """Least squares over good requests, counted from when they were sent; two-sided intervals at 1 - alpha by HC3, which allows
    long requests to scatter more. `unsaturated`: rows that did not wait for others; None: all. None: too few, or lengths that
    do not vary."""
    rows = served.requests
    used = rows.ok & (rows.tokens > 0) & (rows.prompt_tokens > 0)
    used = used if unsaturated is None else used & unsaturated
    prompt, output = rows.prompt_tokens[used].astype(float), rows.tokens[used].astype(float)
    columns = [np.ones_like(prompt), prompt, output, prompt * output]
    found = _fit(columns, (rows.last - rows.sent)[used], alpha)
    if found is None:
        return None
    start, per_prompt, per_output, per_both = found
    return CostModel(start=start, prompt=per_prompt, output=per_output, both=per_both, n=int(used.sum()))


def over_rounds(values: ArrayLike, alpha: float = 0.05) -> Coefficient | None:
    """Mean of one number a round, [rounds], with one-sided t limits at 1 - alpha each; None below 2 rounds."""
    seen = np.asarray(values, float)
    if seen.size < 2:
        return None
    mean = float(seen.mean())
    reach = -float(stats.t.ppf(alpha, seen.size - 1)) * float(seen.std(ddof=1)) / float(np.sqrt(seen.size))
    return Coefficient(value=mean, low=mean - reach, high=mean + reach)


def phases_of(served: Served) -> dict[str, float]:
    """Scores of the phases that a block shows: `prefill_slope` (s/token), `decode_seconds` (s/step of all streams), and those in
    `COSTS` of a request's seconds."""
    model = cost_model(served)
    scores: dict[str, float] = {}
    if model is not None:
        parts = (model.start, model.prompt, model.output, model.both)
        scores = {name: part.value for name, part in zip(COSTS, parts, strict=True)}
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
