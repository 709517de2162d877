"""What the gates of a plan can decide before anything is measured, for `evalrig show`."""

from evalrig.analysis.load_power import resolvable_effect, rounds_needed
from evalrig.analysis.power import cannot_decide, power_rows
from evalrig.plan import GatePlan, Plan
from evalrig.report.words import count, margin_words, percent
from evalrig.types import Metric

PAIRED = ("load_ratio", "saving")
"""Gates on ratios of a metric of load."""
NOISES = (0.003, 0.01, 0.03)
"""Of the ratios of single rounds: a quiet machine with GPUs, a shared one, a busy virtual one."""
Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Columns and rows of a table."""


def binary_power(gate: GatePlan, metric: Metric, plan: Plan, power: float) -> tuple[str, Rows, list[str]]:
    """Of a gate on a right-or-wrong score: a title, a table, and a line on each discordance at which it cannot decide."""
    samples = len(plan.suite(gate.suite).samples)
    n = plan.suite(gate.suite).clusters or samples  # what shares a cluster may move as one
    rows = power_rows(n, gate.margin, plan.header.alpha, power)
    table = [
        (
            f"{row.discordance:.0%}",
            f"{row.needed:,}",
            f"{metric.scale * row.resolvable:.2g} {metric.units}",
            "yes" if row.decides else "no",
        )
        for row in rows
    ]
    title = f"{gate.name}: margin {margin_words(gate.margin, metric)}, n={n}"
    if n < samples:
        title += f": clusters of {samples:,} samples, which may move as one"
    needed = "clusters needed" if n < samples else "samples needed"
    columns = ("discordance", needed, "smallest margin it decides", "decides")
    short = [cannot_decide(gate.suite, n, gate.margin, row) for row in rows if not row.decides]
    return title, (columns, table), short


def rounds_power(gate: GatePlan, margin: str, plan: Plan, power: float) -> tuple[str, Rows]:
    """Of a gate on the ratio of a metric of load: what its rounds tell apart, by their noise."""
    suite = plan.suite(gate.suite)
    n, alpha = suite.clusters or len(suite.samples), plan.header.alpha
    title = f"{gate.name}: margin {margin}, {count(n, 'round')}"
    told = [percent(resolvable_effect(n, noise, alpha, power)) for noise in NOISES]
    if gate.kind == "saving" or gate.margin <= 0:
        columns = ("noise of a round", "a gain must exceed what is asked by")
        return title, (columns, [(percent(noise), one) for noise, one in zip(NOISES, told, strict=True)])
    needs = [rounds_needed(noise, gate.margin, 1.0, alpha, power) for noise in NOISES]
    rows = [
        (percent(noise), f"{need:,}" if need else "more than a million", one, "yes" if need and n >= need else "no")
        for noise, need, one in zip(NOISES, needs, told, strict=True)
    ]
    return title, (("noise of a round", "rounds needed", "smallest margin it decides", "decides"), rows)
