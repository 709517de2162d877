"""What is shown of the steps of conversations with tools: nouns, all words and numbers final; see `shown`."""

from dataclasses import dataclass

from evalrig.report.shown_maps import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """One arm's curve: the share without an event falls at these steps. All of one length."""

    arm: str
    kind: str
    """`reference`, `candidate` or `noise` (the reference against itself)."""
    steps: tuple[int, ...]
    shares: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalView:
    """Kaplan-Meier curves of one event, a curve an arm."""

    title: str
    axis: str
    last: int
    """The longest attempt, in steps."""
    curves: tuple[Fall, ...]
    description: str
    table: Table
    """The curves at some steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsView:
    """Along the steps of one suite."""

    note: str
    survival: tuple[SurvivalView, ...]
    hazards: Table
    lines: tuple[str, ...]
    """Sentences on each arm: growth along the task, p^n against what was seen, recovery."""
    errors: Table
    lengths: Table
