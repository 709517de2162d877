"""What a person sees while a run goes on: suite, done/total, rate, time left. Live on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

PLAIN_SECONDS = 10.0
"""Between two plain lines of one suite."""


class Progress(Protocol):
    """Where a run tells how far it is."""

    def say(self, line: str) -> None:
        """One event, kept on the screen."""
        ...

    def begin(self, totals: Mapping[str, int], done: Mapping[str, int]) -> None:
        """How many attempts each suite has, over all variants, and how many a resumed run already holds."""
        ...

    def step(self, suite: str) -> None:
        """One attempt of a suite ended."""
        ...

    def end(self) -> None:
        """The display is no longer needed."""
        ...


def for_stream(stream: TextIO | None = None) -> Progress:
    """Live where `stream` (default: stderr) is a terminal, plain lines elsewhere."""
    out = stream or sys.stderr
    return Live(out) if out.isatty() else Plain(out)


@dataclass(slots=True)
class _Row:
    total: int
    done: int
    first: int
    """Done when the display began: a resumed run's rate counts only what it did itself."""
    began: float
    shown: float = 0.0

    def step(self) -> None:
        """Count one; the clock of the rate starts with the suite's first attempt, not with the first engine."""
        if self.done == self.first:
            self.began = self.shown = time.monotonic()
        self.done += 1

    def rate(self) -> float:
        """Attempts a second since the first one of this process; 0 while too early to tell."""
        took = time.monotonic() - self.began
        return (self.done - self.first - 1) / took if took > 1.0 else 0.0

    def line(self, suite: str) -> str:
        """`piqa 130/1300 (10 %), 12.3/s, 1:35 left`."""
        rate = self.rate()
        left = (self.total - self.done) / rate if rate else 0.0
        share = 100 * self.done // max(self.total, 1)
        ahead = f", {rate:.1f}/s, {int(left) // 60}:{int(left) % 60:02d} left" if rate else ""
        return f"{suite} {self.done}/{self.total} ({share} %){ahead}"


class Plain:
    """Lines for logs: one at most every ten seconds a suite, and one when a suite is complete."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._rows: dict[str, _Row] = {}

    def say(self, line: str) -> None:
        """One line."""
        self._out.write(f"{line}\n")
        self._out.flush()

    def begin(self, totals: Mapping[str, int], done: Mapping[str, int]) -> None:
        """Remember the totals."""
        now = time.monotonic()
        self._rows = {name: _Row(total, done.get(name, 0), done.get(name, 0), now) for name, total in totals.items()}

    def step(self, suite: str) -> None:
        """Count, and now and then say so."""
        row = self._rows[suite]
        row.step()
        now = time.monotonic()
        if row.done == row.total or now - row.shown >= PLAIN_SECONDS:
            row.shown = now
            self.say(row.line(suite))

    def end(self) -> None:
        """Nothing to take down."""


class Live:
    """A bar a suite."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(file=out),
        )
        self._rows: dict[str, tuple[Any, _Row]] = {}

    def say(self, line: str) -> None:
        """One line above the bars."""
        self._bars.console.print(line, markup=False, highlight=False)

    def begin(self, totals: Mapping[str, int], done: Mapping[str, int]) -> None:
        """Show the bars."""
        now = time.monotonic()
        for name, total in totals.items():
            had = done.get(name, 0)
            task = self._bars.add_task(name, total=total, completed=had, rate="")
            self._rows[name] = (task, _Row(total, had, had, now))
        self._bars.start()

    def step(self, suite: str) -> None:
        """Move one bar."""
        task, row = self._rows[suite]
        row.step()
        self._bars.update(task, advance=1, rate=f"{row.rate():.1f}/s" if row.rate() else "")

    def end(self) -> None:
        """Leave the bars as they stand."""
        self._bars.stop()
