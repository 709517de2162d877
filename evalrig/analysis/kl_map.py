"""Maps: where the distance lies. Mean KL by group of tokens (class, entropy of the reference, suite), each against the rest.

Groups that stand out are hints where to look, never a verdict.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import BoolArray, FloatArray, finite, sums_by, without_nan
from evalrig.analysis.clusters import cluster_index, holm
from evalrig.analysis.kl_summary import winsorise
from evalrig.analysis.paired import MIN_CLUSTERS

QUARTILES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group of tokens; KL in nats per token."""

    name: str
    tokens: int
    prompts: int
    """Prompts that own a token of the group."""
    mean: float
    """Infinite values count as the largest finite one, here and in all groups."""
    low: float
    high: float
    """One-sided limits over prompts (CR1-t); infinite with a single prompt."""
    above_rest: float
    """Mean of the group less the mean of all other tokens; 0 if there are none."""
    p: float
    """p-value of "no higher than the rest", one-sided; 1 with fewer than 20 prompts in the group or in the rest."""
    p_holm: float
    """After Holm over the groups of the map."""


def by_group(
    kl: ArrayLike, group: ArrayLike, names: Sequence[str], prompt: ArrayLike, alpha: float = 0.05
) -> tuple[GroupRow, ...]:
    """One row for each group with tokens. `group` [n] holds indices into `names`, -1 for tokens of none (they count
    as rest); `prompt` [n] the clusters. NaN in `kl` and indices outside `names` raise ValueError."""
    values, code = winsorise(without_nan(kl, "kl")), np.asarray(group, dtype=np.int64)
    if code.shape != values.shape or (code.size and not -1 <= code.min() <= code.max() < len(names)):
        raise ValueError(f"`group`: expected one of {len(names)} groups, or -1, for each token")
    index = cluster_index(prompt, values.size)
    if not values.size:
        return ()
    shape = (int(index.max()) + 1, len(names) + 1)
    flat = index * shape[1] + np.where(code < 0, len(names), code)
    sums = sums_by(flat, values, shape[0] * shape[1]).reshape(shape)
    sizes = np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    return group_rows(sums, sizes, names, alpha)


def group_rows(sums: FloatArray, sizes: FloatArray, names: Sequence[str], alpha: float = 0.05) -> tuple[GroupRow, ...]:
    """`by_group` from sums of KL and numbers of tokens by prompt and group [G, groups]; columns beyond `names` are rest."""
    rows: list[GroupRow] = []
    total, total_size = sums.sum(axis=1), sizes.sum(axis=1)
    for column, name in enumerate(names):
        own, own_size = sums[:, column], sizes[:, column]
        if not own_size.any():
            continue
        mean, influence = _influence(own, own_size)
        low, high = _limits(mean, influence, own_size > 0, alpha)
        above, p = _against(mean, influence, total - own, total_size - own_size, own_size > 0)
        rows.append(
            GroupRow(
                name=name,
                tokens=int(own_size.sum()),
                prompts=int((own_size > 0).sum()),
                mean=mean,
                low=low,
                high=high,
                above_rest=above,
                p=p,
                p_holm=p,
            )
        )
    return _adjusted(rows)


def _adjusted(rows: list[GroupRow]) -> tuple[GroupRow, ...]:
    if not rows:
        return ()
    adjusted = holm([row.p for row in rows])
    return tuple(replace(row, p_holm=float(p)) for row, p in zip(rows, adjusted, strict=True))


def _influence(sums: FloatArray, sizes: FloatArray) -> tuple[float, FloatArray]:
    """Mean over tokens, and what each prompt contributes to its error, times sqrt(G/(G-1))."""
    mean, prompts = float(sums.sum() / sizes.sum()), int((sizes > 0).sum())
    correction = math.sqrt(prompts / (prompts - 1)) if prompts > 1 else 1.0
    return mean, correction * (sums - mean * sizes) / sizes.sum()


def _limits(mean: float, influence: FloatArray, owns: BoolArray, alpha: float) -> tuple[float, float]:
    prompts = int(np.count_nonzero(owns))
    if prompts < 2:
        return -math.inf, math.inf
    reach = -float(special.stdtrit(prompts - 1, alpha)) * math.sqrt(float(np.sum(influence**2)))
    return mean - reach, mean + reach


def _against(
    mean: float, influence: FloatArray, rest: FloatArray, rest_size: FloatArray, owns: BoolArray
) -> tuple[float, float]:
    """Difference to the rest and its p-value; prompts that own both keep their covariance."""
    if not rest_size.any():
        return 0.0, 1.0
    rest_mean, rest_influence = _influence(rest, rest_size)
    prompts = min(int(np.count_nonzero(owns)), int((rest_size > 0).sum()))
    se = math.sqrt(float(np.sum((influence - rest_influence) ** 2)))
    if prompts < MIN_CLUSTERS or se <= 1e-12 * max(abs(mean), abs(rest_mean)):
        return mean - rest_mean, 1.0
    return mean - rest_mean, float(special.stdtr(prompts - 1, -(mean - rest_mean) / se))


def quartile_names(edges: ArrayLike) -> tuple[str, ...]:
    """Names of the four groups of tokens that three rising edges (nats) of the reference's entropy part.

    From top-K lists the entropy is a lower bound, one bucket for the rest (`topk_bounds.list_entropy`): broad
    distributions look narrower than they are, and the names say "listed".
    """
    a, b, c = (f"{edge:.2g}" for edge in finite(edges, "edges"))
    return (
        f"listed entropy to {a}",
        f"listed entropy {a} to {b}",
        f"listed entropy {b} to {c}",
        f"listed entropy above {c}",
    )
