"""Traces in Mooncake's form: JSONL of {timestamp, input_length, output_length, hash_ids}, milliseconds and tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from evalrig.errors import UsageError, one_line

BLOCK: Final = 512
"""Tokens that one hash id stands for; the last block of a prompt may be shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request of a trace."""

    at: float
    """Seconds."""
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Which blocks its prompt is made of: requests that begin with the same ones begin with the same tokens."""


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def read(path: Path, where: str) -> tuple[Row, ...]:
    """All rows by time; blank lines are passed over.

    Raises:
        UsageError: the file cannot be read, or a line is no such request: `where`, file and line lead.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{where}: cannot read {str(path)!r}: {error.strerror}; give a JSONL trace") from error
    rows = [_row(line, f"{where}: {path} line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise UsageError(f"{where}: {path} holds no request; give one a line")
    return tuple(sorted(rows, key=lambda row: row.at))


def _row(line: bytes, at: str) -> Row:
    try:
        read = msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError as error:
        words = "a line holds timestamp, input_length, output_length and hash_ids"
        raise UsageError(f"{at}: {one_line(str(error))}; {words}") from error
    if read.input_length < 1 or read.output_length < 1 or read.timestamp < 0:
        raise UsageError(f"{at}: lengths are at least 1 and times at least 0; correct it")
    if len(read.hash_ids) * BLOCK < read.input_length:
        few = f"{len(read.hash_ids)} hash_ids of {BLOCK} tokens make no prompt of {read.input_length}"
        raise UsageError(f"{at}: {few}; correct it")
    return Row(
        at=read.timestamp / 1000,
        input_tokens=read.input_length,
        output_tokens=read.output_length,
        blocks=tuple(read.hash_ids),
    )
