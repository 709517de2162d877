"""Hazard: errors per step at risk. What a step costs in excess of the reference, and what many such steps make of a task.

theta = candidate - reference, positive when the candidate errs more; alpha is one-sided everywhere.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import BoolArray, FloatArray, finite, probability, sums_by
from evalrig.analysis.clusters import cluster_index
from evalrig.analysis.paired import MIN_CLUSTERS, MIN_INFORMATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Errors and steps at risk, attempt by attempt; ValueError where an attempt has more errors than steps."""

    errors: FloatArray
    """[n]"""
    steps: FloatArray
    """[n]"""

    def __post_init__(self) -> None:
        if self.errors.shape != self.steps.shape or self.errors.ndim != 1:
            raise ValueError(f"`errors`: shape {self.errors.shape} for steps of shape {self.steps.shape}")
        if not ((self.errors >= 0) & (self.errors <= self.steps)).all():
            raise ValueError("`errors`: an attempt with more errors than steps, or with fewer than none")

    @property
    def rate(self) -> float:
        """Errors per step; NaN without steps."""
        total = float(self.steps.sum())
        return float(self.errors.sum()) / total if total else math.nan

    def by(self, index: ArrayLike) -> "Tally":
        """Summed by cluster 0..G-1."""
        of = np.asarray(index, np.int64)
        return Tally(errors=sums_by(of, self.errors), steps=sums_by(of, self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Excess errors per step against one margin. The p-values decide; the interval is for the eye."""

    reference: float
    candidate: float
    """Errors per step."""
    low: float
    high: float
    """Of candidate - reference: one-sided limits at 1 - alpha each."""
    p_go: float
    """p-value of "the excess is the margin or more"."""
    p_nogo: float
    """p-value of "the excess is the margin or less"."""
    clusters: int
    method: str
    needed: int | None
    """Attempts that would settle an undecided test with 80 % power; None when decided, or when no number helps."""

    @property
    def value(self) -> float:
        """Candidate - reference."""
        return self.candidate - self.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Ratio of errors per step, candidate over reference; limits one-sided at 1 - alpha each."""

    ratio: float
    log_se: float
    low: float
    high: float
    p: float
    """p-value of "the candidate does not err more", one-sided."""


def excess_hazard(
    reference: Tally, candidate: Tally, margin: float, cluster: ArrayLike | None = None, alpha: float = 0.05
) -> Excess:
    """Test excess errors per step of paired attempts against `margin` > 0; one label per attempt in `cluster`.

    The difference of the two rates with its linearised, cluster-robust (CR1) error and t limits, if there are 20 clusters
    and 10 of them differ between the arms. If not: an exact bound from counts, wide but valid. ValueError without steps.
    """
    probability(alpha, "alpha")
    probability(margin, "margin")
    index = cluster_index(cluster, _paired(reference, candidate))
    ours, theirs = reference.by(index), candidate.by(index)
    errors = ours.errors + theirs.errors
    unlike = (ours.errors != theirs.errors) | ((errors > 0) & (ours.steps != theirs.steps))
    clusters, informative = len(errors), int(unlike.sum())
    if clusters < MIN_CLUSTERS or informative < MIN_INFORMATIVE:
        return _scarce(reference, candidate, margin, index, alpha)
    influence = (theirs.errors - candidate.rate * theirs.steps) / theirs.steps.sum()
    influence -= (ours.errors - reference.rate * ours.steps) / ours.steps.sum()
    se = math.sqrt(clusters / (clusters - 1) * float(np.sum(influence**2)))
    value, df = candidate.rate - reference.rate, clusters - 1
    if se <= 1e-12:
        return _scarce(reference, candidate, margin, index, alpha)
    t, reach = (value - margin) / se, -float(special.stdtrit(df, alpha)) * se
    p_go, p_nogo = float(special.stdtr(df, t)), float(special.stdtr(df, -t))
    decided = min(p_go, p_nogo) <= alpha
    return Excess(
        reference=reference.rate,
        candidate=candidate.rate,
        low=value - reach,
        high=value + reach,
        p_go=p_go,
        p_nogo=p_nogo,
        clusters=clusters,
        method=f"difference of rates, cluster-robust t over {clusters} clusters",
        needed=None if decided else _needed(se, value, margin, len(reference.steps), alpha),
    )


def _paired(reference: Tally, candidate: Tally) -> int:
    if reference.steps.shape != candidate.steps.shape:
        raise ValueError(f"`candidate`: {len(candidate.steps)} attempts for {len(reference.steps)} of the reference")
    if not (reference.steps.sum() and candidate.steps.sum()):
        raise ValueError("`steps`: none in an arm; a rate of nothing is not 0")
    return len(reference.steps)


def _needed(se: float, value: float, margin: float, attempts: int, alpha: float) -> int | None:
    """As `PairedTest.n_needed`: without any excess, or, when that many were seen, if the excess is the observed one."""
    z = float(special.ndtri(1 - alpha) + special.ndtri(0.8))
    without = math.ceil(attempts * (z * se / margin) ** 2)
    if without > attempts:
        return without
    if abs(value - margin) < 1e-3 * margin:
        return None
    observed = max(math.ceil(attempts * (z * se / (value - margin)) ** 2), attempts + 1)
    return observed if observed <= 1000 * attempts else None


# ---- few errors: exact bounds from counts


def _scarce(reference: Tally, candidate: Tally, margin: float, index: ArrayLike, alpha: float) -> Excess:
    """Where too few clusters differ: the excess is at most the rate of what went wrong anew, bounded exactly.

    Where both arms have the same steps, "anew" is what an attempt has beyond its pair, else all errors of the arm.
    "Above the margin" allows for the mended steps by their own upper limit at alpha / 2 (Berger and Boos 1994).
    """
    anew, mended = _changes(reference, candidate, index)
    worse, better = _Count.of(anew), _Count.of(mended)
    allowed = margin + better.upper(alpha / 2)
    p_go = worse.at_most(margin)
    p_nogo = min(1.0, worse.at_least(allowed) + alpha / 2) if allowed < 1 else 1.0
    least = math.log(alpha) / math.log1p(-margin) * worse.inflation  # steps, without any error anew
    attempts, per_attempt = len(candidate.steps), float(candidate.steps.sum()) / len(candidate.steps)
    needed = math.ceil(least / per_attempt)
    return Excess(
        reference=reference.rate,
        candidate=candidate.rate,
        low=-better.upper(alpha),
        high=worse.upper(alpha),
        p_go=p_go,
        p_nogo=p_nogo,
        clusters=len(anew.steps),
        method=(
            f"exact bound on {worse.errors:g} errors anew in {anew.steps.sum():g} steps"
            f" (design effect {worse.inflation:.2g}): too few clusters differ for a t test"
        ),
        needed=needed if min(p_go, p_nogo) > alpha and needed > attempts else None,
    )


def _changes(reference: Tally, candidate: Tally, index: ArrayLike) -> tuple[Tally, Tally]:
    """Errors that only the candidate has, and those that only the reference has, by cluster."""
    if (reference.steps == candidate.steps).all():
        more = candidate.errors - reference.errors
        anew = Tally(errors=np.maximum(more, 0.0), steps=candidate.steps)
        return anew.by(index), Tally(errors=np.maximum(-more, 0.0), steps=reference.steps).by(index)
    return candidate.by(index), reference.by(index)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    """Errors among steps, and how much clustering inflates their variance."""

    errors: float
    steps: float
    inflation: float

    @classmethod
    def of(cls, tally: Tally) -> "_Count":
        total = float(tally.errors.sum())
        inflation = float(np.sum(tally.errors**2)) / total if total else 1.0
        return cls(errors=total, steps=float(tally.steps.sum()), inflation=inflation)

    @property
    def _worth(self) -> tuple[float, float]:
        """Errors and steps as if independent."""
        return self.errors / self.inflation, self.steps / self.inflation

    def upper(self, alpha: float) -> float:
        """Clopper-Pearson limit; of no errors it is 1 - alpha^(inflation / steps), about 3 / steps (Hanley and Lippman-Hand 1983)."""
        k, n = self._worth
        return float(special.betaincinv(k + 1, n - k, 1 - alpha)) if k < n else 1.0

    def at_most(self, rate: float) -> float:
        """Probability of so few errors at `rate` or above."""
        k, n = self._worth
        return float(special.betainc(n - k, k + 1, 1 - rate)) if k < n else 1.0

    def at_least(self, rate: float) -> float:
        """Probability of so many errors at `rate` or below."""
        k, n = self._worth
        return float(special.betainc(k, n - k + 1, rate)) if k > 0 else 1.0


# ---- ratio, compounding, recovery


def hazard_ratio(
    reference: Tally, candidate: Tally, cluster: ArrayLike | None = None, alpha: float = 0.05
) -> Ratio | None:
    """Ratio of the two rates on the log scale, linearised and summed by cluster; None where an arm has no error."""
    index = cluster_index(cluster, _paired(reference, candidate))
    ours, theirs = reference.by(index), candidate.by(index)
    clusters, wrong = len(ours.errors), (float(ours.errors.sum()), float(theirs.errors.sum()))
    if clusters < 2 or min(wrong) == 0:
        return None
    influence = (theirs.errors - candidate.rate * theirs.steps) / wrong[1]
    influence -= (ours.errors - reference.rate * ours.steps) / wrong[0]
    se = math.sqrt(clusters / (clusters - 1) * float(np.sum(influence**2)))
    log, reach = math.log(candidate.rate / reference.rate), -float(special.stdtrit(clusters - 1, alpha)) * se
    p = float(special.stdtr(clusters - 1, -log / se)) if se > 1e-12 else 1.0
    return Ratio(ratio=math.exp(log), log_se=se, low=math.exp(log - reach), high=math.exp(log + reach), p=p)


def compounding_delta(reference: float, candidate: float, steps: int) -> float:
    """Change of the success rate over `steps` if one error is fatal: (1 - h_c)^n - (1 - h_r)^n."""
    return (1 - candidate) ** steps - (1 - reference) ** steps


def margin_per_step(task_margin: float, success: float, steps: int) -> float:
    """Largest excess errors per step that keeps the success rate over `steps` within `task_margin` of `success`.

    -ln(1 - task_margin / success) / steps, all rates as fractions. ValueError where no rate is tolerable.
    """
    if not (0.0 < task_margin < success <= 1.0 and steps >= 1):
        raise ValueError(f"a loss of {task_margin} from a success rate of {success} over {steps} steps is no margin")
    return -math.log1p(-task_margin / success) / steps


def clean_share(tally: Tally) -> tuple[float, float]:
    """Share of attempts without any error: predicted from the rate and their lengths, mean of (1 - h)^n, and observed."""
    some = tally.steps > 0
    if not some.any():
        return math.nan, math.nan
    return float(np.mean((1 - tally.rate) ** tally.steps[some])), float(np.mean(tally.errors[some] == 0))


def recovery(tally: Tally, success: ArrayLike) -> tuple[int, float]:
    """Attempts with an error and a score, and how rightly these ended: their mean score; NaN where there are none."""
    scores = np.asarray(success, np.float64)
    hit: BoolArray = (tally.errors > 0) & np.isfinite(scores)
    return int(hit.sum()), float(finite(scores[hit], "success").mean()) if hit.any() else math.nan
