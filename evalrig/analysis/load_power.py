"""What rounds of load can decide: rounds needed for a margin, and the smallest effect that the rounds at hand resolve.

One-sided t tests of log ratios; the noise is the standard deviation of the rounds' log ratios (0.01 is about 1 %).
"""

import math

from scipy import special

from evalrig.analysis.arrays import probability

FEWEST = 3
"""Rounds below which no plan is made: a spread of two values is next to none known."""
MOST = 1_000_000
"""Rounds beyond which the answer is "never"."""


def rounds_power(n: int, sd_log: float, distance: float, alpha: float = 0.05) -> float:
    """Chance that `n` rounds show one-sidedly at level alpha that the truth is not `distance` (log scale, > 0) away.

    Non-central t; from 1,000 rounds on the normal law, which then differs by less than the plan needs.
    """
    _check(n, sd_log, alpha)
    if sd_log == 0.0:
        return 1.0 if distance > 0 else 0.0
    shift = distance * math.sqrt(n) / sd_log
    if n >= 1000 or shift > 30.0:
        return float(special.ndtr(shift + special.ndtri(alpha)))
    return 1.0 - float(special.nctdtr(n - 1, shift, -special.stdtrit(n - 1, alpha)))


def rounds_needed(
    sd_log: float, margin: float, truth: float = 1.0, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Rounds that show, with `power`, on which side of `1 - margin` the ratio lies, if it truly is `truth`.

    margin 0.01 asks whether at most 1 % is lost; a negative one asks for a gain (-0.2: at least 1.2 times). At least 3.
    None: `truth` lies on the bound, or a million rounds are too few. Known answers for 1 % and truth 1, power .8/.9:
    sd .5 %: 4/4; 1 %: 8/10; 2 %: 26/36.
    """
    probability(power, "power")
    _check(FEWEST, sd_log, alpha)
    distance = abs(math.log(_positive(truth)) - math.log(_positive(1.0 - margin)))
    if distance == 0.0 or rounds_power(MOST, sd_log, distance, alpha) < power:
        return None
    few, many = FEWEST - 1, FEWEST
    while rounds_power(many, sd_log, distance, alpha) < power:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        enough = rounds_power(middle, sd_log, distance, alpha) >= power
        few, many = (few, middle) if enough else (middle, many)
    return many


def resolvable_effect(n: int, sd_log: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest loss, as a fraction, that `n` rounds tell from none with `power`; also the smallest margin that they decide
    for a candidate that loses nothing. Below 2 rounds: 1.0, nothing is resolved. With no noise: 0."""
    probability(power, "power")
    if n < 2:
        return 1.0
    _check(n, sd_log, alpha)
    low, high = 0.0, sd_log
    while rounds_power(n, sd_log, high, alpha) < power and high > 0.0:
        high *= 2.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        enough = rounds_power(n, sd_log, middle, alpha) >= power
        low, high = (low, middle) if enough else (middle, high)
    return -math.expm1(-high)


def _check(n: int, sd_log: float, alpha: float) -> None:
    probability(alpha, "alpha")
    if n < 2 or not 0.0 <= sd_log < math.inf:
        raise ValueError(f"`n`, `sd_log`: {n!r}, {sd_log!r}; expected at least 2 rounds and a finite spread")


def _positive(ratio: float) -> float:
    if not 0.0 < ratio < math.inf:
        raise ValueError(f"`margin`, `truth`: a ratio of {ratio!r} is none")
    return ratio
