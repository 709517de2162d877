"""How far a distance reaches: decoding against scoring, contexts against the scope, one vocabulary."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from toys.engine import Toy
from toys.runs import carry_out, run_file
from toys.token_rows import rewrite

from evalrig.evidence import Gathered
from evalrig.records import AUDIT, RunFolder
from evalrig.report.view import page
from evalrig.tokens import Key
from evalrig.types import REFERENCE, SCORING, CheckOutcome, Finding, Fingerprint, Level, Outcome, Verdict
from evalrig.verdict import judge


def ran(folder: Path, candidates: Mapping[str, Mapping[str, Any]], **options: Any) -> tuple[RunFolder, Verdict]:
    """A run of the `kl` suite alone with such options; `max_context` is the scope's."""
    context = options.pop("max_context", 0)
    path = run_file(folder, candidates, scope={"model": "toy", "max_context": context})
    tree = yaml.safe_load(path.read_text())
    tree["suites"] = {"kl": tree["suites"]["kl"]}
    tree["suites"]["kl"]["options"] |= options
    path.write_text(yaml.safe_dump(tree))
    finished = carry_out(path)
    return finished.folder, finished.verdict


def said(verdict: Verdict, rule: str, candidate: str = "") -> list[Finding]:
    return [found for found in verdict.validity if (found.rule, found.candidate) == (rule, candidate)]


# ---- path


@pytest.mark.parametrize("leg", ["prefill", "cached_prefix"])
def test_prefill_that_is_blind_to_what_decoding_reads_decides_nothing(tmp_path: Path, leg: str) -> None:
    """The trap of a KV cache that no prefill reads: the distance of prefills is that of another system."""
    candidates = {"blind": {"noise": 0.02, "apart": 0.3}, "seen": {"noise": 0.3}}
    folder, verdict = ran(tmp_path, candidates, leg=leg)
    [blind], [seen] = said(verdict, "path", "blind"), said(verdict, "path", "seen")
    assert (blind.level, seen.level) == (Level.UNDECIDED, Level.OK)
    way = "by prefill" if leg == "prefill" else "over a cached prefix"
    assert f"blind, kl: scored {way}, and decoding differs from that by 0.0" in blind.text
    assert "of 16 prompts (the reference: 0), more than 20% of the " in blind.text
    assert blind.text.endswith("`leg: decode`")
    assert ("cached_prefix" in blind.text) == (leg == "prefill")
    [check] = [check for check in verdict.candidates["blind"].checks if check.gate == "kl_veto"]
    assert check.outcome is CheckOutcome.UNDECIDED
    assert "held back: blind, kl: scored" in check.reason
    assert verdict.candidates["blind"].outcome is Outcome.INCONCLUSIVE
    assert folder.records("blind", "kl")[0].scores.keys() >= {"logprob", "tokens"}


def test_what_the_reference_does_to_itself_on_the_way_is_no_difference_of_the_variant(tmp_path: Path) -> None:
    verdict = ran(tmp_path / "run", {"near": {"noise": 0.02, "apart": 0.05}}, path_prompts=30)[1]
    assert said(verdict, "path", "near")[0].level is Level.UNDECIDED
    reference = {"weights": "toy", "expect": {"weights": "bf16"}, "args": {"apart": 0.05}}
    path = run_file(tmp_path / "noisy", {"near": {"noise": 0.02, "apart": 0.05}}, reference=reference)
    [found] = said(carry_out(path).verdict, "path", "near")
    assert found.level is Level.WARN
    assert "(the reference: 0.0" in found.text
    assert found.text.endswith("measured, as the reference does to itself on the same way")


def test_the_self_distance_is_taken_on_the_first_prompts_and_not_by_the_second_reference(tmp_path: Path) -> None:
    folder, _ = ran(tmp_path, {"near": {"noise": 0.1}}, path_prompts=5)
    first = set(folder.plan().suite("kl").samples[:5])
    for variant in (REFERENCE, "near"):
        assert {r.sample for r in folder.records(variant, "kl") if "path_tokens" in r.scores} == first
        assert all(r.scores["path_kl"] == 0.0 for r in folder.records(variant, "kl") if r.sample in first)
    assert not any("path_tokens" in r.scores for r in folder.records("reference_again", "kl"))


def test_an_engine_without_lists_of_what_it_generates_is_not_provable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "capabilities", replace(Toy.capabilities, decode_logprobs=0))
    [found] = said(ran(tmp_path, {"near": {"noise": 0.1}})[1], "path", "near")
    assert found.level is Level.WARN
    assert found.text.startswith("near, kl: not provable that decoding gives what was scored by prefill")


def test_decoded_positions_without_a_number_are_counted_and_invalidate(tmp_path: Path) -> None:
    folder, _ = ran(tmp_path, {"near": {"noise": 0.1}})
    path = folder.records_path("near", "kl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if "path_tokens" in row["scores"]:
            row["scores"]["path_broken"] = 2.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = said(judge(folder), "path", "near")[0]
    assert found.level is Level.INVALID
    assert found.text.startswith("near, kl: 32 of ")


# ---- coverage


def test_contexts_shorter_than_the_products_are_said_with_numbers(tmp_path: Path) -> None:
    folder, verdict = ran(tmp_path, {"near": {"noise": 0.1}}, max_context=131072)
    [found] = said(verdict, "coverage")
    longest = max(len(trace.prompt_ids) + len(trace.token_ids) for trace in folder.traces("kl"))
    tokens = sum(len(trace.token_ids) for trace in folder.traces("kl"))
    assert found.level is Level.WARN
    assert found.text == (
        f"kl: 30 prompts, {tokens} tokens; KL measured up to {longest} of 131,072 tokens: longer contexts are not covered"
    )


def test_contexts_as_long_as_the_products_are_covered(tmp_path: Path) -> None:
    folder, _ = ran(tmp_path, {"near": {"noise": 0.1}}, max_context=1)
    assert said(judge(folder), "coverage")[0].level is Level.OK


# ---- vocabulary


def test_whole_rows_of_another_width_are_another_vocabulary_and_no_crash(tmp_path: Path) -> None:
    """Padded vocabularies: 163,840 in one checkpoint, 163,842 in the other."""
    folder, _ = ran(tmp_path, {"near": {"noise": 0.1}})

    def wider(_: Key, columns: dict[str, np.ndarray]) -> None:
        columns["vocabulary"] = np.pad(columns["vocabulary"], ((0, 0), (0, 2)), constant_values=-np.inf)

    rewrite(folder, "near", "kl", wider, AUDIT)
    verdict = judge(folder)
    [found] = said(verdict, "vocabulary", "near")
    assert (found.level, found.text) == (Level.INVALID, "near, kl: a vocabulary of 66 tokens, the reference's has 64")
    assert verdict.candidates["near"].outcome is Outcome.INVALID
    assert Gathered(folder).evidence("near").audits == {}


# ---- the way that was really gone


@pytest.mark.parametrize(
    ("leg", "scope", "note"),
    [
        ("prefill", "kl scored by prefill: decoding may differ;", "The tokens were scored by prefill"),
        ("cached_prefix", "kl scored over a cached prefix: decoding may differ;", "was read from the KV cache"),
        ("decode", "kl scored by decoding, against the reference's prefill;", "Each variant answered by itself"),
    ],
)
def test_scope_and_report_name_the_leg_that_was_used(tmp_path: Path, leg: str, scope: str, note: str) -> None:
    folder, verdict = ran(tmp_path, {"near": {"noise": 0.02}}, leg=leg)
    assert scope in verdict.candidates["near"].scope
    [view] = page(folder, verdict).distances
    ways = ("scored by prefill", "read from the KV cache", "answered by itself")
    [line] = [line for line in view.notes if any(way in line for way in ways)]
    assert note in line


def test_an_engine_that_scores_by_decoding_is_not_called_a_prefill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp has no scoring of prompts: the tokens are forced, one by one."""
    plain = Toy.fingerprint

    async def forced(self: Toy) -> Fingerprint:
        return replace(await plain(self), flags={SCORING: "forced decode, cold prefill"})

    monkeypatch.setattr(Toy, "fingerprint", forced)
    folder, verdict = ran(tmp_path, {"near": {"noise": 0.02}})
    assert "kl scored by forced decode, cold prefill;" in verdict.candidates["near"].scope
    [path] = said(verdict, "path", "near")
    assert "near, kl: scored by forced decode, cold prefill, and decoding differs" in path.text
    [view] = page(folder, verdict).distances
    assert "The tokens were scored by forced decode, cold prefill." in view.notes
