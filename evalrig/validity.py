"""Can the measurement be trusted? One rule a function; each says what it looked at, also when all is well.

What invalidates, what only holds one suite back and what is merely said: see docs/statistics.md.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from evalrig.analysis.binary import mcnemar_midp
from evalrig.analysis.kl import row_faults
from evalrig.analysis.kl_excess import above_floor, excess_of
from evalrig.analysis.noise import aa_findings
from evalrig.analysis.paired import two_sided_p
from evalrig.confinement import of_programs
from evalrig.distance import ROUNDING, ambiguous, misplaced
from evalrig.evidence import Gathered
from evalrig.gate import Evidence
from evalrig.likeness import alone, asked, beside, climbed
from evalrig.load_health import of_load
from evalrig.plan import SuitePlan, sample_digest
from evalrig.proof import Preflight
from evalrig.reach import ABSENT, of_reach
from evalrig.records import AUDIT
from evalrig.stability import of_events
from evalrig.types import AGAIN, NON_FINITE, REFERENCE, SPLIT, Finding, Level, State

FEWEST_AGAIN = 10
"""Pairs below which A/A could not fail whatever it saw: ten changes in one direction reach p = .001."""
MISSING_DISTANCE = 0.05
"""Largest share of unscored prompts in an arm of a distance suite."""
MOST_CUT = 0.05
"""Largest share of the reference's answers that a limit may cut before they are complete."""


def findings(gathered: Gathered, evidence: Sequence[Evidence]) -> list[Finding]:
    """All rules, in the order a reviewer asks."""
    found = [*_registration(gathered), *_interruption(gathered), *_proved(gathered), *of_events(gathered)]
    for suite in gathered.plan.suites:
        for variant in gathered.plan.variants:
            for rule in (_complete, _rows, _audited):
                found += rule(gathered, suite, variant.name)
        for candidate in gathered.plan.candidates:
            for rule in (_same_tokens, _lost, _cut, _echoed):
                found += rule(gathered, suite, candidate)
    for arm in evidence:
        found += [*_engaged(gathered, arm), *_above_floor(arm)]
    if gathered.plan.header.rehearsal:
        found += _rehearsed(gathered)
    found += [*of_programs(gathered), *of_reach(gathered, evidence), *of_load(gathered, evidence)]
    return [*found, *_noise(gathered)]


def _proved(gathered: Gathered) -> Iterator[Finding]:
    """Each variant on its own, and against the reference."""
    folder = gathered.folder
    reference, again = folder.preflight(REFERENCE), folder.preflight(AGAIN)
    arms = {variant.name: variant for variant in gathered.plan.variants}
    for variant in gathered.plan.variants:
        scope = variant.name if variant.role == "candidate" else ""
        found = folder.preflight(variant.name)
        if reason := folder.failed(variant.name):
            whole = not any(gathered.absent(variant.name, suite) for suite in gathered.plan.suites)
            text = f"{reason}; another process made all attempts" if whole else reason
            level = Level.WARN if whole else Level.INVALID
            yield Finding(rule="engine lost", level=level, text=text, candidate=scope)
        elif found is None:
            text = f"{variant.name}: nothing was proved; its engine was not reached"
            yield Finding(rule="preflight", level=Level.INVALID, text=text, candidate=scope)
        if found is not None and variant.role != "again":
            yield from expected(found, bool(gathered.plan.chats))
        if found is not None and reference is not None and variant.role == "candidate":
            yield from compare(reference, found)
        if variant.role == "candidate":
            yield from asked(arms[REFERENCE], variant)
    if reference and again and reference.fingerprint != again.fingerprint:
        text = "reference_again says it is another engine than the reference: A/A compares unlike things"
        yield Finding(rule="same engine", level=Level.INVALID, text=text)


def compare(reference: Preflight, candidate: Preflight) -> list[Finding]:
    """A candidate against the reference, from what was proved about both; used before a run and when judging."""
    name = candidate.variant
    found: list[Finding] = []
    prompts = reference.probes.prompt_digests
    unlike = [probe for probe, digest in prompts.items() if candidate.probes.prompt_digests.get(probe) != digest]
    if unlike:
        text = f"{name}: other prompt tokens than the reference on probes {', '.join(unlike)}; tokenizer or template differ"
        found.append(Finding(rule="prompt tokens", level=Level.INVALID, text=text, candidate=name))
    elif prompts:
        text = f"{name}: the same tokens as the reference on {len(prompts)} probes"
        found.append(Finding(rule="prompt tokens", level=Level.OK, text=text, candidate=name))
    else:
        text = f"{name}: the engine gives no token ids of a prompt; only their number in chats is compared"
        found.append(Finding(rule="prompt tokens", level=Level.WARN, text=text, candidate=name))
    found.append(_engaged_on_probes(reference, candidate))
    ours, theirs = reference.fingerprint, candidate.fingerprint
    for key in ("engine", "version", "template_digest", "tokenizer_digest"):
        if getattr(ours, key) != getattr(theirs, key):
            level = Level.WARN if key in ("engine", "version") else Level.INVALID
            text = f"{name}: {key} is {getattr(theirs, key)!r}, the reference's {getattr(ours, key)!r}"
            found.append(Finding(rule="same engine", level=level, text=text, candidate=name))
    return [*found, *beside(reference, candidate)]


def _engaged_on_probes(reference: Preflight, candidate: Preflight) -> Finding:
    """Bit-identical where both were measured: the candidate is the reference. A split may be, and is another engine."""
    name = candidate.variant
    if not reference.probes.logprob_digests:
        text = f"{name}: not provable that it is another variant: the engine gives no logprobs"
        return Finding(rule="engaged", level=Level.WARN, text=text, candidate=name)
    both = [probe for probe in reference.probes.logprob_digests if probe in candidate.probes.logprob_digests]
    if not both:
        text = f"{name}: not provable that it is another variant: no probe was scored in both arms"
        return Finding(rule="engaged", level=Level.WARN, text=text, candidate=name)
    probes = len({probe.partition(",")[0] for probe in both})
    same = all(reference.probes.logprob_digests[probe] == candidate.probes.logprob_digests[probe] for probe in both)
    if same and _split(reference, candidate):
        text = f"{name}: prefill and decode run apart, bit-identical to the reference on {probes} probes"
        return Finding(rule="engaged", level=Level.OK, text=text, candidate=name)
    if same:
        text = f"{name}: bit-identical to the reference on every probe; the quantisation did not engage"
        return Finding(rule="engaged", level=Level.INVALID, text=text, candidate=name)
    text = f"{name}: its logprobs are not the reference's on {probes} probes"
    return Finding(rule="engaged", level=Level.OK, text=text, candidate=name)


def _split(reference: Preflight | None, candidate: Preflight | None) -> bool:
    """One of the two, or both in another way, prefills and decodes in different servers."""
    if reference is None or candidate is None:
        return False
    return reference.fingerprint.flags.get(SPLIT) != candidate.fingerprint.flags.get(SPLIT)


def expected(found: Preflight, chats: bool = False) -> list[Finding]:
    """Does the engine say what the run file expects of it? `chats`: some suite needs its chat route."""
    scope = "" if found.variant in (REFERENCE, AGAIN) else found.variant
    findings: list[Finding] = []
    for key, wanted in found.expect.items():
        said = getattr(found.fingerprint, key)
        level = Level.OK if said == wanted else Level.INVALID if said else Level.WARN
        words = (
            f"{key} is {said}, as expected" if said == wanted else f"{key} is {said or 'not told'}, expected {wanted}"
        )
        findings.append(Finding(rule="expected dtype", level=level, text=f"{found.variant}: {words}", candidate=scope))
    for key in sorted({"weights", "kv_cache"} - found.expect.keys()):
        said = getattr(found.fingerprint, key) or "not told"
        text = f"{found.variant}: {key} is {said}; nothing was expected, so it is not proved; set `expect.{key}`"
        findings.append(Finding(rule="expected dtype", level=Level.WARN, text=text, candidate=scope))
    findings += [
        Finding(rule="logprobs", level=Level.INVALID, text=f"{found.variant}: {fault}", candidate=scope)
        for fault in found.faults
    ]
    if not found.faults and found.probes.logprob_digests:
        text = f"{found.variant}: probe logprobs are finite and sum to one"
        findings.append(Finding(rule="logprobs", level=Level.OK, text=text, candidate=scope))
    return [*findings, *alone(found), *climbed(found, chats)]


def _registration(gathered: Gathered) -> Iterator[Finding]:
    """Gates and samples are as they were before the first request."""
    plan, folder = gathered.plan, gathered.folder
    if hashlib.sha256(folder.run_text().encode()).hexdigest() != plan.config_sha256:
        yield Finding(rule="registration", level=Level.INVALID, text="run.yaml was changed after the start")
    elif folder.environment().get("plan_sha256") != folder.plan_sha256():
        yield Finding(rule="registration", level=Level.INVALID, text="plan.json was changed after the start")
    else:
        digest = plan.config_sha256[:12]
        text = f"gates, margins and samples are as registered before the first request (sha256 {digest})"
        yield Finding(rule="registration", level=Level.OK, text=text)
    for suite in plan.suites:
        if sample_digest(folder.samples(suite.name)) != suite.sha256:
            text = f"samples/{suite.name}.jsonl was changed after the start"
            yield Finding(rule="registration", level=Level.INVALID, text=text, suite=suite.name)


def _interruption(gathered: Gathered) -> Iterator[Finding]:
    reason = gathered.folder.stopped()
    if reason:
        yield Finding(rule="complete", level=Level.INVALID, text=reason)
    for path in gathered.folder.torn():
        text = f"{path.relative_to(gathered.folder.path)}: its end was cut by a kill and is left out"
        yield Finding(rule="complete", level=Level.WARN, text=text)


def _complete(gathered: Gathered, suite: SuitePlan, variant: str) -> Iterator[Finding]:
    """Every planned attempt has one record, and no other."""
    planned = gathered.planned(variant, suite)
    seen = Counter((record.sample, record.epoch) for record in gathered.records[variant, suite.name])
    scope = "" if variant in (REFERENCE, AGAIN) else variant
    repeated = sum(1 for count in seen.values() if count > 1)
    stray, absent = len(seen.keys() - planned), gathered.absent(variant, suite)
    where = f"{variant}, {suite.name}"
    if repeated or stray:
        text = f"{where}: {repeated} attempts recorded twice, {stray} never planned"
        yield Finding(rule="complete", level=Level.INVALID, text=text, candidate=scope, suite=suite.name)
    if absent:
        text = f"{where}: {absent} of {len(planned)} planned attempts have no record"
        yield Finding(rule=ABSENT, level=Level.INVALID, text=text, candidate=scope, suite=suite.name)


def _rows(gathered: Gathered, suite: SuitePlan, variant: str) -> Iterator[Finding]:
    """Logprobs are finite, no row sums above one, and each list is that of its token and names none twice."""
    records = gathered.records[variant, suite.name]
    broken = sum(record.trajectory.error == NON_FINITE for record in records)
    rows, twice, elsewhere = len(records), 0, 0
    if any(metric.kind == "distance" for metric in suite.metrics):
        for record in gathered.in_file_order(records):
            columns = gathered.columns(record)
            faults = row_faults(columns["top_logprobs"], full=False)
            rows += len(columns["logprob"])
            twice += int(ambiguous(columns["top_ids"]).sum())
            elsewhere += misplaced(columns)
            no_logprob = ~np.isfinite(columns["logprob"]) | (columns["logprob"] > ROUNDING)
            broken += faults.non_finite + faults.over_unity + int(no_logprob.sum())
    scope = "" if variant in (REFERENCE, AGAIN) else variant
    if twice:
        text = f"{variant}, {suite.name}: {twice} top-K lists name a token twice, or what is no token"
        yield Finding(rule="logprobs", level=Level.INVALID, text=text, candidate=scope, suite=suite.name)
    if elsewhere:
        text = f"{variant}, {suite.name}: {elsewhere} top-K lists contradict the logprob of the token that stands there"
        yield Finding(rule="logprobs", level=Level.INVALID, text=text, candidate=scope, suite=suite.name)
    if broken:
        text = f"{variant}, {suite.name}: {broken} of {rows} attempts and positions have non-finite or unnormalised logprobs"
        yield Finding(rule="logprobs", level=Level.INVALID, text=text, candidate=scope, suite=suite.name)


def _audited(gathered: Gathered, suite: SuitePlan, variant: str) -> Iterator[Finding]:
    """Whole-vocabulary rows are finite and sum to one."""
    broken = rows = 0
    for record in gathered.records[variant, suite.name]:
        if record.state is State.SCORED and gathered.holds(record, AUDIT):
            vocabulary = gathered.columns(record, AUDIT)["vocabulary"]
            faults = row_faults(vocabulary, full=True)
            rows += len(vocabulary)
            broken += faults.non_finite + faults.over_unity
    if broken:
        scope = "" if variant in (REFERENCE, AGAIN) else variant
        text = f"{variant}, {suite.name}: {broken} of {rows} audited positions are no distribution over the vocabulary"
        yield Finding(rule="logprobs", level=Level.INVALID, text=text, candidate=scope, suite=suite.name)


def _same_tokens(gathered: Gathered, suite: SuitePlan, candidate: str) -> Iterator[Finding]:
    """Both arms saw the same prompt tokens, and scored the same stream."""
    reference = {
        (r.sample, r.epoch): r.provenance for r in gathered.against(candidate, suite) if r.state is State.SCORED
    }
    pairs = [
        (reference[r.sample, r.epoch], r.provenance)
        for r in gathered.records[candidate, suite.name]
        if r.state is State.SCORED and (r.sample, r.epoch) in reference
    ]
    unlike = sum(a.prompt_sha256 != b.prompt_sha256 or a.tokens_sha256 != b.tokens_sha256 for a, b in pairs)
    if unlike:
        text = f"{candidate}, {suite.name}: {unlike} of {len(pairs)} samples were asked or scored with other tokens than the reference's"
        yield Finding(rule="same tokens", level=Level.INVALID, text=text, candidate=candidate, suite=suite.name)
    elif pairs:
        text = f"{candidate}, {suite.name}: the same prompt tokens as the reference on all {len(pairs)} samples"
        yield Finding(rule="same tokens", level=Level.OK, text=text, candidate=candidate, suite=suite.name)


def _lost(gathered: Gathered, suite: SuitePlan, candidate: str) -> Iterator[Finding]:
    """Lost attempts of suites whose scores cannot be imputed (binary ones are bounded in their gates)."""
    if suite.blocks or any(metric.kind == "binary" for metric in suite.metrics):
        return
    missing = (State.INFRA, State.UNSCORED)
    lost = {
        arm: {(r.sample, r.epoch) for r in gathered.records[arm, suite.name] if r.state in missing}
        for arm in (REFERENCE, candidate)
    }
    planned = len(suite.samples) * suite.epochs
    p = mcnemar_midp(len(lost[candidate] - lost[REFERENCE]), len(lost[REFERENCE] - lost[candidate]))
    counts = f"{len(lost[REFERENCE])} of the reference's and {len(lost[candidate])} of {candidate}'s {planned} attempts failed"
    if p < 0.01:
        text = f"{suite.name}: {counts}, unequally (p = {p:.2g}): stability, not distance"
        yield Finding(rule="missing", level=Level.INVALID, text=text, candidate=candidate, suite=suite.name)
    elif max(map(len, lost.values())) > MISSING_DISTANCE * planned:
        yield Finding(
            rule="missing", level=Level.UNDECIDED, text=f"{suite.name}: {counts}", candidate=candidate, suite=suite.name
        )


def _cut(gathered: Gathered, suite: SuitePlan, candidate: str) -> Iterator[Finding]:
    """Answers that a limit ended before they were complete: a wrong score each, and a limit set too low if many."""
    cut = {
        arm: {(r.sample, r.epoch) for r in gathered.records[arm, suite.name] if r.state is State.TRUNCATED}
        for arm in (REFERENCE, candidate)
    }
    if not any(cut.values()):
        return
    ours, theirs, planned = len(cut[REFERENCE]), len(cut[candidate]), len(suite.samples) * suite.epochs
    p = mcnemar_midp(len(cut[candidate] - cut[REFERENCE]), len(cut[REFERENCE] - cut[candidate]))
    text = f"{suite.name}: a limit cut {ours} of the reference's and {theirs} of {candidate}'s {planned} answers, p = {p:.2g}"
    level = Level.WARN if p < 0.05 else Level.OK
    if ours > MOST_CUT * planned:
        level, text = Level.UNDECIDED, f"{text}; raise `max_tokens`"
    yield Finding(rule="cut answers", level=level, text=text, candidate=candidate, suite=suite.name)


def _engaged(gathered: Gathered, arm: Evidence) -> Iterator[Finding]:
    """A candidate whose every logprob equals the reference's was not the variant it claims to be; a split may have the very bits."""
    split = _split(gathered.folder.preflight(REFERENCE), gathered.folder.preflight(arm.candidate))
    found = [(suite, tokens, tokens.found.summary) for suite, tokens in arm.distances.items() if tokens.found]
    for suite, tokens, kl in found:
        if tokens.same and not split and not tokens.broken and kl.minimum == kl.tail.maximum == 0.0:
            text = f"{arm.candidate}, {suite}: all {tokens.tokens} logprobs equal the reference's bit for bit"
            yield Finding(rule="engaged", level=Level.INVALID, text=text, candidate=arm.candidate, suite=suite)
        if (least := kl.minimum) < -1e-4:
            text = f"{arm.candidate}, {suite}: a KL of {least:.2g} is below zero by more than rounding"
            yield Finding(rule="logprobs", level=Level.INVALID, text=text, candidate=arm.candidate, suite=suite)


def _echoed(gathered: Gathered, suite: SuitePlan, candidate: str) -> Iterator[Finding]:
    """As `_engaged`, for logprobs kept in the records: what was answered from a cache was not measured."""
    said: list[dict[tuple[str, int], list[tuple[float, ...]]]] = [
        {
            (record.sample, record.epoch): [turn.logprobs for turn in record.trajectory.turns if turn.logprobs]
            for record in gathered.records[arm, suite.name]
            if record.state is State.SCORED
        }
        for arm in (REFERENCE, candidate)
    ]
    pairs = [(said[0][key], said[1][key]) for key in said[0].keys() & said[1].keys() if said[0][key]]
    if _split(gathered.folder.preflight(REFERENCE), gathered.folder.preflight(candidate)):
        return
    if pairs and all(ours == theirs for ours, theirs in pairs):
        text = f"{candidate}, {suite.name}: the logprobs of all {len(pairs)} answers equal the reference's bit for bit"
        yield Finding(rule="engaged", level=Level.INVALID, text=text, candidate=candidate, suite=suite.name)


def _above_floor(arm: Evidence) -> Iterator[Finding]:
    """A change that is real is said, whether or not it is tolerated."""
    for suite, tokens in arm.distances.items():
        if (floor := arm.floors.get(suite)) is None or tokens.broken or floor.broken:
            continue
        found = excess_of(tokens.by_prompt, floor.by_prompt, arm.alpha, 0.0)
        if above_floor(found):
            ratio = found.levels.ratio
            times = "the noise floor is 0" if ratio is None else f"{ratio:,.0f} times the noise floor"
            excess_words = f"{found.excess:.2g} nats per token above what the reference does to itself"
            text = f"{arm.candidate}, {suite}: the distance is real, {excess_words}; {times}"
            yield Finding(
                rule="distance above the floor", level=Level.WARN, text=text, candidate=arm.candidate, suite=suite
            )


def _rehearsed(gathered: Gathered) -> Iterator[Finding]:
    """A rehearsal is there to find what fails: a call that did, a suite in which nothing could be scored."""
    for (variant, suite), records in gathered.records.items():
        scope = "" if variant in (REFERENCE, AGAIN) else variant
        failed = [record for record in records if record.state is State.INFRA]
        unscored = [record for record in records if record.state is State.UNSCORED]
        where, lost = f"{variant}, {suite}", failed or unscored
        if lost:
            what = "failed" if failed else "could not be scored"
            text = f"{where}: {len(lost)} of {len(records)} attempts {what}: {lost[0].trajectory.error or 'no reason told'}"
            level = Level.INVALID if failed or len(unscored) == len(records) else Level.WARN
            yield Finding(rule="rehearsal", level=level, text=text, candidate=scope, suite=suite)
        elif records:
            text = f"{where}: all {len(records)} attempts were made and scored"
            yield Finding(rule="rehearsal", level=Level.OK, text=text, candidate=scope, suite=suite)


def _noise(gathered: Gathered) -> list[Finding]:
    """Reference against reference: every metric with a score, Holm over all of them."""
    names: list[tuple[SuitePlan, str]] = []
    pvalues: list[float] = []
    seen: list[str] = []
    thin: list[bool] = []
    for suite in gathered.plan.suites:
        for metric in suite.metrics:
            if metric.kind in ("distance", "ratio"):
                continue
            pairs = gathered.pairs(suite, metric, AGAIN, suite.again)
            both = np.isfinite(pairs.reference) & np.isfinite(pairs.candidate)
            difference = (pairs.candidate - pairs.reference)[both]
            names.append((suite, metric.name))
            thin.append(2 * len(difference) < len(suite.again) or len(difference) < FEWEST_AGAIN)
            if thin[-1]:
                pvalues.append(1.0)
                seen.append(
                    f"{len(difference)} of {len(suite.again)} pairs: too few to show a difference; raise `again`"
                )
                continue
            binary = metric.kind == "binary" and not pairs.clustered and suite.epochs == 1
            pvalues.append(two_sided_p(difference, pairs.clusters[both] if pairs.clustered else None, binary))
            seen.append(
                f"mean {metric.scale * difference.mean():+.2g} {metric.units}, {np.count_nonzero(difference)} of {len(difference)} differ"
            )
    found: list[Finding] = []
    for (suite, metric_name), p, text, few, level in zip(names, pvalues, seen, thin, aa_findings(pvalues), strict=True):
        words = f"A/A {suite.name} {metric_name}: {text}" + ("" if few else f", p = {p:.2g}")
        level = Level.UNDECIDED if few else Level(level)
        found.append(Finding(rule="reference against itself", level=level, text=words, suite=suite.name))
    return found
