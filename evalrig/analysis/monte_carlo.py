"""KL from the sampled tokens alone: two log-probabilities per token, no list, no truncation error.

Only for tokens drawn from the reference's whole distribution at temperature 1: elsewhere the candidate's and the
reference's logprobs are not those of what was drawn from, and the mean is of nothing in particular.
Source: Schulman 2020, "Approximating KL divergence".
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evalrig.analysis.arrays import FloatArray, vector
from evalrig.analysis.clusters import cluster_index, cluster_t
from evalrig.analysis.kl_summary import winsorise

SELF_CHECK = 3.0
"""Standard errors by which the mean of q/p may miss 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """How the tokens were drawn and what their log-probabilities are of: the caller states it, nothing can tell it."""

    temperature: float
    truncated: bool
    """Whether top-p, top-k, min-p or a grammar cut the distribution."""
    raw: bool
    """Whether both sides' logprobs are those of the model before any processing."""

    def refusal(self) -> str | None:
        """Why tokens drawn so estimate nothing here, or None."""
        if self.temperature != 1.0:
            return f"tokens were drawn at temperature {self.temperature:g}; draw them at 1"
        if self.truncated:
            return "tokens were drawn from a truncated distribution; draw with top-p 1 and no top-k, min-p or grammar"
        return None if self.raw else "logprobs are not raw; ask the engine for logprobs before processing"

    def require(self) -> None:
        """ValueError with the reason when they cannot be used."""
        if (reason := self.refusal()) is not None:
            raise ValueError(f"`drawn`: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over tokens with its one-sided limits over prompts (CR1-t). Infinite values: see `KlSummary.low`."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MonteCarlo:
    """Estimates of KL(reference || candidate), nats per token; read k3."""

    k1: Mean
    """ln(p/q): unbiased, but its noise is a hundred times that of k3 for near models."""
    k2: Mean
    """ln(p/q)^2 / 2: biased upwards by some percent from a KL of about 0.03 on."""
    k3: Mean
    """q/p - 1 - ln(q/p): unbiased and never negative."""
    tokens: int
    prompts: int
    infinite: int
    """Tokens that were drawn and that the candidate rules out; they stay in the means."""
    mean_ratio: Mean
    """Of q/p; 1 if the logprobs are what `Drawn` says they are."""
    consistent: bool
    """Whether `mean_ratio` is 1 within 3 standard errors. If not: another logprob mode, another path, other tokens."""


def k123(reference_logprob: ArrayLike, candidate_logprob: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """k1, k2 and k3 of each sampled token [n], nats. Raises ValueError on broken logprobs; see `monte_carlo`."""
    ratio = _log_ratio(reference_logprob, candidate_logprob)
    with np.errstate(over="ignore"):
        k3 = np.expm1(ratio) - ratio
    return -ratio, 0.5 * ratio**2, k3


def monte_carlo(
    reference_logprob: ArrayLike, candidate_logprob: ArrayLike, prompt: ArrayLike, drawn: Drawn, alpha: float = 0.05
) -> MonteCarlo:
    """Estimate KL from the drawn tokens' logprobs [n], each with its prompt.

    About 10,000 tokens give k3 to 2 %. A candidate logprob of -inf makes all three infinite and is counted; one of the
    reference's is impossible for a drawn token and raises ValueError, as do NaN, +inf and what `drawn` refuses.
    """
    drawn.require()
    ratio = _log_ratio(reference_logprob, candidate_logprob)
    index = cluster_index(prompt, ratio.size)
    k1, k2, k3 = (_mean(values, index, alpha) for values in k123(reference_logprob, candidate_logprob))
    weight = cluster_t(np.exp(np.minimum(ratio, 700.0)), index, alpha)
    near = SELF_CHECK * weight.se if math.isfinite(weight.se) else math.inf
    return MonteCarlo(
        k1=k1,
        k2=k2,
        k3=k3,
        tokens=ratio.size,
        prompts=weight.clusters,
        infinite=int(np.isneginf(ratio).sum()),
        mean_ratio=Mean(mean=weight.estimate, low=weight.low, high=weight.high),
        consistent=abs(weight.estimate - 1) <= near + 1e-9,
    )


def _log_ratio(reference_logprob: ArrayLike, candidate_logprob: ArrayLike) -> FloatArray:
    """ln(q/p) of each token; -inf where the candidate rules it out."""
    log_p, log_q = vector(reference_logprob, "reference_logprob"), vector(candidate_logprob, "candidate_logprob")
    if log_p.shape != log_q.shape:
        raise ValueError(f"`candidate_logprob`: {log_q.size} tokens for {log_p.size} of the reference")
    if not log_p.size:
        raise ValueError("`reference_logprob`: no tokens; the distance of nothing is not 0")
    if not (np.isfinite(log_p).all() and (log_q < np.inf).all()):
        raise ValueError("`reference_logprob`, `candidate_logprob`: not those of drawn tokens: NaN, +inf, or -inf in p")
    return log_q - log_p


def _mean(values: FloatArray, index: ArrayLike, alpha: float) -> Mean:
    t = cluster_t(winsorise(values), index, alpha)
    if np.isposinf(values).any():
        return Mean(mean=math.inf, low=t.low, high=math.inf)
    return Mean(mean=t.estimate, low=t.low, high=t.high)
