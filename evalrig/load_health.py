"""Can the rounds of load be trusted? What did not count, by which clock it was timed, and the reference against itself."""

from collections.abc import Iterator, Sequence

import numpy as np

from evalrig.analysis.binary import mcnemar_midp
from evalrig.analysis.clusters import holm
from evalrig.analysis.load_floor import floor_of, two_sided
from evalrig.evidence import Gathered
from evalrig.gate import Evidence
from evalrig.levels import lost, over_levels, round_of
from evalrig.loads import Load, emulated
from evalrig.plan import SuitePlan
from evalrig.speed import EMULATION
from evalrig.types import AGAIN, REFERENCE, Finding, Level, State

ROUNDS = "rounds of load"
CLOCK = "load clock"
ITSELF = "load against itself"
STARTS = "starts under load"
SPEED = "speed"
UNEQUAL = 0.01
"""p-value below which one arm's engine failed more often than luck has it."""
KERNEL = "kernel"
"""Score of a block: 1 where the kernel told when bytes arrived, 0 where the load client's own clock did."""


def of_load(gathered: Gathered, evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """All rules, for every suite of load."""
    suites = [suite for suite in gathered.plan.suites if suite.blocks]
    proofs = [gathered.folder.preflight(variant.name) for variant in gathered.plan.variants] if suites else []
    if why := emulated(proofs):
        text = f"{EMULATION} ({why}): no check of speed gates in this run; what the engines hold counts all the same"
        yield Finding(rule=SPEED, level=Level.WARN, text=text)
    for suite in suites:
        for arm in evidence:
            yield from _counted(gathered, suite, arm)
        if evidence:
            load = evidence[0].loads[suite.name]
            yield from _starts(gathered, suite.name)
            yield from _clock(suite.name, [arm.loads[suite.name] for arm in evidence])
            yield from _itself(suite.name, load, evidence[0].alpha)


def _counted(gathered: Gathered, suite: SuitePlan, arm: Evidence) -> Iterator[Finding]:
    """A round counts if both its halves do; an engine that fails under load is no matter of speed."""
    name, load = arm.candidate, arm.loads[suite.name]
    where, (gone, planned) = f"{name}, {suite.name}", lost(load, name)
    failed = [
        {(round_of(r.sample), r.epoch) for r in gathered.records[one, suite.name] if r.state is State.INFRA}
        for one in (REFERENCE, name)
    ]
    p = mcnemar_midp(len(failed[1] - failed[0]), len(failed[0] - failed[1]))
    if p < UNEQUAL:
        text = (
            f"{where}: the engine failed in {len(failed[1])} rounds, the reference's in {len(failed[0])} of {planned}"
        )
        text += f" (p = {p:.2g}): stability, not speed"
        yield Finding(rule=ROUNDS, level=Level.INVALID, text=text, candidate=name, suite=suite.name)
    elif gone:
        reasons = [line for one in (REFERENCE, name) for line in load.void.get(one, ())]
        text = f"{where}: {gone} of {planned} rounds lack a half that counts and are left out{_first(reasons)}"
        yield Finding(rule=ROUNDS, level=Level.WARN, text=text, candidate=name, suite=suite.name)
    elif planned:
        text = f"{where}: both halves of all {planned} rounds count"
        yield Finding(rule=ROUNDS, level=Level.OK, text=text, candidate=name, suite=suite.name)


def _first(reasons: Sequence[str]) -> str:
    return f": {reasons[0]}{f' (and {len(reasons) - 1} more)' if len(reasons) > 1 else ''}" if reasons else ""


def _starts(gathered: Gathered, suite: str) -> Iterator[Finding]:
    """One start of each variant draws one memory layout, one tuning, one place: rounds on it cannot show how starts differ."""
    engines, variants = int(gathered.plan.config["runner"]["engines"]), len(gathered.plan.variants)
    if variants > engines:
        text = f"{suite}: every round has a start of its own of each variant, so the intervals hold how starts differ"
        yield Finding(rule=STARTS, level=Level.OK, text=text, suite=suite)
        return
    text = (
        f"{suite}: every variant ran all rounds on one start, so the intervals do not hold how starts differ; below "
        f"{variants} in `runner.engines` each round has its own"
    )
    yield Finding(rule=STARTS, level=Level.WARN, text=text, suite=suite)


def _clock(suite: str, loads: Sequence[Load]) -> Iterator[Finding]:
    """Whose clock stamped the arrivals: the kernel's is not moved by a busy client."""
    seen = [rows[KERNEL] for load in loads for rows in load.told.values() if KERNEL in rows]
    known = np.concatenate(seen) if seen else np.zeros(0)
    known = known[np.isfinite(known)]
    if not known.size:
        return
    if known.all():
        text = f"{suite}: the kernel told when bytes arrived, in every block"
        yield Finding(rule=CLOCK, level=Level.OK, text=text, suite=suite)
    else:
        text = f"{suite}: in some blocks the load client's own clock told when bytes arrived: a busy client adds to each time"
        yield Finding(rule=CLOCK, level=Level.WARN, text=text, suite=suite)


def _itself(suite: str, load: Load, alpha: float) -> Iterator[Finding]:
    """The reference's second run over its first, every metric, Holm over all of them."""
    found = {name: floor_of(rounds.reference, rounds.again, alpha) for name, rounds in over_levels(load).items()}
    floors = {name: floor for name, floor in found.items() if floor is not None and floor.interval}
    if not floors:
        text = f"{suite}: no metric has an A/A interval, so that no claim of speed can be made; raise `suites.{suite}.again`"
        yield Finding(rule=ITSELF, level=Level.WARN, text=text, suite=suite)
        return
    p = dict(zip(floors, holm([two_sided(floor) for floor in floors.values()]), strict=True))
    off = [f"{name} {floors[name].value:.4g} (p = {p[name]:.2g})" for name in floors if p[name] <= alpha]
    if off:
        text = f"{suite}: {AGAIN} differs from the reference in {', '.join(off)}: drift, or an effect of the order in a round"
        yield Finding(rule=ITSELF, level=Level.WARN, text=text, suite=suite)
    else:
        text = f"{suite}: no metric of {len(floors)} shows a difference between {AGAIN} and the reference"
        yield Finding(rule=ITSELF, level=Level.OK, text=text, suite=suite)
