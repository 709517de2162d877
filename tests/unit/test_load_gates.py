"""Gates on rounds of load: known answers, A/A in view, and no gate on the speed of an emulation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.nouns import evidence, pairs
from toys.rounds import CAPACITIES, METRICS, blocks, load_folder

from evalrig.analysis.load_floor import beside_floor
from evalrig.errors import UsageError
from evalrig.evidence import Gathered
from evalrig.gate import Evidence, outcome_of
from evalrig.gates.kv_capacity import KvCapacity, KvCapacityOptions
from evalrig.gates.load_ratio import LoadRatio, LoadRatioOptions
from evalrig.gates.saving import Saving, SavingOptions
from evalrig.gates.slo import Slo, SloOptions
from evalrig.loads import Load, load_of
from evalrig.plan import GatePlan, SuitePlan
from evalrig.proof import Preflight
from evalrig.speed import refusal
from evalrig.types import AGAIN, EMULATED, REFERENCE, Capacity, Check, CheckOutcome, Fingerprint, State
from evalrig.validity import findings
from evalrig.verdict import HELD_ONLY, SPEED_ONLY, judge

PASSED, FAILED, UNDECIDED = CheckOutcome.PASSED, CheckOutcome.FAILED, CheckOutcome.UNDECIDED


def suite_plan(rounds: int) -> SuitePlan:
    ids = tuple(f"round-{number:02d}" for number in range(rounds))
    return SuitePlan(
        name="load",
        kind="load",
        family="serving load",
        epochs=1,
        metrics=METRICS,
        traced=False,
        samples=tuple(reversed(ids)),
        again=ids,
        sha256="",
    )


def proof(arm: str, emulation: str = "", capacity: Capacity | None = None) -> Preflight:
    flags = {EMULATED: emulation} if emulation else {}
    return Preflight(
        variant=arm,
        expect={},
        fingerprint=Fingerprint(engine="toy", version="1", weights="bf16", kv_cache="bf16", flags=flags),
        capacity=capacity or CAPACITIES.get(arm, CAPACITIES[REFERENCE]),
    )


def seen(speed: float = 1.0, again: float = 1.0, emulation: str = "", rounds: int = 12, **more: Any) -> Evidence:
    """Evidence of one load; `more` as for `blocks`."""
    records = blocks({REFERENCE: 1.0, "cheap": speed, AGAIN: again}, rounds, **more)
    proofs = {arm: proof(arm, emulation) for arm in records}
    found = load_of(suite_plan(rounds), "cheap", records, proofs)
    return replace(evidence(), loads={"load": found})


def plan(metric: str = "", margin: float = 0.01, **options: Any) -> GatePlan:
    return GatePlan(name="g", kind="k", suite="load", metric=metric, margin=margin, gating=True, options=options)


def ratio(of: Evidence, margin: float = 0.01, metric: str = "output_tokens_per_second") -> Check:
    return LoadRatio(plan(metric, margin), LoadRatioOptions()).check(of)


# ---- load_ratio


def test_as_fast_as_the_reference_passes_a_margin_and_slower_fails_it() -> None:
    passed, failed = ratio(seen(1.0)), ratio(seen(0.95))
    assert passed.outcome is PASSED
    assert "a loss of 1 % is excluded" in passed.reason
    assert "A/A" in passed.reason
    assert failed.outcome is FAILED
    assert failed.p_nogo < 0.001
    assert failed.estimate is not None
    assert failed.estimate.value == pytest.approx(0.95, rel=0.005)


def test_of_a_time_less_is_better() -> None:
    """The same blocks: tokens per second 5 % down is time per token 5 % up, and both fail."""
    for metric in ("output_tokens_per_second", "tpot_p50"):
        assert ratio(seen(0.95), metric=metric).outcome is FAILED
        assert ratio(seen(1.05), metric=metric).outcome is PASSED


def test_noise_above_the_margin_is_cannot_tell_here_and_names_the_rounds() -> None:
    found = ratio(seen(0.98, sd=0.03))
    assert found.outcome is UNDECIDED
    assert found.needed is not None
    assert found.needed > 12
    assert f"would need {found.needed} pairs" in found.reason
    assert (found.p_go, found.p_nogo) == (1.0, 1.0)


def test_a_lucky_draw_among_noise_that_hides_the_margin_is_no_pass() -> None:
    """These twelve rounds happen to lean to the candidate, p = .02; the reference itself cannot be shown to lose less than 1 %."""
    found = ratio(seen(1.0, sd=0.03))
    assert found.outcome is UNDECIDED
    assert "the same cannot be shown of the reference's own second run" in found.reason
    assert ratio(seen(1.3, sd=0.03)).outcome is PASSED


@pytest.mark.parametrize(("speed", "outcome"), [(1.3, PASSED), (1.1, FAILED), (1.2, UNDECIDED)])
def test_a_gain_must_be_reached_not_only_seen(speed: float, outcome: CheckOutcome) -> None:
    margin = LoadRatio.margin_of(plan("output_tokens_per_second", 0.0), LoadRatioOptions(min_ratio=1.2))
    assert margin == pytest.approx(-0.2)
    assert ratio(seen(speed), margin).outcome is outcome


def test_sequential_drift_looks_like_a_difference_so_a_claim_no_better_than_its_a_a_is_undecided() -> None:
    """The reference's second run is as far off as the candidate: whatever moved it moved both."""
    gain = LoadRatio.margin_of(plan(margin=0.0), LoadRatioOptions(min_ratio=1.02))
    assert ratio(seen(1.05), gain).outcome is PASSED
    claimed = ratio(seen(1.05, again=1.06), gain)
    assert claimed.outcome is UNDECIDED
    assert "not beyond what the reference differs from itself" in claimed.reason
    lost = ratio(seen(0.95, again=0.95))
    assert lost.outcome is UNDECIDED
    held = ratio(seen(1.0, again=0.97))
    assert held.outcome is UNDECIDED
    assert "the same cannot be shown of the reference's own second run" in held.reason
    other = ratio(seen(1.0, again=1.03))
    assert other.outcome is UNDECIDED
    assert "nearer to its bound than the reference is to itself" in other.reason


def test_without_a_a_there_is_no_claim() -> None:
    void = {(AGAIN, number): "busy" for number in range(12)}
    found = ratio(seen(1.0, void=void))
    assert found.outcome is UNDECIDED
    assert "no A/A interval" in found.reason


def test_a_void_half_drops_its_round_in_both_arms() -> None:
    found = seen(1.0, void={("cheap", 3): "send lag", (REFERENCE, 5): "clock"})
    rounds = found.loads["load"].rounds["output_tokens_per_second"]
    assert np.isnan(rounds.candidate[5])
    assert ratio(found).estimate is not None
    assert ratio(found).estimate.n == 10  # type: ignore[union-attr]
    assert found.loads["load"].void["cheap"] == ("round-03: void: send lag",)


@pytest.mark.parametrize("lost", [5, 12])
def test_too_many_void_rounds_are_no_pass(lost: int) -> None:
    void = {("cheap", number): "client too busy" for number in range(lost)}
    found = seen(1.3, void=void)
    for check in (ratio(found), Slo(plan(margin=0.05), SloOptions()).check(found), saving(found)):
        assert check.outcome is UNDECIDED
        assert f"{lost} of 12 rounds lack a half" in check.reason
        assert "client too busy" in check.reason


def test_one_round_decides_nothing() -> None:
    found = ratio(seen(1.3, rounds=1))
    assert found.outcome is UNDECIDED
    assert "1 round" in found.reason


def test_rounds_stand_in_the_order_in_which_they_were_run() -> None:
    assert seen().loads["load"].names == tuple(f"round-{number:02d}" for number in range(12))


# ---- emulation


def saving(of: Evidence, margin: float = 0.1) -> Check:
    return Saving(plan("usd_per_million_output", margin), SavingOptions()).check(of)


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_the_speed_of_an_emulation_never_gates(speed: float) -> None:
    found = seen(speed, emulation="formats are emulated in f32")
    for check in (ratio(found), saving(found), Slo(plan(margin=0.05), SloOptions()).check(found)):
        assert not check.gating
        assert check.reason.startswith("emulated formats: speed is not evidence (formats are emulated in f32)")


def test_the_capacity_of_an_emulation_counts() -> None:
    gate = KvCapacity(plan(margin=-0.9), KvCapacityOptions(min_ratio=1.9))
    check = gate.check(seen(emulation="formats are emulated in f32"))
    assert (check.outcome, check.gating) == (PASSED, True)
    assert "holds 1.9 times the reference's KV tokens: 20,000 KV tokens, the reference 10,000" in check.reason


def test_an_emulated_run_is_never_go_by_its_speed(tmp_path: Path) -> None:
    gates = {"speed": {"kind": "load_ratio", "metric": "output_tokens_per_second", "margin": 0.01}}
    real = judge(load_folder(tmp_path / "real", gates))
    assert real.outcome == "GO"
    verdict = judge(load_folder(tmp_path / "emulated", gates, emulation="in f32"))
    assert verdict.outcome == "INCONCLUSIVE"
    assert "speed of serving load (emulated formats" in verdict.candidates["cheap"].scope


def test_capacity_alone_and_speed_beside_answers_earn_no_go(tmp_path: Path) -> None:
    """A veto that passes, or more room, says nothing of whether answers are as good."""
    held = {"kind": "kv_capacity", "margin": -0.9}
    verdict = judge(load_folder(tmp_path / "held", {"held": held}))
    assert (verdict.outcome, verdict.candidates["cheap"].reasons) == ("INCONCLUSIVE", (HELD_ONLY,))
    gates = {"held": held, "speed": {"kind": "load_ratio", "metric": "output_tokens_per_second", "margin": 0.01}}
    gathered = Gathered(load_folder(tmp_path / "both", gates))
    assert judge(gathered.folder, gathered).outcome == "GO"
    arm = gathered.evidence("cheap")
    answers = {("quiz", "accuracy"): pairs([1.0, 0.0], [1.0, 0.0])}
    gathered._evidence["cheap"] = replace(arm, pairs=answers)  # as if a suite had asked, and no gate judged it
    verdict = judge(gathered.folder, gathered)
    assert (verdict.outcome, verdict.candidates["cheap"].reasons) == ("INCONCLUSIVE", (SPEED_ONLY,))


# ---- slo, saving, kv_capacity


@pytest.mark.parametrize(("within", "outcome"), [(1000, PASSED), (990, UNDECIDED), (970, FAILED)])
def test_the_share_within_the_slo_is_bounded_exactly(within: int, outcome: CheckOutcome) -> None:
    """p99 of 1,000: all within shows 99 % (0.99^1000 is 4e-5); 990 is the bound itself."""
    check = Slo(plan(margin=0.01), SloOptions()).check(counted([within / 10] * 10, [100.0] * 10))
    assert check.outcome is outcome


def test_the_bound_is_clopper_and_pearsons() -> None:
    """298 of 298: the lower limit is .05^(1/298) = .98999...; one more request certifies 99 %."""
    for n, outcome in ((298, UNDECIDED), (299, PASSED)):
        check = Slo(plan(margin=0.01), SloOptions()).check(counted([float(n)], [float(n)]))
        assert check.outcome is outcome
        assert check.estimate is not None
        assert check.estimate.low == pytest.approx(0.05 ** (1 / n), rel=1e-9)


def test_requests_of_a_bad_round_are_not_independent() -> None:
    """All failures in one round of ten are one event, not twenty."""
    together = Slo(plan(margin=0.01), SloOptions()).check(counted([100.0] * 9 + [80.0], [100.0] * 10))
    spread = Slo(plan(margin=0.01), SloOptions()).check(counted([98.0] * 10, [100.0] * 10))
    assert spread.outcome is FAILED
    assert together.outcome is UNDECIDED
    assert "rounds differ by more than chance" in together.reason


def counted(within: list[float], everything: list[float]) -> Evidence:
    told = {"slo_ok": np.array(within), "slo_n": np.array(everything)}
    names = tuple(f"round-{number}" for number in range(len(within)))
    there = np.zeros(len(names), np.bool_)
    load = Load(
        rounds={}, void={}, capacity={}, names=names, told={"cheap": told}, missing={REFERENCE: there, "cheap": there}
    )
    return replace(evidence(), loads={"load": load})


@pytest.mark.parametrize(("speed", "outcome"), [(1.3, PASSED), (1.02, FAILED)])
def test_a_saving_has_the_interval_of_the_rates(speed: float, outcome: CheckOutcome) -> None:
    check = saving(seen(speed), 0.1)
    assert check.outcome is outcome
    assert check.estimate is not None
    assert check.estimate.value == pytest.approx(1 / speed, rel=0.005)


def test_fewer_kv_tokens_than_asked_fail_and_an_engine_that_does_not_tell_is_undecided() -> None:
    found = seen()
    assert KvCapacity(plan(margin=-1.5), KvCapacityOptions()).check(found).outcome is FAILED
    silent = Load(rounds={}, void={}, capacity={REFERENCE: Capacity(), "cheap": Capacity()})
    nothing = replace(evidence(), loads={"load": silent})
    assert KvCapacity(plan(), KvCapacityOptions()).check(nothing).outcome is UNDECIDED


@pytest.mark.parametrize(
    ("gate", "options", "margin"),
    [
        (LoadRatio, LoadRatioOptions(min_ratio=1.2), 0.01),
        (LoadRatio, LoadRatioOptions(), 0.0),
        (LoadRatio, LoadRatioOptions(min_ratio=0.9), 0.0),
        (KvCapacity, KvCapacityOptions(min_ratio=2), 0.1),
        (Slo, SloOptions(attainment=0.99), 0.01),
        (Slo, SloOptions(attainment=1.0), 0.0),
    ],
)
def test_a_margin_is_written_once(gate: Any, options: Any, margin: float) -> None:
    with pytest.raises(UsageError, match=r"gates\.g"):
        gate.margin_of(plan(margin=margin), options)


# ---- validity


def test_what_of_the_load_cannot_be_trusted_is_said(tmp_path: Path) -> None:
    void = {("cheap", 2): "send lag p99 is 4 ms"}
    folder = load_folder(tmp_path, {}, emulation="in f32", void=void)
    gathered = Gathered(folder)
    found = {one.rule: one for one in findings(gathered, [gathered.evidence("cheap")])}
    assert (
        "1 of 12 rounds lack a half that counts and are left out: round-02: void: send lag"
        in found["rounds of load"].text
    )
    assert "kernel told when bytes arrived" in found["load clock"].text
    assert found["load against itself"].level == "ok"
    assert "in f32" in found["speed"].text
    assert "missing" not in found
    assert "reference against itself" not in found


def test_requests_of_a_block_in_which_the_engine_failed_missed_the_slo() -> None:
    """Eight blocks of 64: one request failed in each of two. Two of 512 is not 0 of 384."""
    records = blocks({REFERENCE: 1.0, "cheap": 1.0, AGAIN: 1.0}, 8)
    kept = {"slo_ok": 64.0, "slo_n": 64.0, "slo_asked": 0.99}
    fine = [replace(record, scores={**record.scores, **kept}) for record in records["cheap"]]
    lost = [replace(one, state=State.INFRA, scores={**kept, "slo_ok": 63.0}) for one in fine[:2]]
    proofs = {arm: proof(arm) for arm in records}
    found = load_of(suite_plan(8), "cheap", {**records, "cheap": [*lost, *fine[2:]]}, proofs)
    check = Slo(plan(margin=0.01), SloOptions()).check(replace(evidence(), loads={"load": found}))
    assert check.outcome is UNDECIDED
    assert "510 of 512 requests" in check.reason
    assert found.missing["cheap"].sum() == 2, "for the ratios they are missing all the same"


# ---- what docs/load.md says of power


def passes(rounds: int, noise: float, loss: float = 0.0, start: float = 0.0) -> float:
    """Share of 600 studies in which "at most 1 % is lost" passes, A/A in view. `noise`: of a pair; `start`: of a whole arm."""
    random, found = np.random.default_rng(3), 0
    for _ in range(600):
        drawn = random.normal(0, start, 3)
        ours, theirs, again = (np.exp(random.normal(0, noise / np.sqrt(2), rounds) + one) for one in drawn)
        claim = beside_floor(ours, theirs * (1 - loss), again, 0.01, 0.05)
        outcome = outcome_of(claim.ratio.p_go, claim.ratio.p_nogo, 0.05)
        found += outcome is PASSED and not refusal(claim, 0.01, outcome, less=False)
    return found / 600


@pytest.mark.parametrize(("rounds", "noise", "planned"), [(8, 0.01, 0.8), (10, 0.01, 0.9), (26, 0.02, 0.8)])
def test_a_a_in_view_costs_five_to_fifteen_points_of_the_planned_power(
    rounds: int, noise: float, planned: float
) -> None:
    assert 0.04 < planned - passes(rounds, noise) < 0.16


def test_how_starts_differ_is_in_no_interval_of_engines_that_are_kept_up() -> None:
    """A true loss at the margin may pass in one study of twenty; where starts differ by 1 % it passes in a fifth."""
    assert passes(8, 0.0042, loss=0.01) <= 0.07
    assert passes(8, 0.0042, loss=0.01, start=0.01) > 0.15
