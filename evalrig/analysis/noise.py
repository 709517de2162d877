"""Noise: what the reference does to itself, and whether it is small enough to judge a candidate by."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from evalrig.analysis.clusters import holm

Finding: TypeAlias = Literal["ok", "warn", "invalid"]

WARN_BELOW = 0.05
INVALID_BELOW = 0.001


def aa_findings(pvalues: Sequence[float]) -> list[Finding]:
    """Judge reference against `reference_again`, one two-sided p-value per suite, after Holm over the suites.

    Below .001 the suite contradicts itself and nothing measured with it counts; below .05 it is only a warning,
    because honest nights reach that too. Raises ValueError on NaN.
    """
    return [_finding(float(p)) for p in holm(pvalues)]


def _finding(adjusted: float) -> Finding:
    if adjusted < INVALID_BELOW:
        return "invalid"
    return "warn" if adjusted < WARN_BELOW else "ok"
