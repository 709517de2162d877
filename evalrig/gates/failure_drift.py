"""How answers fail must not drift: no way of failing may become more frequent by more than the margin.

Its pass is no reason for GO: a candidate that fails as the reference does may still fail more. The score's own gate says that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evalrig.analysis.drift import Drift, drift
from evalrig.errors import UsageError
from evalrig.gate import Evidence, Gate, Pairs
from evalrig.plan import GatePlan, SuitePlan
from evalrig.types import Check, CheckOutcome, Estimate, Metric


@dataclass(kw_only=True)
class FailureDriftOptions:
    """Keys of `gates.<name>.options`."""

    words: list[str] = field(default_factory=list[str])
    """Ways of failing that are judged; default: all that the suite tells."""


class FailureDrift(Gate):
    """Paired excess of each way of failing: Holm over the words to fail, every word to pass."""

    Options = FailureDriftOptions
    earns = False

    def __init__(self, plan: GatePlan, options: FailureDriftOptions) -> None:
        super().__init__(plan, options)
        if plan.margin >= 1:
            raise UsageError(
                f"gates.{plan.name}.margin: {plan.margin} of a share is everything; 0.05 means five points"
            )

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """No metric: it judges how attempts failed, whatever they scored."""
        return metric is None

    @classmethod
    def unfit(cls, options: Any, suite: SuitePlan) -> str:
        """See `Gate.unfit`."""
        if not suite.failures:
            return "its suite does not tell how attempts fail; name one that does, or leave the gate out"
        strange = [word for word in options.words if word not in suite.failures]
        return f"options.words: no failure {strange[0]!r}; known: {', '.join(suite.failures)}" if strange else ""

    def check(self, evidence: Evidence) -> Check:
        """See `Gate.check`."""
        pairs = self.judged(evidence)
        first = next(iter(pairs.values()), None)
        if first is None or not (np.isfinite(first.reference) & np.isfinite(first.candidate)).any():
            return self.undecided("no attempt was measured in both arms")
        cluster = first.clusters if first.clustered else None
        shares = {word: (one.reference, one.candidate) for word, one in pairs.items()}
        found = drift(shares, self.plan.margin, cluster, evidence.alpha)
        outcome, spoke = self._outcome(found, evidence.alpha)
        return self._check(found, outcome, spoke, self._words(first, outcome, spoke, found, evidence.alpha))

    def judged(self, evidence: Evidence) -> dict[str, Pairs]:
        """The words that this gate looks at, in the suite's order."""
        return {
            word: one
            for (suite, word), one in evidence.failures.items()
            if suite == self.plan.suite and (not self.options.words or word in self.options.words)
        }

    def _outcome(self, found: Sequence[Drift], alpha: float) -> tuple[CheckOutcome, list[Drift]]:
        """The outcome, and the words that it rests on, the largest excess first."""
        by_size = sorted(found, key=lambda one: -one.excess.value)
        if lost := [one for one in by_size if one.missing in ("differential", "too_many")]:
            return CheckOutcome.INVALID, lost
        if failed := [one for one in by_size if one.decision(alpha) == "fail"]:
            return CheckOutcome.FAILED, failed
        if open_ := [one for one in by_size if one.decision(alpha) == "undecided"]:
            return CheckOutcome.UNDECIDED, open_
        return CheckOutcome.PASSED, by_size

    def _words(
        self, pairs: Pairs, outcome: CheckOutcome, spoke: Sequence[Drift], found: Sequence[Drift], alpha: float
    ) -> str:
        margin = f"{100 * self.plan.margin:.3g} points"
        largest = f"{_seen(spoke[0], alpha)}, n={spoke[0].excess.n}"
        names = ", ".join(one.word for one in spoke)
        if outcome is CheckOutcome.PASSED:
            return f"no way of failing became more frequent by {margin}: of {len(found)} the most {largest}"
        if outcome is CheckOutcome.FAILED:
            others = f"; also {', '.join(one.word for one in spoke[1:])}" if spoke[1:] else ""
            return f"answers fail otherwise, by more than {margin}: {largest}{others}"
        lost = f"{_lost(pairs.reference)} of the reference, {_lost(pairs.candidate)} of the candidate"
        if outcome is CheckOutcome.INVALID:
            why = "the arms lose attempts unequally" if spoke[0].missing == "differential" else "too many"
            return f"missing attempts: {lost}; {why}: stability, not how answers fail"
        if any(one.missing == "disagree" for one in spoke):
            return f"missing attempts: {lost}; worst and best case disagree on {names}"
        need = _needed(spoke)
        more = f"; needs about {need} samples" if need else ""
        return f"cannot decide {margin} for {names}: the most {largest}{more}"

    def _check(self, found: Sequence[Drift], outcome: CheckOutcome, spoke: Sequence[Drift], words: str) -> Check:
        most = spoke[0].excess
        decided = outcome in (CheckOutcome.PASSED, CheckOutcome.FAILED)
        return Check(
            gate=self.plan.name,
            suite=self.plan.suite,
            outcome=outcome,
            reason=words,
            estimate=Estimate(
                value=most.value,
                low=_finite(most.low),
                high=_finite(most.high),
                n=most.n,
                method=f"{most.method}; Holm over {len(found)} words",
                units=f"share of {spoke[0].word}, difference",
            ),
            needed=_needed(spoke) if outcome is CheckOutcome.UNDECIDED else None,
            gating=self.plan.gating,
            p_go=max(one.excess.p_below for one in found) if decided else 1.0,
            p_nogo=min(one.excess.p_above for one in found) if decided else 1.0,
        )


def _seen(one: Drift, alpha: float) -> str:
    limits = f"{100 * (1 - 2 * alpha):g} % interval {100 * one.excess.low:+.2g} to {100 * one.excess.high:+.2g}"
    return f"{one.word} {100 * one.excess.value:+.2g} points ({one.reference:.1%} to {one.candidate:.1%}), {limits}"


def _needed(spoke: Sequence[Drift]) -> int | None:
    """Samples that settle every open word; None where one cannot be settled by more."""
    needs = [one.excess.needed for one in spoke]
    return None if None in needs else max((need for need in needs if need), default=None)


def _lost(shares: Any) -> str:
    return f"{float(np.isnan(shares).mean()):.1%}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
