"""The view model: what a reviewer reads, from fabricated runs."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from toys.token_rows import rewrite_one

from evalrig.evidence import Gathered
from evalrig.records import RunFolder, encode
from evalrig.report.distances import distances
from evalrig.report.shown import Page
from evalrig.report.view import page
from evalrig.tokens import Key
from evalrig.types import Verdict
from evalrig.verdict import judge

Make = Callable[..., RunFolder]


def shown(folder: RunFolder) -> Page:
    return _shown(folder.path)


@cache
def _shown(path: Path) -> Page:
    folder = RunFolder(path)
    return page(folder, judge(folder))


def test_the_sentences_are_those_a_reviewer_signs(make: Make) -> None:
    fp8kv, int4 = shown(make(items=300)).cards
    assert fp8kv.headline.startswith("GO: fp8kv loses no more than 5 points on piqa (+0.3, 90 % interval −1.1 to +1.9")
    assert "stays below the veto on distance (0.00" in fp8kv.headline
    assert int4.headline.startswith("NO-GO: int4 moves the token distribution by 0.3")
    assert "above the noise floor, veto at 0.05; on piqa no loss is visible (+0.7" in int4.headline
    assert int4.headline.endswith("300 samples can see 5 points")


def test_a_diagnostic_loss_is_said_and_has_no_effect(make: Make) -> None:
    [remark] = shown(make(items=300)).cards[1].remarks
    assert remark.startswith("lead on piqa: ")
    assert "margin of 0.5 nats" in remark


def test_gains_stand_beside_losses(make: Make) -> None:
    fp8kv, int4 = shown(make()).cards
    assert [row.ratio for row in fp8kv.gains] == ["× 2.00", "× 0.50", "same"]
    assert fp8kv.gain_note == "KV cache: tokens in the same pool × 2.00 and KV cache: memory per token × 0.50"
    assert int4.gain_note == "weights in memory × 0.31"


def test_what_was_not_covered_and_the_note_are_on_top(make: Make) -> None:
    head = shown(make()).head
    assert head.not_covered == "coding, tool calls, long context, serving load"
    assert head.note.startswith("the weights were already 4-bit")
    assert head.sentence == "of 2 candidates the worst counts: 1 GO and 1 NO-GO (exit code 1)"


def test_accounting_adds_up(make: Make) -> None:
    view = shown(make())
    assert view.states == ("scored", "unscored", "infra", "refused", "truncated", "absent")
    assert all(row.adds_up and sum(row.counts) == row.planned for row in view.accounting)


def test_the_forest_holds_all_arms_the_noise_and_the_margin(make: Make) -> None:
    accuracy, lead = shown(make()).suites[1].metrics
    assert [bar.arm for bar in accuracy.forest.bars] == ["fp8kv", "int4", "A/A (reference again)"]
    assert [bar.noise for bar in accuracy.forest.bars] == [False, False, True]
    assert (accuracy.forest.margin, lead.forest.margin) == (-5.0, -0.5)
    assert accuracy.rows[1].counts == "14 / 16"
    assert lead.role == "Diagnostic, never changes the verdict: margin 0.5 nats (gate piqa_lead)."
    assert "int4 +1.7 (" in accuracy.forest.description


def test_the_distance_table_has_the_floor_and_what_lists_hide(make: Make) -> None:
    [view] = shown(make()).distances
    assert view.arms == ("fp8kv", "int4", "floor (A/A)")
    rows = {row.label: row.cells for row in view.rows}
    assert rows["ratio to the floor"][2] == "–"
    assert rows["ratio to the floor"][0].startswith("× ")
    assert {row.label: row.cells for row in view.measures.rows}["p99.9"][0] == "tail not resolved"
    assert "lose" in view.notes[1]
    assert "32 audited positions" in view.notes[1]
    assert view.positions.octaves == ("1–2", "3–4", "5–8", "9–16")


@pytest.mark.parametrize(("options", "notes"), [({"leg": "cached_prefix"}, 1), ({"leg": "prefill"}, 0), ({}, 0)])
def test_tokens_that_were_scored_over_a_cached_prefix_are_said_to_be(
    make: Make, options: dict[str, str], notes: int
) -> None:
    gathered = Gathered(make())
    gathered.plan = replace(gathered.plan, config={"suites": {"kl": {"kind": "kl", "options": options}}})
    [view] = distances(gathered, {name: gathered.evidence(name) for name in gathered.plan.candidates})
    assert sum("after their prompt was read from the KV cache" in note for note in view.notes) == notes


def test_a_floor_of_zero_has_no_ratio(make: Make) -> None:
    [view] = shown(make(floor_noise=0.0)).distances
    rows = {row.label: row.cells for row in view.rows}
    assert rows["ratio to the floor"][:2] == ("not defined", "not defined")
    assert any("exactly 0" in note for note in view.notes)


def test_flips_are_counted_cut_and_shown_with_both_sides(make: Make) -> None:
    fp8kv, int4 = shown(make(question="\u202eevil\x00")).flips
    assert int4.summary == ("30 flips on 120 samples: 14 losses, 16 gains; the first 20 are shown, losses first")
    assert len(int4.items) == 20
    assert int4.noise == "the reference against itself: 1 flip on 40 samples"
    loss = fp8kv.items[0]
    assert (loss.direction, loss.target) == ("loss", "with a wedge")
    assert loss.prompt == "Question: ⟨U+202E⟩evil␀\nAnswer:"
    reference, candidate = loss.sides
    assert [said.mark for said in reference.said] == ["chosen, right", ""]
    assert [said.mark for said in candidate.said] == ["right", "chosen"]
    assert candidate.said[1].logprob == "−7.00"


def test_a_huge_output_is_cut(make: Make) -> None:
    group = shown(make(answer="x" * 100_000)).flips[0]
    said = group.items[0].sides[1].said[1]
    assert said.text.endswith("(cut here: 98,000 more characters)")


def test_engines_mark_what_differs(make: Make) -> None:
    rows = {row.label: row.cells for row in shown(make()).facts.engines.rows}
    assert [cell.differs for cell in rows["KV cache"]] == [False, True, False, False]
    assert [cell.text for cell in rows["weights"]] == ["bf16", "bf16", "int4", "bf16"]


def test_no_path_of_this_machine_is_shown(make: Make) -> None:
    folder = make()
    view = shown(folder)
    assert view.facts.repeat.commands[0].cells == ("evalrig run runs/made-up/2026-11-29T12-00-00Z/run.yaml",)
    assert str(folder.path.parent) not in encode(view).decode()


def test_a_run_folder_given_as_here_is_shown_by_its_name(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make()
    monkeypatch.chdir(folder.path)
    assert encode(page(RunFolder.open(Path()), judge(folder))) == encode(page(folder, judge(folder)))


def test_the_same_run_gives_the_same_bytes(make: Make) -> None:
    folder = make()
    verdict = judge(folder)
    once, twice = encode(page(folder, verdict)), encode(page(folder, verdict))
    assert once == twice
    msgspec.json.decode(once)


@pytest.mark.parametrize("changes", [{"kl": False}, {"piqa": False}, {"preflight": False}, {"gating": False}])
def test_runs_that_lack_a_part_are_still_reported(make: Make, changes: dict[str, bool]) -> None:
    view = shown(make(**changes))
    assert len(view.cards) == 2
    if "preflight" in changes:
        assert view.cards[0].headline.startswith("INVALID: fp8kv: ")
        assert view.cards[0].gain_note.startswith("the engine does not say")
        assert view.cards[0].remarks == ()
    if "gating" in changes:
        assert view.head.outcome == "INCONCLUSIVE"
        assert "no checks is not a pass" in view.cards[0].headline
    if "kl" in changes:
        assert view.distances == ()
        assert view.facts.repeat.unused_gates == "kl_veto"


def test_a_run_that_reached_nothing_is_reported(make_own: Make) -> None:
    folder = make_own(preflight=False)
    for path in (folder.path / "variants").rglob("*.jsonl"):
        path.unlink()
    folder.set_stopped("interrupted by SIGTERM before all attempts were made")
    view = shown(folder)
    assert view.head.outcome == "INVALID"
    assert "interrupted by SIGTERM" in view.cards[0].headline
    assert view.suites[1].metrics[0].rows[0].reading == "no pairs were measured"
    assert view.flips[0].noise == "the reference was not measured against itself"
    assert all(row.counts[-1] == row.planned for row in view.accounting)


def test_no_candidate_at_all(make: Make) -> None:
    folder = make()
    verdict: Verdict = replace(judge(folder), candidates={})
    assert page(folder, verdict).cards == ()


def test_tokens_without_a_number_and_tokens_ruled_out_are_told(make_own: Make) -> None:
    folder = make_own(piqa=False)
    for arm, value in (("fp8kv", np.nan), ("int4", -np.inf)):

        def spoil(key: Key, columns: dict[str, np.ndarray], value: float = value) -> None:
            columns["top_logprobs"][3, 0] = value

        rewrite_one(folder, arm, "kl", "p01", spoil)
    view = shown(folder)
    assert view.head.outcome == "INVALID"
    assert view.cards[0].headline.startswith("INVALID: fp8kv, kl: ")
    [distance] = view.distances
    rows = {row.label: row.cells for row in distance.rows}
    assert rows["ruled out by the candidate"] == ("0", "1", "0")
    assert rows["mean KL, nats per token"][1] == "∞"
    assert distance.notes[-1] == "fp8kv: 1 position without a number, left out here."


def test_a_single_candidate(make: Make) -> None:
    view = shown(make(only=("fp8kv",), items=300))
    assert view.head.sentence == "one candidate (exit code 0)"


def test_the_certificate_speaks_of_what_was_measured(make: Make) -> None:
    [view] = shown(make(finish="length")).distances
    whole = [row for row in view.certificates.rows if row.part.startswith("whole response")]
    assert {row.part for row in whole} == {"whole response, as far as measured: the first 16 tokens"}
    assert any("24 of 24 responses ended at the token limit" in note for note in view.certificates.notes)
    [short, by_kl] = [row for row in view.certificates.rows if row.arm == "fp8kv" and "short answer" in row.part]
    assert short.sentence.startswith("no success rate of these prompts can change by more than ")
    assert (short.status, short.assumptions, by_kl.status) == ("certified", "none", "conditional")
    assert any("k3, the KL from the drawn tokens alone" in note for note in view.certificates.notes)


def test_without_traces_nothing_is_certified_and_no_class_is_guessed(make: Make) -> None:
    [view] = shown(make(traces=False)).distances
    assert view.certificates.rows == ()
    assert "no response that the reference drew was scored" in view.certificates.notes[0]
    classes = view.maps.tables[0]
    assert (classes.rows, classes.note.split(":")[0]) == ((), "Not available")
    assert view.maps.far[0].tokens[0].token.startswith("#")


def test_maps_and_the_worst_tokens_are_shown_in_context(make: Make) -> None:
    [view] = shown(make(piece="\u202eevil\x00")).distances
    assert [table.title for table in view.maps.tables] == [
        "By class of token",
        "By entropy of the reference",
        "By source of the prompt",
    ]
    assert {row.cells[0] for row in view.maps.tables[2].rows} == {"chat", "code"}
    assert [far.arm for far in view.maps.far] == ["fp8kv", "int4"]
    assert all((len(far.tokens), len(far.prompts)) == (10, 10) for far in view.maps.far)
    worst = view.maps.far[1].tokens[0]
    assert [choice.given for choice in worst.choices].count(True) == 1
    assert "⟨U+202E⟩evil␀" in worst.before + worst.token + worst.after
    assert view.maps.far[1].prompts[0].prompt == "user: Tell me about rivers."
    assert all("growth cannot be told" in line for line in view.positions.growth), "16 tokens do not reach position 65"


def test_growth_is_put_in_words(make: Make) -> None:
    [view] = shown(make(tokens=300, only=("fp8kv",), piqa=False)).distances
    assert "fp8kv: no growth is shown: " in view.positions.growth[0]
    assert "Positions 129–256 have × " in view.positions.growth[0] or "Positions 257–512" in view.positions.growth[0]


def test_all_measures_of_the_lists_are_there(make: Make) -> None:
    [view] = shown(make()).distances
    rows = {row.label: row.cells for row in view.measures.rows}
    assert set(rows) >= {"median", "p90", "p95", "p99", "p99.9", "largest", "mean, cut at p99.9"}
    low, high = (float(end) for end in rows["total variation, between"][0].split(" to "))
    assert 0 < low < high < 10
    assert float(rows["reverse KL, nats per token"][0]) == pytest.approx(float(view.rows[0].cells[0]), rel=0.1)
