"""Gates: one rule on one candidate's evidence, and undecided wherever there is nothing to judge."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.nouns import ACCURACY, LEAD, distances, evidence, gate_plan, pairs

from evalrig.analysis.kl import audit
from evalrig.analysis.power import resolvable_margin
from evalrig.errors import UsageError
from evalrig.gates.kl_veto import KlVeto, KlVetoOptions
from evalrig.gates.noninferior import Noninferior, NoninferiorOptions
from evalrig.types import Check, CheckOutcome

PASSED, FAILED, UNDECIDED, INVALID = (
    CheckOutcome.PASSED,
    CheckOutcome.FAILED,
    CheckOutcome.UNDECIDED,
    CheckOutcome.INVALID,
)


def binary(reference: Any, candidate: Any, margin: float = 0.05, **options: Any) -> Check:
    gate = Noninferior(gate_plan("noninferior", "accuracy", margin), NoninferiorOptions(**options))
    return gate.check(evidence({"accuracy": pairs(reference, candidate)}))


def arms(n: int, right: int, losses: int = 0, gains: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Reference with `right` of n right; the candidate loses some of them and gains some of the others."""
    reference = np.zeros(n)
    reference[:right] = 1
    candidate = reference.copy()
    candidate[:losses] = 0
    candidate[right : right + gains] = 1
    return reference, candidate


# ---- binary


def test_no_loss_on_many_items_passes_and_a_large_loss_fails() -> None:
    passed = binary(*arms(300, 200, 3, 3))
    assert (passed.outcome, passed.reason) == (
        PASSED,
        "a loss of 5 points is excluded: +0 points, 90 % interval -1.6 to +1.6, n=300; 3 losses, 3 gains",
    )
    failed = binary(*arms(300, 200, 60))
    assert failed.outcome is FAILED
    assert failed.reason.startswith("a loss above 5 points is shown: -20 points, ")
    assert failed.p_nogo < 1e-6


def test_too_few_items_are_undecided_and_say_how_many_are_needed() -> None:
    found = binary(*arms(40, 30, 2, 2))
    assert found.outcome is UNDECIDED
    assert found.needed is not None
    assert found.needed > 40
    assert f"needs about {found.needed} samples" in found.reason
    assert (found.p_go, found.p_nogo) == (1.0, 1.0)


def test_the_pairs_decide_not_the_two_means() -> None:
    """Pitfall 32: an unpaired test on paired data. The same two means, with 6 and with 80 discordant pairs."""
    assert binary(*arms(300, 200, 3, 3)).outcome is PASSED
    assert binary(*arms(300, 200, 40, 40)).outcome is UNDECIDED


def test_a_zero_width_interval_when_all_trials_are_equal_is_no_guaranteed_pass() -> None:
    """Pitfall 35."""
    assert binary(*arms(5, 3)).outcome is UNDECIDED
    assert binary(*arms(20, 12)).outcome is UNDECIDED


def test_infra_failures_are_not_scored_zero_in_silence_nor_excluded() -> None:
    """Pitfalls 7, 8 and 11: failures of the engine are missing, and too many of them make the comparison invalid."""
    reference, candidate = arms(300, 200)
    candidate[[*range(0, 16, 2)]] = np.nan  # 8 of 300: unequally lost
    found = binary(reference, candidate)
    assert found.outcome is INVALID
    assert "the arms lose answers unequally (p = 0.0039): stability, not accuracy" in found.reason


def test_more_missing_than_half_the_margin_is_invalid() -> None:
    reference, candidate = arms(300, 200)
    reference[100:110] = np.nan
    candidate[110:120] = np.nan
    found = binary(reference, candidate)
    assert found.outcome is INVALID
    assert found.reason == (
        "missing scores: 3.3% of the reference, 3.3% of the candidate; more than could hide a loss of the margin"
    )
    assert binary(reference, candidate, max_missing=0.2).outcome is not INVALID


def test_worst_and_best_case_that_disagree_are_undecided() -> None:
    reference, candidate = arms(300, 200, 6, 6)
    reference[100:107] = np.nan
    candidate[110:117] = np.nan
    found = binary(reference, candidate)
    assert found.outcome is UNDECIDED
    assert found.reason.endswith("; worst and best case disagree")
    assert found.p_go == found.p_nogo == 1.0


def test_a_reference_at_the_ceiling_could_not_have_shown_a_loss() -> None:
    found = binary(*arms(300, 300))
    assert found.outcome is UNDECIDED
    assert found.reason == "no assay sensitivity: the reference scores 100.0%, at the ceiling"


def test_a_reference_at_chance_or_at_zero_could_not_have_shown_a_loss() -> None:
    assert binary(*arms(300, 152)).reason.endswith(
        "the reference scores 50.7%, within two standard errors of chance (50%)"
    )
    no_chance = gate_plan("noninferior", "accuracy")
    found = Noninferior(no_chance, NoninferiorOptions()).check(
        evidence({"accuracy": pairs(*arms(300, 1), metric=replace(ACCURACY, chance=None))})
    )
    assert found.outcome is UNDECIDED
    assert found.reason.endswith("within two standard errors of zero (0%)")


def test_a_server_that_ignores_its_input_scores_exact_chance_and_is_no_pass() -> None:
    """Pitfall 26."""
    flat = np.tile([0.0, 1.0], 150)
    assert binary(flat, flat).outcome is UNDECIDED


def test_all_of_an_arm_missing_is_no_pass() -> None:
    reference, candidate = arms(300, 200)
    assert binary(reference, np.full(300, np.nan)).outcome is INVALID
    assert binary(np.full(300, np.nan), candidate).outcome is INVALID


@pytest.mark.parametrize("share", [1.0, 2.0, float("nan")])
def test_a_share_of_missing_scores_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match=r"gates\.accuracy_gate\.options\.max_missing is "):
        Noninferior(gate_plan("noninferior", "accuracy"), NoninferiorOptions(max_missing=share))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(21, 200), st.data())
def test_a_worse_candidate_is_never_judged_better(n: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(n // 2, n))
    losses = data.draw(st.integers(0, right))
    rank = {PASSED: 0, UNDECIDED: 1, FAILED: 2}
    milder = binary(*arms(n, right, losses // 2), margin=0.1)
    worse = binary(*arms(n, right, losses), margin=0.1)
    assert rank[milder.outcome] <= rank[worse.outcome]


# ---- continuous


def continuous(differences: np.ndarray, margin: float = 0.5, missing: int = 0) -> Check:
    reference = np.linspace(-1, 1, len(differences))
    candidate = reference + differences
    candidate[:missing] = np.nan
    gate = Noninferior(gate_plan("noninferior", "lead", margin), NoninferiorOptions())
    return gate.check(evidence({"lead": pairs(list(reference), list(candidate), LEAD)}))


NOISE = np.random.default_rng(0).normal(0, 0.5, 200)


@pytest.mark.parametrize(
    ("shift", "outcome"), [(0.0, PASSED), (-0.2, PASSED), (-0.5, UNDECIDED), (-1.0, FAILED), (1.0, PASSED)]
)
def test_a_shift_is_judged_against_the_margin(shift: float, outcome: CheckOutcome) -> None:
    found = continuous(NOISE - NOISE.mean() + shift)
    assert found.outcome is outcome
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx(shift, abs=1e-9)


def test_a_gain_beyond_the_margin_is_said_to_be_suspicious() -> None:
    assert "suspiciously large gain" in continuous(NOISE + 5).reason


def test_equal_continuous_scores_are_no_evidence_of_precision() -> None:
    assert continuous(np.zeros(200)).outcome is UNDECIDED


def test_lost_continuous_scores_cannot_be_imputed() -> None:
    assert continuous(NOISE, missing=1).outcome is PASSED
    found = continuous(NOISE, missing=5)
    assert found.outcome is UNDECIDED
    assert found.reason == "2.5% of the pairs lack a score in one arm; an unbounded score cannot be imputed"
    assert continuous(NOISE, missing=199).outcome is UNDECIDED


def test_nothing_measured_is_undecided() -> None:
    gate = Noninferior(gate_plan("noninferior", "accuracy"), NoninferiorOptions())
    assert gate.check(evidence()).reason == "no pairs were measured"
    assert gate.check(evidence({"accuracy": pairs([], [])})).reason == "no pairs were measured"


# ---- the veto on distance


def veto(kl: Any, floor: Any = None, margin: float = 0.05) -> Check:
    gate = KlVeto(gate_plan("kl_veto", "kl", margin), KlVetoOptions())
    return gate.check(
        evidence(tokens=distances(np.asarray(kl)), floor=None if floor is None else distances(np.asarray(floor)))
    )


def spread(mean: float, n: int = 900) -> np.ndarray:
    return np.random.default_rng(1).exponential(mean, n)


def test_near_the_reference_there_is_no_veto_and_far_away_there_is() -> None:
    assert veto(spread(0.003), spread(0.001)).outcome is PASSED
    failed = veto(spread(0.4), spread(0.001))
    assert failed.outcome is FAILED
    assert failed.reason.startswith("the token distribution moves by 0.4")
    assert failed.p_nogo < 1e-6


def test_a_distance_at_the_margin_is_undecided_and_says_how_many_prompts() -> None:
    found = veto(spread(0.052), spread(0.0005))
    assert found.outcome is UNDECIDED
    assert found.needed is None or found.needed >= 30


def test_what_is_noise_of_the_reference_is_not_the_candidate_s() -> None:
    assert veto(spread(0.04), spread(0.04) * 0.99).outcome is PASSED


def test_a_floor_above_the_margin_cannot_pass_whatever_the_excess() -> None:
    found = veto(spread(0.4), spread(0.4) * 0.99)
    assert found.outcome is UNDECIDED
    assert found.reason.startswith("cannot tell: the noise floor of 0.4")


def test_without_a_floor_there_is_no_veto_but_near_is_near() -> None:
    far = veto(spread(0.4))
    assert far.outcome is UNDECIDED
    assert "no floor was measured" in far.reason
    assert veto(spread(0.003)).outcome is PASSED


def test_few_prompts_carry_no_claim() -> None:
    gate = KlVeto(gate_plan("kl_veto", "kl"), KlVetoOptions())
    found = gate.check(evidence(tokens=distances(spread(0.4, 60), prompts=2)))
    assert found.outcome is UNDECIDED
    assert "too few prompts" in found.reason


def test_suppressed_tokens_give_infinite_distance_and_never_nan_or_a_pass() -> None:
    """Pitfall 27: minus infinity in the logprobs."""
    kl = spread(0.003)
    kl[5] = np.inf
    found = veto(kl, spread(0.001))
    assert found.outcome is UNDECIDED
    assert found.estimate is not None
    assert found.estimate.value is None


@pytest.mark.parametrize("where", ["candidate", "floor"])
def test_a_gate_does_not_pass_on_nan(where: str) -> None:
    """Pitfall 35."""
    broken = spread(0.003)
    broken[3] = np.nan
    found = veto(broken, spread(0.001)) if where == "candidate" else veto(spread(0.003), broken)
    assert found.outcome is UNDECIDED
    assert found.reason.startswith("1 tokens ")


def test_no_token_is_undecided() -> None:
    assert veto([]).outcome is UNDECIDED
    assert KlVeto(gate_plan("kl_veto", "kl"), KlVetoOptions()).check(evidence()).outcome is UNDECIDED


def test_each_gate_takes_only_its_kind_of_metric() -> None:
    from toys.nouns import KL

    assert [KlVeto.accepts(metric) for metric in (KL, ACCURACY, LEAD, None)] == [True, False, False, False]
    assert [Noninferior.accepts(metric) for metric in (KL, ACCURACY, LEAD, None)] == [False, True, True, False]


def test_a_distance_that_the_lists_hide_is_no_pass() -> None:
    """Top-K lists give a lower bound: what the audit says they hide could lie across the veto."""
    plain = np.full((8, 64), -np.log(64.0), np.float32)
    moved = plain.copy()
    moved[:, 32:] += np.tile(np.array([0.9, -1.2], np.float32), 16)  # all the change lies outside the lists
    moved -= np.log(np.exp(moved).sum(1, keepdims=True))
    tokens = distances(0.03 + 0.002 * np.random.default_rng(5).standard_normal(240))
    measured = evidence(tokens=tokens, floor=distances(np.full(240, 1e-5)))
    gate = KlVeto(gate_plan("kl_veto", "kl"), KlVetoOptions())
    assert gate.check(measured).outcome is PASSED
    audited = audit(plain, moved, 8)
    held = gate.check(replace(measured, audits={"quiz": audited}))
    assert held.outcome is UNDECIDED
    assert "raise the suite's `top_k`" in held.reason
    seen = audit(plain, moved, 64)
    assert gate.check(replace(measured, audits={"quiz": seen})).outcome is PASSED


def test_what_it_can_decide_counts_clusters_and_not_the_samples_in_them() -> None:
    """Two samples of each of 100 problems that move as one are 100 pieces of evidence."""
    reference, candidate = (np.repeat(arm, 2) for arm in arms(100, 60, 6, 4))
    names = [f"s{n}" for n in range(200)]
    alone = pairs(reference, candidate)
    together = replace(alone, clusters=np.array([names[n // 2] for n in range(200)], dtype=np.str_))
    gate = Noninferior(gate_plan("noninferior", "accuracy", 0.03), NoninferiorOptions())
    words = [gate.check(replace(evidence(), pairs={("quiz", "accuracy"): each})).reason for each in (alone, together)]
    least = [f"it can decide {100 * resolvable_margin(n, 0.1):.2g} points" for n in (200, 100)]
    assert [each in said for each, said in zip(least, words, strict=True)] == [True, True]
    assert least[0] != least[1]
    assert "n=200 in 100 clusters" in words[1]
    assert "clusters" not in words[0]
