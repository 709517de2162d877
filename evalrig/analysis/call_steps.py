"""The steps of a conversation in groups, by which the distance of tool calls is shown: the later, the wider."""

import numpy as np

from evalrig.analysis.arrays import IntArray

STARTS = (1, 3, 6, 11, 21)
NAMES = ("steps 1–2", "steps 3–5", "steps 6–10", "steps 11–20", "steps 21 and later")


def group_of(step: IntArray) -> IntArray:
    """Place in `NAMES` of each step [n]; -1 for 0, which is no step."""
    return np.searchsorted(np.asarray(STARTS), step, side="right") - 1
