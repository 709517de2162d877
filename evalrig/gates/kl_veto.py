"""A veto on distance: the candidate's token distribution must not lie further from the reference than the noise floor plus the margin.

It can stop a release and never earns one: near the reference, distance does not predict the direction of accuracy
(arXiv 2606.19558), so a pass here only means that nothing was found that must stop it. Distances from top-K lists are
lower bounds: a failure needs no more, and a pass has to hold for what the audit says the lists hide.
"""

import math
from dataclasses import dataclass, replace

from evalrig.analysis.kl import Audit
from evalrig.analysis.kl_excess import Excess, excess_of
from evalrig.gate import Evidence, Gate, outcome_of
from evalrig.types import Check, CheckOutcome, Estimate, Metric


@dataclass(kw_only=True)
class KlVetoOptions:
    """Keys of `gates.<name>.options`: none."""


class KlVeto(Gate):
    """Excess of the mean KL over the reference-against-reference floor, nats per token, clustered by prompt."""

    Options = KlVetoOptions
    earns = False

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """Distances."""
        return metric is not None and metric.kind == "distance"

    def check(self, evidence: Evidence) -> Check:
        """See `Gate.check`."""
        tokens = evidence.distances.get(self.plan.suite)
        if tokens is None or not tokens.tokens:
            return self.undecided("no token was scored in both arms")
        if tokens.broken:
            return self.undecided(f"{tokens.broken} tokens have no number for their distance")
        floor = evidence.floors.get(self.plan.suite)
        if floor is not None and floor.broken:
            return self.undecided(f"{floor.broken} tokens of the noise floor have no number for it")
        found = excess_of(tokens.by_prompt, floor and floor.by_prompt, evidence.alpha, self.plan.margin)
        outcome = outcome_of(found.p_below, found.p_above, evidence.alpha)
        words = self._words(found, outcome, tokens.tokens, 1 - 2 * evidence.alpha)
        check = self._check(found, outcome, words, tokens.tokens)
        hidden = _hidden(evidence.audits.get(self.plan.suite))
        if outcome is CheckOutcome.PASSED and found.high > self.plan.margin * (1 - hidden):
            held = f"cannot tell: the lists hide {hidden:.0%} of the distance on audited tokens; raise the suite's `top_k` ({words})"
            return replace(check, outcome=CheckOutcome.UNDECIDED, reason=held, p_go=1.0)
        floor_mean = found.levels.floor or 0.0
        if outcome is CheckOutcome.PASSED and floor_mean >= self.plan.margin:
            held = f"cannot tell: the noise floor of {floor_mean:.2g} is not below the margin ({words})"
            return replace(check, outcome=CheckOutcome.UNDECIDED, reason=held, p_go=1.0)
        return check

    def _check(self, found: Excess, outcome: CheckOutcome, words: str, tokens: int) -> Check:
        return Check(
            gate=self.plan.name,
            suite=self.plan.suite,
            outcome=outcome,
            reason=words,
            estimate=Estimate(
                value=_finite(found.excess),
                low=_finite(found.low),
                high=_finite(found.high),
                n=tokens,
                method=found.method,
                units="nats/token above the floor",
            ),
            needed=_needed(found, self.plan.margin) if outcome is CheckOutcome.UNDECIDED else None,
            gating=self.plan.gating,
            p_go=found.p_below,
            p_nogo=found.p_above,
        )

    def _words(self, found: Excess, outcome: CheckOutcome, tokens: int, share: float) -> str:
        levels, margin = found.levels, self.plan.margin
        floor = "no floor was measured" if levels.floor is None else f"floor {levels.floor:.2g}"
        ratio = "ratio to the floor not defined" if levels.ratio is None else f"{_times(levels.ratio)} times the floor"
        size = f"{tokens} tokens of {levels.prompts} prompts"
        interval = f"{100 * share:g} % interval {found.low:.3g} to {found.high:.3g}"
        seen = f"excess {found.excess:.3g} nats per token ({interval}), {floor}, {ratio}, {size}"
        if outcome is CheckOutcome.FAILED:
            return f"the token distribution moves by {levels.mean_kl:.2g} nats per token, veto at {margin:g}: {seen}"
        if outcome is CheckOutcome.PASSED:
            return f"no veto: the distance stays below {margin:g} nats per token: {seen}"
        return f"cannot tell on which side of {margin:g} nats per token the distance lies ({found.method}): {seen}"


def _hidden(seen: Audit | None) -> float:
    """Share of the KL that top-K lists lose, measured over the whole vocabulary: a pass must hold for the whole."""
    lost = seen.lost_share if seen else 0.0  # nothing audited, or broken rows, which validity names
    return min(max(lost or 0.0, 0.0), 1.0)


def _needed(found: Excess, margin: float) -> int | None:
    """Prompts that would put the interval on one side of the margin, the width shrinking with the root of their number."""
    half, gap = (found.high - found.low) / 2, abs(found.excess - margin)
    if not (math.isfinite(half) and gap > 0):
        return None
    return math.ceil(found.levels.prompts * max(1.0, (half / gap) ** 2))


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
