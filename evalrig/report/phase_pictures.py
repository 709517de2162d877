"""Prefill and decode as curves: seconds to the first token over the length of the prompt, and seconds a step over the batch."""

from collections.abc import Iterator, Mapping

import numpy as np

from evalrig.analysis.load_ratio import Ratio, ratio_of
from evalrig.analysis.phases import alone
from evalrig.errors import RunError
from evalrig.evidence import Gathered
from evalrig.levels import concurrency_of, level_of
from evalrig.loadgen.raw import blocks_in, read_requests
from evalrig.loadgen.served import Requests
from evalrig.loads import Floats, Load
from evalrig.plan import SuitePlan
from evalrig.report.shown_load import Line, Picture, Point
from evalrig.report.words import NOISE, drawn, listed, significant
from evalrig.types import AGAIN, REFERENCE


def phase_pictures(gathered: Gathered, suite: SuitePlan, loads: Mapping[str, Load], alpha: float) -> Iterator[Picture]:
    """Those for which blocks of such a shape were run."""
    first = next(iter(loads.values()))
    arms = [(REFERENCE, first), *loads.items(), (AGAIN, first)]
    lengths = [_line(arm, _by_length(gathered, arm, suite, load), alpha) for arm, load in arms]
    if any(len(line.points) > 1 for line in lengths):
        yield _picture(
            f"{suite.name}: prefill over the length of the prompt",
            ("tokens of the prompt", "seconds from sent to the first token"),
            lengths,
        )
    batches = [_line(arm, _by_batch(arm, load), alpha) for arm, load in arms]
    if any(len(line.points) > 1 for line in batches):
        yield _picture(
            f"{suite.name}: decode over the batch",
            ("requests at once", "seconds a step, while all decode"),
            batches,
        )


def _picture(title: str, axes: tuple[str, str], lines: list[Line]) -> Picture:
    shown = tuple(line for line in lines if line.points)
    ends = [
        f"{line.arm} {significant(line.points[0].y)} at {significant(line.points[0].x)} and "
        f"{significant(line.points[-1].y)} at {significant(line.points[-1].x)}"
        for line in shown
    ]
    return Picture(
        title=title,
        x_axis=axes[0],
        y_axis=axes[1],
        style="curve",
        lines=shown,
        description=f"Geometric means over rounds with their intervals, lower is better: {listed(ends)}.",
    )


def _line(arm: str, values: Mapping[float, list[float]], alpha: float) -> Line:
    kind = {REFERENCE: "reference", AGAIN: "noise"}.get(arm, "candidate")
    points = tuple(_point(x, ratio_of(np.ones(len(y)), y, 0.0, alpha)) for x, y in sorted(values.items()) if y)
    return Line(arm=NOISE if arm == AGAIN else arm, kind=kind, points=points)  # type: ignore[arg-type]


def _point(x: float, mean: Ratio) -> Point:
    up = (drawn(mean.low), drawn(mean.high)) if mean.interval else None
    return Point(x=drawn(x), y=drawn(mean.value), up=up)


def _by_length(gathered: Gathered, arm: str, suite: SuitePlan, load: Load) -> dict[float, list[float]]:
    """Length of the prompt -> a median for each round that counts, of blocks that told what a prompt token costs."""
    slopes: Floats = load.told.get(arm, {}).get("prefill_slope", np.zeros(0))
    folder = gathered.folder.variant_path(arm) / "load" / suite.name
    kept = {path.name: path for path in blocks_in(folder)}
    found: dict[float, list[float]] = {}
    for name, slope in zip(load.names, slopes, strict=False):
        if name not in kept or np.isnan(slope):
            continue
        try:
            rows = read_requests(kept[name])
        except RunError:
            continue  # damaged tables cost a point and no verdict: that is made of the records
        for length, seconds in _first_tokens(rows):
            found.setdefault(length, []).append(seconds)
    return found


def _first_tokens(rows: Requests) -> Iterator[tuple[float, float]]:
    used, seconds = alone(rows), rows.first - rows.sent
    for length in np.unique(rows.prompt_tokens[used]):
        yield float(length), float(np.median(seconds[used & (rows.prompt_tokens == length)]))


def _by_batch(arm: str, load: Load) -> dict[float, list[float]]:
    """Concurrency -> seconds of a step in each round of it."""
    steps: Floats = load.told.get(arm, {}).get("decode_seconds", np.zeros(0))
    found: dict[float, list[float]] = {}
    for name, seconds in zip(load.names, steps, strict=False):
        at = level_of(name)
        if at and seconds > 0:
            found.setdefault(float(concurrency_of(at)), []).append(float(seconds))
    return found
