"""How answers fail, word by word: by how much more often the candidate fails in one way than the reference, on the same items.

Two variants can solve equally many problems and fail otherwise: one that now runs into the time limit where it used to be wrong has
changed. Each word is a paired comparison of its own; several words are several chances, hence Holm.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evalrig.analysis.arrays import FloatArray, vector
from evalrig.analysis.clusters import holm
from evalrig.analysis.missing import Missing, MissingOutcome, missing_bounds
from evalrig.analysis.paired import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Share of one failure in the candidate less that in the reference; above 0: the candidate fails so more often."""

    value: float
    low: float
    high: float
    """One-sided limits at 1 - alpha each; infinite where no valid limit exists."""
    p_below: float
    """p-value of "the excess is the margin or more", under the worst reading of what is missing."""
    p_above: float
    """p-value of "the excess is the margin or less"; after `drift`, adjusted for all words (Holm)."""
    n: int
    needed: int | None
    """Items that would settle it with 80 % power; None: decided, or no number helps."""
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One word in both arms."""

    word: str
    reference: float
    candidate: float
    """Shares of what was measured in each arm; NaN where nothing was."""
    excess: Excess
    missing: MissingOutcome
    """Whether what is missing may be ignored; see `missing_bounds`."""

    def decision(self, alpha: float) -> Decision:
        """pass: an excess of the margin is excluded; fail: one above it is shown, after the adjustment for all words."""
        if self.missing != "ok":
            return "undecided"
        if self.excess.p_above <= alpha:
            return "fail"
        return "pass" if self.excess.p_below <= alpha else "undecided"


def drift(
    shares: Mapping[str, tuple[ArrayLike, ArrayLike]],
    margin: float,
    cluster: ArrayLike | None = None,
    alpha: float = 0.05,
) -> list[Drift]:
    """Compare both arms on every word. `shares`: word -> (reference, candidate), each [n]: the share of an item's attempts that
    failed so, in 0..1, items in the same order, NaN where the attempts are missing; one label per item in `cluster`.

    A missing item counts as failed so in its own arm, as a missing score counts 0. Raises ValueError as `missing_bounds` does.
    """
    found = [(word, vector(ours, word), vector(theirs, word)) for word, (ours, theirs) in shares.items()]
    tests = [missing_bounds(1 - ours, 1 - theirs, margin, cluster, alpha) for _, ours, theirs in found]
    adjusted = holm([test.itt.p_nogo for test in tests]) if tests else np.empty(0)
    return [
        Drift(
            word=word,
            reference=_mean(ours),
            candidate=_mean(theirs),
            excess=_excess(test, float(p_above)),
            missing=test.outcome,
        )
        for (word, ours, theirs), test, p_above in zip(found, tests, adjusted, strict=True)
    ]


def _excess(test: Missing, p_above: float) -> Excess:
    """A score is 1 less the share of failures, so a loss of the score is an excess of failures."""
    seen = test.itt
    return Excess(
        value=-seen.estimate + 0.0,  # no -0
        low=-seen.high,
        high=-seen.low,
        p_below=max(seen.p_go, test.worst.p_go),
        p_above=p_above,
        n=seen.n,
        needed=seen.n_needed,
        method=seen.method,
    )


def _mean(shares: FloatArray) -> float:
    there = shares[np.isfinite(shares)]
    return float(there.mean()) if there.size else float("nan")
