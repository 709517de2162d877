"""Survival: the share of attempts that have come so far without an event, such as their first wrong step."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalrig.analysis.arrays import FloatArray, IntArray, probability


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """A curve that falls at each step with an event; all [k], k the number of such steps."""

    steps: IntArray
    at_risk: IntArray
    """Attempts that came to the step without an event."""
    events: IntArray
    share: FloatArray
    """Without an event up to this step, this step included."""
    low: FloatArray
    high: FloatArray
    """One-sided limits at 1 - alpha each, step by step; 0 and `share` where nobody is left."""
    attempts: int


def kaplan_meier(time: ArrayLike, event: ArrayLike, alpha: float = 0.05) -> Survival:
    """Product-limit curve (Kaplan and Meier 1958), limits log(-log) with Greenwood's variance.

    `time` [n]: the step of the event, or the last one seen where `event` [n] is false. Takes attempts as independent.
    Raises ValueError on steps below 1 or arrays of unlike length.
    """
    probability(alpha, "alpha")
    times, happened = np.asarray(time, np.int64), np.asarray(event, np.bool_)
    if times.ndim != 1 or times.shape != happened.shape or (times < 1).any():
        raise ValueError("`time`: expected one step, counted from 1, for each event")
    steps = np.unique(times[happened])
    at_risk = np.array([(times >= step).sum() for step in steps], np.int64)
    events = np.array([(happened & (times == step)).sum() for step in steps], np.int64)
    share = np.cumprod(1 - events / np.maximum(at_risk, 1)).astype(np.float64)
    with np.errstate(divide="ignore"):
        variance = np.cumsum(events / (at_risk * (at_risk - events).astype(np.float64)))
    limits = [_limits(float(s), float(v), alpha) for s, v in zip(share, variance, strict=True)]
    return Survival(
        steps=steps,
        at_risk=at_risk,
        events=events,
        share=share,
        low=np.array([low for low, _ in limits], np.float64),
        high=np.array([high for _, high in limits], np.float64),
        attempts=len(times),
    )


def _limits(share: float, variance: float, alpha: float) -> tuple[float, float]:
    if not (0.0 < share < 1.0 and math.isfinite(variance)):
        return 0.0, share
    theta = float(special.ndtri(1 - alpha)) * math.sqrt(variance) / -math.log(share)
    return share ** math.exp(theta), share ** math.exp(-theta)
