"""Distances between token distributions as shown: mean and tail of each candidate and of the floor, and how they grow by position."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from evalrig.analysis.kl_excess import Excess, excess_of
from evalrig.analysis.kl_stream import StreamResult
from evalrig.analysis.kl_summary import KlSummary, OctaveRow
from evalrig.evidence import Gathered
from evalrig.gate import Distances, Evidence
from evalrig.plan import Plan, SuitePlan
from evalrig.report.differences import gate_on
from evalrig.report.shown import Bar, Curve, DistanceView, Row
from evalrig.report.words import NOTHING, count, level, percent, short, significant, span

FLOOR = "floor (A/A)"
UNRESOLVED = "tail not resolved"
LEGS: Mapping[str, str] = {
    "cached_prefix": "The tokens were scored after their prompt was read from the KV cache; none was written while decoding."
}
"""Option `leg` of a suite -> what it means for the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """One column of the table."""

    name: str
    found: StreamResult
    """Of the positions that have a number."""
    above: Excess | None
    """None for the floor itself."""

    @property
    def seen(self) -> KlSummary:
        return self.found.summary

    @property
    def octaves(self) -> tuple[OctaveRow, ...]:
        return self.found.by_position.octaves

    def mean(self, measure: str) -> float:
        """Over all tokens."""
        return next(row.mean for row in self.found.means if row.name == measure)


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
    if tokens.found is None:
        return []
    above = None
    if limit is not None:
        above = excess_of(tokens.by_prompt, floor and floor.by_prompt, alpha, limit)
    return [_Arm(name=name, found=tokens.found, above=above)]


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
    moved = [(column.mean("delta_p"), math.sqrt(column.mean("delta_p_square"))) for column in columns]
    table = [
        ("mean KL, nats per token", [significant(c.seen.mean) for c in columns], "over all tokens"),
        (f"mean KL, {confidence} interval", [span(c.seen.low, c.seen.high) for c in columns], "clustered by prompt"),
        ("excess above the floor", [_excess(c) for c in columns], "what the veto judges"),
        (f"excess, {confidence} interval", [_excess_span(c) for c in columns], ""),
        ("ratio to the floor", [_ratio(c) for c in columns], ""),
        ("median", [significant(c.seen.median) for c in columns], "quantiles: at most 0.8 % high"),
        ("p99", [_tail(t.p99, t.p99_resolved) for t in tails], "exceeded by 1 token in 100"),
        ("p99.9", [_tail(t.p999, t.p999_resolved) for t in tails], "exceeded by 1 token in 1,000"),
        ("largest", [significant(t.maximum) for t in tails], "one token; no interval"),
        ("mean, cut at p99.9", [significant(t.winsorised_mean) for t in tails], "winsorised"),
        ("share of the total in the top 0.1 %", [percent(t.top_share) for t in tails], "near 100 %: a few tokens"),
        ("same most probable token", [percent(c.mean("top1_same")) for c in columns], "top-1 agreement"),
        ("Δp of the given token, mean", [_share(mean) for mean, _ in moved], "points of probability"),
        ("Δp of the given token, RMS", [_share(rms) for _, rms in moved], "points of probability"),
        ("mass outside both lists", [percent(c.mean("tail_reference"), 2) for c in columns], "in one bucket"),
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
    width = gathered.width(suite)
    notes = [f"Every distance above is a lower bound: it is taken on the {width} most probable tokens of both sides."]
    for name, arm in arms.items():
        found = arm.audits.get(suite.name)
        if found is None or not width:
            continue
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
    elif any(column.name == FLOOR and column.seen.minimum == column.seen.tail.maximum == 0.0 for column in columns):
        notes.append("The floor is exactly 0: the reference repeats bit by bit, so a ratio to it is not defined.")
    if any(not tail.p999_resolved for tail in (column.seen.tail for column in columns)):
        notes.append(
            f"“{UNRESOLVED}”: fewer than 30 prompts own a token at or above that quantile, so it is that of a few prompts."
        )
    notes += [LEGS[leg]] if (leg := _leg(gathered.plan, suite.name)) in LEGS else []
    notes += [
        f"{c.name}: {count(c.found.broken, 'position')} without a number, left out here."
        for c in columns
        if c.found.broken
    ]
    return notes


def _leg(plan: Plan, suite: str) -> str:
    """How the run file has a suite's tokens scored; empty: the engine's own way."""
    found: Any = plan.config
    for key in ("suites", suite, "options", "leg"):
        found = cast("Mapping[str, Any]", found).get(key) if isinstance(found, Mapping) else None
    return str(found or "")


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
