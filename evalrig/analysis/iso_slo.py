"""The iso-SLO ratio: tokens per second and GPU of two variants at the same speed for each user.

A variant under load is a curve, one point a concurrency: the more users, the more tokens in all and the fewer for each. Two
variants at the same concurrency stand at different places of their curves, so their ratio there mixes both. At the same
tokens per second for a user, the ratio is what the cheaper variant saves.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evalrig.analysis.arrays import FloatArray
from evalrig.analysis.load_ratio import Ratio, ratio_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One variant, [rounds, points] each: a row is a round, a column a concurrency. NaN: no block, or a void one."""

    user: FloatArray
    """Tokens per second for a user: 1 / median TPOT."""
    gpu: FloatArray
    """Output tokens per second and GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsoRatio:
    """candidate / reference in tokens per second and GPU at `at` tokens per second for a user."""

    at: float
    ratio: Ratio
    low_at: float
    high_at: float
    """Speeds that both curves reach in every round that has an overlap; `at` may be chosen between them."""
    rounds: int
    """Rounds whose curves overlap at all; a round that does not reach `at` is missing from the ratio."""


def curve(user: ArrayLike, gpu: ArrayLike) -> Curve:
    """A `Curve` from arrays [rounds, points]; ValueError on other shapes or on numbers that are not positive."""
    speeds, rates = np.asarray(user, np.float64), np.asarray(gpu, np.float64)
    if speeds.ndim != 2 or speeds.shape != rates.shape:
        raise ValueError(f"`user`, `gpu`: shapes {speeds.shape}, {rates.shape}; expected [rounds, points] of both")
    for values, name in ((speeds, "user"), (rates, "gpu")):
        if (values <= 0).any() or np.isinf(values).any():
            raise ValueError(f"`{name}`: holds numbers that are not positive; NaN stands for a missing point")
    return Curve(user=speeds, gpu=rates)


def iso_ratio(
    reference: Curve, candidate: Curve, at: float | None = None, margin: float = 0.01, alpha: float = 0.05
) -> tuple[IsoRatio | None, str]:
    """The ratio at `at` tokens per second for a user; None: the geometric middle of what all rounds reach.

    Inside each round both curves are read at `at` by straight lines between their points in log-log; beyond a curve's ends
    nothing is read. The rounds' ratios then give the interval, as in `ratio_of`. No ratio, and the reason, where the curves
    overlap in no round, or none reaches `at`. Raises ValueError if the rounds are not as many.
    """
    if len(reference.user) != len(candidate.user):
        raise ValueError(f"`candidate`: {len(candidate.user)} rounds, the reference has {len(reference.user)}")
    ends = _overlaps(reference, candidate)
    known = ends[~np.isnan(ends[:, 0])]
    if not len(known):
        return None, "in no round do both variants reach the same tokens per second for a user; try more concurrencies"
    low, high = float(known[:, 0].max()), float(known[:, 1].min())
    if at is None and low > high:
        return (
            None,
            "no tokens per second for a user are reached by both variants in all rounds; say at which to compare",
        )
    level = math.sqrt(low * high) if at is None else at
    if not 0.0 < level < math.inf:
        raise ValueError(f"`at`: {level!r} tokens per second are none")
    ratio = ratio_of(read_at(reference, level), read_at(candidate, level), margin, alpha)
    if not ratio.n:
        return None, f"in no round do both variants reach {level:.4g} tokens per second for a user"
    return IsoRatio(at=level, ratio=ratio, low_at=low, high_at=high, rounds=len(known)), ""


def read_at(one: Curve, at: float) -> FloatArray:
    """Tokens per second and GPU [rounds] at `at` tokens per second for a user; NaN where a round's points do not reach it.

    Points of equal speed count as one, the geometric mean of them.
    """
    found = np.full(len(one.user), np.nan)
    for row in range(len(found)):
        there = ~(np.isnan(one.user[row]) | np.isnan(one.gpu[row]))
        speeds, place = np.unique(np.log(one.user[row][there]), return_inverse=True)
        if not speeds.size or not speeds[0] - 1e-12 <= math.log(at) <= speeds[-1] + 1e-12:
            continue
        rates = np.bincount(place, weights=np.log(one.gpu[row][there])) / np.bincount(place)
        found[row] = math.exp(float(np.interp(math.log(at), speeds, rates)))
    return found


def _overlaps(reference: Curve, candidate: Curve) -> FloatArray:
    """Shape [rounds, 2]: the slowest and fastest speed for a user that both reach; NaN where there is none."""
    ends = np.full((len(reference.user), 2), np.nan)
    for row in range(len(ends)):
        arms: list[FloatArray] = []
        for one in (reference, candidate):
            there = ~(np.isnan(one.user[row]) | np.isnan(one.gpu[row]))
            arms.append(one.user[row][there])
        if all(arm.size for arm in arms):
            low, high = max(float(arm.min()) for arm in arms), min(float(arm.max()) for arm in arms)
            if low <= high:
                ends[row] = low, high
    return ends
