"""Not worse by more than the margin, on paired samples. Absence of a visible loss is not enough: the margin must be excluded."""

import math
from dataclasses import dataclass, replace

import numpy as np

from evalrig.analysis.missing import missing_bounds
from evalrig.analysis.paired import PairedTest, flags, noninferiority
from evalrig.analysis.power import resolvable_margin
from evalrig.errors import UsageError
from evalrig.gate import Evidence, FloatArray, Gate, Pairs, outcome_of
from evalrig.plan import GatePlan
from evalrig.types import Check, CheckOutcome, Estimate, Metric


@dataclass(kw_only=True)
class NoninferiorOptions:
    """Keys of `gates.<name>.options`."""

    max_missing: float = -1.0
    """Largest share of missing scores in an arm; below 0: half the margin."""


class Noninferior(Gate):
    """Paired non-inferiority: score interval and exact test for binary scores, cluster-robust t otherwise."""

    Options = NoninferiorOptions

    def __init__(self, plan: GatePlan, options: NoninferiorOptions) -> None:
        super().__init__(plan, options)
        if not options.max_missing < 1:
            raise UsageError(
                f"gates.{plan.name}.options.max_missing is {options.max_missing}; a share below 1, or -1 for half the margin"
            )

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """Scores, not distances or speeds."""
        return metric is not None and metric.kind in ("binary", "continuous")

    def check(self, evidence: Evidence) -> Check:
        """See `Gate.check`."""
        pairs = evidence.pairs.get((self.plan.suite, self.plan.metric))
        if pairs is None or not len(pairs.samples):
            return self.undecided("no pairs were measured")
        if pairs.metric.kind == "binary":
            return self._binary(pairs, evidence.alpha)
        return self._continuous(pairs, evidence.alpha)

    def _binary(self, pairs: Pairs, alpha: float) -> Check:
        cluster = pairs.clusters if pairs.clustered else None
        limit = None if self.options.max_missing < 0 else self.options.max_missing
        found = missing_bounds(pairs.reference, pairs.candidate, self.plan.margin, cluster, alpha, limit)
        test = found.itt
        lost = f"missing scores: {found.missing_reference:.1%} of the reference, {found.missing_candidate:.1%} of the candidate"
        if found.outcome == "differential":
            reason = (
                f"{lost}; the arms lose answers unequally (p = {found.p_differential:.2g}): stability, not accuracy"
            )
            return self._check(pairs, test, CheckOutcome.INVALID, reason)
        if found.outcome == "too_many":
            return self._check(pairs, test, CheckOutcome.INVALID, f"{lost}; more than could hide a loss of the margin")
        if found.outcome == "disagree":
            return self._check(pairs, test, CheckOutcome.UNDECIDED, f"{lost}; worst and best case disagree")
        if (assay := _insensitive(pairs)) and test.p_nogo > alpha:  # a loss that shows needs no further sensitivity
            return replace(
                self._check(pairs, test, CheckOutcome.UNDECIDED, assay), needed=None
            )  # more of it would not help
        worst = found.worst  # GO also needs GO if every missing answer counted against the candidate
        outcome = outcome_of(max(test.p_go, worst.p_go), test.p_nogo, alpha)
        return self._check(pairs, test, outcome, self._words(pairs, test, outcome, alpha))

    def _continuous(self, pairs: Pairs, alpha: float) -> Check:
        both = np.isfinite(pairs.reference) & np.isfinite(pairs.candidate)
        if both.sum() < 2:
            return self.undecided("fewer than two pairs with a score in both arms")
        differences = (pairs.candidate - pairs.reference)[both]
        cluster = pairs.clusters[both] if pairs.clustered else None
        test = noninferiority(differences, self.plan.margin, cluster, alpha, bounded=False)
        lost = 1 - both.mean()
        if lost > 0.01:
            reason = f"{lost:.1%} of the pairs lack a score in one arm; an unbounded score cannot be imputed"
            return self._check(pairs, test, CheckOutcome.UNDECIDED, reason)
        outcome = outcome_of(test.p_go, test.p_nogo, alpha)
        return self._check(pairs, test, outcome, self._words(pairs, test, outcome, alpha))

    def _words(self, pairs: Pairs, test: PairedTest, outcome: CheckOutcome, alpha: float) -> str:
        metric, scale = pairs.metric, pairs.metric.scale
        seen = f"{scale * test.estimate:+.2g} {metric.units}, {_interval(test, scale, alpha)}, n={test.n}"
        counts = ""
        if metric.kind == "binary":
            losses, gains = _counts(pairs)
            counts = f"; {losses} losses, {gains} gains"
        margin = f"{scale * self.plan.margin:.3g} {metric.units}"
        if outcome is CheckOutcome.PASSED:
            gain = (
                "; suspiciously large gain: look for a mismatch"
                if flags(test, self.plan.margin).suspicious_gain
                else ""
            )
            return f"a loss of {margin} is excluded: {seen}{counts}{gain}"
        if outcome is CheckOutcome.FAILED:
            return f"a loss above {margin} is shown: {seen}{counts}"
        power = ""
        if metric.kind == "binary":
            psi = sum(_counts(pairs)) / test.n
            power = f"; with discordance {psi:.1%} it can decide {scale * resolvable_margin(test.n, psi, alpha):.2g} {metric.units}"
        need = f"; needs about {test.n_needed} samples" if test.n_needed else ""
        return f"cannot decide {margin}: {seen}{counts}{power}{need}"

    def _check(self, pairs: Pairs, test: PairedTest, outcome: CheckOutcome, reason: str) -> Check:
        decided = outcome in (CheckOutcome.PASSED, CheckOutcome.FAILED)
        estimate = Estimate(
            value=_finite(test.estimate),
            low=_finite(test.low),
            high=_finite(test.high),
            n=test.n,
            method=test.method,
            units=f"{pairs.metric.name} difference" if pairs.metric.kind == "binary" else pairs.metric.units,
        )
        return Check(
            gate=self.plan.name,
            suite=self.plan.suite,
            outcome=outcome,
            reason=reason,
            estimate=estimate,
            needed=test.n_needed if outcome is CheckOutcome.UNDECIDED else None,
            gating=self.plan.gating,
            p_go=test.p_go if decided else 1.0,  # whatever held a check back must not decide elsewhere
            p_nogo=test.p_nogo if decided else 1.0,
        )


def _counts(pairs: Pairs) -> tuple[int, int]:
    """Losses and gains as judged: a missing score counts 0 in its own arm."""
    difference: FloatArray = np.nan_to_num(pairs.candidate) - np.nan_to_num(pairs.reference)
    return int((difference < 0).sum()), int((difference > 0).sum())


def _insensitive(pairs: Pairs) -> str:
    """Why this suite could not have seen a loss; empty where it could."""
    scores = pairs.reference[np.isfinite(pairs.reference)]
    mean, n = float(scores.mean()), len(scores)
    se = math.sqrt(max(mean * (1 - mean), 1 / n) / n)
    if mean > 0.99:
        return f"no assay sensitivity: the reference scores {mean:.1%}, at the ceiling"
    for level, name in ((0.0, "zero"), (pairs.metric.chance, "chance")):
        if level is not None and mean - level <= 2 * se:
            return f"no assay sensitivity: the reference scores {mean:.1%}, within two standard errors of {name} ({level:.0%})"
    return ""


def _interval(test: PairedTest, scale: float, alpha: float) -> str:
    return f"{100 * (1 - 2 * alpha):g} % interval {scale * test.low:+.2g} to {scale * test.high:+.2g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
