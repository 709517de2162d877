"""The layout of a GGUF file: header, metadata, and where each tensor's bytes lie.

The `gguf` package reads the same through one numpy slice an element, which takes seconds for a vocabulary of 50,000
strings at every start of a server; its tables of types and block sizes are used here, so that the knowledge stays in
one place.
"""

import math
import struct
from dataclasses import dataclass
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

_VERSIONS = (2, 3)
_NUMBERS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
_MOST_DIMENSIONS = 4


class BrokenFile(ValueError):
    """The bytes do not follow the format, or end too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """One tensor as stored."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    """Outermost dimension first, in elements; [out, in] for a matrix."""
    start: int
    """Offset of its first byte in the file."""
    row_bytes: int
    """Bytes of one row (the innermost dimension)."""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """`shape`, with the innermost dimension in bytes."""
        return (*self.shape[:-1], self.row_bytes)


def read_layout(data: memoryview) -> tuple[dict[str, Any], dict[str, TensorPlace]]:
    """Metadata and tensors of the file whose bytes are `data`. BrokenFile when it is cut short or is something else."""
    try:
        return _read(_Cursor(data), len(data))
    except (struct.error, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise BrokenFile(str(error)) from error


def _read(cursor: "_Cursor", size: int) -> tuple[dict[str, Any], dict[str, TensorPlace]]:
    magic, version = cursor.raw(4), cursor.number("I")
    if magic != b"GGUF" or version not in _VERSIONS:
        raise BrokenFile(f"version {version} of the format; versions {_VERSIONS} are read")
    tensors, keys = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        name = cursor.text()
        metadata[name] = cursor.value(_value_type(cursor.number("I")))
    heads = [_tensor_head(cursor) for _ in range(tensors)]
    alignment = int(metadata.get("general.alignment", 32))
    base = -(-cursor.at // max(alignment, 1)) * max(alignment, 1)
    return metadata, dict(_place(head, base, size) for head in heads)


def _value_type(code: int) -> GGUFValueType:
    if code not in GGUFValueType.__members__.values():
        raise BrokenFile(f"unknown type {code} of a metadata value")
    return GGUFValueType(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    name: str
    shape: tuple[int, ...]
    code: int
    offset: int


def _tensor_head(cursor: "_Cursor") -> _Head:
    name, dimensions = cursor.text(), cursor.number("I")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise BrokenFile(f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
    return _Head(name=name, shape=shape, code=cursor.number("I"), offset=cursor.number("Q"))


def _place(head: _Head, base: int, size: int) -> tuple[str, TensorPlace]:
    if head.code not in GGMLQuantizationType.__members__.values():
        raise BrokenFile(f"tensor {head.name!r} has the unknown type {head.code}")
    kind = GGMLQuantizationType(head.code)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if head.shape[-1] % block:
        raise BrokenFile(f"tensor {head.name!r}: rows of {head.shape[-1]} do not split into blocks of {block}")
    place = TensorPlace(
        kind=kind, shape=head.shape, start=base + head.offset, row_bytes=head.shape[-1] // block * block_bytes
    )
    end = place.start + math.prod(place.stored_shape)
    if end > size:
        raise BrokenFile(f"tensor {head.name!r} ends at byte {end}, the file at {size}")
    return head.name, place


class _Cursor:
    """Reads little-endian values one after another."""

    def __init__(self, data: memoryview) -> None:
        self._data, self.at = data, 0

    def raw(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self._data):
            raise BrokenFile(f"{count} bytes expected at byte {self.at}, the file ends at {len(self._data)}")
        found = bytes(self._data[self.at : end])
        self.at = end
        return found

    def number(self, code: str) -> Any:
        (found,) = struct.unpack_from("<" + code, self._data, self.at)
        self.at += struct.calcsize("<" + code)
        return found

    def text(self) -> str:
        return self.raw(self.number("Q")).decode()

    def value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind != GGUFValueType.ARRAY:
            return self.number(_NUMBERS[kind])
        inner, count = _value_type(self.number("I")), self.number("Q")
        if inner == GGUFValueType.ARRAY:
            raise BrokenFile("a metadata list of lists")
        if inner == GGUFValueType.STRING:
            return [self.text() for _ in range(count)]
        code = f"<{count}{_NUMBERS[inner]}"
        return list(struct.unpack(code, self.raw(struct.calcsize(code))))
