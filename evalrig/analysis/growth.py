"""Growth: does the distance increase with the position in the context, as an error that accumulates would make it?"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import FloatArray, sums_by, without_nan
from evalrig.analysis.clusters import cluster_index, cluster_t
from evalrig.analysis.kl_summary import octave_of, octave_span, winsorise
from evalrig.analysis.paired import MIN_CLUSTERS

FIRST_POSITION = 64.0
"""Positions before it count as it: the first tokens of a context differ for other reasons."""

KL_FLOOR = 1e-8
"""Added before the logarithm: below it a KL is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Relative growth of KL per doubling of the position: 0.08 is 8 % more. Limits one-sided at 1 - alpha."""

    per_doubling: float
    low: float
    high: float
    p: float
    """p-value of "no growth", one-sided; 1 with fewer than 20 prompts or slopes that do not vary."""
    prompts: int
    """Prompts whose tokens lie at more than one position beyond the 64th."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSums:
    """Per prompt [G], what a straight line through its tokens needs: x is log2 of the position, y is ln(KL)."""

    n: FloatArray
    x: FloatArray
    y: FloatArray
    xx: FloatArray
    xy: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class OctaveRatio:
    """Mean KL of the last octave over that of the first, on prompts that reach both."""

    first: tuple[int, int]
    """Positions, both ends included."""
    last: tuple[int, int]
    ratio: float
    low: float
    high: float
    prompts: int


def position_growth(kl: ArrayLike, position: ArrayLike, prompt: ArrayLike, alpha: float = 0.05) -> Growth | None:
    """Slope of ln(KL + 1e-8) on log2(max(position, 64)) in each prompt, then t over prompts; None without any slope.

    On the log scale, because the slope of KL itself has a skewed error (a test at .05 rejects in 9 % of studies
    without growth). Infinite values count as the largest finite one. Each prompt has the same weight.
    """
    values = without_nan(kl, "kl")
    index, places = cluster_index(prompt, values.size), _positions(position, values.size)
    x, y = line_points(winsorise(values), places)
    parts = (np.ones_like(x), x, y, x * x, x * y)
    n, sx, sy, sxx, sxy = (sums_by(index, part) for part in parts)
    return growth(LineSums(n=n, x=sx, y=sy, xx=sxx, xy=sxy), alpha)


def line_points(kl: FloatArray, position: FloatArray) -> tuple[FloatArray, FloatArray]:
    """x and y of `LineSums`, token by token, counted from 64 and from 1e-8: the sums keep their digits."""
    return np.log2(np.maximum(position, FIRST_POSITION) / FIRST_POSITION), np.log1p(np.maximum(kl, 0.0) / KL_FLOOR)


def growth(sums: LineSums, alpha: float = 0.05) -> Growth | None:
    """`position_growth` from sums by prompt."""
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = sums.xx - sums.x**2 / sums.n
        slopes = (sums.xy - sums.x * sums.y / sums.n) / spread
    slopes = slopes[spread > 1e-9]  # NaN, of prompts without tokens, is not greater either
    if not slopes.size:
        return None
    slopes[np.abs(slopes) < 1e-12] = 0.0  # rounding is no growth
    t = cluster_t(slopes, None, alpha)
    claim = t.varies and t.clusters >= MIN_CLUSTERS
    return Growth(
        per_doubling=_relative(t.estimate),
        low=_relative(t.low),
        high=_relative(t.high),
        p=float(special.stdtr(t.df, -t.estimate / t.se)) if claim else 1.0,
        prompts=t.clusters,
    )


def growth_against(found: Growth, margin: float, alpha: float = 0.05) -> tuple[float, float]:
    """p-values of "grows by `margin` or more" and of "by `margin` or less"; both 1 where no claim can be made.

    `alpha`: that of the limits of `found`, which hold its standard error.
    """
    if found.prompts < MIN_CLUSTERS or not -1.0 < found.low < found.per_doubling:
        return 1.0, 1.0
    df, slope = found.prompts - 1, math.log1p(found.per_doubling)
    se = (slope - math.log1p(found.low)) / -float(special.stdtrit(df, alpha))
    t = (slope - math.log1p(margin)) / se
    return float(special.stdtr(df, t)), float(special.stdtr(df, -t))


def _relative(slope: float) -> float:
    return math.expm1(min(slope, 700.0))


def octave_ratio(kl: ArrayLike, position: ArrayLike, prompt: ArrayLike, alpha: float = 0.05) -> OctaveRatio | None:
    """Ratio of mean KL between the furthest octaves (of `by_octave`, from 65 on) that 20 prompts share.

    None where there are no two such octaves, or one has a mean of 0 or an infinite one.
    """
    values = without_nan(kl, "kl")
    index, octave = cluster_index(prompt, values.size), octave_of(_positions(position, values.size))
    if not values.size or np.isposinf(values).any():
        return None
    shape = (int(index.max()) + 1, int(octave.max()) + 1)
    code = index * shape[1] + octave
    sums = sums_by(code, values, shape[0] * shape[1]).reshape(shape)
    sizes = np.bincount(code, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    return ratio_of_octaves(sums, sizes, alpha)


def ratio_of_octaves(sums: FloatArray, sizes: FloatArray, alpha: float = 0.05) -> OctaveRatio | None:
    """`octave_ratio` from sums of KL and numbers of tokens [G, octaves]; column k holds 2^(k-1)+1 .. 2^k."""
    beyond = int(math.log2(FIRST_POSITION)) + 1
    filled = [k for k in range(beyond, sums.shape[1]) if int((sizes[:, k] > 0).sum()) >= MIN_CLUSTERS]
    for first, last in ((a, b) for a in filled[:-1] for b in reversed(filled) if b > a):
        reach = (sizes[:, first] > 0) & (sizes[:, last] > 0)
        if int(reach.sum()) >= MIN_CLUSTERS:
            pairs = (sums[reach, last], sizes[reach, last]), (sums[reach, first], sizes[reach, first])
            return _ratio(pairs, (octave_span(first), octave_span(last)), alpha)
    return None


def _ratio(
    parts: tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]],
    spans: tuple[tuple[int, int], tuple[int, int]],
    alpha: float,
) -> OctaveRatio | None:
    """The logarithm of the ratio of two means, linearised and summed by prompt, with t limits."""
    (last, last_sizes), (first, first_sizes) = parts
    if first.sum() <= 0 or last.sum() <= 0:
        return None
    ratio = float((last.sum() / last_sizes.sum()) / (first.sum() / first_sizes.sum()))
    influence = (
        last / last.sum() - last_sizes / last_sizes.sum() - first / first.sum() + first_sizes / first_sizes.sum()
    )
    prompts = len(influence)
    se = math.sqrt(prompts / (prompts - 1) * float(np.sum(influence**2)))
    reach = -float(special.stdtrit(prompts - 1, alpha)) * se
    return OctaveRatio(
        first=spans[0],
        last=spans[1],
        ratio=ratio,
        low=ratio * math.exp(-reach),
        high=ratio * math.exp(reach),
        prompts=prompts,
    )


def _positions(position: ArrayLike, size: int) -> FloatArray:
    places = np.asarray(position, dtype=np.float64)
    if places.shape != (size,) or not (places >= 1).all():
        raise ValueError("`position`: expected one position per token, counted from 1")
    return places
