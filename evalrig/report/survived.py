"""Survival as shown: how far attempts come before their first wrong step, and before they part from the reference."""

from collections.abc import Mapping

import numpy as np

from evalrig.analysis.survival import kaplan_meier
from evalrig.evidence import Gathered
from evalrig.horizon import Horizon, Of, Walk
from evalrig.plan import SuitePlan
from evalrig.report.shown_maps import Row, Table
from evalrig.report.shown_steps import Fall, SurvivalView
from evalrig.report.words import NOTHING, level, listed, percent
from evalrig.types import REFERENCE

AT = (1, 2, 3, 5, 10, 20, 40, 80)
"""Steps at which curves are also told as numbers."""


def survival(gathered: Gathered, suite: SuitePlan, arms: Mapping[str, Horizon], noise: str) -> tuple[SurvivalView, ...]:
    """First wrong step of every arm, and first step unlike the reference's; a view only where some arm has a step at risk."""
    alpha = gathered.plan.header.alpha
    walks = {name: one.candidate for name, one in arms.items()}
    own = gathered.horizon(suite, REFERENCE)
    wrong = {REFERENCE: own.candidate, **walks} if own else walks
    views = (
        _view(f"{suite.name}: attempts without a wrong step so far", wrong, "any", noise, alpha),
        _view(f"{suite.name}: attempts that went the reference's way so far", walks, "divergence", noise, alpha),
    )
    return tuple(view for view in views if view is not None)


def _view(title: str, walks: Mapping[str, Walk], of: Of, noise: str, alpha: float) -> SurvivalView | None:
    firsts = {name: walk.first(of) for name, walk in walks.items()}
    firsts = {name: first for name, first in firsts.items() if first[0].size}
    if not firsts:
        return None
    last = max(int(steps.max()) for steps, _ in firsts.values())
    at = [step for step in AT if step <= last]
    curves = tuple(_fall(name, steps, events, noise, alpha) for name, (steps, events) in firsts.items())
    rows = [
        Row(label=curve.arm, cells=tuple(_cell(curve, step, int((firsts[curve.arm][0] >= step).sum())) for step in at))
        for curve in curves
    ]
    ends = listed(f"{curve.arm} {percent(curve.shares[-1] if curve.shares else 1.0)}" for curve in curves)
    return SurvivalView(
        title=title,
        axis=f"{'without a wrong step' if of == 'any' else 'the same as the reference'}, share of attempts",
        last=last,
        curves=curves,
        description=f"Kaplan-Meier curves over {last} steps. At their end: {ends}.",
        table=Table(
            title=f"{title}, in numbers",
            columns=("variant", *(f"step {step}" for step in at)),
            rows=tuple(rows),
            note=f"Share, {level(alpha)} interval, and attempts still under way. The limits take attempts as independent.",
        ),
    )


def _fall(name: str, steps: np.ndarray, events: np.ndarray, noise: str, alpha: float) -> Fall:
    found = kaplan_meier(steps, events, alpha)
    shares, lows, highs = (tuple(round(float(x), 6) for x in part) for part in (found.share, found.low, found.high))
    kind = "reference" if name == REFERENCE else "noise" if name == noise else "candidate"
    return Fall(arm=name, kind=kind, steps=tuple(int(x) for x in found.steps), shares=shares, lows=lows, highs=highs)


def _cell(curve: Fall, step: int, at_risk: int) -> str:
    if not at_risk:
        return NOTHING
    before = [at for at, fall in enumerate(curve.steps) if fall <= step]
    if not before:
        return f"100 % ({at_risk:,})"
    at = before[-1]
    return f"{percent(curve.shares[at])}, {percent(curve.lows[at])} to {percent(curve.highs[at])} ({at_risk:,})"
