"""KV capacity: what a variant can hold at once, whether that is what its formats promise, and whether it is what limits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evalrig.types import Capacity

TOLERANCE = 0.02
"""Of a capacity ratio: engines tell pools to three digits, and round them to pages."""
FULL = 0.9
"""Share of the KV pool in use from which on waiting requests are put down to it."""
WINDOWS = 2
"""Windows in a row in which requests must wait or be put back: one alone may be a burst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRatio:
    """candidate / reference, NaN where an engine does not tell. tokens = pool x per_token."""

    tokens: float
    """Tokens that the KV pool holds."""
    pool: float
    """Bytes of the pools: what lighter weights leave."""
    per_token: float
    """Bytes a token, reference / candidate: what the format of the KV cache gives, 2 for half the bytes."""
    promised: float
    """`per_token` as the shape and the formats have it."""
    agrees: bool | None
    """Within 2 %; None: not known."""
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """Requests that run at once, three ways."""

    limit: float
    """The engine's own limit; infinity: none, or not told."""
    worst: float
    """By memory, if all are at their longest at once: tokens / (in + out)."""
    expected: float
    """By memory, if they are halfway on average: tokens / (in + out / 2)."""

    @property
    def by_memory(self) -> bool:
        """Memory ends before the engine's own limit does."""
        return self.expected < self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What an engine told of itself at one concurrency, [windows] in order. NaN: it does not tell."""

    concurrency: int
    waiting: Sequence[float]
    """Requests not yet running."""
    preemptions: Sequence[float]
    """Requests put back in each window: the growth of the engine's counter, not the counter."""
    kv_usage: float = math.nan
    """Most of the KV pool that was in use, 0..1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Where a variant begins to make requests wait, and why."""

    concurrency: int | None
    """The first at which requests waited, or were put back, in two windows in a row; None: none that was tried."""
    tried: int
    """The highest at which the engine told how it fared."""
    kv_binds: bool | None
    """The KV pool is what limits; None: cannot be told."""
    words: str


def capacity_ratio(reference: Capacity, candidate: Capacity, promised: float = math.nan) -> CapacityRatio:
    """Tokens held, and the two factors behind it. `promised`: reference / candidate in bytes a token by shape and formats
    (2 for an FP8 KV cache against BF16); NaN: not known."""
    tokens = _over(candidate.kv_tokens, reference.kv_tokens)
    per_token = _over(reference.kv_bytes_per_token, candidate.kv_bytes_per_token)
    pool = _over(candidate.kv_tokens * candidate.kv_bytes_per_token, reference.kv_tokens * reference.kv_bytes_per_token)
    known = not (math.isnan(promised) or math.isnan(per_token))
    agrees = abs(per_token / promised - 1.0) <= TOLERANCE if known else None
    found = CapacityRatio(tokens=tokens, pool=pool, per_token=per_token, promised=promised, agrees=agrees, words="")
    words = _capacity_words(found, reference.kv_bytes_per_token, candidate.kv_bytes_per_token)
    return CapacityRatio(tokens=tokens, pool=pool, per_token=per_token, promised=promised, agrees=agrees, words=words)


def fits(kv_tokens: int, tokens_in: float, tokens_out: float, limit: int = 0) -> Fits:
    """Requests of `tokens_in` and `tokens_out` that run at once; limit 0: the engine does not say. ValueError without
    tokens."""
    if kv_tokens <= 0 or not (tokens_in >= 0 and tokens_out >= 0 and tokens_in + tokens_out > 0):
        raise ValueError(
            f"{kv_tokens} tokens of KV for requests of {tokens_in} in and {tokens_out} out: nothing to fit"
        )
    return Fits(
        limit=float(limit) if limit > 0 else math.inf,
        worst=kv_tokens / (tokens_in + tokens_out),
        expected=kv_tokens / (tokens_in + tokens_out / 2),
    )


def knee(levels: Sequence[Level], room: Fits | None = None) -> Knee:
    """The first of `levels` at which requests wait or are put back in two windows in a row, and whether KV is why, there or at
    a higher one.

    Requests put back for lack of KV memory mean KV. Waiting ones mean KV if the pool was 90 % full; where the engine does
    not tell, if memory ends before the engine's own limit (`room`) does. A level with fewer than two windows tells nothing.
    ValueError without levels.
    """
    if not levels:
        raise ValueError("`levels`: no concurrency was tried")
    ordered = sorted(levels, key=lambda level: level.concurrency)
    told = [level for level in ordered if _told(level.waiting) or _told(level.preemptions)]
    if not told:
        words = "the engine tells neither waiting nor preempted requests: whether KV binds cannot be said"
        return Knee(concurrency=None, tried=ordered[-1].concurrency, kv_binds=None, words=words)
    tried = told[-1].concurrency
    over = [level for level in told if _lasts(level.waiting) or _lasts(level.preemptions)]
    if not over:
        words = f"KV is not the binding limit here: up to {tried} requests at once none had to wait for long"
        return Knee(concurrency=None, tried=tried, kv_binds=False, words=words)
    causes = [(level, *_cause(level, room)) for level in over]
    # What limits first may not be what limits in the end: KV counts wherever it binds, and "cannot help" needs all to be known.
    unsure = [one for one in causes if one[1] is None]
    at, binds, why = next((one for one in causes if one[1]), (unsure or causes)[0])
    verdict = "whether KV is the binding limit cannot be said"
    if binds is not None:
        verdict = f"KV is {'' if binds else 'not '}the binding limit here{'' if binds else ': more of it cannot help'}"
    words = f"{verdict}; at {at.concurrency} requests {why}"
    return Knee(concurrency=over[0].concurrency, tried=tried, kv_binds=binds, words=words)


def _cause(at: Level, room: Fits | None) -> tuple[bool | None, str]:
    if _lasts(at.preemptions):
        return True, "some were put back for lack of KV memory"
    if not math.isnan(at.kv_usage):
        full = at.kv_usage >= FULL
        return full, f"some wait with {100 * at.kv_usage:.0f} % of the KV pool in use"
    if room is None:
        return None, "some wait; the engine does not tell what it holds"
    if at.concurrency < min(room.worst, room.limit):
        return False, f"some wait, though memory is enough for {room.worst:.0f} at their longest"
    if room.by_memory:
        return True, f"some wait; memory is enough for about {room.expected:.0f}"
    if room.limit < room.worst:
        return False, f"some wait for the engine's own limit of {room.limit:.0f}; memory is enough for {room.worst:.0f}"
    return None, "some wait; the engine's own limit and memory end close together"


def _told(windows: Sequence[float]) -> bool:
    """In at least two windows."""
    return sum(not math.isnan(value) for value in windows) >= WINDOWS


def _lasts(windows: Sequence[float]) -> bool:
    """Above 0 in two windows in a row."""
    above = [value > 0 for value in windows]  # of NaN: False
    return any(all(above[start : start + WINDOWS]) for start in range(len(above) - WINDOWS + 1))


def _over(above: float, below: float) -> float:
    return above / below if above > 0 and below > 0 else math.nan


def _capacity_words(found: CapacityRatio, ours: float, theirs: float) -> str:
    if math.isnan(found.tokens) and math.isnan(found.per_token):
        return "the engine does not say what it holds"
    parts: list[str] = []
    if not math.isnan(found.tokens):
        parts.append(f"{found.tokens:.2f} times the reference's KV tokens")
    if not math.isnan(found.pool):
        parts.append(f"{found.pool:.2f} by the pool's bytes, {found.per_token:.2f} by bytes a token")
    elif not math.isnan(found.per_token):
        parts.append(f"{found.per_token:.2f} by bytes a token; the pools are not told")
    if found.agrees:
        parts.append(f"as the formats promise ({found.promised:.2f})")
    elif found.agrees is False:
        parts.append(f"the formats promise {found.promised:.2f}: {_why(theirs - ours / found.promised, theirs)}")
    return "; ".join(parts)


def _why(more: float, held: float) -> str:
    if more > 0:
        return f"{more:,.0f} of {held:,.0f} bytes a token are something else: scales, other state, or layers left as they were"
    return (
        f"{-more:,.0f} bytes a token fewer than its format takes: other layers or another format than it is named for"
    )
