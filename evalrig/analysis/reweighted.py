"""The candidate's success rate from the reference's own responses, each reweighted by how likely the candidate was to give it.

Success(candidate) = mean of (q/p) x success over responses that the reference drew. Where the models are near, this
needs forty times fewer responses than running the candidate; where they are not, a few weights carry everything, so
an estimate comes with the reason when it must not be used. It never replaces a paired run of the candidate.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evalrig.analysis.arrays import FloatArray, finite, without_nan
from evalrig.analysis.clusters import cluster_t
from evalrig.analysis.monte_carlo import SELF_CHECK, Drawn
from evalrig.analysis.paired import MIN_CLUSTERS

MOST_KL = 0.3
"""Nats per response."""

LEAST_ESS = 0.5
"""Share of the responses that the weights must be worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reweighted:
    """Success of the candidate less that of the reference, from the reference's responses alone."""

    estimate: float
    low: float
    high: float
    """One-sided limits at 1 - alpha each, by prompt; read them only where `refusal` is None."""
    effective: float
    """Number of responses that the weights are worth, (sum W)^2 / sum W^2."""
    mean_weight: float
    """1 within its error, if logprobs, path and support are as stated."""
    divergence: float
    """Mean of ln p - ln q over responses, nats: an estimate of the KL per response."""
    responses: int
    prompts: int
    refusal: str | None
    """Why the estimate must not be used."""


def success_change(
    log_drop: ArrayLike, success: ArrayLike, prompt: ArrayLike, drawn: Drawn, alpha: float = 0.05
) -> Reweighted:
    """Estimate the change of success from responses [n]: `log_drop` is ln p - ln q summed over each, success in 0..1.

    Self-normalised weights W = q/p; error by prompt from the linearised estimate. Not usable when the weights are worth
    less than half the responses, the KL per response is above 0.3 nats, the mean weight is off 1 by more than three
    standard errors, or there are fewer than 20 prompts. A response that the candidate rules out has weight 0 and an
    infinite KL. Raises ValueError where `drawn` refuses, on NaN, -inf, or lengths that differ.
    """
    drawn.require()
    drop, score = without_nan(log_drop, "log_drop"), finite(success, "success")
    if drop.shape != score.shape:
        raise ValueError(f"`success`: {score.size} scores for {drop.size} responses")
    weight = np.exp(np.minimum(-drop, 700.0))
    total = float(weight.sum())
    if total == 0.0:
        raise ValueError("`log_drop`: the candidate rules out every response; these are not two variants of one model")
    candidate, reference = float((weight * score).sum()) / total, float(score.mean())
    influence = weight / weight.mean() * (score - candidate) - (score - reference)
    t, over_weights = cluster_t(influence, prompt, alpha), cluster_t(weight, prompt, alpha)
    effective = _effective(weight)
    divergence = float(drop.mean())
    off = abs(over_weights.estimate - 1) > SELF_CHECK * over_weights.se + 1e-9
    return Reweighted(
        estimate=candidate - reference,
        low=candidate - reference + t.low - t.estimate if math.isfinite(t.se) else -math.inf,
        high=candidate - reference + t.high - t.estimate if math.isfinite(t.se) else math.inf,
        effective=effective,
        mean_weight=over_weights.estimate,
        divergence=divergence,
        responses=drop.size,
        prompts=t.clusters,
        refusal=_refusal(effective / drop.size, divergence, over_weights.estimate if off else None, t.clusters),
    )


def _effective(weight: FloatArray) -> float:
    share = weight / weight.max()  # squares of e^700 have no number
    return float(share.sum() ** 2 / (share**2).sum())


def _refusal(worth: float, divergence: float, off_weight: float | None, prompts: int) -> str | None:
    if prompts < MIN_CLUSTERS:
        return f"{prompts} prompts; at least {MIN_CLUSTERS} are needed"
    if divergence > MOST_KL:
        return f"KL of {divergence:.2g} nats per response, above {MOST_KL:g}: the models are too far apart"
    if worth < LEAST_ESS:
        return f"the weights are worth {worth:.0%} of the responses, less than {LEAST_ESS:.0%}"
    if off_weight is not None:
        return f"the mean weight is {off_weight:.3g} and not 1: another logprob mode, path or support than stated"
    return None
