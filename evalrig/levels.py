"""Concurrencies of a load. A round may have a block at each; it is one round all the same, for its blocks share what slowed the
machine meanwhile."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.attainment import Attained, SloPoint, attained, slo_point
from evalrig.loads import Floats, Load, Rounds
from evalrig.types import AGAIN, REFERENCE

WITHIN, ALL, ASKED = "slo_ok", "slo_n", "slo_asked"
"""Scores of a block: requests within the limits of time, all requests, and the share of them that was promised."""
ATTAINMENT = 0.99
"""Where none was told."""


def level_of(name: str) -> str:
    """The part of a round's name that says which concurrency it had (`c04` of `c04-round-03`); empty: all had the same."""
    return name.rpartition("round")[0].rstrip("-_/ ")


def level_name(concurrency: int) -> str:
    """As it stands in the names of rounds."""
    return f"c{concurrency:02d}"


def concurrency_of(level: str) -> int:
    """`c04`: 4; of the empty name 0."""
    return int(level.lstrip("c") or 0)


def levels_in(names: Iterable[str]) -> tuple[str, ...]:
    """Of rounds, in the order of the concurrencies; one empty name where all had the same."""
    return tuple(sorted({level_of(name) for name in names}, key=concurrency_of))


def levels_of(load: Load) -> tuple[str, ...]:
    """Of the rounds of a load, as `levels_in`."""
    return levels_in(load.names)


def at_level(load: Load, level: str) -> Load:
    """The rounds of one concurrency alone."""
    here = np.array([level_of(name) == level for name in load.names], np.bool_)
    names = tuple(name for name in load.names if level_of(name) == level)
    return replace(
        load,
        names=names,
        rounds={metric: _taken(rounds, names, here) for metric, rounds in load.rounds.items()},
        void={
            arm: tuple(line for line in lines if level_of(_named(line)) == level) for arm, lines in load.void.items()
        },
        told={arm: {score: values[here] for score, values in told.items()} for arm, told in load.told.items()},
        missing={arm: gone[here] for arm, gone in load.missing.items()},
    )


def over_levels(load: Load) -> Mapping[str, Rounds]:
    """Every metric with one entry a round: the geometric mean over its concurrencies, NaN where one of them is missing. A
    concurrency at which the reference was measured and never has the metric (too few requests for a p99) does not count for
    it; one at which blocks are missing does, or a variant that cannot serve it would be as good as one that can."""
    grid = laid(load)
    if grid.shape[1] == 1:
        return load.rounds
    measured = (grid >= 0) & ~spread(load.missing.get(REFERENCE, np.ones(len(load.names), np.bool_)), grid, lost=True)
    return {metric: _joined(rounds, grid, measured, load.names) for metric, rounds in load.rounds.items()}


def lost(load: Load, candidate: str) -> tuple[int, int]:
    """Rounds of which any half of any block is missing, and all rounds: they say nothing of the whole."""
    grid, nothing = laid(load), np.ones(len(load.names), np.bool_)
    halves = [load.missing.get(arm, nothing) for arm in (REFERENCE, candidate)]
    gone = spread(halves[0] | halves[1], grid, lost=True)
    return int(gone.any(axis=1).sum()), len(grid)


def laid(load: Load) -> NDArray[np.int64]:
    """Places in `load.names`, [rounds, concurrencies]; -1: there was no such block. Rounds in the order in which they began."""
    levels = levels_of(load)
    rounds = list(dict.fromkeys(round_of(name) for name in load.names))
    grid = np.full((len(rounds), len(levels)), -1)
    for place, name in enumerate(load.names):
        grid[rounds.index(round_of(name)), levels.index(level_of(name))] = place
    return grid


def spread(values: NDArray[Any], grid: NDArray[np.int64], lost: float = math.nan) -> NDArray[Any]:
    """[rounds, concurrencies] of one value a block; `lost` where there was no block."""
    return np.where(grid >= 0, values[grid] if len(values) else lost, lost)


def kept_at(load: Load, arm: str) -> list[Attained | None]:
    """How many requests of an arm kept the SLO at each concurrency."""
    told, grid = load.told.get(arm, {}), laid(load)
    if WITHIN not in told or ALL not in told:
        return [None] * grid.shape[1]
    within, everything = spread(told[WITHIN], grid), spread(told[ALL], grid)
    return [attained(within[:, level], everything[:, level]) for level in range(grid.shape[1])]


def attained_by(load: Load, arm: str) -> Attained | None:
    """How many requests of an arm kept the SLO in all rounds together; None: no round tells of limits."""
    told = load.told.get(arm, {})
    return attained(told[WITHIN], told[ALL]) if WITHIN in told and ALL in told else None


def asked_of(load: Load) -> float:
    """The share of requests within the SLO that its suite promises."""
    told = load.told.get(REFERENCE, {}).get(ASKED)
    known = told[np.isfinite(told)] if told is not None else np.zeros(0)
    return float(known[0]) if known.size else ATTAINMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class AtSlo:
    """Each arm at the most load at which it keeps the SLO: what can be had of it in service.

    Where that is rests on the same requests as the ratio, so a claim is made only if it holds wherever the points may lie.
    """

    seen: Load
    """Both where they are shown to keep it; A/A at the reference's point, here and below."""
    for_candidate: Load
    """The candidate where it may keep it, the reference where it is shown to."""
    against_candidate: Load
    """The other way round."""
    where: str
    sure: bool
    """No point may lie elsewhere."""


def at_slo(load: Load, candidate: str, alpha: float) -> AtSlo | str:
    """The points of both arms; or why there are none."""
    levels, grid, asked = levels_of(load), laid(load), asked_of(load)
    points = {arm: slo_point(kept_at(load, arm), asked, alpha) for arm in (REFERENCE, candidate)}
    for arm, point in points.items():
        if point.shown < 0:
            return f"{arm} has no SLO point: {point.why}"
    ours, theirs = points[REFERENCE], points[candidate]
    where = "; ".join(_words(arm, levels, points[arm]) for arm in (candidate, REFERENCE))
    return AtSlo(
        seen=_standing(load, candidate, grid[:, ours.shown], grid[:, theirs.shown]),
        for_candidate=_standing(load, candidate, grid[:, ours.shown], grid[:, theirs.possible]),
        against_candidate=_standing(load, candidate, grid[:, ours.possible], grid[:, theirs.shown]),
        where=where,
        sure=all(point.shown == point.possible for point in points.values()),
    )


def _standing(load: Load, candidate: str, ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> Load:
    """A load of one block a round: the reference's blocks at `ours`, the candidate's at `theirs`, [rounds] places each."""
    names = tuple(round_of(load.names[max(a, b)]) for a, b in zip(ours, theirs, strict=True))
    rounds = {
        metric: Rounds(
            metric=one.metric,
            names=names,
            reference=spread(one.reference, ours),
            candidate=spread(one.candidate, theirs),
            again=spread(one.again, ours),
        )
        for metric, one in load.rounds.items()
    }
    columns = {REFERENCE: ours, candidate: theirs, AGAIN: ours}
    gone = {
        arm: spread(load.missing[arm], at, lost=True).astype(np.bool_)
        for arm, at in columns.items()
        if arm in load.missing
    }
    return replace(load, names=names, rounds=rounds, missing=gone, told={})


def _words(arm: str, levels: tuple[str, ...], point: SloPoint) -> str:
    if not levels[point.shown]:
        return f"{arm} as loaded"
    shown, possible = (concurrency_of(levels[place]) for place in (point.shown, point.possible))
    more = f" (perhaps {possible})" if possible > shown else ""
    return f"{arm} at {shown} requests at once{more}"


def round_of(name: str) -> str:
    """Without its concurrency (`round-03` of `c04-round-03`)."""
    return name.removeprefix(level_of(name)).lstrip("-_/ ")


def _named(line: str) -> str:
    """The round that a line on a void block begins with."""
    return line.partition(":")[0]


def _taken(rounds: Rounds, names: tuple[str, ...], here: NDArray[np.bool_]) -> Rounds:
    return replace(
        rounds,
        names=names,
        reference=rounds.reference[here],
        candidate=rounds.candidate[here],
        again=rounds.again[here],
    )


def _joined(rounds: Rounds, grid: NDArray[np.int64], measured: NDArray[np.bool_], names: tuple[str, ...]) -> Rounds:
    ours, theirs, again = (spread(arm, grid) for arm in (rounds.reference, rounds.candidate, rounds.again))
    counts = np.isfinite(ours).any(axis=0) | ~measured.any(axis=0)
    return Rounds(
        metric=rounds.metric,
        names=tuple(round_of(names[row[row >= 0][0]]) for row in grid),
        reference=_mean(ours[:, counts]),
        candidate=_mean(theirs[:, counts]),
        again=_mean(again[:, counts]),
    )


def _mean(values: Floats) -> Floats:
    """Geometric, [rounds]; NaN where one is missing, or all are."""
    if not values.shape[1]:
        return np.full(len(values), math.nan)
    with np.errstate(divide="ignore"):  # the mean with a zero is zero, and the ratio says so
        return np.exp(np.mean(np.log(values), axis=1))
