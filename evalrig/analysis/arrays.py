"""Array types, and the checks that let only well-formed numbers into an estimate."""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


def sums_by(index: IntArray, weights: FloatArray, length: int = 0) -> FloatArray:
    """`weights` [n] summed by `index` 0..; as long as the largest index asks, or `length`."""
    return np.bincount(index, weights=weights, minlength=length).astype(np.float64, copy=False)


def vector(values: ArrayLike, name: str) -> FloatArray:
    """`values` as a one-dimensional float64 array; ValueError when it has another shape."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"`{name}`: shape {array.shape}, expected one dimension")
    return array


def finite(values: ArrayLike, name: str) -> FloatArray:
    """A non-empty vector of finite numbers; ValueError otherwise: a NaN that enters a mean leaves as a verdict."""
    array = vector(values, name)
    if array.size == 0:
        raise ValueError(f"`{name}`: no values; an estimate of nothing is not 0")
    if not np.isfinite(array).all():
        raise ValueError(f"`{name}`: {int((~np.isfinite(array)).sum())} of {array.size} values are not finite")
    return array


def without_nan(values: ArrayLike, name: str) -> FloatArray:
    """A vector that may hold +inf but neither NaN nor -inf (the values a KL divergence can take)."""
    array = vector(values, name)
    if np.isnan(array).any() or np.isneginf(array).any():
        raise ValueError(f"`{name}`: holds NaN or -inf; the logprobs behind it are broken")
    return array


def probability(value: float, name: str) -> float:
    """`value` if it lies strictly between 0 and 1; ValueError otherwise (a NaN threshold passes everything)."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"`{name}`: {value!r} does not lie between 0 and 1")
    return value
