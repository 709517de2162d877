"""From a verdict and its evidence to what is shown. All wording and rounding is decided here and in the modules beside it."""

from evalrig.evidence import Gathered
from evalrig.loads import emulated
from evalrig.plan import Plan
from evalrig.proof import Preflight
from evalrig.records import RunFolder
from evalrig.report import differences, distances, flips, proved
from evalrig.report.sentences import MEANING, gate_of, headline, metric_of, overall, remarks, title
from evalrig.report.shown import Card, CheckRow, Facts, GainRow, Head, Page
from evalrig.report.words import (
    NOTHING,
    amount,
    cleaned,
    interval,
    level,
    listed,
    margin_words,
    significant,
    sized,
)
from evalrig.types import REFERENCE, CandidateVerdict, Check, Outcome, Verdict
from evalrig.verdict import not_covered

NO_CAPACITY = "the engine does not say what it holds, so nothing can be said about what is gained"

NOT_REAL = "not measured in a rehearsal: a stand-in gains nothing"


def page(folder: RunFolder, verdict: Verdict, gathered: Gathered | None = None) -> Page:
    """Everything the report shows, in a form that depends on the run folder and the verdict only."""
    gathered = gathered or Gathered(folder)
    plan = gathered.plan
    arms = {name: gathered.evidence(name) for name in plan.candidates}
    return cleaned(
        Page(
            head=head(folder, plan, verdict),
            cards=tuple(card(folder, plan, name, one) for name, one in verdict.candidates.items()),
            validity=proved.validity(verdict),
            states=proved.STATES,
            accounting=proved.accounting(verdict),
            suites=differences.suites(gathered, verdict),
            distances=distances.distances(gathered, arms),
            flips=flips.flips(gathered),
            facts=Facts(
                engines=proved.engines(folder, plan),
                sources=proved.sources(plan),
                repeat=proved.repeat(folder, plan),
                rehearsal=verdict.rehearsal,
            ),
        )
    )


def head(folder: RunFolder, plan: Plan, verdict: Verdict) -> Head:
    """The top of the page; needs no evidence."""
    header = plan.header
    model = header.model or "not named in the run file"
    outcomes = [one.outcome for one in verdict.candidates.values()]
    return Head(
        run=verdict.run,
        time=folder.path.resolve().name,
        question=header.question,
        outcome=title(verdict.outcome, bool(verdict.rehearsal)),
        sentence=overall(verdict.outcome, outcomes, verdict.exit_code),
        model=f"a stand-in for {model}" if verdict.rehearsal else model,
        note=header.note,
        confidence=(
            f"Every limit holds with {100 * (1 - header.alpha):g} % confidence on its side: "
            f"intervals are {level(header.alpha)} intervals. In scores a minus means that the candidate "
            "is worse; a distance says how far, not in which direction."
        ),
        not_covered=uncovered(plan, folder),
    )


def uncovered(plan: Plan, folder: RunFolder | None = None) -> str:
    """What a reviewer asks about and this run did not measure, or did not judge; `folder`: where a run has begun."""
    proofs = [folder.preflight(variant.name) for variant in plan.variants] if folder else []
    return ", ".join(not_covered(plan, emulated(proofs)))


def card(folder: RunFolder, plan: Plan, name: str, one: CandidateVerdict) -> Card:
    """One candidate."""
    real = not plan.header.rehearsal
    gains = _gains(folder.preflight(REFERENCE), folder.preflight(name)) if real else ()
    return Card(
        name=name,
        outcome=one.outcome,
        headline=headline(name, one, plan),
        meaning=MEANING[one.outcome],
        gains=gains,
        gain_note=_gain_note(gains) if real else NOT_REAL,
        checks=tuple(_check_row(check, plan) for check in one.checks),
        remarks=tuple(remarks(one, plan)) if one.outcome not in (Outcome.INVALID, Outcome.REHEARSAL) else (),
        scope=one.scope,
    )


def _check_row(check: Check, plan: Plan) -> CheckRow:
    gate = gate_of(check, plan)
    metric = metric_of(gate, plan)
    estimate = check.estimate
    shown = limits = margin = NOTHING
    if gate and metric:
        margin = margin_words(gate.margin, metric)
        if estimate and metric.kind == "ratio":  # a level, not a difference
            shown, limits = significant(estimate.value, 4), NOTHING
            if estimate.low is not None and estimate.high is not None:
                limits = f"{significant(estimate.low, 4)} to {significant(estimate.high, 4)}"
        elif estimate:
            shown, limits = amount(estimate.value, metric), interval(estimate.low, estimate.high, metric)
    elif estimate:
        shown = f"{significant(estimate.value)} {estimate.units}"
        limits = f"{significant(estimate.low)} to {significant(estimate.high)}"
    return CheckRow(
        gate=check.gate,
        suite=check.suite,
        role="gating" if check.gating else "diagnostic",
        outcome=check.outcome,
        margin=margin,
        estimate=shown,
        interval=limits,
        needed=f"about {check.needed:,}" if check.needed else NOTHING,
        reason=check.reason,
    )


def _gains(reference: Preflight | None, candidate: Preflight | None) -> tuple[GainRow, ...]:
    """Capacity of both sides; a line only where both engines say it."""
    if reference is None or candidate is None:
        return ()
    ours, theirs = reference.capacity, candidate.capacity
    rows = [
        ("KV cache: tokens in the same pool", ours.kv_tokens, theirs.kv_tokens, lambda n: f"{n:,.0f}"),
        ("KV cache: memory per token", ours.kv_bytes_per_token, theirs.kv_bytes_per_token, sized),
        ("weights in memory", ours.weight_bytes, theirs.weight_bytes, sized),
    ]
    return tuple(
        GainRow(what=what, reference=words(before), candidate=words(after), ratio=_ratio(after / before))
        for what, before, after, words in rows
        if before and after
    )


def _ratio(ratio: float) -> str:
    return "same" if abs(ratio - 1) < 5e-4 else f"× {ratio:.2f}"


def _gain_note(gains: tuple[GainRow, ...]) -> str:
    if not gains:
        return NO_CAPACITY
    changed = [f"{row.what} {row.ratio}" for row in gains if row.ratio != "same"]
    return listed(changed) if changed else "nothing that the engine reports: same tokens in the cache, same weights"
