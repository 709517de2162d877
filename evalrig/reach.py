"""How far a measured distance reaches: to the decode path, to the contexts of the product, over one vocabulary."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from evalrig.analysis.kl_excess import excess_of
from evalrig.evidence import Gathered
from evalrig.gate import Evidence
from evalrig.plan import SuitePlan
from evalrig.records import AUDIT
from evalrig.types import REFERENCE, SCORING, Finding, Level, Record, State, Variant

ABSENT = "every attempt made"
"""Rule that most often follows from another: an interruption, a refused or lost engine."""
PATH = "path"
COVERAGE = "coverage"
MOST_OFF_PATH = 0.2
"""Largest share of a measured distance that the way of scoring may itself be off by (shared statistics, 3.1)."""
ABOVE_NOISE = 1.5
"""A self-distance below so many times the reference's own is that noise, whatever share of a small distance it is."""
RESOLVED = 1e-5
"""Nats per token: what float32 lists resolve of a mean."""
MOST_LOST = 0.05
"""Largest share of a variant's answers that the reference may fail to score."""
WAYS: Mapping[str, str] = {"prefill": "by prefill", "cached_prefix": "over a cached prefix"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Path:
    """How far an arm's own decoding lies from the way it is scored."""

    kl: float
    """Nats per token; NaN: no token has a number."""
    tokens: int
    broken: int
    prompts: int


def of_reach(gathered: Gathered, evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """All rules, for every suite that measures a distance."""
    for suite in gathered.plan.suites:
        if any(metric.kind == "distance" for metric in suite.metrics):
            yield from _coverage(gathered, suite)
            for arm in evidence:
                yield from _vocabulary(gathered, suite, arm.candidate)
                yield from _path(gathered, suite, arm)
            for variant in gathered.plan.variants if suite.rescored else ():
                if variant.role != "reference":
                    yield from _rescored(gathered, suite, variant)


def _path(gathered: Gathered, suite: SuitePlan, arm: Evidence) -> Iterator[Finding]:
    """A distance of prefills that is not that of decoding does not count: the variant is served by decoding."""
    name, leg = arm.candidate, leg_of(gathered, suite.name)
    where, scored = f"{name}, {suite.name}", way_of(gathered, suite)
    if suite.rescored:
        text = f"{where}: what is compared is what it drew from while decoding"
        yield Finding(rule=PATH, level=Level.OK, text=text, candidate=name, suite=suite.name)
        return
    own = _self_distance(gathered.records[name, suite.name])
    if own is None:
        text = f"{where}: not provable that decoding gives what was scored {scored}: no variant's own answer was scored"
        yield Finding(rule=PATH, level=Level.WARN, text=text, candidate=name, suite=suite.name)
        return
    if own.broken:
        text = f"{where}: {own.broken} of {own.tokens} decoded positions have no number for their distance from scoring"
        yield Finding(rule=PATH, level=Level.INVALID, text=text, candidate=name, suite=suite.name)
    measured = _measured(arm, suite.name)
    if measured is None or np.isnan(own.kl):
        return  # there is no distance to hold it against; the gate says so
    reference = _self_distance(gathered.records[REFERENCE, suite.name])
    noise = 0.0 if reference is None or np.isnan(reference.kl) else reference.kl
    most = MOST_OFF_PATH * max(measured, 0.0) + RESOLVED
    much = own.kl > most
    off = own.kl > ABOVE_NOISE * noise and own.kl - noise > most
    level = Level.UNDECIDED if off else Level.WARN if much else Level.OK
    text = (
        f"{where}: scored {scored}, and decoding differs from that by {own.kl:.2g} nats per token on {own.tokens} tokens "
        f"of {own.prompts} prompts (the reference: {noise:.2g}), {'more' if much else 'not more'} than "
        f"{MOST_OFF_PATH:.0%} of the {measured:.2g} measured"
    )
    if off:
        text += f"; set {'`leg: cached_prefix` or ' if leg == 'prefill' else ''}`leg: decode`"
    elif much:
        text += ", as the reference does to itself on the same way"
    yield Finding(rule=PATH, level=level, text=text, candidate=name, suite=suite.name)


def _self_distance(records: Sequence[Record]) -> _Path | None:
    """Token-weighted over the prompts on which an arm scored its own answer; None: on none."""
    rows = [record.scores for record in records if "path_tokens" in record.scores]
    if not rows:
        return None
    tokens = np.array([row["path_tokens"] for row in rows])
    broken = np.array([row["path_broken"] for row in rows])
    kl = np.array([row.get("path_kl", 0.0) for row in rows])
    whole = (tokens - broken).sum()
    mean = float((kl * (tokens - broken)).sum() / whole) if whole else float("nan")
    return _Path(kl=mean, tokens=int(tokens.sum()), broken=int(broken.sum()), prompts=len(rows))


def _measured(arm: Evidence, suite: str) -> float | None:
    """The candidate's distance beyond the floor; None where nothing was measured, or what has no number."""
    tokens, floor = arm.distances.get(suite), arm.floors.get(suite)
    if tokens is None or tokens.found is None or tokens.broken:
        return None
    if floor is None or floor.broken:
        return tokens.found.summary.mean
    return excess_of(tokens.by_prompt, floor.by_prompt, arm.alpha, 0.0).excess


def _rescored(gathered: Gathered, suite: SuitePlan, variant: Variant) -> Iterator[Finding]:
    """The reference scored every answer of a variant, and its lists hold numbers."""
    scope = variant.name if variant.role == "candidate" else ""
    planned, records = gathered.planned(variant.name, suite), gathered.rescored[variant.name, suite.name]
    seen = Counter((record.sample, record.epoch) for record in records)
    where = f"{variant.name}, {suite.name}"
    absent, failed = len(planned - seen.keys()), sum(record.state is State.INFRA for record in records)
    if absent:
        text = f"{where}: {absent} of {len(planned)} answers were not scored by the reference"
        yield Finding(rule=ABSENT, level=Level.INVALID, text=text, candidate=scope, suite=suite.name)
    if repeated := sum(count > 1 for count in seen.values()) + len(seen.keys() - planned):
        text = f"{where}: {repeated} answers scored by the reference twice, or never planned"
        yield Finding(rule="complete", level=Level.INVALID, text=text, candidate=scope, suite=suite.name)
    if failed > MOST_LOST * len(planned):
        text = f"{where}: scoring by the reference failed on {failed} of {len(planned)} answers"
        yield Finding(rule="missing", level=Level.UNDECIDED, text=text, candidate=scope, suite=suite.name)
    tokens = gathered.distances(suite, variant.name)
    if tokens is not None and tokens.broken:
        text = (
            f"{where}: {tokens.broken} of {tokens.tokens} positions have non-finite or ambiguous lists on either side"
        )
        yield Finding(rule="logprobs", level=Level.INVALID, text=text, candidate=scope, suite=suite.name)


def _coverage(gathered: Gathered, suite: SuitePlan) -> Iterator[Finding]:
    """Prompts, tokens and the longest context on which a distance was measured, against the product's."""
    wanted = gathered.plan.header.max_context
    records = [r for r in gathered.records[REFERENCE, suite.name] if r.state is State.SCORED]
    turns = [turn for record in records for turn in record.trajectory.turns]
    if not turns:
        return
    longest = max(turn.prompt_tokens + turn.completion_tokens for turn in turns)
    scored = sum(turn.completion_tokens for turn in turns)
    prompts = len({record.sample for record in records})
    size = f"{suite.name}: {prompts:,} prompts, {scored:,} tokens; KL measured up to {longest:,}"
    if not wanted:
        text = f"{size} tokens of context; `scope.max_context` does not say how far it should be"
    elif longest < wanted:
        text = f"{size} of {wanted:,} tokens: longer contexts are not covered"
    else:
        text = f"{size} tokens of context, the {wanted:,} of the scope"
    level = Level.WARN if longest < wanted else Level.OK
    yield Finding(rule=COVERAGE, level=level, text=text, suite=suite.name)


def _vocabulary(gathered: Gathered, suite: SuitePlan, candidate: str) -> Iterator[Finding]:
    """Whole rows of unlike widths are distributions over unlike vocabularies."""
    widths = [_width(gathered, suite, arm) for arm in (REFERENCE, candidate)]
    if all(widths) and widths[0] != widths[1]:
        text = f"{candidate}, {suite.name}: a vocabulary of {widths[1]:,} tokens, the reference's has {widths[0]:,}"
        yield Finding(rule="vocabulary", level=Level.INVALID, text=text, candidate=candidate, suite=suite.name)


def _width(gathered: Gathered, suite: SuitePlan, arm: str) -> int:
    """Tokens in the first whole row of an arm; 0: it has none."""
    for record in gathered.records[arm, suite.name]:
        if record.state is State.SCORED and gathered.holds(record, AUDIT):
            return int(gathered.columns(record, AUDIT)["vocabulary"].shape[1])
    return 0


def way_of(gathered: Gathered, suite: SuitePlan) -> str:
    """How a suite's tokens were really scored: by the leg in the run file, as the reference's engine carries it out."""
    if suite.rescored:
        return "by decoding, against the reference's prefill"
    found = gathered.folder.preflight(REFERENCE)
    own = str(found.fingerprint.flags.get(SCORING, "")) if found else ""
    return f"by {own}" if own else WAYS.get(leg_of(gathered, suite.name), "another way")


def may_differ(gathered: Gathered, suite: SuitePlan) -> bool:
    """What was scored is not what decoding computes, as far as the way tells."""
    return way_of(gathered, suite) in WAYS.values()


def leg_of(gathered: Gathered, suite: str) -> str:
    """How the run file has a suite's tokens scored."""
    found: Any = gathered.plan.config
    for key in ("suites", suite, "options", "leg"):
        found = cast("Mapping[str, Any]", found).get(key) if isinstance(found, Mapping) else None
    return str(found or "prefill")
