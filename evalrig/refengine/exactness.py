"""Does a row's result depend on what else is in the batch? Measured at start, with the very model and BLAS kernel that
will serve."""

import numpy as np

from evalrig.refengine.arrays import F32
from evalrig.refengine.cache import BLOCK, PagedCache
from evalrig.refengine.step import Slice, Stepper

_PROBE = 19
"""Tokens of the probed sequence: no multiple of any row count a kernel works in."""


def batch_invariant(stepper: Stepper, cache: PagedCache, vocabulary: int) -> bool:
    """True when logits came out bit-equal alone, behind other prompts, cut into chunks, and decoding among others.

    Takes a few hundred tokens of computation. The cache is left as it was.
    """
    draws = np.random.default_rng(0).integers(0, vocabulary, size=(4, BLOCK + _PROBE))
    probe, others = draws[0].tolist(), [row.tolist() for row in draws[1:]]
    alone = _last_logits(stepper, cache, probe, others=[], chunks=(BLOCK + _PROBE - 1, 1))
    crowd = [others[0][:5], others[1][:_PROBE], others[2][:7]]
    among = _last_logits(stepper, cache, probe, others=crowd, chunks=(BLOCK, _PROBE - 1, 1))
    return np.array_equal(alone, among)


def _last_logits(
    stepper: Stepper, cache: PagedCache, probe: list[int], *, others: list[list[int]], chunks: tuple[int, ...]
) -> F32:
    """Logits [2, vocabulary] of the probe's last two positions, the last of them decoded in a step of its own."""
    company = [cache.open(len(tokens) + len(chunks)) for tokens in others]
    mine, done = cache.open(len(probe)), 0
    rows: list[F32] = []
    for step, length in enumerate(chunks):
        work = [
            Slice(sequence=seat, tokens=tokens if step == 0 else tokens[:1])
            for seat, tokens in zip(company, others, strict=True)
        ]
        hidden = stepper.run([*work, Slice(sequence=mine, tokens=probe[done : done + length])])
        if step >= len(chunks) - 2:
            mixed = np.concatenate([hidden[: len(others)], hidden[-1:]])
            rows.append(stepper.logits(mixed)[-1].copy())
        done += length
    for sequence in [*company, mine]:
        cache.close(sequence)
    return np.stack(rows)
