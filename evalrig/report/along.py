"""Along the steps as shown: what went wrong how often at a step, whether it grows, and what it makes of whole tasks."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from evalrig.analysis.accumulation import accumulation
from evalrig.analysis.arrays import BoolArray
from evalrig.analysis.clusters import cluster_t, holm
from evalrig.analysis.hazard import Tally, clean_share, compounding_delta, excess_hazard, hazard_ratio, recovery
from evalrig.analysis.paired import two_sided_p
from evalrig.evidence import Gathered
from evalrig.horizon import Horizon, Of, Walk
from evalrig.plan import SuitePlan
from evalrig.report.shown_maps import Row, Table
from evalrig.report.shown_steps import StepsView
from evalrig.report.survived import survival
from evalrig.report.words import NOISE, NOTHING, count, level, listed, p_value, percent, signed, significant, span
from evalrig.types import AGAIN, REFERENCE

WHAT: Mapping[Of, str] = {"any": "any error", "invalid": "invalid call", "divergence": "unlike the reference's step"}
LENGTHS = (5, 10, 20, 40, 80)
TASK = 30
"""Steps of the task over which a difference of rates is spelt out."""


def steps_view(gathered: Gathered, suite: SuitePlan) -> StepsView | None:
    """Everything about the steps of a suite; None where its attempts have none."""
    found = {arm: gathered.horizon(suite, arm) for arm in (*gathered.plan.candidates, AGAIN)}
    arms = {NOISE if arm == AGAIN else arm: one for arm, one in found.items() if one is not None}
    if not arms:
        return None
    alpha = gathered.plan.header.alpha
    return StepsView(
        note=" ".join(filter(None, (_note(arms), _told(gathered, suite), _drawn(gathered, suite)))),
        survival=survival(gathered, suite, arms, NOISE),
        hazards=_hazards(arms, alpha),
        lines=tuple(line for name, one in arms.items() if name != NOISE for line in _lines(name, one, alpha)),
        errors=_errors(arms, alpha),
        lengths=_lengths(arms),
    )


def _note(arms: Mapping[str, Horizon]) -> str:
    """What was paired, and what was left out."""
    forced = all(one.forced for one in arms.values())
    way = (
        "Every step was asked from the same given history, so that both arms had the same steps."
        if forced
        else "The models went their own way: from the first step that differs on, their steps are not those of the reference."
    )
    parts: list[str] = []
    for name, one in arms.items():
        lost = one.lost
        gone = f" (lost: {lost.candidate:,} here, {lost.reference:,} of the reference)" if lost.share else ""
        parts.append(f"{name}: {count(one.attempts, 'attempt')} in both arms{gone}")
    return f"{way} {'; '.join(parts)}."


def _told(gathered: Gathered, suite: SuitePlan) -> str:
    """How tools were spoken of, as the records say."""
    arms = (REFERENCE, *gathered.plan.candidates, AGAIN)
    found = sorted({record.trajectory.protocol for arm in arms for record in gathered.records[arm, suite.name]} - {""})
    return f"Tools were offered by the protocol {listed(found)}." if found else ""


def _drawn(gathered: Gathered, suite: SuitePlan) -> str:
    """Where some steps of an attempt were followed, they are counted as if they were all."""
    options: Any = gathered.plan.config
    for key in ("suites", suite.name, "options"):
        options = (options.get(key) or {}) if isinstance(options, Mapping) else {}
    if not isinstance(options, Mapping) or not (options.get("steps") or options.get("scoring") == "choice"):
        return ""
    return "Some steps of an attempt were followed: step 1 is the first of those, not of the task, and growth is per ten of them."


# ---- rates


def _hazards(arms: Mapping[str, Horizon], alpha: float) -> Table:
    rows = [row for name, one in arms.items() for of in WHAT if (row := _hazard(name, one, of, alpha))]
    return Table(
        title="What goes wrong at a step",
        columns=(
            "variant", "what", "reference: in steps", "here: in steps", "per step", "excess, points",
            f"{level(alpha)} interval", "ratio", f"{level(alpha)} interval",
        ),
        rows=tuple(rows),
        note=(
            "Excess: errors per step beyond the reference's, in points. A step unlike the reference's need be no error: it is held "
            "against how often the reference's second run differs from the first."
        ),
        named=1,
    )  # fmt: skip


def _hazard(name: str, found: Horizon, of: Of, alpha: float) -> Row | None:
    sides = found.sides(of)
    if sides is None or not (sides[0].steps.sum() and sides[1].steps.sum()):
        return None
    ours, theirs, cluster = sides
    own = name == NOISE and of == "divergence"  # the floor itself
    test, ratio = excess_hazard(ours, theirs, 0.5, cluster, alpha), hazard_ratio(ours, theirs, cluster, alpha)
    shown = (
        (NOTHING,) * 4
        if own
        else (
            signed(100 * test.value, 2) if abs(test.value) > 1e-12 else "0",
            span(100 * test.low, 100 * test.high),
            significant(ratio.ratio if ratio else None),
            span(ratio.low, ratio.high) if ratio and ratio.log_se > 1e-9 else NOTHING,
        )
    )
    return Row(
        label=name, cells=(WHAT[of], NOTHING if own else _of(ours), _of(theirs), percent(theirs.rate, 2), *shown)
    )


def _of(tally: Tally) -> str:
    return f"{tally.errors.sum():,.0f} in {tally.steps.sum():,.0f}"


# ---- sentences


def _lines(name: str, found: Horizon, alpha: float) -> list[str]:
    lines = [_growth(name, found, alpha), _compounded(name, found)]
    return lines if found.forced else [*lines, _recovered(name, found)]


def _growth(name: str, found: Horizon, alpha: float) -> str:
    walks = (found.reference, found.candidate)
    wrong, step = (np.concatenate(parts) for parts in ([w.wrong >= 0 for w in walks], [w.step for w in walks]))
    arm = np.repeat([0, 1], [len(walk.step) for walk in walks])
    cluster = np.concatenate([found.cluster[walk.attempt] for walk in walks])
    seen, reason = accumulation(wrong, step, arm, cluster, alpha)
    if seen is None:
        return f"{name}: whether errors accumulate cannot be told: {reason}."
    verdict = "grow faster along the task than the reference's" if seen.p <= alpha else "are not shown to grow faster"
    return (
        f"{name}: errors {verdict}: over ten steps their odds change × {significant(seen.candidate)}, the reference's × "
        f"{significant(seen.reference)}; one over the other {significant(seen.relative)} ({level(alpha)} interval "
        f"{span(seen.low, seen.high)}, p = {p_value(seen.p)})."
    )


def _compounded(name: str, found: Horizon) -> str:
    arms = [walk.tally("any") for walk in (found.reference, found.candidate)]
    (ours, seen), (theirs, here) = (clean_share(tally) for tally in arms)
    delta = 100 * compounding_delta(arms[0].rate, arms[1].rate, TASK) if all(t.steps.sum() for t in arms) else math.nan
    return (
        f"{name}: if errors fell independently, {percent(theirs)} of these attempts would have none; {percent(here)} have none "
        f"(reference: {percent(ours)}, {percent(seen)}). If each were fatal, the success rate over {TASK} steps "
        f"would change by {signed(delta, 2)} points."
    )


def _recovered(name: str, found: Horizon) -> str:
    def said(walk: Walk) -> str:
        hit, share = recovery(walk.tally("any"), walk.success)
        return f"{percent(share)} of {hit:,}" if hit else "none had one"

    return f"{name}: of the attempts with an error, ended rightly: {said(found.candidate)} (reference: {said(found.reference)})."


# ---- tables below


def _errors(arms: Mapping[str, Horizon], alpha: float) -> Table:
    rows = [row for name, one in arms.items() for row in _words(name, one, alpha)]
    return Table(
        title="What was wrong, by kind of error",
        columns=("variant", "error", "reference, % of steps", "here, % of steps", "difference, points",
                 f"{level(alpha)} interval", "p, corrected"),
        rows=tuple(rows),
        note="Paired by attempt: mean over attempts of its share of steps. p-values are two-sided, corrected for the kinds of one variant.",
        named=1,
    )  # fmt: skip


def _words(name: str, found: Horizon, alpha: float) -> list[Row]:
    shares = [_shares(walk, len(found.words)) for walk in (found.reference, found.candidate)]
    some = np.isfinite(shares[0]).all(axis=1) & np.isfinite(shares[1]).all(axis=1)
    if not found.words or not some.any():
        return []
    ours, theirs, cluster = shares[0][some], shares[1][some], found.cluster[some]
    tests = [cluster_t(theirs[:, at] - ours[:, at], cluster, alpha) for at in range(len(found.words))]
    p = holm([two_sided_p(theirs[:, at] - ours[:, at], cluster, False) for at in range(len(found.words))])
    return [
        Row(
            label=name,
            cells=(
                word,
                percent(float(ours[:, at].mean()), 2),
                percent(float(theirs[:, at].mean()), 2),
                signed(100 * test.estimate, 2),
                span(100 * test.low, 100 * test.high) if test.varies else NOTHING,  # all alike is no precision
                p_value(float(p[at])),
            ),
        )
        for at, (word, test) in enumerate(zip(found.words, tests, strict=True))
    ]


def _shares(walk: Walk, words: int) -> np.ndarray:
    """[attempts, words], of an attempt's steps; NaN without steps."""
    counts = np.zeros((len(walk.success), words + 1))
    np.add.at(counts, (walk.attempt, walk.wrong), 1.0)  # -1, nothing wrong, is the last column
    with np.errstate(invalid="ignore", divide="ignore"):
        return counts[:, :words] / counts.sum(axis=1, keepdims=True)


def _lengths(arms: Mapping[str, Horizon]) -> Table:
    rows = [row for name, one in arms.items() for row in _by_length(name, one)]
    return Table(
        title="By length of the reference's attempt",
        columns=("variant", "steps", "attempts", "errors per step, reference", "here", "without an error, predicted",
                 "observed", "score, reference", "here"),
        rows=tuple(rows),
        note="Predicted: (1 - h)^n from the errors per step h of that row, as if each fell independently.",
        named=1,
    )  # fmt: skip


def _by_length(name: str, found: Horizon) -> list[Row]:
    ours, theirs = found.reference.tally("any"), found.candidate.tally("any")
    rows: list[Row] = []
    for low, high in zip((0, *LENGTHS), (*LENGTHS, math.inf), strict=True):
        here: BoolArray = (ours.steps > low) & (ours.steps <= high)
        if not here.any():
            continue
        own, other = (Tally(errors=t.errors[here], steps=t.steps[here]) for t in (ours, theirs))
        predicted, observed = clean_share(other)
        scores = [_mean(walk.success[here]) for walk in (found.reference, found.candidate)]
        label = f"{low + 1}–{high:.0f}" if math.isfinite(high) else f"above {low}"
        shares = (own.rate, other.rate, predicted, observed, *scores)
        rows.append(Row(label=name, cells=(label, f"{int(here.sum()):,}", *(percent(share) for share in shares))))
    return rows


def _mean(scores: np.ndarray) -> float:
    known = scores[np.isfinite(scores)]
    return float(known.mean()) if known.size else math.nan
