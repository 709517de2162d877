"""Faults: what can be switched on to make the engine wrong in a known way, so that a rule or an estimate is seen to notice.

Off unless asked for. An engine with a fault says so in its log and in `/server_info`, and no run passes with one.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalrig.errors import UsageError
from evalrig.refengine.arrays import F32

KNOWN = "logit_noise=SIGMA:SEED"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitNoise:
    """Normal noise on every logit.

    It depends on the seed and on the tokens so far, not on the batch or the way they were computed: repeats are equal,
    and another seed is an independent draw at every position.
    """

    sigma: float
    """Standard deviation, in logits."""
    seed: int
    """0 .. 2**63 - 1"""

    def __str__(self) -> str:
        return f"logit_noise={self.sigma:g}:{self.seed}"

    def onto(self, row: F32, tokens: Sequence[int]) -> F32:
        """A row of logits [vocabulary] with its noise; `tokens` are those that it follows."""
        place = zlib.crc32(np.asarray(tokens, dtype="<i4").tobytes())
        draws = np.random.Generator(np.random.Philox(key=np.array([self.seed, place], dtype=np.uint64)))
        noise = draws.standard_normal(len(row), dtype=np.float32)
        noise *= np.float32(self.sigma)
        return row + noise


def fault_of(text: str, where: str) -> LogitNoise:
    """Reads `logit_noise=SIGMA:SEED`; UsageError, led by `where`, when it is nothing of the kind."""
    name, _, values = text.partition("=")
    sigma, _, seed = values.partition(":")
    try:
        found = LogitNoise(sigma=float(sigma), seed=int(seed))
    except ValueError:
        found = None
    sound = found is not None and 0 < found.sigma < math.inf and 0 <= found.seed < 1 << 63
    if name != "logit_noise" or found is None or not sound:
        raise UsageError(f"{where}: no fault {text!r}; known: {KNOWN}, a sigma above 0 and a whole seed from 0")
    return found
