"""Where the distance lies: by class of token, by entropy, by source of the prompt, along the answer. Hints, never verdicts."""

import math
from collections.abc import Sequence

from evalrig.analysis.growth import FIRST_POSITION
from evalrig.analysis.kl_map import GroupRow
from evalrig.analysis.paired import MIN_CLUSTERS
from evalrig.report.shown_maps import Row, Table
from evalrig.report.words import NOTHING, p_value, percent, significant, span
from evalrig.streams import Streamed

COLUMNS = ("variant", "group", "tokens", "prompts", "mean KL", "interval", "above the rest", "p, Holm")
GROWTH_MARGIN = 0.05
"""Per doubling; what the shipped gate looks for."""

Arms = Sequence[tuple[str, Streamed]]


def maps(arms: Arms, confidence: str) -> tuple[Table, ...]:
    """A table for each way of grouping; one that cannot be made says why."""
    return (
        _classes(arms, confidence),
        *_calls(arms, confidence),
        _table(
            "By entropy of the reference",
            [(name, one.result.entropies) for name, one in arms],
            f"From sure (low) to open (high), nats, from the listed tokens only; near quartiles. {confidence} intervals.",
        ),
        _table(
            "By source of the prompt",
            [(name, one.sources) for name, one in arms],
            f"{confidence} intervals over prompts." if any(one.sources for _, one in arms) else _one_source(arms),
        ),
    )


def _classes(arms: Arms, confidence: str) -> Table:
    told, of = sum(one.told for _, one in arms), sum(len(one.places) for _, one in arms)
    if not told:
        note = "Not available: the reference's engine gives no texts of tokens, so what a token is for cannot be told."
        return Table(title="By class of token", columns=COLUMNS, rows=(), note=note, named=1)
    some = "" if told == of else f" Only {told:,} of {of:,} scored answers have texts of their tokens."
    note = f"What a token is for, by rules on the answer's text; {confidence} intervals over prompts.{some}"
    return _table("By class of token", [(name, one.result.classes) for name, one in arms], note)


def _calls(arms: Arms, confidence: str) -> tuple[Table, ...]:
    """Tool calls by step; nothing where no step is known."""
    found = [(name, one.result.by_position.calls) for name, one in arms]
    if not any(rows for _, rows in found):
        return ()
    note = (
        "Tokens of tool calls alone, names and arguments, by the step of the conversation at which the call stands; a lower "
        f"bound as all KL from lists. {confidence} intervals over conversations. The rest: the calls of other steps."
    )
    return (_table("Tool calls by step", found, note),)


def _one_source(arms: Arms) -> str:
    return "All prompts are of one source." if arms else ""


def _table(title: str, groups: Sequence[tuple[str, Sequence[GroupRow]]], note: str) -> Table:
    rows = [Row(label=arm, cells=_cells(row)) for arm, found in groups for row in found]
    return Table(title=title, columns=COLUMNS, rows=tuple(rows), note=note, named=1)


def _cells(row: GroupRow) -> tuple[str, ...]:
    judged = row.p < 1.0 or row.p_holm < 1.0
    return (
        row.name,
        f"{row.tokens:,}",
        f"{row.prompts:,}",
        significant(row.mean),
        span(row.low, row.high),
        significant(row.above_rest),
        p_value(row.p_holm) if judged else NOTHING,
    )


def growth_words(name: str, found: Streamed, confidence: str) -> str:
    """How the distance changes along the answer, in a sentence."""
    growth, ratio = found.result.by_position.growth, found.result.by_position.ratio
    if growth is None:
        return f"{name}: growth cannot be told: no answer holds two tokens beyond position {FIRST_POSITION:.0f}."
    seen = (
        f"{_percent(growth.per_doubling)} per doubling of the position ({confidence} interval "
        f"{_percent(growth.low)} to {_percent(growth.high)}, {growth.prompts:,} prompts)"
    )
    more = ""
    if ratio is not None:
        more = (
            f" Positions {ratio.last[0]}–{ratio.last[1]} have × {significant(ratio.ratio)} the mean of "
            f"{ratio.first[0]}–{ratio.first[1]} ({span(ratio.low, ratio.high)})."
        )
    return f"{name}: {_reading(growth.low, growth.high, growth.prompts)}: {seen}.{more}"


def _reading(low: float, high: float, prompts: int) -> str:
    if prompts < MIN_CLUSTERS:
        return f"too few prompts to tell (at least {MIN_CLUSTERS})"
    if low > GROWTH_MARGIN:
        return f"the distance grows by more than {percent(GROWTH_MARGIN, 0)} per doubling"
    if low > 0:
        return "the distance grows"
    return "the distance shrinks" if high < 0 else "no growth is shown"


def _percent(share: float) -> str:
    return ("+" if share > 0 else "") + percent(share) if math.isfinite(share) else "∞"
