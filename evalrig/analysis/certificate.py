"""A certificate: no success rate of these prompts can differ by more than so much between reference and candidate.

It holds for every grader, also for ones nobody has written yet, because it bounds the change of any event of the whole
response: |change| <= TV, the total variation between the two laws of the response (for agents, of the transcript: what
the environment does cancels). Two routes to a bound, from responses that the reference drew at temperature 1:

- the sequence TV itself, mean of (1 - q/p)^+ over responses, in 0..1, hence with a limit that is valid at any size;
- the summed KL, whose mean D over responses estimates KL(response law || response law) by the chain rule; Pinsker,
  Bretagnolle-Huber, or, where the reference's success rate is known, the inversion of the binary KL turn D into points.

A mean of values without an upper bound has no limit that is valid without assumptions, so the second route uses
the t limit over prompts and is never more than `conditional`.
Sources: Tsybakov, Introduction to Nonparametric Estimation, 2.4; Cover and Thomas, Elements of Information Theory, 2.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import FloatArray, sums_by, vector, without_nan
from evalrig.analysis.betting import betting_interval
from evalrig.analysis.clusters import cluster_index, cluster_sums, cluster_t
from evalrig.analysis.kl_summary import winsorise
from evalrig.analysis.monte_carlo import SELF_CHECK, Drawn

VACUOUS = 0.5
"""A bound from here on allows a model that is right every second time to have lost every answer."""

CertificateStatus: TypeAlias = Literal["certified", "conditional", "vacuous"]
Per: TypeAlias = Literal["response", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBounds:
    """What a KL of D nats allows; fractions (0.01 is one point)."""

    pinsker: float
    """sqrt(D/2)."""
    bretagnolle_huber: float
    """sqrt(1 - e^-D), the smaller one from D = 1.6 on."""
    largest: float
    """The smaller of both: the change of any event's probability is at most this."""
    drop: float | None
    """Largest loss of an event that has probability `p_reference`; None where that is not given."""
    gain: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A bound on the change of any success rate, averaged over the prompts that were drawn."""

    per: Per
    """Whole response, or one step of it (a tool call, a short answer); see `over_steps`."""
    bound: float
    """0..1, at confidence 1 - alpha."""
    estimate: float
    """The sequence TV itself, or, from summed KL, D in nats."""
    upper: float
    """Upper limit of `estimate` that `bound` comes from."""
    upper_t: float
    """The t limit, for the eye: with 200 prompts it misses 8.5 % at a nominal 5 %."""
    status: CertificateStatus
    """vacuous: the bound is 0.5 or more. Otherwise conditional while `assumptions` lists any, else certified."""
    method: str
    assumptions: tuple[str, ...]
    prompts: int


def kl_interval(p: ArrayLike, divergence: float) -> tuple[FloatArray, FloatArray]:
    """All q whose binary KL(p || q) is at most `divergence`: the lowest and the highest, for each p in 0..1.

    The tightest statement about an event from KL alone (data processing). By bisection, to about 1e-8.
    """
    rate = np.atleast_1d(np.asarray(p, dtype=np.float64))
    if not ((rate >= 0) & (rate <= 1)).all() or not divergence >= 0:
        raise ValueError(f"`p`, `divergence`: {p!r} and {divergence!r} are no rates and no KL")
    return _edge(rate, divergence, np.zeros_like(rate)), _edge(rate, divergence, np.ones_like(rate))


def _edge(p: FloatArray, divergence: float, extreme: FloatArray) -> FloatArray:
    """The q furthest towards `extreme`; KL grows from p to there."""
    inside, outside = p.copy(), extreme
    if divergence == 0.0:
        return inside
    for _ in range(100):
        middle = 0.5 * (inside + outside)
        fits = _binary_kl(p, middle) <= divergence
        inside, outside = np.where(fits, middle, inside), np.where(fits, outside, middle)
    return np.where(_binary_kl(p, extreme) <= divergence, extreme, outside)


def _binary_kl(p: FloatArray, q: FloatArray) -> FloatArray:
    return special.rel_entr(p, q) + special.rel_entr(1 - p, 1 - q)


def event_bounds(divergence: float, p_reference: float | None = None) -> EventBounds:
    """What D nats between two laws allow; of .02 at rate .9: Pinsker .1, drop .070384, gain .049371."""
    if not divergence >= 0:
        raise ValueError(f"`divergence`: {divergence!r} is no KL")
    pinsker, other = math.sqrt(divergence / 2), math.sqrt(-math.expm1(-divergence))
    drop = gain = None
    if p_reference is not None:
        low, high = kl_interval(p_reference, divergence)
        drop, gain = float(p_reference - low[0]), float(high[0] - p_reference)
    return EventBounds(pinsker=pinsker, bretagnolle_huber=other, largest=min(1.0, pinsker, other), drop=drop, gain=gain)


def from_likelihoods(
    log_drop: ArrayLike, prompt: ArrayLike, drawn: Drawn, alpha: float = 0.05, per: Per = "response"
) -> Certificate:
    """Certificate from the sequence TV. `log_drop` [n]: ln p - ln q of the drawn tokens, summed over each response.

    (or over each step, `per="step"`). Values of one prompt are averaged first, so that prompts are the independent
    draws. +inf, a response that the candidate rules out, counts 1. Exact but for sampling: certified, if the tokens
    were drawn as `drawn` says; conditional, if the mean of q/p, which must be 1, is off by three standard errors.
    Raises ValueError where `drawn` refuses, on NaN or -inf.
    """
    drawn.require()
    drop = without_nan(log_drop, "log_drop")
    by_prompt = _prompt_means(np.maximum(-np.expm1(-np.maximum(drop, 0.0)), 0.0), prompt)
    doubts = _doubts(drop, prompt, alpha)
    upper = min(1.0, betting_interval(by_prompt, None, alpha)[1])
    return Certificate(
        per=per,
        bound=upper,
        estimate=float(by_prompt.mean()),
        upper=upper,
        upper_t=min(1.0, cluster_t(by_prompt, None, alpha).high),
        status=_status(upper, doubts),
        method="sequence TV from likelihood ratios, betting limit over prompts",
        assumptions=doubts,
        prompts=by_prompt.size,
    )


def from_summed_kl(
    summed_kl: ArrayLike, prompt: ArrayLike, exact: bool, alpha: float = 0.05, per: Per = "response"
) -> Certificate:
    """Certificate from token KLs summed over each response or step [n], nats.

    `exact`: the token values are exact, or upper bounds. Lower bounds from top-K lists make the certificate depend on
    nothing being hidden in the tails. Values of one prompt are averaged first. NaN raises ValueError.
    """
    values = without_nan(summed_kl, "summed_kl")
    by_prompt = _prompt_means(values, prompt)
    t = cluster_t(winsorise(by_prompt), None, alpha)
    infinite = bool(np.isposinf(by_prompt).any())
    upper = math.inf if infinite or not t.varies else max(t.high, 0.0)
    if not by_prompt.any():
        upper = 0.0 if by_prompt.size > 1 and exact else math.inf
    bound = event_bounds(upper).largest
    hidden = () if exact else ("token KLs are lower bounds from top-K lists: nothing more is hidden in the tails",)
    usual = "the mean over prompts is near normal: no rare prompt carries most of the KL"
    return Certificate(
        per=per,
        bound=bound,
        estimate=math.inf if infinite else t.estimate,
        upper=upper,
        upper_t=upper,
        status=_status(bound, (usual, *hidden)),
        method="summed KL, t limit over prompts, Pinsker or Bretagnolle-Huber",
        assumptions=(usual, *hidden),
        prompts=by_prompt.size,
    )


def _status(bound: float, assumptions: tuple[str, ...]) -> CertificateStatus:
    if bound >= VACUOUS:
        return "vacuous"
    return "conditional" if assumptions else "certified"


def _doubts(log_drop: FloatArray, prompt: ArrayLike, alpha: float) -> tuple[str, ...]:
    weight = cluster_t(np.exp(np.minimum(-log_drop, 700.0)), prompt, alpha)
    if abs(weight.estimate - 1) <= SELF_CHECK * weight.se + 1e-9:
        return ()
    return (f"the mean of q/p is {weight.estimate:.3g} and not 1, yet the logprobs are those drawn from",)


def over_steps(bound: float, steps: float) -> float:
    """Bound on a transcript of `steps` steps, each moved by at most `bound` on average over the reference's own steps.

    The first step at which the two can part is met with probability at most the sum: steps times bound, at most 1.
    It takes the steps of long transcripts to move no more than others; the whole response needs no such thing.
    """
    if not (0.0 <= bound <= 1.0 and steps >= 0):
        raise ValueError(f"`bound`, `steps`: {bound!r} and {steps!r} are no bound and no number of steps")
    return min(1.0, bound * steps)


def summed(values: ArrayLike, part: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Token values [n] summed by `part` (the response or step they belong to), and the number of tokens in each."""
    array = vector(values, "values")
    index = cluster_index(part, array.size)
    return sums_by(index, array), np.bincount(index).astype(np.float64)


def _prompt_means(values: FloatArray, prompt: ArrayLike) -> FloatArray:
    if not values.size:
        raise ValueError("`prompt`: no responses; a certificate about nothing certifies nothing")
    infinite = np.isposinf(values)
    sums, sizes = cluster_sums(np.where(infinite, 0.0, values), prompt)
    ruled_out, _ = cluster_sums(infinite.astype(np.float64), prompt)
    return np.where(ruled_out > 0, np.inf, sums / sizes)
