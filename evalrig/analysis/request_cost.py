"""What a request costs: seconds = begin + a prompt + b output + c prompt x output, fitted to the requests of many rounds.

One block holds too few requests for four coefficients; all rounds together hold enough. The unit of noise is the round all the
same: intervals are the jackknife's, which leaves out one round of both arms at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalrig.analysis.arrays import FloatArray, probability
from evalrig.analysis.phases import Coefficient
from evalrig.loadgen.served import Requests

PARTS = 4
FEWEST_ROUNDS = 3
SPARE = 4
"""Requests beyond the number of coefficients that a fit needs."""
_THOUSAND = 1e3
_UNITS = np.array([1.0, _THOUSAND, _THOUSAND, _THOUSAND**2])
"""Tokens are counted in thousands within a fit, so that its columns are of like size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """All that a fit needs of one block."""

    square: FloatArray
    """[4, 4]: columns times columns."""
    moment: FloatArray
    """[4]: columns times seconds."""
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One coefficient: seconds; seconds a token of the prompt; a generated token; a generated token and token of the prompt."""

    reference: Coefficient
    candidate: Coefficient
    difference: Coefficient
    """candidate - reference; one-sided limits at 1 - alpha each, as of the others."""


def sums_of(rows: Requests) -> Sums:
    """Of good requests whose lengths are known, counted from when they were sent."""
    used = rows.ok & (rows.tokens > 0) & (rows.prompt_tokens > 0)
    prompt, output = (x[used].astype(float) / _THOUSAND for x in (rows.prompt_tokens, rows.tokens))
    x = np.stack([np.ones_like(prompt), prompt, output, prompt * output], axis=1)
    return Sums(square=x.T @ x, moment=x.T @ (rows.last - rows.sent)[used], requests=len(prompt))


def request_costs(reference: Sequence[Sums], candidate: Sequence[Sums], alpha: float = 0.05) -> tuple[Part, ...] | None:
    """The four parts, from the blocks of both arms round by round. None: fewer than 3 rounds, too few requests, or lengths that
    do not vary enough. ValueError if the rounds are not as many."""
    probability(alpha, "alpha")
    if len(reference) != len(candidate):
        raise ValueError(f"`candidate`: {len(candidate)} rounds, the reference has {len(reference)}")
    rounds = len(reference)
    if rounds < FEWEST_ROUNDS:
        return None
    arms: list[tuple[FloatArray, FloatArray]] = []
    for blocks in (reference, candidate):
        fits = [_fit([one for place, one in enumerate(blocks) if place != out]) for out in (None, *range(rounds))]
        known = [fit for fit in fits if fit is not None]
        if len(known) < len(fits):
            return None
        arms.append((known[0], np.stack(known[1:])))
    (ours, ours_without), (theirs, theirs_without) = arms
    reach = -float(special.stdtrit(rounds - 1, alpha))
    found = [
        _limits(whole, without, reach) for whole, without in (*arms, (theirs - ours, theirs_without - ours_without))
    ]
    return tuple(Part(reference=a, candidate=b, difference=c) for a, b, c in zip(*found, strict=True))


def _fit(blocks: Sequence[Sums]) -> FloatArray | None:
    """Least squares over blocks, [4]; None: not determined."""
    square = np.sum([one.square for one in blocks], axis=0)
    moment = np.sum([one.moment for one in blocks], axis=0)
    if sum(one.requests for one in blocks) < PARTS + SPARE:
        return None
    size = np.sqrt(np.diag(square))
    if np.linalg.matrix_rank(square / np.outer(size, size), tol=1e-9) < PARTS:
        return None
    return np.linalg.solve(square, moment) / _UNITS


def _limits(whole: FloatArray, without: FloatArray, reach: float) -> list[Coefficient]:
    """Jackknife errors from [rounds, 4] fits, each without one round."""
    rounds = len(without)
    error = np.sqrt((rounds - 1) / rounds * np.sum((without - without.mean(axis=0)) ** 2, axis=0))
    return [
        Coefficient(value=float(w), low=float(w - reach * e), high=float(w + reach * e))
        for w, e in zip(whole, error, strict=True)
    ]
