"""The decode leg of the `kl` suite: every variant answers, and the reference scores those answers."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from toys.engine import Toy, table
from toys.runs import Silent, carry_out, run_file

from evalrig.assemble import assemble
from evalrig.config.load import load_run
from evalrig.errors import UsageError
from evalrig.evidence import Gathered
from evalrig.records import RunFolder
from evalrig.resume import pending
from evalrig.run import Finished, resume
from evalrig.types import AGAIN, REFERENCE, RESCORED, SPLIT, CheckOutcome, Fingerprint, Level, Outcome
from evalrig.verdict import judge


def decode_file(folder: Path, candidates: Mapping[str, Mapping[str, Any]], **options: Any) -> Path:
    path = run_file(folder, candidates)
    tree = yaml.safe_load(path.read_text())
    tree["suites"]["kl"]["options"] |= {"leg": "decode", **options}
    path.write_text(yaml.safe_dump(tree))
    return path


def veto(finished: Finished, candidate: str) -> Any:
    return next(c for c in finished.verdict.candidates[candidate].checks if c.gate == "kl_veto")


@pytest.mark.parametrize("engines", [1, 2])
def test_what_only_decoding_does_is_measured_and_not_by_prefill(tmp_path: Path, engines: int) -> None:
    path = decode_file(tmp_path, {"blind": {"noise": 0.02, "apart": 1.0}, "near": {"noise": 0.02}})
    finished = carry_out(path, [f"runner.engines={engines}"])
    assert (veto(finished, "blind").outcome, veto(finished, "near").outcome) == (
        CheckOutcome.FAILED,
        CheckOutcome.PASSED,
    )
    assert finished.verdict.candidates["near"].outcome is Outcome.GO
    assert finished.verdict.candidates["blind"].outcome is Outcome.NO_GO
    assert {f.level for f in finished.verdict.validity if f.rule == "path"} == {Level.OK}
    made = {arm: len(finished.folder.records(arm, f"kl{RESCORED}")) for arm in ("blind", "near", AGAIN)}
    assert made == {"blind": 30, "near": 30, AGAIN: 10}


def test_each_arm_is_compared_on_its_own_answers_with_the_reference_s_exact_numbers(tmp_path: Path) -> None:
    folder = carry_out(decode_file(tmp_path, {"cheap": {"noise": 0.5}})).folder
    gathered = Gathered(folder)
    suite = folder.plan().suite("kl")
    own = {r.sample: r.trajectory.turns[0].token_ids for r in folder.records("cheap", "kl")}
    assert own != {r.sample: r.trajectory.turns[0].token_ids for r in folder.records(REFERENCE, "kl")}
    for both in gathered.joined(suite, "cheap"):
        assert tuple(both.reference["token"]) == own[both.sample] == tuple(both.candidate["token"])
        before, after = own[both.sample][:-1], own[both.sample][1:]
        assert both.reference["logprob"][1:] == pytest.approx(
            [table()[a, b] for a, b in zip(before, after, strict=True)]
        )
        assert both.candidate["logprob"][1:] == pytest.approx(
            [table(0.5)[a, b] for a, b in zip(before, after, strict=True)]
        )
    floor = gathered.floors["kl"]
    assert floor.found is not None
    assert floor.found.summary.tail.maximum == 0.0, "the toy repeats itself bit by bit, whichever way it is asked"
    measured = gathered.evidence("cheap").distances["kl"]
    assert measured.found is not None
    assert (measured.broken, measured.found.summary.infinite) == (0, 0)
    assert measured.found.summary.minimum > 0


def test_answers_that_the_reference_was_not_asked_about_are_named_and_made_up_by_a_resume(tmp_path: Path) -> None:
    folder = carry_out(decode_file(tmp_path, {"cheap": {"noise": 0.02}})).folder
    path = folder.records_path("cheap", f"kl{RESCORED}")
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:10]))
    verdict = judge(folder)
    assert verdict.candidates["cheap"].outcome is Outcome.INVALID
    [text] = [f.text for f in verdict.validity if f.level is Level.INVALID]
    assert text == "cheap, kl: 20 of 30 answers were not scored by the reference"
    left = pending(folder, folder.plan())
    assert [(cell.variant, cell.stage, cell.of, len(rest)) for cell, rest in left.items()] == [
        (REFERENCE, "rescore", "cheap", 20)
    ]
    again = asyncio.run(resume(folder.path, Silent()))
    assert again.verdict.candidates["cheap"].outcome is Outcome.GO
    assert Counter(r.sample for r in folder.records("cheap", f"kl{RESCORED}")).most_common(1)[0][1] == 1


def test_a_resume_that_owes_a_candidate_and_its_rescoring_needs_no_new_reference_attempt(tmp_path: Path) -> None:
    folder = carry_out(decode_file(tmp_path, {"cheap": {"noise": 0.02}})).folder
    for name in ("kl", f"kl{RESCORED}"):
        folder.records_path("cheap", name).unlink()
    assert asyncio.run(resume(folder.path, Silent())).verdict.candidates["cheap"].outcome is Outcome.GO


def test_a_lost_candidate_leaves_no_rescoring_to_wait_for(tmp_path: Path) -> None:
    path = decode_file(tmp_path, {"absent": {"fail_start": "out of memory"}, "near": {"noise": 0.02}})
    finished = carry_out(path)
    assert finished.verdict.candidates["near"].outcome is Outcome.GO
    assert finished.verdict.candidates["absent"].outcome is Outcome.INVALID
    assert finished.stopped == ""


def test_only_the_reference_has_to_score_given_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split of prefill and decode cannot, and is measured by this leg alone."""
    bare = replace(Toy.capabilities, prompt_logprobs=False, top_logprobs=0)
    monkeypatch.setattr(Toy, "able", classmethod(lambda cls, o: bare if o.apart else Toy.capabilities))
    path = decode_file(tmp_path, {"split": {"apart": 0.02}})
    tree = yaml.safe_load(path.read_text())
    del tree["suites"]["piqa"]
    path.write_text(yaml.safe_dump(tree))
    assemble(load_run(path), path, lambda _: None)
    tree["reference"]["args"] = {"apart": 0.02}
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(UsageError, match=r"suites\.kl: engine `toys\.engine` cannot give logprobs of given tokens"):
        assemble(load_run(path), path, lambda _: None)


def test_a_split_may_have_the_reference_s_very_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine by its fingerprint; without it the same bits mean that the candidate is the reference."""
    plain = Toy.fingerprint

    async def of_a_split(self: Toy) -> Fingerprint:
        flags = {SPLIT: "1 prefill, 1 decode, mooncake"} if self.variant.name == "split" else {}
        return replace(await plain(self), flags=flags)

    monkeypatch.setattr(Toy, "fingerprint", of_a_split)
    folder = carry_out(decode_file(tmp_path, {"split": {}})).folder
    same = "split, kl: all "
    assert len(folder.records("split", "kl")) == 30
    assert not [f for f in judge(folder).validity if f.text.startswith(same)]
    found = folder.preflight("split")
    assert found is not None
    folder.write_preflight(replace(found, fingerprint=replace(found.fingerprint, flags={})))
    assert [f for f in judge(folder).validity if f.rule == "engaged" and f.text.startswith(same)]


def test_the_decode_leg_has_no_logprob_to_judge(tmp_path: Path) -> None:
    path = decode_file(tmp_path, {"near": {"noise": 0.02}})
    tree = yaml.safe_load(path.read_text())
    tree["gates"]["lp"] = {"kind": "noninferior", "suite": "kl", "metric": "logprob", "margin": 0.05}
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(UsageError, match=r"gates\.lp\.metric: no metric 'logprob'"):
        assemble(load_run(path), path, lambda _: None)
    tree["gates"]["lp"]["gating"] = False
    path.write_text(yaml.safe_dump(tree))
    plan = assemble(load_run(path), path, lambda _: None).plan
    assert plan.unused_gates == ("lp",), "a diagnostic of the policy is named as not applied"
    assert "lp" not in {gate.name for gate in plan.gates}


def test_a_stream_that_differs_between_answer_and_rescoring_is_refused(tmp_path: Path) -> None:
    folder: RunFolder = carry_out(decode_file(tmp_path, {"cheap": {"noise": 0.02}})).folder
    path = folder.records_path("cheap", f"kl{RESCORED}")
    path.write_text(path.read_text().replace('"tokens_sha256":"', '"tokens_sha256":"0', 1))
    [text] = [f.text for f in judge(folder).validity if f.level is Level.INVALID]
    assert text.startswith("cheap, kl: 1 of 30 samples were asked or scored with other tokens")
