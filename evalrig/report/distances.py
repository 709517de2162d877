"""Distances between token distributions as shown: mean and tail of each candidate and of the floor, and how they grow by position."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from evalrig.analysis.kl_excess import Excess, excess_of
from evalrig.analysis.kl_summary import KlSummary, OctaveRow, Quantile
from evalrig.analysis.kl_sums import MeanRow
from evalrig.distance import LEAST_AUDITED, Audited
from evalrig.evidence import Gathered
from evalrig.gate import Evidence
from evalrig.plan import SuitePlan
from evalrig.reach import leg_of, may_differ, way_of
from evalrig.report.certified import certificates
from evalrig.report.differences import gate_on
from evalrig.report.far import far
from evalrig.report.maps import growth_words, maps
from evalrig.report.shown import Bar, Curve, DistanceView, Positions
from evalrig.report.shown_maps import Maps, Row, Table
from evalrig.report.words import NOTHING, count, level, percent, short, significant, span
from evalrig.streams import Streamed
from evalrig.types import AGAIN

FLOOR = "floor (A/A)"
UNRESOLVED = "tail not resolved"
QUANTILES = (
    ("median", ""),
    ("p90", "exceeded by 1 token in 10"),
    ("p95", "exceeded by 1 token in 20"),
    ("p99", "exceeded by 1 token in 100"),
    ("p99.9", "exceeded by 1 token in 1,000"),
    ("largest", "one token; no interval"),
)
"""In the order of `kl_summary.LEVELS`."""
DECODED = "Each variant answered by itself, and the reference scored those answers by prefill: contexts are the candidate's own."
CACHED = "The tokens were scored after their prompt was read from the KV cache; none was written while decoding."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """One column of the table."""

    name: str
    found: Streamed
    above: Excess | None
    """None for the floor itself."""

    @property
    def seen(self) -> KlSummary:
        """Mean and tail."""
        return self.found.result.summary

    @property
    def octaves(self) -> tuple[OctaveRow, ...]:
        """Along the answer."""
        return self.found.result.by_position.octaves

    def mean(self, measure: str) -> MeanRow | None:
        """Mean of a measure over tokens; see `kl_sums.MEASURES`."""
        return next((row for row in self.found.result.means if row.name == measure), None)


def distances(gathered: Gathered, arms: Mapping[str, Evidence]) -> tuple[DistanceView, ...]:
    """One view for each suite that measures distances and has some."""
    views: list[DistanceView] = []
    for suite in gathered.plan.suites:
        columns = _columns(gathered, suite, arms) if _distance_name(suite) else []
        if columns:
            views.append(_view(gathered, suite, arms, columns))
    return tuple(views)


def _columns(gathered: Gathered, suite: SuitePlan, arms: Mapping[str, Evidence]) -> list[_Arm]:
    gate = gate_on(gathered.plan, suite.name, _distance_name(suite))
    columns: list[_Arm] = []
    for name, arm in arms.items():
        if (found := gathered.streamed(suite, name)) is not None:
            columns.append(_Arm(name=name, found=found, above=_above(arm, suite.name, gate.margin if gate else 0.0)))
    floor = gathered.streamed(suite, AGAIN)
    return columns + ([_Arm(name=FLOOR, found=floor, above=None)] if floor is not None else [])


def _distance_name(suite: SuitePlan) -> str:
    return next((metric.name for metric in suite.metrics if metric.kind == "distance"), "")


def _above(arm: Evidence, suite: str, limit: float) -> Excess | None:
    """Excess over the floor, on positions with numbers on both sides."""
    tokens, floor = arm.distances.get(suite), arm.floors.get(suite)
    if tokens is None or tokens.found is None:
        return None
    return excess_of(tokens.by_prompt, floor and floor.by_prompt, arm.alpha, limit)


def _view(gathered: Gathered, suite: SuitePlan, arms: Mapping[str, Evidence], columns: list[_Arm]) -> DistanceView:
    gate = gate_on(gathered.plan, suite.name, _distance_name(suite))
    ranges = sorted({(row.start, row.stop) for column in columns for row in column.octaves})
    veto = "No gate judges this distance." if gate is None else _veto(gate.margin, gate.gating, gate.name)
    confidence = level(gathered.plan.header.alpha)
    streams = [(column.name, column.found) for column in columns]
    return DistanceView(
        suite=suite.name,
        arms=tuple(column.name for column in columns),
        rows=tuple(_rows(columns, confidence)),
        measures=Table(
            title="Tails, reverse KL, bounds of other distances, single probabilities",
            columns=("measure", *(column.name for column in columns)),
            rows=tuple(_measures(columns, confidence)),
            note="",
        ),
        veto=veto,
        notes=tuple(_notes(gathered, suite, arms, columns)),
        positions=Positions(
            octaves=tuple(f"{start}–{stop}" for start, stop in ranges),
            curves=tuple(_curve(column, ranges) for column in columns),
            rows=tuple(_octave_row(column, ranges) for column in columns),
            description=_description(columns),
            growth=tuple(growth_words(name, found, confidence) for name, found in streams),
        ),
        certificates=certificates(suite.name, arms, confidence),
        maps=Maps(
            tables=maps(streams, confidence),
            far=tuple(far(gathered, suite, name, found) for name, found in streams if name != FLOOR),
        ),
    )


def _veto(margin: float, gating: bool, name: str) -> str:
    kind = "Gating" if gating else "Diagnostic, never changes the verdict"
    return (
        f"{kind}: veto at {short(margin)} nats per token above the floor (gate {name}). "
        "A distance can stop a release and never earns one."
    )


def _rows(columns: list[_Arm], confidence: str) -> list[Row]:
    table = [
        ("mean KL, nats per token", [significant(c.seen.mean) for c in columns], "over all tokens"),
        (f"mean KL, {confidence} interval", [span(c.seen.low, c.seen.high) for c in columns], "clustered by prompt"),
        ("excess above the floor", [_excess(c) for c in columns], "what the veto judges"),
        (f"excess, {confidence} interval", [_excess_span(c) for c in columns], ""),
        ("ratio to the floor", [_ratio(c) for c in columns], ""),
        ("same most probable token", [_level(c, "top1_same", 100, "%") for c in columns], "top-1 agreement"),
        (
            "share of the total in the top 0.1 %",
            [percent(c.seen.tail.top_share) for c in columns],
            "few tokens if high",
        ),
        ("tokens", [f"{c.seen.tokens:,}" for c in columns], ""),
        ("prompts", [f"{c.seen.prompts:,}" for c in columns], "the unit taken as independent"),
    ]
    if any(c.seen.infinite for c in columns):
        table.append(("ruled out by the candidate", [f"{c.seen.infinite:,}" for c in columns], "infinite KL"))
    return [Row(label=label, cells=tuple(cells), hint=hint) for label, cells, hint in table]


def _measures(columns: list[_Arm], confidence: str) -> list[Row]:
    table = [
        *_quantile_rows(columns),
        ("mean, cut at p99.9", [significant(c.seen.tail.winsorised_mean) for c in columns], "winsorised"),
        ("reverse KL, nats per token", [_level(c, "reverse_low") for c in columns], "KL(variant ‖ reference)"),
        (f"reverse KL, {confidence} interval", [_limits(c, "reverse_low") for c in columns], ""),
        ("Jensen-Shannon, between", [_bracket(c, "js", 1) for c in columns], "nats; holds without assumptions"),
        ("total variation, between", [_bracket(c, "tv", 100) for c in columns], "points; holds without assumptions"),
        ("Δp of the given token, mean", [_level(c, "delta_p", 100) for c in columns], "points of probability"),
        ("Δp of the given token, RMS", [_rms(c) for c in columns], "points of probability"),
        ("mass outside both lists, reference", [_level(c, "tail_reference", 100, "%") for c in columns], "one bucket"),
        ("mass outside both lists, variant", [_level(c, "tail_candidate", 100, "%") for c in columns], "one bucket"),
    ]
    return [Row(label=label, cells=tuple(cells), hint=hint) for label, cells, hint in table]


def _quantile_rows(columns: list[_Arm]) -> list[tuple[str, list[str], str]]:
    rows: list[tuple[str, list[str], str]] = []
    for at, (label, hint) in enumerate(QUANTILES):
        found = [column.found.result.quantiles[at] for column in columns]
        rows.append((label, [_quantile(one) for one in found], hint))
    return rows


def _quantile(found: Quantile) -> str:
    certain = found.level in (0.5, 1.0) or found.resolved
    return significant(found.value) if certain else UNRESOLVED


def _level(column: _Arm, measure: str, scale: float = 1.0, unit: str = "") -> str:
    if (row := column.mean(measure)) is None:
        return NOTHING
    return percent(row.mean, 2) if unit else significant(scale * row.mean, 3)


def _limits(column: _Arm, measure: str) -> str:
    row = column.mean(measure)
    return NOTHING if row is None else span(row.low, row.high)


def _bracket(column: _Arm, measure: str, scale: float) -> str:
    """Both ends of the mean: the truth of these tokens lies between them."""
    low, high = column.mean(f"{measure}_low"), column.mean(f"{measure}_high")
    return NOTHING if low is None or high is None else span(scale * low.mean, scale * high.mean, 3)


def _rms(column: _Arm) -> str:
    row = column.mean("delta_p_square")
    return NOTHING if row is None else significant(100 * math.sqrt(row.mean), 3)


def _excess(column: _Arm) -> str:
    return significant(column.above.excess) if column.above else NOTHING


def _excess_span(column: _Arm) -> str:
    return span(column.above.low, column.above.high) if column.above else NOTHING


def _ratio(column: _Arm) -> str:
    if column.above is None:
        return NOTHING
    ratio = column.above.levels.ratio
    return "not defined" if ratio is None else f"× {significant(ratio)}"


def _notes(gathered: Gathered, suite: SuitePlan, arms: Mapping[str, Evidence], columns: list[_Arm]) -> list[str]:
    width = gathered.width(suite)
    notes = [f"Every KL here but k3 is a lower bound: it is taken on the {width} most probable tokens of both sides."]
    for name in arms:
        seen = gathered.audited(suite, name)
        if seen is None or not width:
            continue
        found = seen.audit
        lost = "not defined" if found.lost_share is None else percent(max(found.lost_share, 0.0))
        notes.append(
            f"{name}: the top {width} of both sides and one bucket for the rest lose {lost} of the KL on "
            f"{count(found.rows, 'audited position')} ({significant(found.kl_merged_mean)} of "
            f"{significant(found.kl_full_mean)} nats over the whole vocabulary). " + _audited(seen)
        )
    if len(notes) == 1:
        notes.append("No position was scored over the whole vocabulary: what the lists cut off is not known.")
    if not any(column.name == FLOOR for column in columns):
        notes.append("No floor was measured: the distance may be the reference's own noise.")
    elif any(column.name == FLOOR and column.seen.minimum == column.seen.tail.maximum == 0.0 for column in columns):
        notes.append("The floor is exactly 0: the reference repeats bit by bit, so a ratio to it is not defined.")
    if any(not one.resolved for column in columns for one in column.found.result.quantiles[1:-1]):
        notes.append(
            f"“{UNRESOLVED}”: fewer than 30 prompts own a token at or above that quantile, so it is that of a few prompts."
        )
    notes.append(_scored(gathered, suite))
    notes.append("Quantiles are read from bins and up to 0.8 % high.")
    broken = [(c.name, c.found.result.broken) for c in columns if c.found.result.broken]
    notes += [f"{name}: {count(number, 'position')} without a number, left out here." for name, number in broken]
    return notes


def _audited(seen: Audited) -> str:
    """What the lists alone would have said of the audited positions."""
    dual = significant(seen.dual)
    if seen.audit.rows < LEAST_AUDITED:
        return (
            f"The sharper bound from the same lists is {dual}; too few audited rows for an upper one: what lies outside the "
            f"lists is told by {LEAST_AUDITED} at least (`audit_tokens`, `audit_share`)."
        )
    if seen.high is None:
        return (
            f"The sharper bound from the same lists is {dual}; no upper one: a side rules out what the other does not."
        )
    return (
        f"The sharper bound from the same lists is {dual}; at most {significant(seen.high)}, if no unlisted token's "
        f"probability differs by more than a factor of {significant(math.exp(seen.most))} (1.5 times the largest logarithm seen there)."
    )


def _scored(gathered: Gathered, suite: SuitePlan) -> str:
    """How the tokens were scored, and what that means for the numbers."""
    if suite.rescored:
        return DECODED
    if not may_differ(gathered, suite):
        return f"The tokens were scored {way_of(gathered, suite)}."
    if leg_of(gathered, suite.name) == "cached_prefix":
        return CACHED
    return "The tokens were scored by prefill, each answer with its prompt as one; decoding may differ."


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
