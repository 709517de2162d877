"""Each rule that can say: do not trust this measurement. The run is real; the fault is put in afterwards."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from toys.engine import Toy
from toys.runs import carry_out, run_file
from toys.token_rows import rewrite, rewrite_one

from evalrig.errors import UsageError
from evalrig.evidence import Gathered
from evalrig.records import AUDIT, ROWS, RunFolder
from evalrig.run import conclude
from evalrig.tokens import Key
from evalrig.types import SPLIT, Level, Outcome, Verdict
from evalrig.verdict import judge


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = run_file(tmp_path_factory.mktemp("run"), {"cheap": {"noise": 0.02}, "other": {"noise": 0.03}})
    return carry_out(path).folder.path


@pytest.fixture
def folder(ran: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(ran, tmp_path / "copy")))


def rewritten(folder: RunFolder, variant: str, suite: str, change: Callable[[list[Any]], list[Any]]) -> None:
    path = folder.records_path(variant, suite)
    rows = change([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def said(verdict: Verdict, level: Level = Level.INVALID, candidate: str = "") -> list[str]:
    return [f.text for f in verdict.validity if f.level is level and f.candidate in ("", candidate)]


def outcomes(verdict: Verdict) -> dict[str, Outcome]:
    return {name: one.outcome for name, one in verdict.candidates.items()}


def test_a_clean_run_says_what_was_proved_and_finds_nothing(folder: RunFolder) -> None:
    verdict = judge(folder)
    assert outcomes(verdict) == {"cheap": Outcome.GO, "other": Outcome.GO}
    assert {finding.level for finding in verdict.validity} == {Level.OK}
    assert {
        "registration",
        "expected dtype",
        "prompt tokens",
        "engaged",
        "same tokens",
        "reference against itself",
    } <= {finding.rule for finding in verdict.validity}


def test_gates_moved_after_the_start_show(folder: RunFolder) -> None:
    path = folder.path / "run.yaml"
    path.write_text(path.read_text().replace("margin: 0.05", "margin: 5.0"))
    assert said(judge(folder)) == ["run.yaml was changed after the start"]


def test_a_plan_changed_after_the_start_shows(folder: RunFolder) -> None:
    path = folder.path / "plan.json"
    text = path.read_text()
    path.write_text(text.replace('"margin": 0.1', '"margin": 0.9'))
    assert path.read_text() != text
    assert said(judge(folder)) == ["plan.json was changed after the start"]


def test_a_re_shuffled_answer_key_shows(folder: RunFolder) -> None:
    """Pitfall 3."""
    path = folder.path / "samples" / "piqa.jsonl"
    path.write_text(path.read_text().replace('"target":"', '"target":"x', 1))
    verdict = judge(folder)
    assert said(verdict) == ["samples/piqa.jsonl was changed after the start"]
    assert verdict.exit_code == 3


def test_a_lost_row_moves_no_other_pair_and_is_named(folder: RunFolder) -> None:
    """Pitfall 5: pairing by position. One row lost at the front must not shift the rest."""
    before = judge(folder).candidates["cheap"].checks
    rewritten(folder, "cheap", "piqa", lambda rows: rows[1:])
    verdict = judge(folder)
    assert said(verdict, candidate="cheap") == ["cheap, piqa: 1 of 120 planned attempts have no record"]
    assert outcomes(verdict) == {"cheap": Outcome.INVALID, "other": Outcome.GO}
    after = verdict.candidates["cheap"].checks
    for old, new in zip(before, after, strict=True):
        if old.suite == "kl":
            assert old == new
        else:
            assert old.estimate is not None
            assert new.estimate is not None
            assert old.estimate.value == pytest.approx(new.estimate.value, abs=0.02)


def test_the_order_of_records_does_not_matter(folder: RunFolder) -> None:
    """Pitfall 5."""
    before = judge(folder)
    rewritten(folder, "cheap", "piqa", lambda rows: rows[::-1])
    rewritten(folder, "reference", "kl", lambda rows: rows[3:] + rows[:3])
    assert judge(folder) == before


def test_an_attempt_recorded_twice_shows(folder: RunFolder) -> None:
    rewritten(folder, "cheap", "piqa", lambda rows: [*rows, rows[0]])
    assert said(judge(folder), candidate="cheap") == ["cheap, piqa: 1 attempts recorded twice, 0 never planned"]


def test_an_attempt_never_planned_shows(folder: RunFolder) -> None:
    rewritten(folder, "cheap", "piqa", lambda rows: [*rows, {**rows[0], "sample": "piqa-9999"}])
    assert said(judge(folder), candidate="cheap") == ["cheap, piqa: 0 attempts recorded twice, 1 never planned"]


def test_other_prompt_tokens_than_the_reference_show(folder: RunFolder) -> None:
    def change(rows: list[Any]) -> list[Any]:
        rows[0]["provenance"]["prompt_sha256"] = "other"
        rows[1]["provenance"]["tokens_sha256"] = "other"
        return rows

    rewritten(folder, "cheap", "kl", change)
    [text] = said(judge(folder), candidate="cheap")
    assert text == "cheap, kl: 2 of 30 samples were asked or scored with other tokens than the reference's"


def test_the_reference_s_answers_served_as_the_candidate_s_show(folder: RunFolder) -> None:
    """Pitfall 1: the cache was not keyed by model, so the second model never ran."""
    for name in ("records", "tokens"):
        shutil.rmtree(folder.variant_path("cheap") / name)
        shutil.copytree(folder.variant_path("reference") / name, folder.variant_path("cheap") / name)
    for suite in ("kl", "piqa"):
        rewritten(folder, "cheap", suite, lambda rows: [{**row, "variant": "cheap"} for row in rows])
    verdict = judge(folder)
    piqa, kl = said(verdict, candidate="cheap")
    assert piqa == "cheap, piqa: the logprobs of all 120 answers equal the reference's bit for bit"
    assert kl.startswith("cheap, kl: all ")
    assert kl.endswith(" logprobs equal the reference's bit for bit")
    assert outcomes(verdict) == {"cheap": Outcome.INVALID, "other": Outcome.GO}


def test_one_suite_answered_from_the_reference_s_cache_shows(folder: RunFolder) -> None:
    """Pitfall 1, where only right or wrong is kept: no losses, no gains, and a GO from nothing."""
    shutil.copyfile(folder.records_path("reference", "piqa"), folder.records_path("cheap", "piqa"))
    rewritten(folder, "cheap", "piqa", lambda rows: [{**row, "variant": "cheap"} for row in rows])
    [text] = said(judge(folder), candidate="cheap")
    assert text == "cheap, piqa: the logprobs of all 120 answers equal the reference's bit for bit"


@pytest.mark.parametrize(
    ("arm", "count", "level", "words"),
    [
        ("reference", 6, None, "a limit cut 6 of the reference's and 0 of cheap's 120 answers"),
        ("reference", 7, Level.UNDECIDED, "a limit cut 7 of the reference's and 0 of cheap's 120 answers"),
        ("cheap", 4, Level.OK, "a limit cut 0 of the reference's and 4 of cheap's 120 answers, p = 0.062"),
        ("cheap", 7, Level.WARN, "a limit cut 0 of the reference's and 7 of cheap's 120 answers, p = 0.0078"),
    ],
)
def test_truncation_counted_as_agreement(
    folder: RunFolder, arm: str, count: int, level: Level | None, words: str
) -> None:
    """Pitfalls 12 and 17: an answer cut by the limit is wrong, said, and many of the reference's decide nothing."""

    def cut(rows: list[Any]) -> list[Any]:
        right = [row for row in rows if row["scores"]["accuracy"] == 1.0][:count]
        return [{**row, "state": "truncated", "scores": {}} if row in right else row for row in rows]

    before = judge(folder).candidates["cheap"].checks[1].estimate
    rewritten(folder, arm, "piqa", cut)
    verdict = judge(folder)
    [found] = [f for f in verdict.validity if f.rule == "cut answers" and f.candidate == "cheap"]
    assert words in found.text
    assert level is None or found.level is level
    after = verdict.candidates["cheap"].checks[1].estimate
    assert before is not None
    assert before.value is not None
    assert after is not None
    assert after.value is not None
    assert after.n == before.n, "they stay in the denominator"
    assert after.value - before.value == pytest.approx((count if arm == "reference" else -count) / 120)


def test_a_split_that_answers_bit_for_bit_as_one_server_is_no_cache_of_it(folder: RunFolder) -> None:
    """Prefill and decode apart, the same kernels: it may give the very bits, and its fingerprint tells it is another engine."""
    shutil.copyfile(folder.records_path("reference", "piqa"), folder.records_path("cheap", "piqa"))
    rewritten(folder, "cheap", "piqa", lambda rows: [{**row, "variant": "cheap"} for row in rows])
    found = folder.preflight("cheap")
    assert found is not None
    flags = {**found.fingerprint.flags, SPLIT: "1 prefill, 1 decode, mooncake"}
    folder.write_preflight(replace(found, fingerprint=replace(found.fingerprint, flags=flags)))
    assert said(judge(folder), candidate="cheap") == []


def test_a_second_reference_that_mostly_failed_proves_nothing(folder: RunFolder) -> None:
    def fail(rows: list[Any]) -> list[Any]:
        return [*rows[:5], *({**row, "state": "infra", "scores": {}} for row in rows[5:])]

    rewritten(folder, "reference_again", "piqa", fail)
    verdict = judge(folder)
    assert outcomes(verdict) == {"cheap": Outcome.INCONCLUSIVE, "other": Outcome.INCONCLUSIVE}
    assert said(verdict, Level.UNDECIDED) == [
        "A/A piqa accuracy: 5 of 40 pairs: too few to show a difference; raise `again`",
        "A/A piqa lead: 5 of 40 pairs: too few to show a difference; raise `again`",
    ]


def test_a_second_reference_that_differs_in_one_of_two_epochs_is_judged(tmp_path: Path) -> None:
    path = run_file(tmp_path, {"cheap": {"noise": 0.02}})
    tree = yaml.safe_load(path.read_text())
    tree["suites"]["piqa"]["epochs"] = 2
    path.write_text(yaml.safe_dump(tree))
    folder = carry_out(path).folder

    def flip(rows: list[Any]) -> list[Any]:
        rows[0]["scores"]["accuracy"] = 1.0 - rows[0]["scores"]["accuracy"]
        return rows

    rewritten(folder, "reference_again", "piqa", flip)
    verdict = judge(folder)
    assert outcomes(verdict) == {"cheap": Outcome.GO}
    assert any("1 of 40 differ" in finding.text for finding in verdict.validity)


def broken_row(folder: RunFolder, variant: str, column: str, value: float) -> None:
    def spoil(key: Key, columns: dict[str, np.ndarray]) -> None:
        columns[column][0] = value

    rewrite_one(folder, variant, "kl", "", spoil)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("logprob", np.nan),
        ("logprob", np.inf),
        ("logprob", 0.5),
        ("logprob", 1000.0),
        ("top_logprobs", np.nan),
        ("top_logprobs", np.inf),
        ("top_logprobs", 1.0),
    ],
)
def test_rows_that_are_no_logprobs_show_and_judging_goes_on(folder: RunFolder, column: str, value: float) -> None:
    broken_row(folder, "cheap", column, value)
    verdict = judge(folder)
    assert any("have non-finite or unnormalised logprobs" in text for text in said(verdict, candidate="cheap"))
    assert outcomes(verdict) == {"cheap": Outcome.INVALID, "other": Outcome.GO}


@pytest.mark.parametrize("value", [np.nan, np.inf, 1000.0])
def test_numbers_that_are_no_logprobs_do_not_cost_the_report(folder: RunFolder, value: float) -> None:
    def spoil(key: Key, columns: dict[str, np.ndarray]) -> None:
        columns["vocabulary" if "vocabulary" in columns else "logprob"].flat[0] = value

    for kind in (ROWS, AUDIT):
        rewrite_one(folder, "cheap", "kl", "", spoil, kind)
    (folder.path / "report.html").unlink()
    assert outcomes(conclude(folder)) == {"cheap": Outcome.INVALID, "other": Outcome.GO}
    assert (folder.path / "report.html").is_file()


def test_lists_that_stand_one_place_off_show(folder: RunFolder) -> None:
    """Pitfalls 24 and 31: a shift in both arms alike would leave a distance that looks like any other."""

    def shift(key: Key, columns: dict[str, np.ndarray]) -> None:
        for name in ("top_ids", "top_logprobs"):
            columns[name] = np.roll(columns[name], 1, axis=0)

    for variant in ("reference", "reference_again", "cheap", "other"):
        rewrite(folder, variant, "kl", shift)
    verdict = judge(folder)
    assert outcomes(verdict) == {"cheap": Outcome.INVALID, "other": Outcome.INVALID}
    assert [text for text in said(verdict) if "contradict the logprob" in text]


def test_distances_are_clustered_as_the_samples_are(folder: RunFolder) -> None:
    gathered = Gathered(folder)
    gathered.samples["kl"] = {name: replace(s, cluster=name[-1]) for name, s in gathered.samples["kl"].items()}
    tokens = gathered.distances(gathered.plan.suite("kl"), "cheap")
    assert tokens is not None
    streamed = gathered.streamed(gathered.plan.suite("kl"), "cheap")
    assert streamed is not None
    assert streamed.clusters == tuple("0123456789")
    assert np.count_nonzero(tokens.by_prompt.sizes) == 10


def test_lists_that_name_a_token_twice_show_and_judging_goes_on(folder: RunFolder) -> None:
    """Pitfall 24: the same top list for every token, or one entry for all."""
    broken_row(folder, "cheap", "top_ids", 7)
    verdict = judge(folder)
    assert "cheap, kl: 1 top-K lists name a token twice, or what is no token" in said(verdict, candidate="cheap")
    assert outcomes(verdict) == {"cheap": Outcome.INVALID, "other": Outcome.GO}


@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_an_audited_row_that_is_no_distribution_shows(folder: RunFolder, value: float) -> None:
    def spoil(key: Key, columns: dict[str, np.ndarray]) -> None:
        columns["vocabulary"][0, 0] = value

    rewrite_one(folder, "cheap", "kl", "", spoil, AUDIT)
    verdict = judge(folder)
    [text] = said(verdict, candidate="cheap")
    assert text.startswith("cheap, kl: 1 of ")
    assert text.endswith(" audited positions are no distribution over the vocabulary")
    assert outcomes(verdict) == {"cheap": Outcome.INVALID, "other": Outcome.GO}


@pytest.mark.parametrize("name", ["run.yaml", "environment.json", "samples/piqa.jsonl", "variants/cheap/tokens"])
def test_a_folder_with_a_part_missing_is_one_line_and_no_verdict(folder: RunFolder, name: str) -> None:
    path = folder.path / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(UsageError) as caught:
        judge(folder)
    assert str(caught.value).startswith(str(path))
    assert "; " in str(caught.value)


@pytest.mark.parametrize("variant", ["reference", "reference_again"])
def test_a_broken_row_of_the_reference_or_of_the_floor_invalidates_all(folder: RunFolder, variant: str) -> None:
    broken_row(folder, variant, "top_logprobs", np.nan)
    verdict = judge(folder)
    assert set(outcomes(verdict).values()) == {Outcome.INVALID}
    assert any(text.startswith(f"{variant}, kl: ") for text in said(verdict))


def wrong(rows: list[Any]) -> list[Any]:
    return [{**row, "scores": {"accuracy": 0.0, "lead": row["scores"]["lead"] - 3}} for row in rows]


def test_a_reference_that_contradicts_itself_invalidates_all(folder: RunFolder) -> None:
    rewritten(folder, "reference_again", "piqa", wrong)
    verdict = judge(folder)
    assert set(outcomes(verdict).values()) == {Outcome.INVALID}
    assert any(text.startswith("A/A piqa accuracy: ") for text in said(verdict))


def test_truncation_and_refusal_are_scores_of_zero_and_stay_in_the_denominator(folder: RunFolder) -> None:
    """Pitfall 12: truncation counted as agreement."""

    def cut(rows: list[Any]) -> list[Any]:
        for n, row in enumerate(rows):
            row["state"] = "truncated" if n % 2 else "refused"
        return rows

    rewritten(folder, "cheap", "piqa", cut)
    checks = {check.gate: check for check in judge(folder).candidates["cheap"].checks}
    assert checks["accuracy"].estimate is not None
    assert checks["accuracy"].estimate.value == pytest.approx(-0.75, abs=0.12)
    assert checks["accuracy"].outcome == "fail"


def test_failures_in_one_arm_of_a_distance_suite_are_stability(folder: RunFolder) -> None:
    def lose(rows: list[Any]) -> list[Any]:
        return [{**row, "state": "infra", "scores": {}} if n < 12 else row for n, row in enumerate(rows)]

    rewritten(folder, "cheap", "kl", lose)
    verdict = judge(folder)
    assert outcomes(verdict)["cheap"] is Outcome.INVALID
    assert any("unequally (p = " in text for text in said(verdict, candidate="cheap"))


def test_a_torn_line_is_said_and_left_out(folder: RunFolder) -> None:
    path = folder.records_path("cheap", "piqa")
    path.write_bytes(path.read_bytes()[:-20])
    verdict = judge(folder)
    assert said(verdict, Level.WARN) == ["variants/cheap/records/piqa.jsonl: its end was cut by a kill and is left out"]
    assert outcomes(verdict)["cheap"] is Outcome.INVALID


def test_a_lost_process_whose_work_another_did_is_a_warning(folder: RunFolder) -> None:
    """Nothing is owed, so `resume` could not clear it."""
    folder.set_failed("cheap", "cheap: out of memory")
    verdict = judge(folder)
    assert outcomes(verdict)["cheap"] is Outcome.GO
    assert said(verdict, Level.WARN, "cheap") == ["cheap: out of memory; another process made all attempts"]
    rewritten(folder, "cheap", "piqa", lambda rows: rows[1:])
    assert judge(folder).candidates["cheap"].reasons == ("cheap: out of memory",)


def test_an_interrupted_run_is_invalid_and_names_the_root_not_what_follows(folder: RunFolder) -> None:
    folder.set_stopped("interrupted by SIGTERM before all attempts were made")
    rewritten(folder, "cheap", "piqa", lambda rows: rows[:50])
    verdict = judge(folder)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.INVALID, 3)
    assert verdict.candidates["cheap"].reasons == ("interrupted by SIGTERM before all attempts were made",)


def test_a_variant_that_was_never_reached_is_invalid(folder: RunFolder) -> None:
    shutil.rmtree(folder.variant_path("cheap"))
    verdict = judge(folder)
    assert outcomes(verdict) == {"cheap": Outcome.INVALID, "other": Outcome.GO}
    assert verdict.candidates["cheap"].reasons == ("cheap: nothing was proved; its engine was not reached",)


def test_without_a_second_reference_nothing_counts(folder: RunFolder) -> None:
    shutil.rmtree(folder.variant_path("reference_again"))
    assert set(outcomes(judge(folder)).values()) == {Outcome.INVALID}


def test_without_the_reference_nothing_counts(folder: RunFolder) -> None:
    shutil.rmtree(folder.variant_path("reference"))
    assert set(outcomes(judge(folder)).values()) == {Outcome.INVALID}


def test_draws_are_not_independent_units(folder: RunFolder) -> None:
    """Pitfall 33: tokens of one prompt stand or fall together, so the prompts are what is counted."""
    checks = {check.gate: check for check in judge(folder).candidates["cheap"].checks}
    assert checks["kl_veto"].estimate is not None
    assert checks["kl_veto"].estimate.method.startswith("cluster-robust t, 29 degrees of freedom")
    assert checks["kl_veto"].estimate.n > 300


FAULTY: dict[str, tuple[dict[str, Any], str]] = {
    "wrong_dtype": ({"noise": 0.1, "says_weights": "int4"}, "weights is int4, expected bf16"),
    "other_template": ({"noise": 0.1, "template": "[{role}]{content}"}, "other prompt tokens than the reference"),
    "not_engaged": ({}, "bit-identical to the reference on every probe"),
    "nan": ({"noise": 0.1, "nan_every": 40}, "non-finite or unnormalised logprobs"),
}


def test_a_faulty_candidate_is_invalid_and_the_good_one_is_not(tmp_path: Path) -> None:
    candidates = {name: args for name, (args, _) in FAULTY.items()}
    verdict = carry_out(run_file(tmp_path, {**candidates, "good": {"noise": 0.02}})).verdict
    assert outcomes(verdict) == {**dict.fromkeys(FAULTY, Outcome.INVALID), "good": Outcome.GO}
    for name, (_, reason) in FAULTY.items():
        assert reason in " ".join(verdict.candidates[name].reasons), name


def test_a_reference_with_real_noise_is_not_invalid_and_prints_its_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "starts", 0)  # the seed of the jitter
    noisy = {"weights": "toy", "expect": {"weights": "bf16"}, "args": {"jitter": 0.05}}
    verdict = carry_out(run_file(tmp_path, {"cheap": {"noise": 0.06}}, reference=noisy, runner={"engines": 1})).verdict
    assert verdict.candidates["cheap"].outcome is Outcome.GO
    assert "times the floor" in verdict.candidates["cheap"].reasons[0]
