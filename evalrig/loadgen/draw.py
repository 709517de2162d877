"""What a block sends, drawn from a seed: prompts of valid token ids, lengths, arrivals. Pure: the same words, the same schedule."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import numpy as np

from evalrig.loadgen.schedule import Call, Schedule

Ids = tuple[int, ...]
SALT: Final = 8
"""Tokens at the front of a prompt that no other prompt has: what follows is then in no prefix cache."""
PIECE: Final = 64
"""Tokens in a row that a prompt takes from the pool: text, not noise, so that experts and draft models work as they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request before it is framed for an engine. Times as in `Call`."""

    ids: Ids
    max_tokens: int
    due: float = 0.0
    after: int | None = None
    primes: bool = False


def generator(*words: object) -> np.random.Generator:
    """Random numbers that these words alone decide."""
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, np.uint32))


def arrivals(count: int, rate: float, law: Literal["poisson", "constant"], rng: np.random.Generator) -> list[float]:
    """Seconds after the start, shape [count]: the first at 0, `rate` a second to the digit whatever was drawn.

    Poisson gaps are rescaled to the exact length, so that two rounds differ in when, and not in how much is asked.
    """
    gaps = rng.exponential(size=count) if law == "poisson" else np.ones(count)
    at = np.concatenate([[0.0], np.cumsum(gaps)[:-1]])
    return [float(x) for x in at * (count / rate / gaps.sum())]


def think(count: int, seconds: float, rng: np.random.Generator) -> list[float]:
    """Pauses between the turns of a conversation, exponential around `seconds`."""
    return [float(x) for x in rng.exponential(seconds, size=count)] if seconds else [0.0] * count


def text(pool: Sequence[int], count: int, rng: np.random.Generator, salted: bool = True) -> Ids:
    """`count` token ids: pieces of the pool, behind a salt."""
    ids: list[int] = [int(pool[i]) for i in rng.integers(len(pool), size=min(SALT, count))] if salted else []
    while len(ids) < count:
        start = int(rng.integers(len(pool)))
        ids += [int(pool[(start + i) % len(pool)]) for i in range(min(PIECE, count - len(ids)))]
    return tuple(ids)


def lengths(count: int, mean: int, spread: float, rng: np.random.Generator) -> list[int]:
    """Log-normal lengths, shape [count], with that mean before they are cut to 1 .. 4 means; `spread` is the sd of their ln."""
    drawn = mean * np.exp(spread * rng.standard_normal(count) - spread**2 / 2)
    return [int(x) for x in np.clip(np.rint(drawn), 1, 4 * mean)]


def framed(asks: Sequence[Ask], body: Mapping[str, Any], loop: Literal["open", "closed"], lanes: int = 0) -> Schedule:
    """As calls of one engine, each body ready to be sent. `body` is laid over every request.

    The digest is of what was drawn, before the engine's own keys: arms whose models have two names are sent the same.
    """
    calls = tuple(
        Call(
            body=msgspec.json.encode(
                {"prompt": ask.ids, "max_tokens": ask.max_tokens, "temperature": 0.0, "stream": True, **body}
            ),
            due=ask.due,
            prompt_tokens=len(ask.ids),
            max_tokens=ask.max_tokens,
            after=ask.after,
            primes=ask.primes,
        )
        for ask in asks
    )
    digest = hashlib.sha256(f"{loop}/{lanes}".encode())
    for ask in asks:
        digest.update(np.asarray(ask.ids, np.int64).tobytes())
        digest.update(repr((ask.max_tokens, ask.due, ask.after, ask.primes)).encode())
    return Schedule(calls=calls, loop=loop, concurrency=lanes, sha256=digest.hexdigest())
