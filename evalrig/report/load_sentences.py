"""What a suite of load says in sentences: what is held, whether that is what limits, what it costs, and by whose clock."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from evalrig.analysis.capacity import Fits, Level, capacity_ratio, fits, knee
from evalrig.analysis.cost import saved
from evalrig.analysis.iso_slo import IsoRatio, curve, iso_ratio
from evalrig.analysis.load_floor import beside_floor
from evalrig.analysis.load_ratio import Ratio
from evalrig.evidence import Gathered
from evalrig.levels import asked_of, at_slo, laid, level_of, levels_of, over_levels, spread
from evalrig.likeness import BITS
from evalrig.loads import Floats, Load
from evalrig.plan import SuitePlan
from evalrig.report.words import percent, significant, sized
from evalrig.types import AGAIN, REFERENCE, Capacity

COSTS = ("usd_per_million_output", "usd_per_million_input")
AT_SLO = ("tokens_per_gpu", *COSTS)
"""What is told of the SLO point."""


def sentences(gathered: Gathered, suite: SuitePlan, loads: Mapping[str, Load], alpha: float) -> Iterator[str]:
    """Candidate by candidate, the reference first where it has something of its own."""
    first = next(iter(loads.values()))
    yield from _room(REFERENCE, first)
    yield from _knee(REFERENCE, first)
    for name, load in loads.items():
        yield from _capacity(gathered, name, load)
        yield from _room(name, load)
        yield from _knee(name, load)
        yield from _memory(name, load)
        yield from _saturated(name, load)
        yield from _cost(name, load, alpha)
        yield from _at_slo(name, load, alpha)
        yield from _iso(name, load, alpha)
    yield from _client(loads)


def _capacity(gathered: Gathered, name: str, load: Load) -> Iterator[str]:
    found = capacity_ratio(
        load.capacity.get(REFERENCE, Capacity()), load.capacity.get(name, Capacity()), promised(gathered, name)
    )
    yield f"{name} holds: {found.words}."


def promised(gathered: Gathered, name: str) -> float:
    """Bytes of a token of KV cache that the formats promise, reference over candidate; NaN: not known."""
    proofs = [gathered.folder.preflight(arm) for arm in (REFERENCE, name)]
    bits = [BITS.get(proof.fingerprint.kv_cache, 0.0) if proof else 0.0 for proof in proofs]
    return bits[0] / bits[1] if all(bits) else math.nan


def _knee(name: str, load: Load) -> Iterator[str]:
    """Whether KV limits, from what the engine told of itself at each concurrency."""
    told = load.told.get(name, {})
    nothing = np.full(len(load.names), math.nan)
    waiting, put_back, usage, lanes = (
        told.get(score, nothing) for score in ("waiting_usual", "preemptions", "kv_usage_most", "concurrency")
    )
    if not np.isfinite(waiting).any() and not np.isfinite(put_back).any():
        return
    levels: list[Level] = []
    for at in levels_of(load):
        here = np.array([level_of(one) == at for one in load.names]) & np.isfinite(lanes)
        if here.any():
            levels.append(
                Level(
                    concurrency=round(float(np.median(lanes[here]))),
                    waiting=waiting[here].tolist(),
                    preemptions=put_back[here].tolist(),
                    kv_usage=float(np.nanmax(usage[here])) if np.isfinite(usage[here]).any() else math.nan,
                )
            )
    if not levels:
        return
    found = knee(levels, _fits(name, load))
    if found.kv_binds is None:
        yield f"{name}: requests wait, and whether KV is the binding limit cannot be said: the engine does not tell how full it is."
    else:
        yield f"{name}: {found.words}."


def _fits(arm: str, load: Load) -> Fits | None:
    """Requests like these that run at once; None: the engine does not tell what it holds, or how long they were."""
    tokens, told = load.capacity.get(arm, Capacity()), load.told.get(arm, {})
    prompt, output = (_middle(told.get(score)) for score in ("tokens_in", "tokens_out"))
    if tokens.kv_tokens <= 0 or math.isnan(prompt) or math.isnan(output):
        return None
    return fits(tokens.kv_tokens, prompt, output, tokens.max_requests)


def _room(name: str, load: Load) -> Iterator[str]:
    """How many requests run at once, by three rules."""
    found, told = _fits(name, load), load.told.get(name, {})
    if found is None:
        return
    length = f"{_middle(told.get('tokens_in')):,.0f} tokens in and {_middle(told.get('tokens_out')):,.0f} out"
    limit = (
        f"its own limit is {found.limit:,.0f}" if math.isfinite(found.limit) else "it does not tell a limit of its own"
    )
    yield (
        f"{name}: its KV cache has room for about {math.floor(found.expected):,} requests of {length} at once, "
        f"{math.floor(found.worst):,} if all have grown to their end; {limit}."
    )


def _memory(name: str, load: Load) -> Iterator[str]:
    """The most that was in use on the GPUs, by whomever."""
    peaks = [_most(load.told.get(arm, {}).get("gpu_bytes_most")) for arm in (name, REFERENCE)]
    if not any(math.isnan(peak) for peak in peaks):
        yield f"{name}: at most {sized(peaks[0])} of GPU memory in use under load, the reference {sized(peaks[1])} (NVML, all processes)."


def _middle(values: Floats | None) -> float:
    known = values[np.isfinite(values)] if values is not None else np.zeros(0)
    return float(np.median(known)) if known.size else math.nan


def _most(values: Floats | None) -> float:
    known = values[np.isfinite(values)] if values is not None else np.zeros(0)
    return float(known.max()) if known.size else math.nan


def _saturated(name: str, load: Load) -> Iterator[str]:
    """Latencies of a queue that only grows are those of the block's length."""
    for arm in (REFERENCE, name):
        told = load.told.get(arm, {}).get("over_saturated")
        over = int(np.nansum(told)) if told is not None else 0
        if over:
            yield f"{arm}: over-saturated in {over} blocks: requests pile up, and latencies there grow with the block's length."


def _cost(name: str, load: Load, alpha: float) -> Iterator[str]:
    rounds_of = over_levels(load)
    for metric in COSTS:
        if (rounds := rounds_of.get(metric)) is None:
            continue
        claim = beside_floor(rounds.reference, rounds.candidate, rounds.again, 0.0, alpha, less=True)
        costs = claim.ratio
        if not np.isfinite(costs.value):
            continue
        both = np.isfinite(rounds.reference) & np.isfinite(rounds.candidate)
        ours, theirs = (significant(float(np.median(arm[both]))) for arm in (rounds.reference, rounds.candidate))
        found = saved(costs)
        shown = f"{percent(found.low)} to {percent(found.high)}" if costs.interval else "no interval"
        yield f"{name}: {metric} {theirs} USD, the reference {ours}: {percent(found.value)} saved ({shown}){_floor(claim.floor)}."


def _at_slo(name: str, load: Load, alpha: float) -> Iterator[str]:
    """What each arm gives at the most load at which it keeps the SLO; only where there are limits."""
    if "goodput" not in load.rounds:
        return
    found = at_slo(load, name, alpha)
    asked = f"{percent(asked_of(load))} of requests within the SLO"
    if isinstance(found, str):
        yield f"{name}: no comparison at the SLO point ({asked}): {found}."
        return
    parts: list[str] = []
    for metric in (one for one in AT_SLO if one in found.seen.rounds):
        rounds = found.seen.rounds[metric]
        claim = beside_floor(rounds.reference, rounds.candidate, rounds.again, 0.0, alpha, rounds.metric.less)
        if np.isfinite(claim.ratio.value):
            parts.append(f"{metric} × {_ratio(claim.ratio)}{_floor(claim.floor)}")
    if parts:
        yield f"{name}: at the SLO point ({asked}; {found.where}): {', '.join(parts)}."


def _iso(name: str, load: Load, alpha: float) -> Iterator[str]:
    """Tokens per GPU where both give a user the same speed; only with several concurrencies."""
    grid = laid(load)
    user, gpu = load.rounds.get("tokens_per_user"), load.rounds.get("tokens_per_gpu")
    if grid.shape[1] < 2 or user is None or gpu is None:
        return
    arms = ("reference", "candidate", "again")
    points = np.stack([spread(getattr(rounds, arm), grid) for arm in arms for rounds in (user, gpu)])
    points = points[:, :, (points[0] > 0).any(axis=0)]  # a concurrency with too few requests for a TPOT has no point
    found, why = _read(points[:4], alpha)
    if found is None:
        yield f"{name}: no ratio at equal speed for each user: {why}."
        return
    again, _ = _read(points[[0, 1, 4, 5]], alpha, found.at)
    yield (
        f"{name}: at {significant(found.at)} tokens per second for each user, tokens per second and GPU × {_ratio(found.ratio)} "
        f"in {found.ratio.n} of {len(grid)} rounds{_floor(again.ratio if again else None)}."
    )


def _read(points: Floats, alpha: float, at: float | None = None) -> tuple[IsoRatio | None, str]:
    """From [user and GPU of both arms, rounds, concurrencies]. A line drawn across a point that one arm lacks is another curve:
    such a round has none."""
    whole = np.all(points > 0, axis=(0, 2))
    kept = np.where(whole[None, :, None], points, math.nan)
    return iso_ratio(curve(*kept[:2]), curve(*kept[2:]), at, alpha=alpha)


def _ratio(ratio: Ratio) -> str:
    limits = f"{significant(ratio.low, 4)} to {significant(ratio.high, 4)}" if ratio.interval else "no interval"
    return f"{significant(ratio.value, 4)} ({limits})"


def _floor(floor: Ratio | None) -> str:
    return f"; A/A × {_ratio(floor)}" if floor is not None and np.isfinite(floor.value) else "; no A/A"


def _client(loads: Mapping[str, Load]) -> Iterator[str]:
    """Is the load client innocent? Of all arms together, the worst block."""
    first = next(iter(loads.values()))
    arms = [first.told.get(arm, {}) for arm in (REFERENCE, AGAIN)]
    arms += [load.told.get(name, {}) for name, load in loads.items()]

    def worst(score: str, least: bool = False) -> float | None:
        found = np.concatenate([arm.get(score, np.zeros(0)) for arm in arms])
        known = found[np.isfinite(found)]
        return float(known.min() if least else known.max()) if known.size else None

    exact, busy, late = worst("exact", least=True), worst("cpu_share"), worst("send_lag_p99")
    parts = [
        f"at least {percent(exact)} of the events of each block have an exact time of arrival"
        if exact is not None
        else "",
        f"its busiest process took at most {percent(busy)} of a processor" if busy is not None else "",
        f"99 % of requests left within {significant(1000 * late)} ms of when they were due" if late is not None else "",
    ]
    if any(parts):
        yield f"The load client: {'; '.join(filter(None, parts))}."
