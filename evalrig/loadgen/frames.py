"""The events of one stream, by their framing alone: where each ends, when its last byte came, and what it carries."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalrig.loadgen.block import Exchange

_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?:\r\n|\n|\r)")
"""Atomic: else the two halves of one CR LF would make a blank line."""
_LINE = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Events with data, in the order in which they came; comments are left out. Shape [m] each."""

    data: tuple[bytes, ...]
    at: NDArray[np.int64]
    """Arrival of the read that brought its last byte, monotonic nanoseconds."""
    lag: NDArray[np.int64]
    """Nanoseconds from then until a program could see it."""
    exact: NDArray[np.bool_]
    """The read ended where the event did: the arrival is its own. Else it is an upper bound."""


def frames(exchange: Exchange) -> Frames:
    """Server-sent events (WHATWG HTML, section 9.2): blank lines end them, of any line ending. One that no blank line ends
    was cut off, and is none."""
    pieces, stops = _pieces(exchange.body)
    data = [_data(piece) for piece in pieces]
    if not len(exchange.ends):  # bytes that nobody timed are no events
        data = []
    kept = np.array([one is not None for one in data], bool)
    place = stops[: len(data)][kept]
    read = np.minimum(np.searchsorted(exchange.ends, place), max(len(exchange.ends) - 1, 0))
    return Frames(
        data=tuple(one for one in data if one is not None),
        at=exchange.at[read],
        lag=exchange.lag[read],
        exact=exchange.ends[read] == place,
    )


def _pieces(body: bytes) -> tuple[list[bytes], NDArray[np.int64]]:
    """What stands between blank lines, and where the blank line after each ends."""
    if b"\r" not in body:  # JSON escapes it, so that it can only end a line
        pieces = body.split(b"\n\n")[:-1]
        return pieces, np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)) + 2)
    blanks = list(_BLANK_LINE.finditer(body))
    starts = [0, *(blank.end() for blank in blanks)]
    pieces = [body[start : blank.start()] for start, blank in zip(starts, blanks, strict=False)]
    return pieces, np.asarray(starts[1:], np.int64)


def _data(piece: bytes) -> bytes | None:
    """None: a comment, or fields that carry no data."""
    if piece[:5] == b"data:" and b"\n" not in piece and b"\r" not in piece:
        return piece[5:].strip()
    lines = [line[5:].removeprefix(b" ") for line in _LINE.split(piece) if line.startswith(b"data:")]
    return b"\n".join(lines).strip() if lines else None
