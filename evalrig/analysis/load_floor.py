"""The noise floor of load: what no difference looks like here, from rounds of the reference against itself."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evalrig.analysis.load_power import resolvable_effect
from evalrig.analysis.load_ratio import Ratio, ratio_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A ratio beside the A/A ratio of the same rounds."""

    ratio: Ratio
    floor: Ratio | None
    """reference_again / reference, tested against 1; None: there was no such variant."""
    resolvable: float
    """Smallest loss, as a fraction, that these rounds tell from none with 80 % power; 1.0: nothing."""
    suspicious: bool
    """The reference differs from itself (two-sided p <= alpha; one honest run in twenty does at .05): something besides
    the variant moves the numbers, such as drift or the order in a round. What is claimed must be read with that."""
    resolved: bool
    """The claim's interval excludes 1, and the claim is further from 1 than the A/A interval reaches."""
    words: str
    """All that in a sentence."""


def beside_floor(
    reference: ArrayLike,
    candidate: ArrayLike,
    again: ArrayLike,
    margin: float = 0.01,
    alpha: float = 0.05,
    less: bool = False,
) -> Claim:
    """The ratio of candidate and reference with the A/A ratio beside it; each [rounds], as in `ratio_of`.

    `again` all NaN, or empty: no A/A rounds. Raises ValueError as `ratio_of` does.
    """
    ratio = ratio_of(reference, candidate, margin, alpha, less)
    floor = floor_of(reference, again, alpha)
    suspicious = floor is not None and two_sided(floor) <= alpha
    resolved = ratio.differs and (floor is None or _beyond(ratio, floor))
    return Claim(
        ratio=ratio,
        floor=floor,
        resolvable=resolvable_effect(ratio.n, ratio.sd_log, alpha) if ratio.interval else 1.0,
        suspicious=suspicious,
        resolved=resolved,
        words=_words(ratio, floor, suspicious, resolved),
    )


def floor_of(reference: ArrayLike, again: ArrayLike, alpha: float = 0.05) -> Ratio | None:
    """reference_again / reference, [rounds] each, tested against exactly 1; None where no round has both."""
    if np.asarray(again).size == 0:
        return None
    floor = ratio_of(reference, again, 0.0, alpha)
    return floor if floor.n else None


def two_sided(ratio: Ratio) -> float:
    """p-value of "no difference from the bound that it was tested against", two-sided."""
    return min(1.0, 2.0 * min(ratio.p_go, ratio.p_nogo))


def _beyond(ratio: Ratio, floor: Ratio) -> bool:
    """Further from 1 than the A/A interval's far end; never where A/A has no interval."""
    if not floor.interval:
        return False
    return abs(math.log(ratio.value)) > max(abs(math.log(floor.low)), abs(math.log(floor.high)))


def _words(ratio: Ratio, floor: Ratio | None, suspicious: bool, resolved: bool) -> str:
    if not ratio.interval:
        return f"nothing can be claimed: {ratio.method}"
    if floor is None:
        return "no A/A rounds: what no difference looks like here is not known"
    shown = f"A/A {floor.value:.4f} [{floor.low:.4f}, {floor.high:.4f}]" if floor.interval else f"A/A: {floor.method}"
    if suspicious:
        return f"the reference differs from itself, {shown}: drift, or an effect of the order; read the claim with that"
    if not floor.interval:
        return f"{shown}; what no difference looks like here is not known"
    if resolved:
        return f"beyond the noise floor, {shown}"
    return f"within the noise floor, {shown}"
