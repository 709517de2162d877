"""What the gates of a plan can decide before anything is measured, for `evalrig show`."""

from evalrig.analysis.attainment import requests_needed
from evalrig.analysis.load_power import resolvable_effect, rounds_needed
from evalrig.analysis.power import cannot_decide, power_rows
from evalrig.levels import ATTAINMENT, concurrency_of, levels_in, round_of
from evalrig.plan import GatePlan, Plan
from evalrig.report.words import count, margin_words, percent
from evalrig.types import Metric

PAIRED = ("load_ratio", "saving")
"""Gates on ratios of a metric of load."""
NOISES = (0.003, 0.01, 0.03)
"""Of the ratios of single rounds: a quiet machine with GPUs, a shared one, a busy virtual one."""
REQUESTS, LANES = 8, (8,)
"""Of a suite of load whose options do not say."""
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


def slo_power(gate: GatePlan, plan: Plan) -> str:
    """Whether a gate that rests on shares of requests has enough of them, said in a line; empty: it does not rest on them."""
    at_slo = bool(gate.options.get("at_slo"))
    if gate.kind != "slo" and not at_slo:
        return ""
    options = plan.config["suites"][gate.suite]["options"]
    per_lane, rounds = (
        int(options.get("requests", REQUESTS)),
        len({round_of(one) for one in plan.suite(gate.suite).samples}),
    )
    lanes = [concurrency_of(level) for level in levels_in(plan.suite(gate.suite).samples) if level]
    lanes = lanes or [int(n) for n in options.get("concurrency", LANES)]
    if dict(options.get("pace", {})).get("loop") == "open":
        lanes = [1]
    asked = float(dict(options.get("slo", {})).get("attainment", ATTAINMENT)) if at_slo else 1 - gate.margin
    if one := gate.options.get("concurrency"):
        lanes = [int(one)]
    had = per_lane * rounds * (lanes[0] if at_slo else sum(lanes))
    needed = requests_needed(asked, plan.header.alpha)
    where = " at the lightest concurrency" if at_slo and len(lanes) > 1 else ""
    enough = "enough if few miss it" if had >= 2 * needed else "hardly enough: one that misses it is too many"
    if had < needed:
        enough = "too few to decide anything: raise `requests` or the rounds"
    return f"{100 * asked:.4g} % within the SLO takes {needed:,} requests of which none misses it; {had:,}{where} are {enough}"
