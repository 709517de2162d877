"""What a candidate would score, estimated from answers that the reference gave: an endpoint beside the gates, never one of them."""

from collections.abc import Mapping, Sequence

import numpy as np

from evalrig.analysis.responses import Graded, Responses
from evalrig.analysis.reweighted import success_change
from evalrig.gate import Evidence
from evalrig.report.shown_maps import Certificates, Row, Table
from evalrig.report.words import NOTHING, count, percent, significant, span

USABLE = "usable"
COLUMNS = (
    "variant",
    "questions of",
    "status",
    "answers",
    "right, reference",
    "change, points",
    "interval",
    "worth, answers",
    "mean q/p",
    "KL an answer",
)


def estimates(suite: str, arms: Mapping[str, Evidence], confidence: str) -> Table:
    """A line for each candidate and each suite whose questions the reference answered here; no lines: nothing was graded."""
    rows = [
        _row(name, found, part, arm.alpha)
        for name, arm in arms.items()
        if (found := arm.answers[suite].responses if suite in arm.answers else None) is not None
        for part in found.graded
    ]
    note = (
        "How many answers would be right if the candidate gave them, from the reference's own answers, sampled at temperature 1: each "
        f"counts by how much likelier the candidate is to give it (q/p). {confidence} intervals over prompts. Usable only if the "
        "weights are worth half of the answers, the KL is at most 0.3 nats an answer, and the mean of q/p is 1 within three standard "
        "errors. It decides nothing, and does not replace a run of the candidate."
    )
    return Table(
        title="Success estimated from the reference's answers", columns=COLUMNS, rows=tuple(rows), note=note, named=2
    )


def _row(name: str, found: Responses, part: Graded, alpha: float) -> Row:
    told = np.isfinite(part.success)
    total, right = len(told), percent(float(part.success[told].mean())) if told.any() else NOTHING
    if why := _unread(found, part):
        return Row(label=name, cells=(part.source, f"not usable: {why}", f"{total:,}", right, *[NOTHING] * 5))
    one = success_change(part.log_drop, part.success, part.prompt, found.drawn, alpha)
    shown = (significant(100 * one.estimate), span(100 * one.low, 100 * one.high))
    cells = (
        part.source,
        USABLE if one.refusal is None else f"not usable: {one.refusal}",
        f"{total:,}",
        right,
        *(shown if one.refusal is None else (NOTHING, NOTHING)),
        f"{one.effective:,.0f} of {one.responses:,}",
        significant(one.mean_weight, 4),
        f"{significant(one.divergence)} nats",
    )
    return Row(label=name, cells=cells)


def _unread(found: Responses, part: Graded) -> str | None:
    """Why there is nothing to estimate from."""
    if reason := found.drawn.refusal():
        return reason
    cut = int(np.isnan(part.success).sum())
    if cut:
        return f"{count(cut, 'answer')} of {len(part.success):,} cut before it could be graded; raise `tokens`"
    if np.isposinf(part.log_drop).all():
        return "the candidate rules out every answer"
    return None


def summed_up(views: Sequence[tuple[str, Certificates]]) -> list[str]:
    """A line for each estimate, also one that must not be used."""
    lines: list[str] = []
    for suite, found in views:
        for row in found.estimates.rows:
            source, status, _, _, change, limits, *_ = row.cells
            said = f"a change of {change} points ({limits})" if status == USABLE else status
            lines.append(
                f"Success of {row.label} on {source}, estimated from the reference's answers in {suite}: {said}"
            )
    return lines
