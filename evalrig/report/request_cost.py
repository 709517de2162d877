"""What a request costs in seconds: to begin, for a token of the prompt, for a generated one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.phases import Coefficient
from evalrig.analysis.request_cost import Part, Sums, request_costs, sums_of
from evalrig.errors import RunError
from evalrig.evidence import Gathered
from evalrig.levels import level_of, levels_of
from evalrig.loadgen.raw import blocks_in, read_requests
from evalrig.loads import Load
from evalrig.plan import SuitePlan
from evalrig.report.shown_maps import Row, Table
from evalrig.report.words import NOTHING, level, significant
from evalrig.types import AGAIN, REFERENCE

PARTS = (
    ("to begin", "ms", 1e3),
    ("a token of the prompt", "ms a token", 1e3),
    ("a generated token", "ms a token", 1e3),
    ("a generated token, for each of the prompt", "µs a token and token", 1e6),
)


def request_cost(gathered: Gathered, suite: SuitePlan, name: str, load: Load, alpha: float) -> Table | None:
    """Coefficients of both arms and their differences, by concurrency; None: nothing varies, or too little is left."""
    rows: list[Row] = []
    for at in levels_of(load):
        rows += _rows(gathered, suite, name, load, at, alpha)
    if not rows:
        return None
    several = len(levels_of(load)) > 1
    return Table(
        title=f"{name}: what a request costs",
        columns=("part", *(("concurrency",) if several else ()), "reference", name, "difference",
                 f"{level(alpha)} interval", "A/A difference"),
        rows=tuple(row if several else Row(label=row.label, hint=row.hint, cells=row.cells[1:]) for row in rows),
        note=(
            "Seconds of a request = begin + a x prompt + b x output + c x prompt x output, by least squares over the requests of "
            "all rounds; intervals by leaving out one round of both arms at a time. Blocks that outgrew the engine are left out."
        ),
        named=1 if several else 0,
    )  # fmt: skip


def _rows(gathered: Gathered, suite: SuitePlan, name: str, load: Load, at: str, alpha: float) -> list[Row]:
    here = np.array([level_of(one) == at for one in load.names], np.bool_)
    calm = here & _calm(load, REFERENCE)
    both = [gathered.folder.variant_path(arm) / "load" / suite.name for arm in (REFERENCE, name, AGAIN)]
    found = _costs(both[0], both[1], _kept(load, calm & _calm(load, name)), alpha)
    if found is None:
        return []
    floor = _costs(both[0], both[2], _kept(load, calm & _calm(load, AGAIN)), alpha)
    noise = [
        significant(part.difference.value * scale) for part, (_, _, scale) in zip(floor or (), PARTS, strict=False)
    ]
    return [
        Row(label=label, hint=units, cells=(at or NOTHING, *_cells(part, scale), aa))
        for part, (label, units, scale), aa in zip(found, PARTS, noise or [NOTHING] * len(PARTS), strict=True)
    ]


def _cells(part: Part, scale: float) -> tuple[str, ...]:
    difference = part.difference
    limits = f"{significant(difference.low * scale)} to {significant(difference.high * scale)}"
    return (
        _with_limits(part.reference, scale),
        _with_limits(part.candidate, scale),
        significant(difference.value * scale),
        limits,
    )


def _with_limits(one: Coefficient, scale: float) -> str:
    low, value, high = (significant(x * scale) for x in (one.low, one.value, one.high))
    return f"{value} ({low} to {high})"


def _calm(load: Load, arm: str) -> NDArray[np.bool_]:
    """[blocks]: it counts, and requests did not pile up in it: their seconds would be the queue's."""
    told = load.told.get(arm, {})
    piled = told.get("over_saturated")
    there = ~load.missing.get(arm, np.ones(len(load.names), np.bool_))
    return there if piled is None else there & ~(piled > 0)


def _kept(load: Load, here: NDArray[np.bool_]) -> list[str]:
    return [name for name, kept in zip(load.names, here, strict=True) if kept]


def _costs(ours: Path, theirs: Path, names: Sequence[str], alpha: float) -> tuple[Part, ...] | None:
    paths = [{path.name: path for path in blocks_in(folder)} for folder in (ours, theirs)]
    pairs = [(a, b) for name in names if (a := _sums(paths[0], name)) and (b := _sums(paths[1], name))]
    return request_costs([a for a, _ in pairs], [b for _, b in pairs], alpha)


def _sums(paths: Mapping[str, Path], name: str) -> Sums | None:
    """None: no tables are kept, or they are damaged; that costs a row and no verdict."""
    if name not in paths:
        return None
    try:
        return sums_of(read_requests(paths[name]))
    except RunError:
        return None
