"""The excess: how far the candidate's KL lies above the floor, the KL between two runs of the reference itself."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import FloatArray, IntArray, probability, without_nan
from evalrig.analysis.clusters import ClusterSums, ClusterT, sums_t
from evalrig.analysis.paired import MIN_CLUSTERS, MIN_INFORMATIVE

WARN_RATIO = 3.0
WARN_EXCESS = 0.005
"""Nats per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KlLevels:
    """Candidate and floor, in nats per token."""

    mean_kl: float
    kl_low: float
    kl_high: float
    floor: float | None
    """None when it was not measured on at least two prompts."""
    ratio: float | None
    """mean_kl / floor; None when the floor is unknown, 0 or infinite, or the candidate's mean is infinite."""
    ratio_low: float | None
    prompts: int
    floor_prompts: int
    infinite: int
    """Candidate tokens with infinite KL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """mean_kl - floor against a limit."""

    excess: float
    low: float
    high: float
    """One-sided limits at 1 - alpha each; infinite where no valid limit exists."""
    p_above: float
    """p-value of "the excess is at most the limit": small means the candidate is too far away."""
    p_below: float
    """p-value of "the excess is at least the limit": small means it is near enough."""
    method: str
    levels: KlLevels


def above_floor(found: Excess) -> bool:
    """Is the distance clearly more than noise: the ratio's lower limit above 3, and an excess above 0.005 nats per token?

    Where the floor is exactly 0 the ratio is not defined and the excess decides alone.
    """
    low = found.levels.ratio_low
    far = found.levels.floor == 0 or (low is not None and low > WARN_RATIO)
    return far and found.excess > WARN_EXCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    mean: float
    influence: FloatArray
    """What each prompt of the union contributes to the error of the mean, times sqrt(G/(G-1)); 0 where not measured."""
    prompts: int
    infinite: int


def excess(
    kl: ArrayLike, prompt: ArrayLike, floor_kl: ArrayLike, floor_prompt: ArrayLike, alpha: float, limit: float
) -> Excess:
    """`excess_of` all tokens' values, each with the prompt it belongs to. NaN and an empty `kl` raise ValueError."""
    values, floor_values = without_nan(kl, "kl"), without_nan(floor_kl, "floor_kl")
    index, floor_index, union = _prompt_index(prompt, values.size, floor_prompt, floor_values.size)
    return excess_of(_sums(values, index, union), _sums(floor_values, floor_index, union), alpha, limit)


def excess_of(kl: ClusterSums, floor_kl: ClusterSums | None, alpha: float, limit: float) -> Excess:
    """Test the excess of the candidate over the floor, from sums by prompt; the floor may cover some, all or none.

    Prompts have the same number in both. Both means are ratios (sum over tokens / number of tokens), linearised and
    summed by prompt, so that prompts measured in both keep their covariance. Degrees of freedom: the smaller number of
    prompts less 1, or the candidate's if the floor does not vary. With the same tokens in both this is
    `cluster_t(kl - floor)`.

    No claim (p = 1) is made where the values do not carry one:
    - fewer than 20 prompts, 10 of them informative, or values that do not vary: neither way, KL has no upper bound;
    - no floor (fewer than 2 prompts): p_above is 1, since the distance may be the reference's own noise; p_below
      treats the floor as 0, which can only overstate the excess;
    - infinite values in the floor: neither way;
    - infinite values in the candidate: p_below is 1; p_above and `low` come from the finite part, infinite values set
      to the largest finite one, since a finite part beyond the limit puts the whole beyond it.
    Sums of no token raise ValueError.
    """
    probability(alpha, "alpha")
    if not 0.0 <= limit < math.inf:
        raise ValueError(f"`limit`: {limit!r} is no limit")
    if not kl.sizes.any():
        raise ValueError("`kl`: no tokens; the distance of nothing is not 0")
    candidate = _arm(kl)
    floor = _arm(floor_kl) if floor_kl is not None and np.count_nonzero(floor_kl.sizes) >= 2 else None
    owns = kl.sizes > 0
    over_prompts = sums_t(kl.filled[owns], kl.sizes[owns], kl.largest, alpha)
    levels = _levels(candidate, floor, (over_prompts.low, over_prompts.high), alpha)
    estimate, se, df = _difference(candidate, floor)
    unclaimable = _unclaimable(over_prompts, floor, se)
    if unclaimable:
        whole = math.inf if candidate.infinite else estimate
        return Excess(
            excess=whole, low=-math.inf, high=math.inf, p_above=1.0, p_below=1.0, method=unclaimable, levels=levels
        )
    return _claim((estimate, se, df), alpha, limit, levels)


def _unclaimable(over_prompts: ClusterT, floor: _Arm | None, se: float) -> str | None:
    """Why the values support no claim in either direction, or None."""
    enough = over_prompts.clusters >= MIN_CLUSTERS and over_prompts.informative >= MIN_INFORMATIVE
    if not enough or not over_prompts.varies:
        counted = f"{over_prompts.clusters} prompts, {over_prompts.informative} of them informative"
        return f"too few prompts for a t test: {counted}"
    if floor is not None and floor.infinite:
        return f"the floor itself is infinite on {floor.infinite} tokens"
    return None if se > 0 else "the excess does not vary between prompts"


def _claim(difference: tuple[float, float, int], alpha: float, limit: float, levels: KlLevels) -> Excess:
    estimate, se, df = difference
    z, reach = (estimate - limit) / se, -float(special.stdtrit(df, alpha)) * se
    infinite, floored = levels.infinite > 0, levels.floor is not None
    method = f"cluster-robust t, {df} degrees of freedom"
    if infinite:
        method += f", from the finite part: {levels.infinite} tokens have probability 0 under the candidate only"
    if not floored:
        method += ", no floor measured: an upper limit only"
    return Excess(
        excess=math.inf if infinite else estimate,
        low=estimate - reach if floored else -math.inf,
        high=math.inf if infinite else estimate + reach,
        p_above=float(special.stdtr(df, -z)) if floored else 1.0,
        p_below=1.0 if infinite else float(special.stdtr(df, z)),
        method=method,
        levels=levels,
    )


def _prompt_index(prompt: ArrayLike, n: int, floor_prompt: ArrayLike, m: int) -> tuple[IntArray, IntArray, int]:
    """Number the prompts of both arms in one sequence; also the size of the union."""
    labels, floor_labels = np.asarray(prompt), np.asarray(floor_prompt)
    if labels.shape != (n,) or floor_labels.shape != (m,):
        raise ValueError("`prompt`, `floor_prompt`: expected one prompt per token")
    if m and (labels.dtype.kind in "iuf") != (floor_labels.dtype.kind in "iuf"):
        raise ValueError("`floor_prompt`: prompts are named differently from `prompt`")
    joined = np.concatenate([labels, floor_labels]) if m else labels
    names, index = np.unique(joined, return_inverse=True)
    return index[:n].astype(np.int64), index[n:].astype(np.int64), len(names)


def _sums(values: FloatArray, index: IntArray, union: int) -> ClusterSums:
    infinite = np.isposinf(values)
    finite = np.where(infinite, 0.0, values)
    return ClusterSums(
        sums=np.bincount(index, weights=finite, minlength=union).astype(np.float64),
        sizes=np.bincount(index, minlength=union).astype(np.float64),
        infinite=np.bincount(index, weights=infinite, minlength=union).astype(np.float64),
        largest=float(np.abs(finite).max(initial=0.0)),
    )


def _arm(kl: ClusterSums) -> _Arm:
    sums, tokens = kl.filled, float(kl.sizes.sum())
    mean = float(sums.sum()) / tokens
    prompts = int((kl.sizes > 0).sum())
    correction = math.sqrt(prompts / (prompts - 1)) if prompts > 1 else 1.0
    influence = correction * (sums - mean * kl.sizes) / tokens
    influence[np.abs(influence) <= 1e-15 * kl.largest] = 0.0  # rounding is no variation
    return _Arm(mean=mean, influence=influence, prompts=prompts, infinite=int(kl.infinite.sum()))


def _difference(candidate: _Arm, floor: _Arm | None) -> tuple[float, float, int]:
    """Estimate, standard error (0 if only rounding is left) and degrees of freedom of candidate - floor."""
    estimate, influence, df = candidate.mean, candidate.influence, candidate.prompts - 1
    if floor is not None:
        estimate, influence, df = estimate - floor.mean, influence - floor.influence, _freedom(candidate, floor)
    se = float(np.sqrt(np.sum(influence**2)))
    return estimate, se if se > 1e-12 * abs(candidate.mean) else 0.0, df


def _freedom(candidate: _Arm, floor: _Arm) -> int:
    return (min(candidate.prompts, floor.prompts) if floor.influence.any() else candidate.prompts) - 1


def _levels(candidate: _Arm, floor: _Arm | None, limits: tuple[float, float], alpha: float) -> KlLevels:
    infinite = candidate.infinite > 0
    ratio = ratio_low = floor_mean = None
    if floor is not None:
        floor_mean = math.inf if floor.infinite else floor.mean
        if 0.0 < floor_mean < math.inf and candidate.mean > 0 and not infinite:
            ratio = candidate.mean / floor.mean
            relative = candidate.influence / candidate.mean - floor.influence / floor.mean
            reach = -float(special.stdtrit(max(_freedom(candidate, floor), 1), alpha))
            ratio_low = ratio * math.exp(-reach * float(np.sqrt(np.sum(relative**2))))
    return KlLevels(
        mean_kl=math.inf if infinite else candidate.mean,
        kl_low=limits[0],
        kl_high=math.inf if infinite else limits[1],
        floor=floor_mean,
        ratio=ratio,
        ratio_low=ratio_low,
        prompts=candidate.prompts,
        floor_prompts=floor.prompts if floor is not None else 0,
        infinite=candidate.infinite,
    )
