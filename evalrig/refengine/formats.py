"""Number formats of weights and of the KV cache: how a value is rounded to the format, and what it would cost in the
format.

The values stay float32 and lie exactly on the format's grid; bytes are accounted as if they were stored in the format.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from evalrig.refengine.arrays import F32

GROUP = 32
"""Input elements that share one scale in the INT4 formats."""
FP8_MAX = np.float32(448)
"""Largest finite e4m3 value; a larger one would become NaN in the cast, so it is clipped first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """A format of the matrices inside the layers; embedding, head and norms are never quantised further than `rest`."""

    name: str
    recipe: str
    round: Callable[[F32], F32]
    """Matrix [out, in] to the nearest matrix that the format can hold."""
    bits: float
    """Bits an element, with the scales of its group."""
    row_bytes: int = 0
    """Bytes an output channel, besides the elements."""
    rest_bytes: int = 2
    """Bytes an element of the embedding, the head and the norms (2: BF16, 4: F32)."""

    def matrix_bytes(self, shape: tuple[int, int]) -> int:
        """Bytes of a matrix [out, in] in this format."""
        return round(shape[0] * shape[1] * self.bits / 8) + shape[0] * self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """A format of the key and value cache."""

    name: str
    recipe: str
    round: Callable[[F32], F32]
    value_bytes: int


def round_bf16(values: F32) -> F32:
    """Nearest BF16 values."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def round_fp8(values: F32) -> F32:
    """Nearest e4m3 values, saturating at ±448."""
    clipped = np.clip(values, -FP8_MAX, FP8_MAX)
    return clipped.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def quantise_fp8(weight: F32) -> F32:
    """e4m3 with one float32 scale an output channel (row), so that its largest element becomes ±448."""
    scale = _nonzero(np.abs(weight).max(axis=1, keepdims=True) / FP8_MAX)
    return round_fp8(weight / scale) * scale


def quantise_int4(weight: F32) -> F32:
    """Symmetric 4 bit (-8..7), one FP16 scale for 32 inputs: the largest element becomes ±7."""
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    scale = _nonzero(_round_fp16(np.abs(groups).max(axis=-1, keepdims=True) / 7))
    return (np.clip(np.rint(groups / scale), -8, 7) * scale).reshape(weight.shape)


def quantise_int4_asym(weight: F32) -> F32:
    """Asymmetric 4 bit (0..15), an FP16 scale and an FP16 minimum for 32 inputs."""
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    low = groups.min(axis=-1, keepdims=True)
    scale = _nonzero(_round_fp16((groups.max(axis=-1, keepdims=True) - low) / 15))
    low = _round_fp16(low)
    return (np.clip(np.rint((groups - low) / scale), 0, 15) * scale + low).reshape(weight.shape)


def _round_fp16(values: F32) -> F32:
    return values.astype(np.float16).astype(np.float32)


def _nonzero(scale: F32) -> F32:
    return np.where(scale == 0, np.float32(1), scale)


def _unchanged(values: F32) -> F32:
    return values


WEIGHT_FORMATS = {
    found.name: found
    for found in (
        WeightFormat(name="f32", recipe="none", round=_unchanged, bits=32, rest_bytes=4),
        WeightFormat(name="bf16", recipe="round to nearest", round=_unchanged, bits=16),
        WeightFormat(
            name="fp8", recipe="e4m3, scale per output channel, max to 448", round=quantise_fp8, bits=8, row_bytes=4
        ),
        WeightFormat(
            name="int4",
            recipe="symmetric, groups of 32, FP16 scale, max to 7",
            round=quantise_int4,
            bits=4 + 16 / GROUP,
        ),
        WeightFormat(
            name="int4-asym",
            recipe="asymmetric, groups of 32, FP16 scale and minimum",
            round=quantise_int4_asym,
            bits=4 + 32 / GROUP,
        ),
    )
}
"""By the name that `--weights` takes. All but f32 start from weights rounded to BF16."""

KV_FORMATS = {
    found.name: found
    for found in (
        KvFormat(name="f32", recipe="none", round=_unchanged, value_bytes=4),
        KvFormat(name="bf16", recipe="round to nearest", round=round_bf16, value_bytes=2),
        KvFormat(name="fp8_e4m3", recipe="e4m3, clip to 448, round to nearest", round=round_fp8, value_bytes=1),
    )
}
"""By the name that `--kv-cache` takes."""
