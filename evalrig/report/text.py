"""Plain text for terminals: the table of verdicts with the reasons, and what a plan can decide."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from io import StringIO

from evalrig.analysis.power import suite_power
from evalrig.plan import GatePlan, Plan
from evalrig.records import RunFolder
from evalrig.report.failing import KIND
from evalrig.report.plan_power import PAIRED, binary_power, rounds_power, slo_power
from evalrig.report.sentences import headline, metric_of
from evalrig.report.view import uncovered
from evalrig.report.words import count, margin_words, visible
from evalrig.stability import LOG, STABILITY
from evalrig.types import CheckOutcome, Level, Outcome, Verdict

WIDTH = 100
"""Of captured output, so that it is the same everywhere."""
COLOURS = {"GO": "green", "NO-GO": "red", "INCONCLUSIVE": "yellow", "INVALID": "magenta", "REHEARSAL": "yellow"}


def ending(folder: RunFolder, verdict: Verdict, stopped: str) -> str:
    """What `evalrig run` prints last."""
    plan = folder.plan()
    rows = [
        (name, str(one.outcome), headline(name, one, plan).removeprefix(f"{one.outcome}: "))
        for name, one in verdict.candidates.items()
    ]
    outcome = "outcome" if verdict.rehearsal else "verdict"
    lines = [_table(("candidate", outcome, "grounds"), rows), ""]
    if verdict.rehearsal:
        lines = ["REHEARSAL: a stand-in, a few samples, no verdict", "", *lines]
    if missing := uncovered(plan, folder):
        lines.append(visible(f"not covered: {missing}"))
    if plan.header.note:
        lines.append(visible(f"note: {plan.header.note}"))
    lines += [
        visible(f"{found.rule}: {found.text}")
        for found in verdict.validity
        if found.rule in (STABILITY, LOG) and found.level is not Level.OK
    ]
    lines += [
        visible(f"{gate.name}, {name}: {check.reason}")
        for gate in plan.gates
        for name, one in verdict.candidates.items()
        for check in one.checks
        if (gate.kind, gate.gating, check.gate) == (KIND, False, gate.name) and check.outcome is CheckOutcome.FAILED
    ]
    lines += [
        visible(f"{check.gate}, {name}: {check.reason}")
        for gate in plan.gates
        for name, one in verdict.candidates.items()
        for check in one.checks
        if gate.gating and not check.gating and check.gate == gate.name
    ]
    if stopped:
        lines.append(visible(f"stopped: {stopped}"))
    lost = any(row.absent and folder.failed(row.variant) for row in verdict.accounting)
    if stopped or lost:  # an engine that was lost is tried again; one that is not what was expected is not
        lines.append(f"go on with: evalrig resume {shlex.quote(str(folder.path))}")
    lines.append(f"report: {folder.path / 'report.html'}")
    lines.append(_last(verdict))
    return _plain(lines)


def _last(verdict: Verdict) -> str:
    code = f"(exit code {verdict.exit_code})"
    if verdict.outcome is Outcome.REHEARSAL:
        return f"REHEARSAL complete: no verdict {code}"
    return (
        f"REHEARSAL, not complete: {verdict.outcome} {code}"
        if verdict.rehearsal
        else f"verdict: {verdict.outcome} {code}"
    )


def planned(plan: Plan, text: str) -> str:
    """What `evalrig show` prints: the composed run file, the plan, and what it can decide."""
    lines = [visible(text).rstrip("\n"), "", "# the plan", ""]
    variants = [(v.name, v.role, v.engine, v.weights, _expect(v.expect)) for v in plan.variants]
    lines += [_table(("variant", "role", "engine", "weights", "expected"), variants), ""]
    suites = [
        (s.name, s.family, f"{len(s.samples):,}", f"{len(s.again):,}", f"{s.epochs}", s.sha256[:12])
        for s in plan.suites
    ]
    lines += [_table(("suite", "family", "samples", "A/A", "epochs", "sha256"), suites), ""]
    attempts = sum(len(cell.samples) for cell in plan.cells)
    lines += [f"{count(len(plan.cells), 'cell')}, {count(attempts, 'call of a suite', 'calls of suites')}:", ""]
    cells = [(c.variant, c.suite, f"{c.epoch}", c.stage, f"{len(c.samples):,}") for c in plan.cells]
    lines += [_table(("variant", "suite", "epoch", "stage", "samples"), cells), ""]
    gates = [
        (g.name, g.suite, g.metric or "-", _margin(g, plan), "gating" if g.gating else "diagnostic") for g in plan.gates
    ]
    lines += [_table(("gate", "suite", "metric", "margin", "role"), gates), ""]
    if plan.unused_gates:
        lines += [f"gates not applied, their suite is not in this run: {', '.join(plan.unused_gates)}", ""]
    suites = len({gate.suite for gate in plan.gates if gate.gating})
    each = suite_power(max(suites, 1))
    together = f"; {100 * each:.3g} % for each of {suites} gating suites" if suites > 1 else ""
    lines += [f"# what it can decide (80 % power{together}, no true loss)", "", *_power(plan, each)]
    if missing := uncovered(plan):
        lines += ["", f"not covered: {missing}"]
    return _plain(lines)


def _power(plan: Plan, power: float) -> list[str]:
    """The power table of every gating gate, each at such a power: GO needs all of them to pass."""
    lines: list[str] = []
    for gate in plan.gates:
        metric = metric_of(gate, plan)
        if not gate.gating:
            continue
        if metric and metric.kind == "binary":
            title, table, short = binary_power(gate, metric, plan, power)
            lines += [title, "", _table(*table), *short, ""]
        elif gate.kind in PAIRED:
            title, table = rounds_power(gate, _margin(gate, plan), plan, power)
            lines += [title, "", _table(*table), *filter(None, [slo_power(gate, plan)]), ""]
        elif plan.suite(gate.suite).blocks:
            how = slo_power(gate, plan) or "is read back from the engines, not sampled"
            lines += [f"{gate.name}: margin {_margin(gate, plan)}; {how}", ""]
        else:
            lines += [
                f"{gate.name}: margin {_margin(gate, plan)}; what {count(len(plan.suite(gate.suite).samples), 'sample')} "
                "decide depends on the spread between them, which the run measures (A/A gives the noise in it)",
                "",
            ]
    if not any(gate.gating for gate in plan.gates):
        lines += ["no gate is gating: no candidate can be GO; no checks is not a pass", ""]
    return lines[:-1]


def _margin(gate: GatePlan, plan: Plan) -> str:
    metric = metric_of(gate, plan)
    return margin_words(gate.margin, metric) if metric else f"{gate.margin:g}"


def _expect(expect: object) -> str:
    pairs = expect.items() if isinstance(expect, dict) else ()
    return ", ".join(f"{key} {value}" for key, value in pairs if value) or "-"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; the last one wraps. Colours only for a terminal that wants them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    width = max(60, shutil.get_terminal_size((WIDTH, 24)).columns) if terminal else WIDTH
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=terminal,
        no_color=not terminal or "NO_COLOR" in os.environ,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column != columns[-1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell).replace("\n", " "), style=COLOURS.get(cell, "")) for cell in row))
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _plain(lines: Sequence[str]) -> str:
    """Hyphens for typographic signs: a terminal may know ASCII only."""
    return "\n".join(lines).replace("−", "-").replace("–", "-") + "\n"
