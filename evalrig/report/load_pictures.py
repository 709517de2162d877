"""Pictures of load: speed for a user against tokens of a GPU, requests in flight over time, and what is lost against what it costs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from evalrig.analysis.load_ratio import ratio_of
from evalrig.analysis.windows import in_flight
from evalrig.errors import RunError
from evalrig.evidence import Gathered
from evalrig.levels import level_of, levels_of, over_levels
from evalrig.loadgen.raw import blocks_in, read_requests
from evalrig.loads import Floats, Load
from evalrig.plan import GatePlan, SuitePlan
from evalrig.report.shown_load import Line, Picture, Point
from evalrig.report.words import NOISE, drawn, listed, significant
from evalrig.types import AGAIN, REFERENCE, Estimate, Metric, Verdict

INSTANTS = 160
"""Times at which a count of requests in flight is drawn."""
Kind: TypeAlias = Literal["reference", "candidate", "noise"]


def pictures(gathered: Gathered, verdict: Verdict, suite: SuitePlan, loads: Mapping[str, Load]) -> tuple[Picture, ...]:
    """Those for which there is something."""
    alpha = gathered.plan.header.alpha
    found = [_pareto(suite, loads, alpha), _flights(gathered, suite, loads)]
    if judged := _judged(gathered, verdict):
        gate, scores = judged
        for metric in (one for one in suite.metrics if one.name.startswith("usd")):
            asked = next((one for one in gathered.plan.gates if _asks(one, suite, metric)), None)
            found.append(
                _square(_Square(suite=suite.name, gate=gate, metric=metric, asked=asked), scores, loads, alpha)
            )
    return tuple(picture for picture in found if picture is not None)


def _arms(loads: Mapping[str, Load]) -> Iterator[tuple[str, str, Kind, Load]]:
    """(as shown, variant, kind, whose load holds it)."""
    first = next(iter(loads.values()))
    yield REFERENCE, REFERENCE, "reference", first
    for name, load in loads.items():
        yield name, name, "candidate", load
    yield NOISE, AGAIN, "noise", first


def _pareto(suite: SuitePlan, loads: Mapping[str, Load], alpha: float) -> Picture | None:
    """A point a concurrency; its bars are over the rounds of that arm alone, not of the ratio."""
    lines: list[Line] = []
    for shown, arm, kind, load in _arms(loads):
        told = load.told.get(arm, {})
        if "tokens_per_user" in told and "tokens_per_gpu" in told:
            points = _points(load, told["tokens_per_user"], told["tokens_per_gpu"], alpha)
            lines.append(Line(arm=shown, kind=kind, points=tuple(points)))
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    seen = [f"{line.arm} {_spoken(line)}" for line in lines]
    return Picture(
        title=f"{suite.name}: speed for a user against tokens of a GPU",
        x_axis="tokens per second for a user (1 / median TPOT)",
        y_axis="output tokens per second and GPU",
        style="curve",
        lines=tuple(lines),
        description=f"Up and to the right is better. A point a concurrency: {'; '.join(seen)}.",
    )


def _points(load: Load, across: Floats, up: Floats, alpha: float) -> Iterator[Point]:
    for at in levels_of(load):
        here = np.array([level_of(one) == at for one in load.names]) & (across > 0) & (up > 0)
        if here.any():
            x, y = (ratio_of(np.ones(int(here.sum())), values[here], 0.0, alpha) for values in (across, up))
            yield Point(
                x=drawn(x.value),
                y=drawn(y.value),
                across=(drawn(x.low), drawn(x.high)) if x.interval else None,
                up=(drawn(y.low), drawn(y.high)) if y.interval else None,
                label=at,
            )


def _spoken(line: Line) -> str:
    points = (
        f"{f'{point.label}: ' if point.label else ''}{significant(point.x)}, {significant(point.y)}"
        for point in line.points
    )
    return listed(f"({one})" for one in points)


def _flights(gathered: Gathered, suite: SuitePlan, loads: Mapping[str, Load]) -> Picture | None:
    """The round in the middle, as each arm served it, where its tables are kept."""
    first = next(iter(loads.values()))
    whole = [name for at, name in enumerate(first.names) if not any(gone[at] for gone in first.missing.values())]
    if not whole:
        return None
    name = whole[len(whole) // 2]
    flights = [
        Line(arm=shown, kind=kind, points=_flight(gathered, arm, suite, name)) for shown, arm, kind, _ in _arms(loads)
    ]
    lines = [line for line in flights if line.points]
    if not lines:
        return None
    most = [f"{line.arm} at most {max(point.y for point in line.points):.0f}" for line in lines]
    return Picture(
        title=f"{suite.name}: requests in flight in {name}",
        x_axis="seconds after the block's start",
        y_axis="requests in flight",
        style="steps",
        lines=tuple(lines),
        description=f"The same requests, served by each variant: {listed(most)}.",
    )


def _flight(gathered: Gathered, arm: str, suite: SuitePlan, name: str) -> tuple[Point, ...]:
    folder = gathered.folder.variant_path(arm) / "load" / suite.name
    path = next((path for path in blocks_in(folder) if path.name == name), None)
    if path is None:
        return ()
    try:
        found = in_flight(read_requests(path))
    except RunError:
        return ()  # damaged tables cost a picture and no verdict: that is made of the records
    if not len(found.at):
        return ()
    times = np.linspace(0.0, float(found.at[-1]), INSTANTS)
    place = np.searchsorted(found.at, times, side="right") - 1
    counts = np.where(place >= 0, found.count[np.maximum(place, 0)], 0.0)
    return tuple(Point(x=drawn(float(x)), y=float(y)) for x, y in zip(times, counts, strict=True))


def _asks(gate: GatePlan, suite: SuitePlan, metric: Metric) -> bool:
    whole = not gate.options.get("at_slo") and not gate.options.get("concurrency")  # else it asks of another number
    return whole and (gate.kind, gate.suite, gate.metric) == ("saving", suite.name, metric.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Square:
    """What is drawn against what."""

    suite: str
    gate: GatePlan
    """On the score."""
    metric: Metric
    """The cost."""
    asked: GatePlan | None
    """On the cost; None: none is."""


def _square(of: _Square, scores: Mapping[str, Estimate], loads: Mapping[str, Load], alpha: float) -> Picture | None:
    """Where each candidate stands: cheaper to the left, worse below."""
    lines: list[Line] = []
    for name, load in loads.items():
        rounds, score = over_levels(load)[of.metric.name], scores.get(name)
        cost = ratio_of(rounds.reference, rounds.candidate, 0.0, alpha, less=True)
        if cost.n and score is not None and score.value is not None:
            up = (
                (drawn(100 * score.low), drawn(100 * score.high))
                if score.low is not None and score.high is not None
                else None
            )
            across = (drawn(cost.low), drawn(cost.high)) if cost.interval else None
            point = Point(x=drawn(cost.value), y=drawn(100 * score.value), across=across, up=up)
            lines.append(Line(arm=name, kind="candidate", points=(point,)))
    if not lines:
        return None
    told = "; ".join(f"{line.arm} {_spoken(line)}" for line in lines)
    return Picture(
        title=f"{of.suite}: {of.gate.metric} on {of.gate.suite} against {of.metric.name}",
        x_axis=f"{of.metric.name}, candidate / reference; left is cheaper",
        y_axis=f"{of.gate.metric} on {of.gate.suite}, points from the reference",
        style="points",
        lines=tuple(lines),
        description=f"Go is up and to the left, the whole interval beyond the dashed lines, which are what the gates ask for. {told}.",
        x_limit=drawn(1 - of.asked.margin) if of.asked else None,
        y_limit=drawn(-100 * of.gate.margin),
    )


def _judged(gathered: Gathered, verdict: Verdict) -> tuple[GatePlan, Mapping[str, Estimate]] | None:
    """The first gating gate on a right-or-wrong score, and what it saw of each candidate."""
    plan = gathered.plan
    for gate in plan.gates:
        metrics = {metric.name for metric in plan.suite(gate.suite).metrics if metric.kind == "binary"}
        if gate.gating and gate.kind == "noninferior" and gate.metric in metrics:
            checks = {
                name: check
                for name, one in verdict.candidates.items()
                for check in one.checks
                if check.gate == gate.name
            }
            return gate, {name: check.estimate for name, check in checks.items() if check.estimate is not None}
    return None
