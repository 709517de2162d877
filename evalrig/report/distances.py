"""Distances between token distributions as shown: mean and tail of each candidate and of the floor, and how they grow by position."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from evalrig.analysis.kl import audit
from evalrig.analysis.kl_excess import Excess, excess
from evalrig.analysis.kl_summary import KlSummary, OctaveRow, by_octave, delta_p, summary
from evalrig.evidence import Gathered, tokens_file
from evalrig.gate import Distances, Evidence
from evalrig.plan import Plan, SuitePlan
from evalrig.report.differences import gate_on
from evalrig.report.shown import Bar, Curve, DistanceView, Row
from evalrig.report.words import NOTHING, count, level, percent, short, significant, span
from evalrig.tokens import read_tokens
from evalrig.types import REFERENCE, State

FLOOR = "floor (A/A)"
UNRESOLVED = "tail not resolved"
LEGS: Mapping[str, str] = {
    "cached_prefix": "The tokens were scored after their prompt was read from the KV cache; none was written while decoding.",
    "decode": "Each variant answered by itself, and the reference scored those answers by prefill: contexts are the candidate's own.",
}
"""Option `leg` of a suite -> what it means for the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """One column of the table."""

    name: str
    tokens: Distances
    """Without the positions that have no number."""
    broken: int
    seen: KlSummary
    octaves: tuple[OctaveRow, ...]
    above: Excess | None
    """None for the floor itself."""


def distances(gathered: Gathered, arms: Mapping[str, Evidence]) -> tuple[DistanceView, ...]:
    """One view for each suite that measures distances and has some."""
    views: list[DistanceView] = []
    for suite in gathered.plan.suites:
        columns = _columns(gathered, suite, arms)
        if columns:
            views.append(_view(gathered, suite, arms, columns))
    return tuple(views)


def _columns(gathered: Gathered, suite: SuitePlan, arms: Mapping[str, Evidence]) -> list[_Arm]:
    alpha = gathered.plan.header.alpha
    gate = gate_on(gathered.plan, suite.name, _distance_name(suite))
    limit = gate.margin if gate else 0.0
    floor = next((arm.floors[suite.name] for arm in arms.values() if suite.name in arm.floors), None)
    columns: list[_Arm] = []
    for name, arm in arms.items():
        if (tokens := arm.distances.get(suite.name)) is not None:
            columns += _column(name, tokens, floor, alpha, limit)
    return columns + (_column(FLOOR, floor, None, alpha, None) if floor is not None else [])


def _distance_name(suite: SuitePlan) -> str:
    return next((metric.name for metric in suite.metrics if metric.kind == "distance"), "")


def _column(name: str, tokens: Distances, floor: Distances | None, alpha: float, limit: float | None) -> list[_Arm]:
    kept, broken = _readable(tokens)
    if not len(kept.kl):
        return []
    above = None
    if limit is not None:
        base = _readable(floor)[0] if floor is not None else None
        none = np.zeros(0)
        floor_kl, floor_prompt = (base.kl, base.prompt) if base is not None else (none, none.astype(np.str_))
        above = excess(kept.kl, kept.prompt, floor_kl, floor_prompt, alpha, limit)
    return [
        _Arm(
            name=name,
            tokens=kept,
            broken=broken,
            seen=summary(kept.kl, kept.prompt, alpha),
            octaves=tuple(by_octave(kept.kl, kept.position, kept.prompt, alpha)),
            above=above,
        )
    ]


def _readable(tokens: Distances) -> tuple[Distances, int]:
    """Positions with numbers on both sides, and how many have none."""
    whole = ~(np.isnan(tokens.kl) | np.isnan(tokens.reference_logprob) | np.isnan(tokens.candidate_logprob))
    kept = {name: getattr(tokens, name)[whole] for name in Distances.__slots__}
    return Distances(**kept), int((~whole).sum())


def _view(gathered: Gathered, suite: SuitePlan, arms: Mapping[str, Evidence], columns: list[_Arm]) -> DistanceView:
    gate = gate_on(gathered.plan, suite.name, _distance_name(suite))
    ranges = sorted({(row.start, row.stop) for column in columns for row in column.octaves})
    veto = "No gate judges this distance." if gate is None else _veto(gate.margin, gate.gating, gate.name)
    return DistanceView(
        suite=suite.name,
        arms=tuple(column.name for column in columns),
        rows=tuple(_rows(columns, level(gathered.plan.header.alpha))),
        veto=veto,
        notes=tuple(_notes(gathered, suite, arms, columns)),
        octaves=tuple(f"{start}–{stop}" for start, stop in ranges),
        curves=tuple(_curve(column, ranges) for column in columns),
        octave_rows=tuple(_octave_row(column, ranges) for column in columns),
        description=_description(columns),
    )


def _veto(margin: float, gating: bool, name: str) -> str:
    kind = "Gating" if gating else "Diagnostic, never changes the verdict"
    return (
        f"{kind}: veto at {short(margin)} nats per token above the floor (gate {name}). "
        "A distance can stop a release and never earns one."
    )


def _rows(columns: list[_Arm], confidence: str) -> list[Row]:
    tails = [column.seen.tail for column in columns]
    moved = [delta_p(column.tokens.reference_logprob, column.tokens.candidate_logprob) for column in columns]
    table = [
        ("mean KL, nats per token", [significant(c.seen.mean) for c in columns], "over all tokens"),
        (f"mean KL, {confidence} interval", [span(c.seen.low, c.seen.high) for c in columns], "clustered by prompt"),
        ("excess above the floor", [_excess(c) for c in columns], "what the veto judges"),
        (f"excess, {confidence} interval", [_excess_span(c) for c in columns], ""),
        ("ratio to the floor", [_ratio(c) for c in columns], ""),
        ("median", [significant(c.seen.median) for c in columns], ""),
        ("p99", [_tail(t.p99, t.p99_resolved) for t in tails], "exceeded by 1 token in 100"),
        ("p99.9", [_tail(t.p999, t.p999_resolved) for t in tails], "exceeded by 1 token in 1,000"),
        ("largest", [significant(t.maximum) for t in tails], "one token; no interval"),
        ("mean, cut at p99.9", [significant(t.winsorised_mean) for t in tails], "winsorised"),
        ("share of the total in the top 0.1 %", [percent(t.top_share) for t in tails], "near 100 %: a few tokens"),
        ("same most probable token", [percent(float(c.tokens.same_top.mean())) for c in columns], "top-1 agreement"),
        ("Δp of the given token, mean", [_share(mean) for mean, _ in moved], "points of probability"),
        ("Δp of the given token, RMS", [_share(rms) for _, rms in moved], "points of probability"),
        ("mass outside both lists", [percent(float(c.tokens.tail.mean()), 2) for c in columns], "in one bucket"),
        ("tokens", [f"{c.seen.tokens:,}" for c in columns], ""),
        ("prompts", [f"{c.seen.prompts:,}" for c in columns], "the unit taken as independent"),
    ]
    if any(c.seen.infinite for c in columns):
        table.append(("ruled out by the candidate", [f"{c.seen.infinite:,}" for c in columns], "infinite KL"))
    return [Row(label=label, cells=tuple(cells), hint=hint) for label, cells, hint in table]


def _excess(column: _Arm) -> str:
    return significant(column.above.excess) if column.above else NOTHING


def _excess_span(column: _Arm) -> str:
    return span(column.above.low, column.above.high) if column.above else NOTHING


def _ratio(column: _Arm) -> str:
    if column.above is None:
        return NOTHING
    ratio = column.above.levels.ratio
    return "not defined" if ratio is None else f"× {significant(ratio)}"


def _tail(value: float, resolved: bool) -> str:
    return significant(value) if resolved else UNRESOLVED


def _share(change: float) -> str:
    return significant(100 * change, 2)


def _notes(gathered: Gathered, suite: SuitePlan, arms: Mapping[str, Evidence], columns: list[_Arm]) -> list[str]:
    width = _width(gathered, suite)
    notes = [f"Every distance above is a lower bound: it is taken on the {width} most probable tokens of both sides."]
    for name, arm in arms.items():
        rows = arm.audits.get(suite.name)
        if rows is None or not width or not all((side < np.inf).all() for side in (rows.reference, rows.candidate)):
            continue
        found = audit(rows.reference, rows.candidate, min(width, rows.reference.shape[1]))
        lost = "not defined" if found.lost_share is None else percent(max(found.lost_share, 0.0))
        notes.append(
            f"{name}: the top {width} of both sides and one bucket for the rest lose {lost} of the KL on "
            f"{count(found.rows, 'audited position')} ({significant(found.kl_merged_mean)} of "
            f"{significant(found.kl_full_mean)} nats over the whole vocabulary)."
        )
    if len(notes) == 1:
        notes.append("No position was scored over the whole vocabulary: what the lists cut off is not known.")
    if not any(column.name == FLOOR for column in columns):
        notes.append("No floor was measured: the distance may be the reference's own noise.")
    elif any(column.name == FLOOR and not column.tokens.kl.any() for column in columns):
        notes.append("The floor is exactly 0: the reference repeats bit by bit, so a ratio to it is not defined.")
    if any(not tail.p999_resolved for tail in (column.seen.tail for column in columns)):
        notes.append(
            f"“{UNRESOLVED}”: fewer than 30 prompts own a token at or above that quantile, so it is that of a few prompts."
        )
    notes += [LEGS[leg]] if (leg := _leg(gathered.plan, suite.name)) in LEGS else []
    notes += [f"{c.name}: {count(c.broken, 'position')} without a number, left out here." for c in columns if c.broken]
    return notes


def _leg(plan: Plan, suite: str) -> str:
    """How the run file has a suite's tokens scored; empty: the engine's own way."""
    found: Any = plan.config
    for key in ("suites", suite, "options", "leg"):
        found = cast("Mapping[str, Any]", found).get(key) if isinstance(found, Mapping) else None
    return str(found or "")


def _width(gathered: Gathered, suite: SuitePlan) -> int:
    """Length of the stored lists."""
    for record in gathered.records[REFERENCE, suite.name]:
        if record.state is State.SCORED:
            path = tokens_file(gathered.folder, REFERENCE, suite.name, record.sample, record.epoch)
            return int(read_tokens(path)["top_ids"].shape[1])
    return 0


def _curve(column: _Arm, ranges: list[tuple[int, int]]) -> Curve:
    found = {(row.start, row.stop): row for row in column.octaves}
    bars = [_point(column.name, found.get(at)) for at in ranges]
    return Curve(arm=column.name, noise=column.name == FLOOR, bars=tuple(bars))


def _point(arm: str, row: OctaveRow | None) -> Bar:
    noise = arm == FLOOR
    if row is None or not math.isfinite(row.mean):
        return Bar(arm=arm, noise=noise, value=None, low=None, high=None)
    low, high = (round(x, 9) if math.isfinite(x) else None for x in (row.low, row.high))
    return Bar(arm=arm, noise=noise, value=round(row.mean, 9), low=low, high=high)


def _octave_row(column: _Arm, ranges: list[tuple[int, int]]) -> Row:
    found = {(row.start, row.stop): row for row in column.octaves}
    means = [significant(found[at].mean, 2) if at in found else NOTHING for at in ranges]
    return Row(label=column.name, cells=tuple(means))


def _description(columns: list[_Arm]) -> str:
    parts: list[str] = []
    for column in columns:
        first, last = column.octaves[0], column.octaves[-1]
        parts.append(
            f"{column.name}: {significant(first.mean, 2)} at positions {first.start}–{first.stop}, "
            f"{significant(last.mean, 2)} at {last.start}–{last.stop}"
        )
    return f"Mean KL in nats per token by position in the answer. {'; '.join(parts)}."
