"""What is shown of rounds of load: nouns, all words and numbers final; see `shown`."""

from dataclasses import dataclass
from typing import Literal

from evalrig.report.shown_maps import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A place in a picture, with its intervals. None: there is none."""

    x: float
    y: float
    across: tuple[float, float] | None = None
    up: tuple[float, float] | None = None
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What one arm has in a picture."""

    arm: str
    kind: Literal["reference", "candidate", "noise"]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Lines in a plane, and the same in words."""

    title: str
    x_axis: str
    y_axis: str
    style: Literal["curve", "points", "steps"]
    """`curve`: joined dots; `points`: dots alone; `steps`: a count over time."""
    lines: tuple[Line, ...]
    description: str
    x_limit: float | None = None
    y_limit: float | None = None
    """What a gate asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadView:
    """How one suite of load was served."""

    note: str
    label: str
    """Why speed is no evidence here; empty: it is."""
    tables: tuple[Table, ...]
    """A table for each candidate, then what else was told; by concurrency where there are several."""
    lines: tuple[str, ...]
    """Sentences on capacity, cost, the same speed for users, and the client."""
    void: tuple[str, ...]
    """Why blocks did not count."""
    pictures: tuple[Picture, ...]
    summary: tuple[str, ...]
    """A sentence for each candidate."""
