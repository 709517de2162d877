"""The Prometheus text format, as far as engines write it: gauges, counters, and the sums and counts of histograms."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPED: Mapping[str, str] = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
"""Labels of the processes of one replica: each tells the same numbers, so they are not added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a server shows under `/metrics`, without the buckets of its histograms."""

    samples: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict[str, tuple[Sample, ...]])

    def total(self, name: str, **where: str) -> float:
        """Sum over all lines of that name whose labels are as in `where`, the ranks of a replica once; NaN: there is none."""
        return sum(found) if (found := self._replicas(name, where)) else math.nan

    def most(self, name: str) -> float:
        """The largest over replicas: the one that is full makes requests wait. NaN: there is none."""
        return max(found) if (found := self._replicas(name, {})) else math.nan

    def histogram(self, name: str, **where: str) -> tuple[float, float] | None:
        """Sum and count of a histogram's observations; None: there is no such histogram."""
        pair = self.total(f"{name}_sum", **where), self.total(f"{name}_count", **where)
        return None if math.isnan(pair[0]) or math.isnan(pair[1]) else pair

    def labels(self, name: str) -> dict[str, str]:
        """Of the first line of that name; empty: there is none."""
        return dict(self.samples[name][0].labels) if name in self.samples else {}

    def _replicas(self, name: str, where: Mapping[str, str]) -> list[float]:
        """A value for each replica."""
        found: dict[tuple[tuple[str, str], ...], float] = {}
        for sample in self.samples.get(name, ()):
            if any(sample.labels.get(key) != value for key, value in where.items()):
                continue
            own = tuple(sorted((key, value) for key, value in sample.labels.items() if key not in RANKS))
            found[own] = max(found[own], sample.value) if own in found else sample.value
        return list(found.values())


def page(text: str) -> Page:
    """The lines of a text; a line that is no sample is left out, since a page may hold more than is read here."""
    found: dict[str, list[Sample]] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name.startswith("#") or name.endswith(("_bucket", "_created")):  # most lines: read while a block runs
            continue
        if (match := _LINE.fullmatch(line)) is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = {key: _plain(told) for key, told in _LABEL.findall(match[2] or "")}
        found.setdefault(match[1], []).append(Sample(labels=labels, value=value))
    return Page(samples={name: tuple(samples) for name, samples in found.items()})


def _plain(told: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPED.get(found[0], found[0]), told)
