"""Whole responses that the reference drew, as the log-probabilities of the drawn tokens tell them: no list is needed.

What a certificate and k3 are made of. Kept are sums by response, so memory does not grow with the number of tokens.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.arrays import FloatArray, IntArray, sums_by
from evalrig.analysis.betting import e_pvalue
from evalrig.analysis.certificate import Certificate, Per, from_likelihoods, from_summed_kl
from evalrig.analysis.clusters import ClusterT, cluster_index, cluster_sums, sums_t
from evalrig.analysis.kl_summary import winsorise
from evalrig.analysis.monte_carlo import SELF_CHECK, Drawn, k123

BEGINNING = 8
"""Tokens of a short answer: a choice, a number, the name of a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One response: its drawn tokens [n], natural log-probabilities of both sides."""

    prompt: str
    """The unit taken as independent."""
    reference_logprob: NDArray[np.floating]
    candidate_logprob: NDArray[np.floating]
    cut: bool
    """The token limit ended it."""
    calls: Sequence[tuple[int, int]] = ()
    """Tokens of each tool call, begin and end."""
    success: float | None = None
    """How right it is, 0..1; NaN: that cannot be told. None: nobody graded it."""
    source: str = ""
    """Where its question comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The same part of many responses [n], summed over its tokens."""

    prompt: NDArray[np.str_]
    tokens: IntArray
    log_drop: FloatArray
    """ln p - ln q."""
    k3: FloatArray
    """Unbiased for the KL of the part, nats."""
    ratio: FloatArray
    """q/p, a mean of 1 per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """Whole responses [n] to questions of one source, with how right they are."""

    source: str
    prompt: NDArray[np.str_]
    log_drop: FloatArray
    """ln p - ln q."""
    success: FloatArray
    """0..1, NaN where that cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """All responses of one candidate that can be read."""

    drawn: Drawn
    whole: Parts
    beginning: Parts
    """The first `BEGINNING` tokens."""
    calls: Parts
    """Tool calls, one by one."""
    cut: int
    given: int
    """Streams that were not drawn from the reference (fixed text), left out."""
    broken: int
    """Responses with a log-probability that is none, left out."""
    graded: tuple[Graded, ...] = ()
    """By source; empty where nothing was graded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledKl:
    """KL(reference || candidate) from the drawn tokens alone, nats per token, limits one-sided over prompts."""

    mean: float
    low: float
    high: float
    mean_ratio: float
    """Of q/p; 1 if the log-probabilities are of what was drawn from."""
    consistent: bool
    """Within three standard errors of 1."""
    tokens: int


class ResponseSums:
    """Sums up responses one by one, as they are read."""

    def __init__(self) -> None:
        self._whole, self._beginning, self._calls = (list[tuple[str, FloatArray]]() for _ in range(3))
        self._graded: dict[str, list[tuple[str, float, float]]] = {}
        self._cut = self._given = self._broken = 0

    def add(self, one: Spoken | None) -> None:
        """One more; None stands for a stream that was given and not drawn."""
        if one is None:
            self._given += 1
            return
        values = _measured(one)
        if values is None:
            self._broken += 1
            return
        self._cut += one.cut
        whole = values.sum(axis=1)
        self._whole.append((one.prompt, whole))
        if one.success is not None:
            self._graded.setdefault(one.source, []).append((one.prompt, float(whole[1]), one.success))
        self._beginning.append((one.prompt, values[:, :BEGINNING].sum(axis=1)))
        self._calls += [(one.prompt, values[:, begin:end].sum(axis=1)) for begin, end in one.calls]

    def result(self, drawn: Drawn) -> Responses:
        """All that were added."""
        return Responses(
            drawn=drawn,
            whole=_parts(self._whole),
            beginning=_parts(self._beginning),
            calls=_parts(self._calls),
            cut=self._cut,
            given=self._given,
            broken=self._broken,
            graded=tuple(_graded(source, rows) for source, rows in sorted(self._graded.items())),
        )


def responses(spoken: Iterable[Spoken | None], drawn: Drawn) -> Responses:
    """Sum up responses; None stands for a stream that was given and not drawn."""
    sums = ResponseSums()
    for one in spoken:
        sums.add(one)
    return sums.result(drawn)


def _measured(one: Spoken) -> FloatArray | None:
    """1, ln p - ln q, k3 and q/p of each token [4, n]; None if a number is broken, or a drawn token impossible."""
    p, q = (np.asarray(side, dtype=np.float64) for side in (one.reference_logprob, one.candidate_logprob))
    if not (p.size and np.isfinite(p).all() and (q < np.inf).all()):
        return None
    drop, _, k3 = k123(p, q)
    return np.stack([np.ones(p.size), drop, k3, np.exp(np.minimum(-drop, 700.0))])


def _parts(rows: list[tuple[str, FloatArray]]) -> Parts:
    table = np.stack([values for _, values in rows]) if rows else np.zeros((0, 4))
    return Parts(
        prompt=np.array([prompt for prompt, _ in rows], dtype=np.str_),
        tokens=table[:, 0].astype(np.int64),
        log_drop=table[:, 1],
        k3=table[:, 2],
        ratio=table[:, 3],
    )


def _graded(source: str, rows: list[tuple[str, float, float]]) -> Graded:
    prompt, log_drop, success = zip(*rows, strict=True)
    return Graded(
        source=source,
        prompt=np.array(prompt, dtype=np.str_),
        log_drop=np.array(log_drop, dtype=np.float64),
        success=np.array(success, dtype=np.float64),
    )


def sequence_certificate(found: Responses, parts: Parts, alpha: float, per: Per = "response") -> Certificate:
    """From the total variation of the parts' laws. ValueError without parts, or where `drawn` refuses."""
    return from_likelihoods(parts.log_drop, parts.prompt, found.drawn, alpha, per)


def tv_against(parts: Parts, margin: float) -> tuple[float, float]:
    """p-values of "the total variation is `margin` or more" and of "`margin` or less", by bets over prompts."""
    lost = np.maximum(-np.expm1(-np.maximum(parts.log_drop, 0.0)), 0.0)
    sums, sizes = cluster_sums(lost, parts.prompt)
    by_prompt = sums / sizes
    return e_pvalue(by_prompt, -margin, None, "less"), e_pvalue(by_prompt, -margin, None, "greater")


def kl_certificate(found: Responses, parts: Parts, alpha: float, per: Per = "response") -> Certificate:
    """From the KL of the parts, by k3: nothing of it is hidden by lists. ValueError as above."""
    found.drawn.require()
    return from_summed_kl(parts.k3, parts.prompt, True, alpha, per)


def sampled_kl(found: Responses, alpha: float) -> SampledKl:
    """k3 per token with its error over prompts. ValueError without responses, or where `drawn` refuses."""
    found.drawn.require()
    parts = found.whole
    if not parts.tokens.size:
        raise ValueError("`responses`: none; the distance of nothing is not 0")
    k3, ratio = (_per_token(values, parts, alpha) for values in (parts.k3, parts.ratio))
    infinite = bool(np.isposinf(parts.k3).any())
    near = SELF_CHECK * ratio.se if math.isfinite(ratio.se) else math.inf
    return SampledKl(
        mean=math.inf if infinite else k3.estimate,
        low=k3.low,
        high=math.inf if infinite else k3.high,
        mean_ratio=ratio.estimate,
        consistent=abs(ratio.estimate - 1) <= near + 1e-9,
        tokens=int(parts.tokens.sum()),
    )


def _per_token(values: FloatArray, parts: Parts, alpha: float) -> ClusterT:
    index, kept = cluster_index(parts.prompt, values.size), winsorise(values)
    sizes = sums_by(index, parts.tokens.astype(np.float64))
    return sums_t(sums_by(index, kept), sizes, float(np.abs(kept).max()), alpha)
