"""What a suite can decide: items needed for a margin, and the smallest margin that the items at hand resolve."""

import math
from dataclasses import dataclass

from scipy import special

from evalrig.analysis.arrays import probability

DISCORDANCES = (0.01, 0.02, 0.05, 0.10)
"""Shares of pairs on which the two arms may differ, from near-identical numerics to sampled answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRow:
    """One line of the power table of a suite."""

    discordance: float
    needed: int
    """Items that decide the margin with the stated power, if there is no true loss."""
    resolvable: float
    """Smallest margin, as a fraction, that the suite's items decide."""
    decides: bool


def n_needed(margin: float, discordance: float, theta: float = 0.0, alpha: float = 0.05, power: float = 0.8) -> int:
    """Pairs needed to show that a loss of `margin` is excluded when the true difference is `theta` (k = 1, binary).

    (z_alpha + z_power)^2 (discordance - theta^2) / (theta + margin)^2, and never fewer than ln(alpha) / ln(1 - margin),
    which even identical answers need (299 for one point). Source: Tango 1998; Liu et al. 2002.
    """
    probability(margin, "margin")
    if theta == -margin:
        raise ValueError("`theta`: a true loss equal to the margin is never excluded, at any number of items")
    z = _z(alpha, power)
    items = z * z * max(discordance - theta**2, 0.0) / (theta + margin) ** 2
    return max(math.ceil(items), math.ceil(math.log(alpha) / math.log1p(-margin)))


def resolvable_margin(n: int, discordance: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest margin that `n` pairs decide with the stated power if there is no true loss; a fraction."""
    if n < 1:
        raise ValueError(f"`n`: {n} items decide nothing")
    return max(_z(alpha, power) * math.sqrt(discordance / n), 1.0 - probability(alpha, "alpha") ** (1.0 / n))


def suite_power(suites: int) -> float:
    """Power to plan one suite for, so that all of `suites` pass together with about 80 % when nothing is wrong."""
    if suites < 1:
        raise ValueError(f"`suites`: {suites!r}, expected at least 1")
    return 1.0 - 0.2 / suites


def power_rows(n: int, margin: float, alpha: float = 0.05, power: float = 0.8) -> list[PowerRow]:
    """The power table of a suite with `n` items and `margin`, one row per discordance of `DISCORDANCES`."""
    rows: list[PowerRow] = []
    for discordance in DISCORDANCES:
        needed = n_needed(margin, discordance, alpha=alpha, power=power)
        resolvable = resolvable_margin(n, discordance, alpha, power)
        rows.append(PowerRow(discordance=discordance, needed=needed, resolvable=resolvable, decides=n >= needed))
    return rows


def cannot_decide(suite: str, n: int, margin: float, row: PowerRow) -> str:
    """The sentence shown before a run, and as the reason of an undecided check."""
    return (
        f'suite "{suite}" (n={n}, discordance {row.discordance:.1%}) cannot decide {100 * margin:.3g} pt: '
        f"needs about {row.needed} items (or margin {100 * row.resolvable:.2g} pt)"
    )


def _z(alpha: float, power: float) -> float:
    return float(special.ndtri(1 - probability(alpha, "alpha")) + special.ndtri(probability(power, "power")))
