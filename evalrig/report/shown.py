"""What is shown: the report's nouns, all words and numbers final. Golden files hold these; HTML only arranges them."""

from dataclasses import dataclass

from evalrig.report.shown_load import LoadView
from evalrig.report.shown_maps import Certificates, Maps, Row, Table
from evalrig.report.shown_steps import StepsView


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The top of the page."""

    run: str
    time: str
    question: str
    outcome: str
    sentence: str
    model: str
    note: str
    confidence: str
    not_covered: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One gate on one candidate."""

    gate: str
    suite: str
    role: str
    outcome: str
    margin: str
    estimate: str
    interval: str
    needed: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GainRow:
    """What a candidate gains, beside what it loses."""

    what: str
    reference: str
    candidate: str
    ratio: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One candidate."""

    name: str
    outcome: str
    headline: str
    meaning: str
    gains: tuple[GainRow, ...]
    gain_note: str
    checks: tuple[CheckRow, ...]
    remarks: tuple[str, ...]
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingLine:
    """One thing that was looked at."""

    level: str
    text: str
    concerns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleGroup:
    """A validity rule and all it found, the worst level first."""

    rule: str
    level: str
    lines: tuple[FindingLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """Can the measurement be trusted?"""

    summary: str
    groups: tuple[RuleGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    """Where the planned attempts of one arm of one suite went."""

    variant: str
    suite: str
    planned: int
    counts: tuple[int, ...]
    """By state, then absent."""
    adds_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A point with its interval, in the plot's own unit. None: cannot be drawn (no value, or no limit)."""

    arm: str
    noise: bool
    """Reference against itself."""
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Paired differences of all candidates on one metric."""

    title: str
    axis: str
    margin: float | None
    bars: tuple[Bar, ...]
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """One arm against the reference."""

    arm: str
    counts: str
    """Losses and gains of a binary metric."""
    estimate: str
    interval: str
    n: str
    reading: str
    p_go: str
    p_nogo: str
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricView:
    """One metric of one suite."""

    name: str
    binary: bool
    role: str
    units: str
    rows: tuple[DifferenceRow, ...]
    forest: Forest


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """One way of failing."""

    word: str
    reference: str
    candidate: str
    """Shares of each arm's attempts."""
    estimate: str
    interval: str
    reading: str
    p_below: str
    p_above: str
    noise: str
    """The reference against itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    """How one candidate's attempts failed on one suite."""

    candidate: str
    role: str
    rows: tuple[FailureRow, ...]
    note: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteView:
    """One suite, its paired metrics, and how its attempts failed."""

    name: str
    family: str
    size: str
    metrics: tuple[MetricView, ...]
    failures: tuple[FailureView, ...]
    steps: StepsView | None
    """Along the steps of its attempts; None: they have none."""
    load: LoadView | None = None
    """How it was served; None: it is no load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Mean distance of one arm by position: one bar for each octave."""

    arm: str
    noise: bool
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The distance along the answer."""

    octaves: tuple[str, ...]
    """Position ranges: `1–2`, `3–4`, `5–8` ..."""
    curves: tuple[Curve, ...]
    rows: tuple[Row, ...]
    """The plot as a table, a line an arm."""
    description: str
    growth: tuple[str, ...]
    """A sentence for each arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceView:
    """How far the token distributions moved, on one suite."""

    suite: str
    arms: tuple[str, ...]
    rows: tuple[Row, ...]
    """What to read first."""
    measures: Table
    """All the rest that was measured."""
    veto: str
    notes: tuple[str, ...]
    positions: Positions
    certificates: Certificates
    maps: Maps


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One text of an arm, with the summed logprob where it was scored and not generated."""

    text: str
    logprob: str
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one arm answered."""

    arm: str
    state: str
    said: tuple[Said, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A sample whose correctness changed."""

    sample: str
    direction: str
    prompt: str
    target: str
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipGroup:
    """The flips of one candidate on one metric."""

    candidate: str
    suite: str
    metric: str
    summary: str
    noise: str
    """How often the reference flips against itself."""
    items: tuple[Flip, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A cell of the engines' table."""

    text: str
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRow:
    """One property, variant by variant."""

    label: str
    cells: tuple[Fact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What every engine said it is."""

    variants: tuple[str, ...]
    rows: tuple[FactRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model or data set: whose it is and under which licence."""

    name: str
    title: str
    owner: str
    upstream: str
    licence: str
    licence_note: str
    package: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """How the same run is made again."""

    commands: tuple[Row, ...]
    run_file: str
    sha256: str
    environment: tuple[Row, ...]
    suites: tuple[Row, ...]
    """Digest of the chosen samples, by suite."""
    unused_gates: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What lies behind the numbers."""

    engines: Engines
    sources: tuple[Source, ...]
    repeat: Repeat
    rehearsal: tuple[str, ...]
    """What was replaced; empty: a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole report."""

    head: Head
    cards: tuple[Card, ...]
    validity: Validity
    states: tuple[str, ...]
    """Headings of `AccountRow.counts`."""
    accounting: tuple[AccountRow, ...]
    suites: tuple[SuiteView, ...]
    distances: tuple[DistanceView, ...]
    flips: tuple[FlipGroup, ...]
    facts: Facts
