"""What is shown of where a distance lies and what it bounds: nouns, all words and numbers final; see `shown`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of a table."""

    label: str
    cells: tuple[str, ...]
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of its own; the first column is the rows' label."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str
    named: int = 0
    """Columns of words after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRow:
    """How far any success rate can have changed."""

    arm: str
    part: str
    status: str
    sentence: str
    estimate: str
    prompts: str
    method: str
    assumptions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """All bounds of one suite, KL from the drawn tokens, and what success can be estimated from them."""

    rows: tuple[CertificateRow, ...]
    notes: tuple[str, ...]
    estimates: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A token that could have come next, and how probable each side finds it."""

    token: str
    reference: str
    candidate: str
    given: bool
    """The token that did come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FarToken:
    """A token on which the sides differ most, in context."""

    place: str
    kl: str
    before: str
    token: str
    after: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FarPrompt:
    """A prompt on which they do."""

    place: str
    mean: str
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """The worst of one arm."""

    arm: str
    tokens: tuple[FarToken, ...]
    prompts: tuple[FarPrompt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Maps:
    """Where the distance lies."""

    tables: tuple[Table, ...]
    far: tuple[Far, ...]
