"""What was proved and recorded about a run, as shown: validity, accounting, engines, data, and how to repeat it."""

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from evalrig.fetch import Card as SourceCard
from evalrig.fetch import cards
from evalrig.plan import Plan
from evalrig.proof import Preflight
from evalrig.records import RunFolder
from evalrig.report.shown import (
    AccountRow,
    Engines,
    Fact,
    FactRow,
    FindingLine,
    Repeat,
    Row,
    RuleGroup,
    Source,
    Validity,
)
from evalrig.report.words import NOTHING, count, listed, sized
from evalrig.types import Level, State, Verdict

WORST_FIRST = (Level.INVALID, Level.UNDECIDED, Level.WARN, Level.OK)
LEVEL_WORDS = {
    Level.INVALID: "invalid",
    Level.UNDECIDED: "held back",
    Level.WARN: "warning",
    Level.OK: "proved",
}
STATES = (*(state.value for state in State), "absent")
NOT_SAID = "not told by the engine"


def validity(verdict: Verdict) -> Validity:
    """Findings by rule, those with trouble first."""
    grouped: dict[str, list[FindingLine]] = {}
    ranks: dict[str, int] = {}
    for finding in verdict.validity:
        concerns = ", ".join(filter(None, (finding.candidate, finding.suite))) or "whole run"
        line = FindingLine(level=LEVEL_WORDS[finding.level], text=finding.text, concerns=concerns)
        grouped.setdefault(finding.rule, []).append(line)
        ranks[finding.rule] = min(ranks.get(finding.rule, len(WORST_FIRST)), WORST_FIRST.index(finding.level))
    order = [LEVEL_WORDS[level] for level in WORST_FIRST]
    groups = [
        RuleGroup(
            rule=rule, level=order[ranks[rule]], lines=tuple(sorted(lines, key=lambda line: order.index(line.level)))
        )
        for rule, lines in sorted(grouped.items(), key=lambda item: ranks[item[0]])
    ]
    levels = [finding.level for finding in verdict.validity]
    tally = [f"{levels.count(level)} {LEVEL_WORDS[level]}" for level in WORST_FIRST if level in levels]
    return Validity(
        summary=f"{count(len(levels), 'finding')}: {listed(tally)}" if levels else "nothing was looked at",
        groups=tuple(groups),
    )


def accounting(verdict: Verdict) -> tuple[AccountRow, ...]:
    """Planned = scored + ... + absent, for every arm of every suite."""
    rows: list[AccountRow] = []
    for row in verdict.accounting:
        counts = (*(row.states.get(state.value, 0) for state in State), row.absent)
        rows.append(
            AccountRow(
                variant=row.variant,
                suite=row.suite,
                planned=row.planned,
                counts=counts,
                adds_up=sum(counts) == row.planned,
            )
        )
    return tuple(rows)


def engines(folder: RunFolder, plan: Plan) -> Engines:
    """The fingerprints side by side; what differs from the reference is marked."""
    found = {variant.name: folder.preflight(variant.name) for variant in plan.variants}
    flags = sorted({key for proof in found.values() if proof for key in proof.fingerprint.flags})
    expected = {variant.name: variant.expect for variant in plan.variants}
    lines: list[tuple[str, list[str]]] = [
        ("weights file", [variant.weights for variant in plan.variants]),
        ("expected", [_pairs(expected[name]) for name in found]),
    ]
    for label, read in _PROPERTIES.items():
        lines.append((label, [read(proof) if proof else "not reached" for proof in found.values()]))
    for rung in dict.fromkeys(rung.name for proof in found.values() if proof for rung in proof.ladder):
        lines.append((f"chat: {rung}" if rung != "chat" else rung, [_rung(proof, rung) for proof in found.values()]))
    for key in flags:
        lines.append((key, [_flag(proof, key) for proof in found.values()]))
    rows = [
        FactRow(label=label, cells=tuple(Fact(text=cell, differs=cell != cells[0]) for cell in cells))
        for label, cells in lines
    ]
    return Engines(variants=tuple(found), rows=tuple(rows))


_PROPERTIES: Mapping[str, Callable[[Preflight], str]] = {
    "engine": lambda p: f"{p.fingerprint.engine} {p.fingerprint.version}",
    "weights": lambda p: p.fingerprint.weights or NOT_SAID,
    "KV cache": lambda p: p.fingerprint.kv_cache or NOT_SAID,
    "device": lambda p: p.fingerprint.device or NOT_SAID,
    "weights digest": lambda p: _digest(p.fingerprint.weights_digest),
    "tokenizer digest": lambda p: _digest(p.fingerprint.tokenizer_digest),
    "template digest": lambda p: _digest(p.fingerprint.template_digest),
    "KV pool, tokens": lambda p: f"{p.capacity.kv_tokens:,}" if p.capacity.kv_tokens else NOT_SAID,
    "KV per token": lambda p: sized(p.capacity.kv_bytes_per_token) if p.capacity.kv_bytes_per_token else NOT_SAID,
    "weights in memory": lambda p: sized(p.capacity.weight_bytes) if p.capacity.weight_bytes else NOT_SAID,
    "probes tokenised": lambda p: str(len(p.probes.prompt_digests)),
}


def _pairs(tree: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in tree.items() if value) or NOTHING


def _digest(text: str) -> str:
    return f"{text[:16]}…" if len(text) > 16 else text or NOT_SAID


def _flag(proof: Preflight | None, key: str) -> str:
    return str(proof.fingerprint.flags.get(key, NOTHING)) if proof else "not reached"


def _rung(proof: Preflight | None, name: str) -> str:
    if proof is None:
        return "not reached"
    return next((rung.outcome.value for rung in proof.ladder if rung.name == name), "not tried")


def sources(plan: Plan) -> tuple[Source, ...]:
    """The cards of the model and of the suites' data, in the order of use."""
    known = cards()
    used = [variant.weights for variant in plan.variants]
    for suite in plan.suites:
        options = plan.config.get("suites", {}).get(suite.name, {}).get("options", {})
        if not (options.get("path") or options.get("prompts")):  # the user's own file is not what the card describes
            used += [suite.kind, suite.name]
    return tuple(_source(known[name]) for name in dict.fromkeys(used) if name in known)


def _source(card: SourceCard) -> Source:
    package = card.package
    shipped = "written for evalrig and shipped with it"
    return Source(
        name=card.name,
        title=card.title,
        owner=card.owner,
        upstream=card.upstream,
        licence=card.licence,
        licence_note=card.licence_note,
        package=f"{package.name} {package.version} ({package.licence})" if package else shipped,
        files=tuple(f"{file.name}: sha256 {file.sha256}. {file.note}" for file in card.files),
    )


def shown_path(folder: RunFolder, plan: Plan) -> str:
    """`runs/<name>/<time>` as the run file says it, never where it lies on this machine."""
    output = PurePath(str(plan.config.get("output") or "runs"))
    head = output.name if output.is_absolute() else str(output)
    return str(PurePath(head, *folder.path.resolve().parts[-2:]))


def repeat(folder: RunFolder, plan: Plan) -> Repeat:
    """Commands, run file, digests and machine."""
    path = shown_path(folder, plan)
    commands = (
        Row(label="measure again, from nothing", cells=(f"evalrig run {path}/run.yaml",)),
        Row(label="judge these records again, without an engine", cells=(f"evalrig judge {path}",)),
    )
    return Repeat(
        commands=commands,
        run_file=folder.run_text(),
        sha256=plan.config_sha256,
        environment=tuple(Row(label=key, cells=(value,)) for key, value in _flat(folder.environment())),
        suites=tuple(Row(label=suite.name, cells=(suite.sha256,)) for suite in plan.suites),
        unused_gates=", ".join(plan.unused_gates),
    )


def _flat(tree: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += [(str(name), str(part)) for name, part in sorted(value.items())]
        elif key != "schema":
            lines.append((key, str(value)))
    return lines
