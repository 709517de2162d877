"""How far any success rate can have changed, in words, and KL from the drawn tokens alone."""

from collections.abc import Mapping, Sequence

from evalrig.analysis.certificate import Certificate, Per
from evalrig.analysis.responses import BEGINNING, Parts, Responses, kl_certificate, sampled_kl, sequence_certificate
from evalrig.gate import Evidence
from evalrig.report.estimated import estimates
from evalrig.report.shown_maps import CertificateRow, Certificates
from evalrig.report.words import count, significant, span

WHOLE = "whole response"


def certificates(suite: str, arms: Mapping[str, Evidence], confidence: str) -> Certificates:
    """A line for each candidate and part, and what was left out."""
    rows: list[CertificateRow] = []
    notes: list[str] = []
    for name, arm in arms.items():
        if suite not in arm.answers:
            continue
        found = arm.answers[suite].responses
        notes += _notes(name, found, arm.alpha, confidence)
        if found.drawn.refusal() is None and found.whole.tokens.size:
            rows += _rows(name, found, arm.alpha)
    return Certificates(rows=tuple(rows), notes=tuple(notes), estimates=estimates(suite, arms, confidence))


def _rows(name: str, found: Responses, alpha: float) -> list[CertificateRow]:
    parts: list[tuple[str, Parts, Per]] = [
        (_whole(found), found.whole, "response"),
        (f"short answer: the first {BEGINNING} tokens", found.beginning, "step"),
        ("one tool call", found.calls, "step"),
    ]
    rows: list[CertificateRow] = []
    for words, part, per in parts:
        if part.tokens.size:
            rows.append(_row(name, words, sequence_certificate(found, part, alpha, per), "points"))
            rows.append(_row(name, words, kl_certificate(found, part, alpha, per), "nats"))
    return rows


def _whole(found: Responses) -> str:
    if not found.cut:
        return WHOLE
    return f"{WHOLE}, as far as measured: the first {int(found.whole.tokens.max()):,} tokens"


def _row(name: str, part: str, bound: Certificate, unit: str) -> CertificateRow:
    scale = 100.0 if unit == "points" else 1.0
    return CertificateRow(
        arm=name,
        part=part,
        status=bound.status,
        sentence=sentence(bound),
        estimate=f"{significant(scale * bound.estimate)} {unit}",
        prompts=f"{bound.prompts:,}",
        method=bound.method if unit == "points" else f"{bound.method}; KL by k3 of the drawn tokens",
        assumptions="; ".join(bound.assumptions) or "none",
    )


def sentence(bound: Certificate) -> str:
    """What a bound says."""
    points = f"{significant(100 * bound.bound)} points"
    if bound.status == "vacuous":
        return f"nothing is certified: the bound of {points} excludes no loss that matters, and shows none"
    said = f"no success rate of these prompts can change by more than {points}"
    return said if bound.status == "certified" else f"{said}, if the assumptions hold"


def _notes(name: str, found: Responses, alpha: float, confidence: str) -> list[str]:
    notes: list[str] = []
    total = found.whole.tokens.size
    if reason := found.drawn.refusal():
        return [f"{name}: no certificate and no k3: {reason}."]
    if not total:
        notes.append(f"{name}: no certificate and no k3: no response that the reference drew was scored.")
    else:
        k3 = sampled_kl(found, alpha)
        check = "and is within its error" if k3.consistent else "and is not: another logprob mode, path or other tokens"
        notes.append(
            f"{name}: k3, the KL from the drawn tokens alone, is {significant(k3.mean)} nats per token "
            f"({confidence} interval {span(k3.low, k3.high)}); nothing is hidden from it by lists. "
            f"The mean of q/p is {significant(k3.mean_ratio, 4)}; it must be 1, {check}."
        )
    if found.cut:
        notes.append(
            f"{name}: {found.cut:,} of {count(total, 'response')} ended at the token limit. What is said of whole responses "
            "is said of their measured tokens; what would have followed is not covered."
        )
    if found.given:
        notes.append(
            f"{name}: {count(found.given, 'stream')} not drawn from the reference (given text), left out here."
        )
    if found.broken:
        notes.append(f"{name}: {count(found.broken, 'response')} with a log-probability that is none, left out here.")
    return notes


def summed_up(views: Sequence[tuple[str, Certificates]]) -> list[str]:
    """A line for each candidate and suite: the best bound on whole responses."""
    lines: list[str] = []
    for suite, found in views:
        for row in found.rows:
            if row.part.startswith(WHOLE) and row.estimate.endswith("points"):
                lines.append(f"Certificate for {row.arm} on {suite} ({row.part}): {row.status}, {row.sentence}")
    return lines
