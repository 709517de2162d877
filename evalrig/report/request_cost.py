"""What a request costs in seconds: to begin, for a token of the prompt, for a generated one."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

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
    folders = [gathered.folder.variant_path(arm) / "load" / suite.name for arm in (REFERENCE, name, AGAIN)]
    ours, theirs, again = (
        _blocks(folder, load, arm) for folder, arm in zip(folders, (REFERENCE, name, AGAIN), strict=True)
    )
    rows: list[Row] = []
    for at in levels_of(load):
        names = [one for one in load.names if level_of(one) == at]
        rows += _rows(ours, theirs, again, names, alpha)
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


def _rows(
    ours: Mapping[str, Sums], theirs: Mapping[str, Sums], again: Mapping[str, Sums], names: Sequence[str], alpha: float
) -> list[Row]:
    found = _costs(ours, theirs, names, alpha)
    if found is None:
        return []
    floor = _costs(ours, again, names, alpha)
    noise = [
        significant(part.difference.value * scale) for part, (_, _, scale) in zip(floor or (), PARTS, strict=False)
    ]
    return [
        Row(label=label, hint=units, cells=(level_of(names[0]) or NOTHING, *_cells(part, scale), aa))
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


def _costs(
    ours: Mapping[str, Sums], theirs: Mapping[str, Sums], names: Sequence[str], alpha: float
) -> tuple[Part, ...] | None:
    both = [name for name in names if name in ours and name in theirs]
    return request_costs([ours[name] for name in both], [theirs[name] for name in both], alpha)


def _blocks(folder: Path, load: Load, arm: str) -> dict[str, Sums]:
    """Of every block that counts and in which requests did not pile up: their seconds would be the queue's. Without those whose
    tables are not kept or damaged, which costs a row and no verdict."""
    nothing = np.zeros(len(load.names))
    there = ~load.missing.get(arm, np.ones(len(load.names), np.bool_))
    calm = there & ~(load.told.get(arm, {}).get("over_saturated", nothing) > 0)
    names, found = {name for name, kept in zip(load.names, calm, strict=True) if kept}, dict[str, Sums]()
    for path in (path for path in blocks_in(folder) if path.name in names):
        with contextlib.suppress(RunError):
            found[path.name] = sums_of(read_requests(path))
    return found
