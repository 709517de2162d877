"""What a solved task takes: tokens that the accuracy suites spent on it, and with the price of a token what it costs."""

from collections.abc import Iterator, Mapping

import numpy as np

from evalrig.analysis.cost import Tasks, product, tokens_per_solved
from evalrig.analysis.load_ratio import Ratio, ratio_of
from evalrig.evidence import Gathered
from evalrig.levels import at_slo, over_levels
from evalrig.loads import Load
from evalrig.plan import SuitePlan
from evalrig.report.words import significant
from evalrig.types import REFERENCE, Metric, Record

COST = "usd_per_million_output"


def solved_lines(gathered: Gathered, loads: Mapping[str, Load], alpha: float) -> Iterator[str]:
    """A sentence for each candidate and each suite of right-or-wrong answers that were generated."""
    for name, load in loads.items():
        for suite in gathered.plan.suites:
            metric = next((one for one in suite.metrics if one.kind == "binary" and one.over == "mean"), None)
            if metric is None or (tasks := _tasks(gathered, suite, metric, name)) is None:
                continue
            tokens = tokens_per_solved(tasks, alpha=alpha)
            yield f"{name}: tokens generated per solved task of {suite.name} × {_words(tokens)}{_dollars(name, load, tokens, alpha)}."


def _dollars(name: str, load: Load, tokens: Ratio, alpha: float) -> str:
    served = at_slo(load, name, alpha)
    rounds = (over_levels(load) if isinstance(served, str) else served.seen.rounds).get(COST)
    if rounds is None:
        return ""
    costs = ratio_of(rounds.reference, rounds.candidate, 0.0, alpha, less=True)
    return f"; dollars per solved task × {_words(product(costs, tokens, alpha=alpha))}" if costs.n else ""


def _words(ratio: Ratio) -> str:
    if not np.isfinite(ratio.value):
        return f"not known ({ratio.method})"
    limits = f"{significant(ratio.low, 4)} to {significant(ratio.high, 4)}" if ratio.interval else ratio.method
    return f"{significant(ratio.value, 4)} ({limits})"


def _tasks(gathered: Gathered, suite: SuitePlan, metric: Metric, name: str) -> Tasks | None:
    """Attempts that both arms made; None: nothing was generated, or nothing is shared."""
    ours, theirs = ({(r.sample, r.epoch): r for r in gathered.records[arm, suite.name]} for arm in (REFERENCE, name))
    both = [key for key in sorted(ours.keys() & theirs.keys()) if _counts(ours[key], theirs[key], metric)]
    spent = [[float(_spent(arm[key])) for key in both] for arm in (ours, theirs)]
    if not all(sum(one) for one in spent):
        return None
    of = gathered.samples[suite.name]
    return Tasks(
        reference_tokens=spent[0],
        reference_solved=[ours[key].scores.get(metric.score, 0.0) for key in both],
        candidate_tokens=spent[1],
        candidate_solved=[theirs[key].scores.get(metric.score, 0.0) for key in both],
        cluster=[of[sample].cluster or sample for sample, _ in both],
    )


def _counts(ours: Record, theirs: Record, metric: Metric) -> bool:
    """Both were marked, or cut short and so wrong: those cost their tokens, too."""
    return all(metric.score in one.scores or one.state.value in ("truncated", "refused") for one in (ours, theirs))


def _spent(record: Record) -> int:
    return sum(turn.completion_tokens for turn in record.trajectory.turns)
