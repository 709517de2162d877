"""Concurrencies of a load. A round may have a block at each; it is one round all the same, for its blocks share what slowed the
machine meanwhile."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.attainment import Attained, attained, slo_point
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


def levels_of(load: Load) -> tuple[str, ...]:
    """In the order of the concurrencies; one empty name where all rounds had the same."""
    return tuple(sorted({level_of(name) for name in load.names}, key=lambda level: (len(level), level)))


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
    concurrency that has a metric in no round (too few requests for a p99) does not count for it."""
    grid = laid(load)
    if grid.shape[1] == 1:
        return load.rounds
    return {metric: _joined(rounds, grid, load.names) for metric, rounds in load.rounds.items()}


def laid(load: Load) -> NDArray[np.int64]:
    """Places in `load.names`, [rounds, concurrencies]; -1: there was no such block. Rounds in the order in which they began."""
    levels = levels_of(load)
    rounds = list(dict.fromkeys(_round_of(name) for name in load.names))
    grid = np.full((len(rounds), len(levels)), -1)
    for place, name in enumerate(load.names):
        grid[rounds.index(_round_of(name)), levels.index(level_of(name))] = place
    return grid


def spread(values: Floats, grid: NDArray[np.int64]) -> Floats:
    """[rounds, concurrencies] of one value a block; NaN where there was no block."""
    return np.where(grid >= 0, values[grid], math.nan)


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


def at_slo(load: Load, candidate: str, alpha: float) -> tuple[Load | None, str]:
    """Each arm at the most load at which it is shown to keep the SLO: what can be had of it in service. With it, where that
    was for whom; without it, why there is none. The reference's second run stands at its own such point."""
    levels, grid, asked = levels_of(load), laid(load), asked_of(load)
    points = {arm: slo_point(kept_at(load, arm), asked, alpha) for arm in (REFERENCE, candidate, AGAIN)}
    for arm in (REFERENCE, candidate):
        if points[arm][0] < 0:
            return None, f"{arm} has no SLO point: {points[arm][1]}"
    columns = {arm: grid[:, place] if place >= 0 else np.full(len(grid), -1) for arm, (place, _) in points.items()}
    names = tuple(load.names[place] if place >= 0 else "" for place in columns[REFERENCE])
    rounds = {
        metric: Rounds(
            metric=one.metric,
            names=names,
            reference=spread(one.reference, columns[REFERENCE]),
            candidate=spread(one.candidate, columns[candidate]),
            again=spread(one.again, columns[AGAIN]),
        )
        for metric, one in load.rounds.items()
    }
    gone = {arm: np.where(columns[arm] >= 0, lost[columns[arm]], True) for arm, lost in load.missing.items()}
    where = "; ".join(f"{arm} {_words(levels[points[arm][0]])}" for arm in (candidate, REFERENCE))
    return replace(load, names=names, rounds=rounds, missing=gone, told={}), where


def _words(level: str) -> str:
    return f"at {int(level.lstrip('c'))} requests at once" if level else "as loaded"


def _round_of(name: str) -> str:
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


def _joined(rounds: Rounds, grid: NDArray[np.int64], names: tuple[str, ...]) -> Rounds:
    ours, theirs, again = (spread(arm, grid) for arm in (rounds.reference, rounds.candidate, rounds.again))
    counts = (np.isfinite(ours) & np.isfinite(theirs)).any(axis=0)
    return Rounds(
        metric=rounds.metric,
        names=tuple(_round_of(names[row[row >= 0][0]]) for row in grid),
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
