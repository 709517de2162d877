"""What a request costs in seconds, as the blocks' cost models have it: to begin, for a token of the prompt, for a generated one."""

import math
from collections.abc import Iterator

import numpy as np

from evalrig.analysis.phases import COSTS, over_rounds
from evalrig.levels import level_of, levels_of
from evalrig.loads import Floats, Load
from evalrig.report.shown_maps import Row, Table
from evalrig.report.words import NOTHING, level, significant
from evalrig.types import AGAIN, REFERENCE

NAMED = ("to begin", "a token of the prompt", "a generated token", "both")
HINTS = ("ms", "ms a token", "ms a token", "µs a generated token and token of the prompt")
SCALES = (1e3, 1e3, 1e3, 1e6)


def request_cost(name: str, load: Load, alpha: float) -> Table | None:
    """Coefficients of both arms, and their differences round by round; None: no block has them. Blocks in which requests had to
    wait are left out: their seconds are the queue's."""
    rows = [row for at in levels_of(load) for row in _rows(name, load, at, alpha)]
    if not rows:
        return None
    several = len(levels_of(load)) > 1
    return Table(
        title=f"{name}: what a request costs",
        columns=("part", *(("concurrency",) if several else ()), "reference", name, "difference",
                 f"{level(alpha)} interval", "A/A difference", "rounds"),
        rows=tuple(row if several else Row(label=row.label, hint=row.hint, cells=row.cells[1:]) for row in rows),
        note=(
            "Seconds of a request = begin + a x prompt + b x output + c x prompt x output, by least squares in each block; means "
            "over rounds, and t over the rounds' differences. Blocks in which requests waited are left out."
        ),
        named=1 if several else 0,
    )  # fmt: skip


def _rows(name: str, load: Load, at: str, alpha: float) -> Iterator[Row]:
    here = np.array([level_of(one) == at for one in load.names], np.bool_)
    for score, label, hint, scale in zip(COSTS, NAMED, HINTS, SCALES, strict=True):
        ours, theirs, again = (scale * _seen(load, arm, score)[here] for arm in (REFERENCE, name, AGAIN))
        both = np.isfinite(ours) & np.isfinite(theirs)
        if not both.any():
            continue
        difference, floor = (theirs - ours)[both], (again - ours)[np.isfinite(again - ours)]
        cells = (
            at or NOTHING,
            significant(float(ours[both].mean())),
            significant(float(theirs[both].mean())),
            significant(float(difference.mean())),
            _limits(difference, alpha),
            significant(float(floor.mean())) if floor.size else NOTHING,
            str(int(both.sum())),
        )
        yield Row(label=label, hint=hint, cells=cells)


def _seen(load: Load, arm: str, score: str) -> Floats:
    """[blocks]; NaN where requests waited, or the load outgrew the engine."""
    told = load.told.get(arm, {})
    nothing = np.full(len(load.names), math.nan)
    calm = np.ones(len(load.names), np.bool_)
    for sign in ("waiting_most", "over_saturated"):
        calm &= ~(told.get(sign, nothing) > 0)
    return np.where(calm, told.get(score, nothing), math.nan)


def _limits(difference: Floats, alpha: float) -> str:
    found = over_rounds(difference, alpha)
    return NOTHING if found is None else f"{significant(found.low)} to {significant(found.high)}"
