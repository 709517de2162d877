"""Rounds of load: what every variant did with the same schedule, one after the other."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalrig.types import Capacity, Metric

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """One metric, round by round in the order in which they were run. NaN: no block, or a void one."""

    metric: Metric
    names: tuple[str, ...]
    reference: Floats
    candidate: Floats
    again: Floats
    """Of `reference_again`: against `reference` it shows what no difference looks like here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """All rounds of one suite, of one candidate."""

    rounds: Mapping[str, Rounds]
    """Metric -> rounds."""
    void: Mapping[str, tuple[str, ...]]
    """Variant -> why blocks of it did not count, one line a block."""
    capacity: Mapping[str, Capacity]
    """Variant -> what it holds."""
    emulated: str = ""
    """Why the engine's speed is no evidence; empty: it is. Its capacity counts all the same."""
