"""Accumulation: does the candidate's error rate rise along a task more than the reference's does?"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import FloatArray, finite, probability
from evalrig.analysis.clusters import cluster_index
from evalrig.analysis.paired import MIN_CLUSTERS

PER = 10.0
"""Steps over which growth is told."""
ROUNDS = 50
SEPARATED = 15.0
"""A coefficient beyond this is a rate of 0 or 1 that no further step brings nearer: the maximum lies at infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logit:
    """A logistic regression with the cluster sandwich for its errors."""

    coefficients: FloatArray
    errors: FloatArray
    """Standard errors [k]."""
    clusters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """Growth of the odds of a step error over ten steps: 1.5 is half as much again. Limits one-sided at 1 - alpha each."""

    reference: float
    candidate: float
    relative: float
    """Candidate's growth over the reference's."""
    low: float
    high: float
    p: float
    """p-value of "the candidate's errors do not grow more", one-sided."""
    clusters: int


def logit_cluster(columns: ArrayLike, wrong: ArrayLike, cluster: ArrayLike | None) -> Logit | None:
    """Newton's method on [n, k] columns and 0/1 outcomes [n]; CR1 sandwich. None where the data have no finite maximum."""
    x, y = np.asarray(columns, np.float64), finite(wrong, "wrong")
    if x.ndim != 2 or len(x) != len(y) or not np.isin(y, (0.0, 1.0)).all():
        raise ValueError("`wrong`: expected a 0 or 1 for each row of columns")
    index = cluster_index(cluster, len(y))
    clusters = int(index.max()) + 1
    beta = np.zeros(x.shape[1])
    for _ in range(ROUNDS):
        p = special.expit(x @ beta)
        curvature = x.T @ (x * (p * (1 - p))[:, None])
        if clusters < 2 or np.abs(beta).max() > SEPARATED or np.linalg.cond(curvature) > 1e12:
            return None
        move = np.linalg.solve(curvature, x.T @ (y - p))
        beta = beta + move
        if np.abs(move).max() < 1e-9:
            break
    else:
        return None
    scores = np.zeros((clusters, x.shape[1]))
    np.add.at(scores, index, x * (y - p)[:, None])
    bread = np.linalg.inv(curvature)
    spread = bread @ (scores.T @ scores) @ bread * clusters / (clusters - 1)
    return Logit(coefficients=beta, errors=np.sqrt(np.maximum(np.diag(spread), 0.0)), clusters=clusters)


def accumulation(
    wrong: ArrayLike, step: ArrayLike, arm: ArrayLike, cluster: ArrayLike, alpha: float = 0.05
) -> tuple[Accumulation | None, str]:
    """logit(step error) ~ arm + t/10 + arm * t/10 over the steps of both arms, and the interaction's one-sided t test.

    All [n]: 0/1, the step from 1, arm 0 (reference) or 1, the cluster. None with the reason where there is no number.
    """
    probability(alpha, "alpha")
    y, t, a = (np.asarray(part, np.float64) for part in (wrong, step, arm))
    if not y.size:
        return None, "no steps"
    labels, clusters = np.asarray(cluster), len(np.unique(np.asarray(cluster)))
    if clusters < MIN_CLUSTERS:
        return None, f"{clusters} clusters; at least {MIN_CLUSTERS} are needed"
    for number, name in ((0.0, "reference"), (1.0, "candidate")):
        own = y[a == number]
        if not own.size or own.min() == own.max():
            return None, f"the {name} has {'no steps' if not own.size else 'errors only' if own.max() else 'no errors'}"
    found = logit_cluster(np.column_stack((np.ones_like(y), a, t / PER, a * t / PER)), y, labels)
    if found is not None and found.errors[3] <= 1e-6:  # all that is left is rounding
        return None, "both arms err at the same steps"
    if found is None:
        return None, "errors lie so that no finite growth fits them (all early, all late, or all steps alike)"
    slope, more, se = float(found.coefficients[2]), float(found.coefficients[3]), float(found.errors[3])
    df = found.clusters - 1
    reach = -float(special.stdtrit(df, alpha)) * se
    growth = Accumulation(
        reference=math.exp(slope),
        candidate=math.exp(slope + more),
        relative=math.exp(more),
        low=math.exp(more - reach),
        high=math.exp(more + reach),
        p=float(special.stdtr(df, -more / se)),
        clusters=found.clusters,
    )
    return growth, ""
