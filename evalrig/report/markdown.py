"""The summary for a CI job page: verdicts, grounds, what was not covered, where the report is. At most 60 lines."""

import re

from evalrig.report import certified, estimated, failing
from evalrig.report.distances import FLOOR
from evalrig.report.proved import LEVEL_WORDS
from evalrig.report.shown import Card, Page
from evalrig.report.words import cut, visible
from evalrig.stability import LOG, STABILITY
from evalrig.types import Level

MOST_CARDS = 16
LONGEST = 500
SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#&!$@])")


def markdown(page: Page) -> str:
    """The whole summary."""
    head, shown = page.head, page.cards[:MOST_CARDS]
    outcome = "outcome, no verdict" if page.facts.rehearsal else "verdict"
    lines = [
        f"## evalrig: {escaped(head.outcome)} ({escaped(head.run)})",
        "",
        escaped(head.question),
        "",
        f"**{escaped(head.outcome)}**: {escaped(head.sentence)}.",
        "",
        f"| candidate | {outcome} | grounds |",
        "|---|---|---|",
        *(_line(card) for card in shown),
        "",
    ]
    if more := len(page.cards) - len(shown):
        lines += [f"{more} further candidates: see verdict.json.", ""]
    lines += [f"- {escaped(text)}" for text in _notes(page, shown)]
    run = page.facts.repeat
    where = "`report.html`, `verdict.json` and `junit.xml` in the run folder"
    again = "; ".join(f"{row.label}: {code(row.cells[0])}" for row in run.commands)
    lines += ["", f"Report: {where}. Run file sha256 {code(run.sha256[:16])}. {again}."]
    return "\n".join(lines) + "\n"


def _line(card: Card) -> str:
    grounds = card.headline.removeprefix(f"{card.outcome}: ")
    return f"| {escaped(card.name)} | **{escaped(card.outcome)}** | {escaped(grounds)} |"


def _notes(page: Page, shown: tuple[Card, ...]) -> list[str]:
    """What must not be missed by somebody who opens nothing else."""
    head = page.head
    notes = [f"Rehearsal: {line}" for line in page.facts.rehearsal]
    notes += [f"Gained by {card.name}: {card.gain_note}" for card in shown if card.gains]
    notes += [
        f"Diagnostic for {card.name}, no effect on the verdict: {text}" for card in shown for text in card.remarks
    ]
    notes.append(f"Validity: {page.validity.summary}")
    notes += failing.summed_up(page.suites)
    views = page.distances
    bounds = [(view.suite, view.certificates) for view in views]
    notes += certified.summed_up(bounds) + estimated.summed_up(bounds)
    notes += [
        f"Along the answer, {view.suite}: {line}"
        for view in views
        for line in view.positions.growth
        if not line.startswith(f"{FLOOR}:")
    ]
    notes += [f"Along the steps, {one.name}: {line}" for one in page.suites if one.steps for line in one.steps.lines]
    notes += [f"Serving load, {one.name}: {line}" for one in page.suites if one.load for line in one.load.summary]
    notes += [
        f"{group.rule[0].upper()}{group.rule[1:]}: {line.text}"
        for group in page.validity.groups
        if group.rule in (STABILITY, LOG)
        for line in group.lines
        if line.level != LEVEL_WORDS[Level.OK]
    ]
    if head.not_covered:
        notes.append(f"Not covered: {head.not_covered}")
    if head.note:
        notes.append(f"Note: {head.note}")
    if page.facts.repeat.unused_gates:
        notes.append(f"Gates not applied, their suite is not in this run: {page.facts.repeat.unused_gates}")
    return notes[:38]


def escaped(text: str) -> str:
    """One line that no Markdown reader takes for markup."""
    line = cut(" ".join(visible(text).split()), LONGEST)
    return SPECIAL.sub(lambda found: _ENTITIES.get(found[1], f"\\{found[1]}"), line)


def code(text: str) -> str:
    """A code span: inside it nothing is markup but the backtick and, in a table, the pipe."""
    line = " ".join(visible(text).split()).replace("`", "'").replace("|", "¦")
    return f"`{line}`"


_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "`": "&#96;", "|": "&#124;", "@": "&#64;"}
