"""A GGUF file, opened and checked: metadata as plain values, tensors as float32 in [out, in] order."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.quants import dequantize

from evalrig.errors import UsageError
from evalrig.refengine.arrays import F32, U8
from evalrig.refengine.gguf_layout import BrokenFile, TensorPlace, read_layout

READABLE_TYPES = (
    *("F32", "F16", "BF16"),
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS"),
)
"""Each is held against llama.cpp's own reading by a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """One opened file; the tensors' bytes stay mapped until they are asked for."""

    path: Path
    sha256: str
    """Digest of the whole file, hexadecimal."""
    metadata: Mapping[str, Any]
    """Key to value: numbers, booleans, strings, or lists of them."""
    tensors: Mapping[str, TensorPlace]
    data: U8
    """The mapped file."""

    def require(self, key: str) -> Any:
        """The metadata value of `key`; UsageError when the file has none."""
        if key not in self.metadata:
            raise UsageError(f"{self.path}: the GGUF file has no metadata key {key!r}; convert the model again")
        return self.metadata[key]

    def tensor(self, name: str) -> F32:
        """The tensor `name`, dequantised: [out, in] for a matrix, [n] for a vector. UsageError when there is none."""
        if name not in self.tensors:
            raise UsageError(f"{self.path}: the GGUF file has no tensor {name!r}; convert the model again")
        place = self.tensors[name]
        stored = self.data[place.start :][: math.prod(place.stored_shape)].reshape(place.stored_shape)
        return np.asarray(dequantize(stored, place.kind), dtype=np.float32)


def open_gguf(path: Path) -> GgufFile:
    """Opens and checks the file at `path`.

    Raises UsageError when it is missing, cut short, no GGUF file, or holds a tensor type this engine cannot read.
    """
    if not path.is_file():
        raise UsageError(
            f"{path}: no such model file; give the path of a .gguf file (`evalrig fetch` downloads the default one)"
        )
    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise UsageError(f"{path}: not a GGUF file (it does not start with the letters GGUF)")
        stream.seek(0)
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    data: U8 = np.memmap(path, np.uint8, mode="r")
    try:
        metadata, tensors = read_layout(data.data)
    except BrokenFile as error:
        raise UsageError(f"{path}: the GGUF file is cut short or damaged ({error}); fetch it again") from error
    for name, place in tensors.items():
        if place.kind.name not in READABLE_TYPES:
            known = ", ".join(READABLE_TYPES)
            raise UsageError(f"{path}: tensor {name} is {place.kind.name}; this engine reads {known}")
    return GgufFile(path=path, sha256=digest, metadata=metadata, tensors=tensors, data=data)


def undo_rotary_permutation(weight: F32, heads: int) -> F32:
    """Rows of a query or key matrix [heads * head_dim, in] in the order of the original checkpoint.

    For the llama architecture, llama.cpp's converter interleaves the two halves of each head, because its rotary
    embedding turns neighbouring pairs; ours turns element i with element i + head_dim / 2.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
