"""Does a row's result depend on what else is in the batch? Measured at start, with the very model and BLAS kernel that
will serve."""

import numpy as np

from evalrig.refengine.arrays import F32
from evalrig.refengine.cache import BLOCK, PagedCache
from evalrig.refengine.step import Slice, Stepper

_PROBE = 19
"""Tokens of the probed sequence: no multiple of any row count a kernel works in."""


def batch_invariant(stepper: Stepper, cache: PagedCache, vocabulary: int) -> bool:
    """True when a prompt came out bit-equal alone, behind other prompts, cut into chunks, and decoding among others:
    the hidden states of all its positions, and the logits of the last two.

    Takes a few hundred tokens of computation. The cache is left as it was.
    """
    draws = np.random.default_rng(0).integers(0, vocabulary, size=(4, BLOCK + _PROBE))
    probe, others = draws[0].tolist(), [row.tolist() for row in draws[1:]]
    alone = _results(stepper, cache, probe, others=[], chunks=(BLOCK + _PROBE - 1, 1))
    crowd = [others[0][:5], others[1][:_PROBE], others[2][:7]]
    among = _results(stepper, cache, probe, others=crowd, chunks=(BLOCK, _PROBE - 1, 1))
    return all(np.array_equal(one, other) for one, other in zip(alone, among, strict=True))


def _results(
    stepper: Stepper, cache: PagedCache, probe: list[int], *, others: list[list[int]], chunks: tuple[int, ...]
) -> tuple[F32, F32]:
    """Hidden states [len(probe), width], and logits [2, vocabulary] of the last two positions, the last of them decoded
    in a step of its own."""
    company = [cache.open(len(tokens) + len(chunks)) for tokens in others]
    mine, done = cache.open(len(probe)), 0
    rows: list[F32] = []
    states: list[F32] = []
    for step, length in enumerate(chunks):
        work = [
            Slice(sequence=seat, tokens=tokens if step == 0 else tokens[:1])
            for seat, tokens in zip(company, others, strict=True)
        ]
        hidden = stepper.run([*work, Slice(sequence=mine, tokens=probe[done : done + length])])
        states.append(hidden[-length:])
        if step >= len(chunks) - 2:
            mixed = np.concatenate([hidden[: len(others)], hidden[-1:]])
            rows.append(stepper.logits(mixed)[-1].copy())
        done += length
    for sequence in [*company, mine]:
        cache.close(sequence)
    return np.concatenate(states), np.stack(rows)
