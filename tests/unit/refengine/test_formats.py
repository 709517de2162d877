"""Number formats: what lies on the grid stays, what does not moves to the nearest point, nothing becomes NaN."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evalrig.refengine.arrays import F32
from evalrig.refengine.formats import GROUP, KV_FORMATS, WEIGHT_FORMATS, round_fp8

FINITE = st.floats(-1e4, 1e4, width=32)
MATRICES = arrays(np.float32, (3, 2 * GROUP), elements=st.floats(-4, 4, width=32))


@pytest.mark.parametrize("name", KV_FORMATS)
@given(values=arrays(np.float32, 16, elements=FINITE))
def test_cache_rounding_is_idempotent_and_finite(name: str, values: F32) -> None:
    rounded = KV_FORMATS[name].round(values)
    assert np.isfinite(rounded).all()
    assert np.array_equal(KV_FORMATS[name].round(rounded), rounded)


def test_fp8_saturates_where_the_plain_cast_gives_nan() -> None:
    values = np.array([-1e9, -465, 448, 460, 1e9, np.inf], np.float32)
    assert np.isnan(values.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)).any()
    assert round_fp8(values).tolist() == [-448, -448, 448, 448, 448, 448]


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
@given(weight=MATRICES)
def test_weight_rounding_stays_finite_and_near(name: str, weight: F32) -> None:
    rounded = WEIGHT_FORMATS[name].round(weight)
    assert rounded.shape == weight.shape
    assert np.isfinite(rounded).all()
    # The coarsest: half a step of a 4-bit grid over a group, whose step is at most 8/15, and FP16's own error.
    assert np.abs(rounded - weight).max() <= 0.5 * 8 / 7 / 2 + 0.02


@given(weight=MATRICES)
def test_int4_groups_hold_at_most_16_values(weight: F32) -> None:
    for name in ("int4", "int4-asym"):
        groups = WEIGHT_FORMATS[name].round(weight).reshape(-1, GROUP)
        assert max(len(np.unique(group)) for group in groups) <= 16


def test_int4_asym_keeps_a_grid_of_16_steps_and_int4_does_not() -> None:
    grid = (np.arange(GROUP) % 16 * 0.125 - 0.5).astype(np.float32)[None]
    assert np.array_equal(WEIGHT_FORMATS["int4-asym"].round(grid), grid)
    assert not np.allclose(WEIGHT_FORMATS["int4"].round(grid), grid, atol=0.01)


def test_zero_matrices_stay_zero() -> None:
    zero = np.zeros((2, GROUP), np.float32)
    for weight_format in WEIGHT_FORMATS.values():
        assert not weight_format.round(zero).any()


def test_bytes_are_those_of_the_format() -> None:
    shape = (64, 128)
    counted = {name: weight_format.matrix_bytes(shape) for name, weight_format in WEIGHT_FORMATS.items()}
    elements = 64 * 128
    assert counted == {
        "f32": elements * 4,
        "bf16": elements * 2,
        "fp8": elements + 64 * 4,
        "int4": elements // 2 + elements // 32 * 2,
        "int4-asym": elements // 2 + elements // 32 * 4,
    }
