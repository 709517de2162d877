"""The workloads: what kinds of requests a block is made of. Pure; each gives `count` asks, those that prime the cache beside."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np

from evalrig.loadgen.draw import Ask, Ids, arrivals, generator, lengths, text, think
from evalrig.loadgen.trace import BLOCK, Row

LADDER: Final = (8, 4, 2, 1)
"""Parts of the longest prompt: what a prefill costs a token is a slope over lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a block should be like."""

    workload: str
    count: int
    """Requests that are counted."""
    input_tokens: int
    """Of a prompt; of `lengths` their mean; of conversations and traces the most, longer ones are cut."""
    output_tokens: int
    """As `input_tokens`."""
    spread: float = 0.8
    shared: float = 0.75
    """Of `shared_prefix`: share of a prompt that its group has in common."""
    groups: int = 1
    rate: float = 0.0
    """Requests a second; 0: a closed loop, or a trace at its own pace."""
    pace: tuple[Literal["poisson", "constant"], float] = ("poisson", 0.0)
    """Law of the arrivals, and seconds of think time between turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What prompts are made of."""

    pool: Ids
    """Token ids of text, valid for the engine."""
    histories: tuple[tuple[Ids, ...], ...] = ()
    """Of conversations: the prompt of each turn, each begins with the one before."""
    rows: tuple[Row, ...] = ()
    """Of a trace."""


Prompts: TypeAlias = np.random.Generator
Maker: TypeAlias = Callable[[Wish, Stock, Prompts, np.random.Generator], list[Ask]]


def asks(wish: Wish, stock: Stock, where: str, salted: bool) -> list[Ask]:
    """The requests of one block; `where` names it (seed, suite, round).

    `salted`: prompts that no other block has. Else they are those of every round, and a prefix cache may know them.
    """
    prompts = generator("prompts", where if salted else where.rpartition("/")[0], wish.workload)
    made = MAKERS[wish.workload](wish, stock, prompts, generator("times", where))
    if wish.workload in ("conversations", "trace") or not wish.rate:
        return made
    at = arrivals(wish.count, wish.rate, wish.pace[0], generator("arrivals", where))
    due = iter(at)
    return [ask if ask.primes else replace(ask, due=next(due)) for ask in made]


def _fixed(wish: Wish, stock: Stock, prompts: Prompts, times: np.random.Generator) -> list[Ask]:
    each = range(wish.count)
    return [Ask(ids=text(stock.pool, wish.input_tokens, prompts), max_tokens=wish.output_tokens) for _ in each]


def _prefill(wish: Wish, stock: Stock, prompts: Prompts, times: np.random.Generator) -> list[Ask]:
    """One token each, from prompts of several lengths in random order."""
    sizes = [max(1, wish.input_tokens // LADDER[number % len(LADDER)]) for number in range(wish.count)]
    return [Ask(ids=text(stock.pool, int(size), prompts), max_tokens=1) for size in times.permutation(sizes)]


def _decode(wish: Wish, stock: Stock, prompts: Prompts, times: np.random.Generator) -> list[Ask]:
    """Every prompt is sent once before, so that the block reads it from the prefix cache and only decodes."""
    found = _fixed(wish, stock, prompts, times)
    return [*(replace(ask, max_tokens=1, primes=True) for ask in found), *found]


def _lengths(wish: Wish, stock: Stock, prompts: Prompts, times: np.random.Generator) -> list[Ask]:
    ins, outs = (lengths(wish.count, mean, wish.spread, times) for mean in (wish.input_tokens, wish.output_tokens))
    return [Ask(ids=text(stock.pool, size, prompts), max_tokens=answer) for size, answer in zip(ins, outs, strict=True)]


def _shared(wish: Wish, stock: Stock, prompts: Prompts, times: np.random.Generator) -> list[Ask]:
    """Groups of requests with the same beginning, in random order."""
    common = min(round(wish.shared * wish.input_tokens), wish.input_tokens - 1)
    heads = [text(stock.pool, common, prompts) for _ in range(wish.groups)]
    own = wish.input_tokens - common
    return [
        Ask(ids=(*heads[group], *text(stock.pool, own, prompts)), max_tokens=wish.output_tokens)
        for group in times.permutation([number % wish.groups for number in range(wish.count)])
    ]


def _conversations(wish: Wish, stock: Stock, prompts: Prompts, times: np.random.Generator) -> list[Ask]:
    """Whole conversations, the last one cut at `count`. The answers are as recorded: every variant is sent the same."""
    made: list[Ask] = []
    while len(made) < wish.count:
        for place in times.permutation(len(stock.histories)):
            turns = stock.histories[place][: wish.count - len(made)]
            salt = text(stock.pool, 8, prompts)
            pauses = think(len(turns), wish.pace[1], times)
            first = len(made)
            made += [
                Ask(
                    ids=(*salt, *turn)[: wish.input_tokens],
                    max_tokens=wish.output_tokens,
                    due=pauses[number] if number else 0.0,
                    after=first + number - 1 if number else None,
                )
                for number, turn in enumerate(turns)
            ]
    if wish.rate:
        openings = [number for number, ask in enumerate(made) if ask.after is None]
        at = arrivals(len(openings), wish.rate, wish.pace[0], times)
        for number, due in zip(openings, at, strict=True):
            made[number] = replace(made[number], due=due)
    return made


def _trace(wish: Wish, stock: Stock, prompts: Prompts, times: np.random.Generator) -> list[Ask]:
    """The first rows of a trace; rows with the same block ids begin with the same tokens. At its own pace, or at `rate`."""
    rows = stock.rows[: wish.count]
    root = int(prompts.integers(2**62))  # one for the block: what its rows share, other blocks do not
    blocks: dict[int, Ids] = {}
    span = rows[-1].at - rows[0].at
    scale = len(rows) / wish.rate / span if wish.rate and span else 1.0
    made: list[Ask] = []
    for row in rows:
        for name in row.blocks:
            if name not in blocks:
                blocks[name] = text(stock.pool, BLOCK, generator(root, name))
        ids = tuple(token for name in row.blocks for token in blocks[name])
        made.append(
            Ask(
                ids=ids[: min(row.input_tokens, wish.input_tokens)],
                max_tokens=min(row.output_tokens, wish.output_tokens),
                due=scale * (row.at - rows[0].at),
            )
        )
    return made


MAKERS: Final[Mapping[str, Maker]] = {
    "random": _fixed,
    "prefill": _prefill,
    "decode": _decode,
    "lengths": _lengths,
    "shared_prefix": _shared,
    "conversations": _conversations,
    "trace": _trace,
}
COLD: Final[Sequence[str]] = ("random", "prefill", "lengths")
"""Workloads no prompt of which shares a beginning with another: nothing of them may come from a prefix cache."""
