"""Rounds of load as shown: every metric as a ratio with its interval and with A/A beside it, and what the blocks tell besides."""

from collections.abc import Mapping

import numpy as np

from evalrig.analysis.load_floor import Claim, beside_floor
from evalrig.analysis.load_ratio import Ratio
from evalrig.evidence import Gathered
from evalrig.levels import level_of, levels_of, lost, over_levels
from evalrig.loads import Floats, Load, Rounds
from evalrig.plan import GatePlan, SuitePlan
from evalrig.report.load_pictures import pictures
from evalrig.report.load_sentences import sentences
from evalrig.report.phase_pictures import phase_pictures
from evalrig.report.request_cost import request_cost
from evalrig.report.shown_load import LoadView
from evalrig.report.shown_maps import Row, Table
from evalrig.report.solved import solved_lines
from evalrig.report.words import NOTHING, count, level, percent, significant
from evalrig.speed import EMULATION
from evalrig.types import AGAIN, REFERENCE, Verdict

HEADLINES = ("output_tokens_per_second", "prompt_tokens_per_second", "ttft_p50", "tpot_p50", "usd_per_million_output")
BY_LEVEL = ("tokens_per_gpu", "tokens_per_user", "output_tokens_per_second", "ttft_p50", "tpot_p50")


def load_view(gathered: Gathered, verdict: Verdict, suite: SuitePlan) -> LoadView | None:
    """Everything about a suite of load; None of any other."""
    candidates = gathered.plan.candidates if suite.blocks else ()
    loads = {name: gathered.evidence(name).loads[suite.name] for name in candidates}
    if not loads:
        return None
    first, alpha = next(iter(loads.values())), gathered.plan.header.alpha
    claims = {name: _claims(load, alpha) for name, load in loads.items()}
    tables = [_table(gathered, verdict, suite, name, claims[name]) for name in loads]
    if len(levels_of(first)) > 1:
        tables += [_by_level(name, load, alpha) for name, load in loads.items()]
    tables += [
        found for name, load in loads.items() if (found := request_cost(gathered, suite, name, load, alpha)) is not None
    ]
    lines = [line for arm, rows in _voids(loads).items() for line in (f"{arm}, {row}" for row in rows)]
    return LoadView(
        note=_note(suite, loads),
        label=_label(first),
        tables=(*tables, _others(loads)),
        lines=(*sentences(gathered, suite, loads, alpha), *solved_lines(gathered, loads, alpha)),
        void=tuple(lines),
        pictures=(*pictures(gathered, verdict, suite, loads), *phase_pictures(gathered, suite, loads, alpha)),
        summary=tuple(_summary(name, load, claims[name]) for name, load in loads.items()),
    )


def _label(load: Load) -> str:
    if not load.emulated:
        return ""
    return (
        f"{EMULATION} ({load.emulated}). No check of speed gates, and no number here speaks for the speed of a format"
    )


def _claims(load: Load, alpha: float) -> dict[str, Claim]:
    """Of every metric that some round has; the margin does not matter for what is shown."""
    found = {
        name: beside_floor(one.reference, one.candidate, one.again, 0.0, alpha, one.metric.less)
        for name, one in over_levels(load).items()
    }
    return {name: claim for name, claim in found.items() if np.isfinite(claim.ratio.value)}


def _voids(loads: Mapping[str, Load]) -> dict[str, tuple[str, ...]]:
    """By variant: the reference's are the same for every candidate."""
    return {arm: rows for load in loads.values() for arm, rows in load.void.items() if rows}


def _note(suite: SuitePlan, loads: Mapping[str, Load]) -> str:
    """What a round is, and how many count."""
    levels = levels_of(next(iter(loads.values())))
    gone = {name: lost(load, name) for name, load in loads.items()}
    counted = [
        f"{name}: {of - without} of {count(of, 'round')} with both halves" for name, (without, of) in gone.items()
    ]
    several = (
        f"; a round has a block at each of {count(len(levels), 'concurrency', 'concurrencies')}, and counts as one"
        if len(levels) > 1
        else ""
    )
    return (
        "In a round every variant serves the same requests, drawn once, one variant after the other in random order. A ratio "
        f"is the variant's number over the reference's, round by round{several}. {'; '.join(counted)}."
    )


def _table(gathered: Gathered, verdict: Verdict, suite: SuitePlan, name: str, claims: Mapping[str, Claim]) -> Table:
    load, alpha = gathered.evidence(name).loads[suite.name], gathered.plan.header.alpha
    rounds = over_levels(load)
    absent = [metric.name for metric in suite.metrics if metric.name not in claims]
    gone = (
        f" Not given, for the engine does not tell, a round holds a zero, or there were too few requests: {', '.join(absent)}."
        if absent
        else ""
    )
    return Table(
        title=f"{name}: ratios to the reference",
        columns=("metric", "reading", "reference", name, "ratio", f"{level(alpha)} interval", "A/A",
                 "A/A interval", "resolves"),
        rows=tuple(_row(verdict, gathered, suite, name, rounds[metric], claim) for metric, claim in claims.items()),
        note=(
            f"Medians over rounds, and the geometric mean of the rounds' ratios{_over(load)}. A/A: the reference's second run "
            "over its first, what no difference looks like here. Resolves: the loss that these rounds would tell "
            f"from none, with 80 % power.{gone}"
        ),
        named=1,
    )  # fmt: skip


def _over(load: Load) -> str:
    """Said where a round holds several concurrencies."""
    return "; a round is the geometric mean over its concurrencies" if len(levels_of(load)) > 1 else ""


def _row(verdict: Verdict, gathered: Gathered, suite: SuitePlan, arm: str, rounds: Rounds, claim: Claim) -> Row:
    metric, ratio, floor = rounds.metric, claim.ratio, claim.floor
    both = np.isfinite(rounds.reference) & np.isfinite(rounds.candidate)
    gated = _gated(verdict, gathered, suite, arm, metric.name)
    return Row(
        label=metric.name,
        hint=f"{metric.units}{'; less is better' if metric.less else ''}{gated and f'; {gated}'}",
        cells=(
            reading(claim, metric.less),
            significant(float(np.median(rounds.reference[both]))),
            significant(float(np.median(rounds.candidate[both]))),
            significant(ratio.value, 4),
            limits(ratio),
            significant(floor.value, 4) if floor else NOTHING,
            limits(floor) if floor else NOTHING,
            percent(claim.resolvable, 2) if ratio.interval else NOTHING,
        ),
    )


def limits(ratio: Ratio) -> str:
    """The interval of a ratio in words."""
    return f"{significant(ratio.low, 4)} to {significant(ratio.high, 4)}" if ratio.interval else "no interval"


def reading(claim: Claim, less: bool) -> str:
    """What the rounds show, said with A/A in view."""
    if not claim.ratio.interval:
        return "too few rounds"
    if claim.floor is None:
        return "no A/A"
    if not claim.resolved:
        return "like A/A"
    return "better" if (claim.ratio.value < 1) == less else "worse"


def _gated(verdict: Verdict, gathered: Gathered, suite: SuitePlan, arm: str, metric: str) -> str:
    """The gates on a metric and what they found."""
    gates = {gate.name: gate for gate in gathered.plan.gates if (gate.suite, gate.metric) == (suite.name, metric)}
    checks = verdict.candidates[arm].checks if arm in verdict.candidates else ()
    found = [
        f"{check.gate}{placed(gates[check.gate])}: {check.outcome}{'' if check.gating else ', does not gate'}"
        for check in checks
        if check.gate in gates
    ]
    return "; ".join(found)


def placed(gate: GatePlan) -> str:
    """Where a gate looks, if not at whole rounds: its number is then another than the table's."""
    if gate.options.get("at_slo"):
        return " (at the SLO point)"
    lanes = gate.options.get("concurrency")
    return f" (at {lanes} requests at once)" if lanes else ""


def _by_level(name: str, load: Load, alpha: float) -> Table:
    """The same, concurrency by concurrency."""
    levels = levels_of(load)
    rows: list[Row] = []
    for metric in (load.rounds[one] for one in BY_LEVEL if one in load.rounds):
        for at in levels:
            here = np.array([level_of(one) == at for one in load.names])
            ours, theirs, again = (arm[here] for arm in (metric.reference, metric.candidate, metric.again))
            claim = beside_floor(ours, theirs, again, 0.0, alpha, metric.metric.less)
            if claim.ratio.n:
                cells = (at, reading(claim, metric.metric.less), _median(ours), _median(theirs))
                rows.append(
                    Row(
                        label=metric.metric.name, cells=(*cells, significant(claim.ratio.value, 4), limits(claim.ratio))
                    )
                )
    return Table(
        title=f"{name}: ratios by concurrency",
        columns=("metric", "concurrency", "reading", "reference", name, "ratio", f"{level(alpha)} interval"),
        rows=tuple(rows),
        note="Fewer rounds each, so wider intervals. At one concurrency both variants serve as many users, each at its own speed.",
        named=2,
    )


def _others(loads: Mapping[str, Load]) -> Table:
    """Scores that are no metrics: medians of each arm."""
    first = next(iter(loads.values()))
    arms = {REFERENCE: first.told.get(REFERENCE, {})}
    arms |= {name: load.told.get(name, {}) for name, load in loads.items()}
    arms[f"A/A ({AGAIN})"] = first.told.get(AGAIN, {})
    known = sorted(
        {score for told in arms.values() for score in told} - {one.metric.score for one in first.rounds.values()}
    )
    rows = [Row(label=score, cells=tuple(_median(told.get(score)) for told in arms.values())) for score in known]
    return Table(
        title="What else the blocks tell, medians over rounds",
        columns=("number", *arms),
        rows=tuple(rows),
        note="Seconds, counts and shares, as docs/load.md defines them. A dash: not told.",
    )


def _median(values: Floats | None) -> str:
    known = values[np.isfinite(values)] if values is not None else np.zeros(0)
    return significant(float(np.median(known))) if known.size else NOTHING


def _summary(name: str, load: Load, claims: Mapping[str, Claim]) -> str:
    """One sentence a candidate, for those who open nothing else."""
    shown: list[str] = []
    for metric in (one for one in HEADLINES if one in claims):
        claim, less = claims[metric], load.rounds[metric].metric.less
        shown.append(f"{metric} × {significant(claim.ratio.value, 4)} ({limits(claim.ratio)}; {reading(claim, less)})")
    said = ", ".join(shown) or "no round with both halves, so nothing is said"
    return f"{name}: {said}{f'. {EMULATION}' if load.emulated else ''}"
