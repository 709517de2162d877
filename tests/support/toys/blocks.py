"""Random blocks of GGUF's quantised types that no Python package writes: any bytes are valid but for the float fields."""

from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

SCALES: Mapping[Kind, tuple[int, ...]] = {
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
    Kind.IQ4_NL: (0,),
    Kind.IQ4_XS: (0,),
}
"""Where in a block its FP16 scale stands, and that of its minimum."""
MIDDLE = {Kind.Q2_K: 1.5, Kind.Q4_K: 7.5, Kind.Q5_K: 15.5}
"""The scale of the minimum that centres the values, in scales."""


def random_blocks(kind: Kind, rows: int, columns: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """[rows, bytes]: values of about 2 / sqrt(columns), as of a random matrix; every block has a scale of its own."""
    size, width = gguf.GGML_QUANT_SIZES[kind]
    scale, *minimum = SCALES[kind]
    blocks = rng.integers(0, 256, (rows * columns // size, width), np.uint8)
    spread = rng.uniform(0.5, 1.5, len(blocks))

    def scaled(unit: float) -> NDArray[np.uint8]:
        _put(blocks, scale, spread * unit)
        for at in minimum:
            _put(blocks, at, spread * unit * MIDDLE[kind])
        return blocks.reshape(rows, -1)

    found: Any = gguf.dequantize(scaled(1.0 / 64), kind)
    return scaled(float(2 / np.sqrt(columns) / found.std() / 64))


def _put(blocks: NDArray[np.uint8], at: int, values: NDArray[np.float64]) -> None:
    blocks[:, at : at + 2] = values.astype(np.float16)[:, None].view(np.uint8)
