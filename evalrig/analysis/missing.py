"""Missing scores: what the verdict would be if every answer that never came had been the worst, or the best, one."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from evalrig.analysis.arrays import BoolArray, FloatArray, vector
from evalrig.analysis.binary import mcnemar_midp
from evalrig.analysis.paired import PairedTest, decision, noninferiority

DIFFERENTIAL_BELOW = 0.01

MissingOutcome: TypeAlias = Literal["ok", "disagree", "too_many", "differential"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """The same test under three readings of the missing scores, and whether they may be ignored."""

    itt: PairedTest
    """Intention to treat: a missing score counts 0 in its own arm. The primary reading."""
    worst: PairedTest
    """Candidate's missing scores 0, the reference's 1."""
    best: PairedTest
    missing_reference: float
    missing_candidate: float
    """Shares of all items."""
    p_differential: float
    """p-value of "both arms lose answers equally often"."""
    outcome: MissingOutcome
    """differential and too_many make the comparison invalid; disagree makes it undecided."""


def missing_bounds(
    reference: ArrayLike,
    candidate: ArrayLike,
    margin: float,
    cluster: ArrayLike | None = None,
    alpha: float = 0.05,
    max_missing: float | None = None,
) -> Missing:
    """Scores in 0..1, shape [n], in the same item order; NaN where engine or grader failed after all retries.

    `max_missing` is a share of items per arm, half the margin by default, because a share m of missing scores can
    shift the difference by m. Raises ValueError on scores outside 0..1 or arms of different length.
    """
    ref, cand = _scores(reference, "reference"), _scores(candidate, "candidate")
    if ref.shape != cand.shape:
        raise ValueError(f"`candidate`: {cand.size} scores for {ref.size} of the reference; pair them first")
    no_ref, no_cand = np.isnan(ref), np.isnan(cand)

    def test(for_reference: float, for_candidate: float) -> PairedTest:
        differences = np.where(no_cand, for_candidate, cand) - np.where(no_ref, for_reference, ref)
        return noninferiority(differences, margin, cluster, alpha)

    itt = test(0.0, 0.0)
    nothing_missing = not (no_ref.any() or no_cand.any())
    worst, best = (itt, itt) if nothing_missing else (test(1.0, 0.0), test(0.0, 1.0))
    limit = margin / 2 if max_missing is None else _allowed(max_missing)
    p_differential = mcnemar_midp(int((no_cand & ~no_ref).sum()), int((no_ref & ~no_cand).sum()))
    outcome: MissingOutcome = "ok" if decision(worst, alpha) == decision(best, alpha) else "disagree"
    if max(_share(no_ref), _share(no_cand)) > limit:
        outcome = "too_many"
    if p_differential < DIFFERENTIAL_BELOW:
        outcome = "differential"
    return Missing(
        itt=itt,
        worst=worst,
        best=best,
        missing_reference=_share(no_ref),
        missing_candidate=_share(no_cand),
        p_differential=p_differential,
        outcome=outcome,
    )


def _scores(values: ArrayLike, name: str) -> FloatArray:
    array = vector(values, name)
    if not (np.isnan(array) | ((array >= 0) & (array <= 1))).all():
        raise ValueError(f"`{name}`: scores must lie in 0..1, or be NaN where missing")
    return array


def _allowed(share: float) -> float:
    if not 0.0 <= share < 1.0:
        raise ValueError(f"`max_missing`: {share!r} is no share below 1")
    return share


def _share(missing: BoolArray) -> float:
    return float(missing.mean()) if missing.size else 0.0
