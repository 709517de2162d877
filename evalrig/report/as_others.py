"""What another load generator would have printed of the same blocks, beside what is measured here, and why they differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evalrig.analysis.percentiles import least, percentile
from evalrig.analysis.serving import latencies
from evalrig.analysis.windows import steady, tokens_within
from evalrig.errors import UsageError
from evalrig.loadgen.block import Block
from evalrig.loadgen.events import parse
from evalrig.loadgen.raw import blocks_in, read_block
from evalrig.loadgen.served import Floats, Served
from evalrig.records import RunFolder
from evalrig.report.other_tools import TOOLS, Counted, Tool, stream

SAME = 0.001
"""Share by which two numbers may differ and still be called the same."""
ROWS = (
    ("TTFT p50, ms", "ttft", 50),
    ("TTFT p99, ms", "ttft", 99),
    ("TPOT p50, ms", "tpot", 50),
    ("ITL p50, ms", "itl", 50),
    ("ITL p99, ms", "itl", 99),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """One block, counted both ways."""

    block: Block
    served: Served
    theirs: Sequence[Counted]


def as_others(folder: RunFolder, tool: str) -> str:
    """Text, one table a suite and variant, all rounds pooled. UsageError: the run has no blocks of load."""
    plan = folder.plan()
    parts: list[str] = []
    for suite in (suite.name for suite in plan.suites if suite.blocks):
        for variant in plan.variants:
            filed = {record.sample for record in folder.records(variant.name, suite)}
            kept = blocks_in(folder.variant_path(variant.name) / "load" / suite)
            paths = [path for path in kept if path.name in filed]  # else of a round that was cut short
            if paths:
                parts.append(f"{suite} / {variant.name}: {table(paths, tool)}")
    if not parts:
        raise UsageError(f"{folder.path}: no blocks of load; `--as` is about runs with a suite of kind `load`")
    return "\n".join(parts)


def table(paths: Sequence[Path], name: str) -> str:
    """The rounds of one variant, pooled, as the tool of that name defines things."""
    tool = TOOLS[name]
    blocks = [read_block(path) for path in paths]
    rounds = [_counted(block, tool) for block in blocks if not block.health.void]
    void = len(blocks) - len(rounds)
    left = f"; {void} void, left out" if void else ""
    if not rounds:
        return f"all {void} blocks are void\n"
    good = sum(len(one.theirs) for one in rounds)
    sent = sum(len(one.served.requests.ok) for one in rounds)
    lines = [f"rounds {len(rounds)}{left}; {good} of {sent} requests answered, by {tool.title}"]
    lines.append(f"  {'':24}{name:>12}{'evalrig':>18}")
    for title, metric, percent in ROWS:
        theirs, ours = _theirs(rounds, metric, percent), _ours(rounds, metric, percent)
        lines.append(_line(title, theirs, ours, tool.why[metric]))
    lines.append(_line("output tokens/s", _their_output(rounds), _our_output(rounds), tool.why["output"]))
    return "\n".join(lines) + "\n"


def _counted(block: Block, tool: Tool) -> _Round:
    seen = [stream(exchange) for exchange in block.exchanges]
    return _Round(block=block, served=parse(block), theirs=[tool.count(one) for one in seen if one is not None])


def _line(title: str, theirs: float | None, ours: float | str, why: str) -> str:
    shown = "none" if theirs is None else f"{theirs:.3f}"
    beside = ours if isinstance(ours, str) else f"{ours:.3f}"
    same = theirs is not None and not isinstance(ours, str) and abs(theirs - ours) <= SAME * abs(ours)
    return f"  {title:24}{shown:>12}{beside:>18}   {'same here' if same else why}"


def _theirs(rounds: Sequence[_Round], metric: str, percent: int) -> float | None:
    """They print a percentile of however few values. Milliseconds."""
    counted = [one for part in rounds for one in part.theirs]
    if metric == "itl":
        values = [gap for one in counted for gap in one.itl]
    else:
        values = [value for one in counted if (value := getattr(one, metric)) is not None]
    return float(np.percentile(values, percent)) * 1000 if values else None


def _ours(rounds: Sequence[_Round], metric: str, percent: int) -> float | str:
    values: Floats = np.concatenate([getattr(latencies(part.served), metric) for part in rounds])
    values = values[~np.isnan(values)]
    found = percentile(values, percent / 100)
    if found is None:
        return f"{len(values)} of {least(percent / 100)} needed" if len(values) else "none"
    return found.value * 1000


def _their_output(rounds: Sequence[_Round]) -> float | None:
    """Mean over rounds."""
    rates: list[float] = []
    for part in rounds:
        counts = [one.tokens for one in part.theirs]
        sent = [exchange.sent for exchange in part.block.exchanges if exchange.sent.sent]
        if not counts or None in counts:
            return None
        seconds = (max(one.ended for one in sent) - min(one.sent for one in sent)) * 1e-9
        if seconds <= 0:
            return None
        rates.append(sum(count for count in counts if count is not None) / seconds)
    return float(np.mean(rates))


def _our_output(rounds: Sequence[_Round]) -> float | str:
    rates: list[float] = []
    for part in rounds:
        window = steady(part.served.requests)
        tokens = None if window is None else tokens_within(part.served, window)
        if window is None or window.seconds <= 0 or tokens is None:
            return "none"
        rates.append(tokens / window.seconds)
    return float(np.mean(rates))
