"""Several concurrencies in a round: what counts as one, and gates that look at one of them or at the SLO point."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toys.nouns import evidence
from toys.rounds import RATE, TPOT

from evalrig.gate import Evidence
from evalrig.gates.load_ratio import LoadRatio, LoadRatioOptions
from evalrig.gates.slo import Slo, SloOptions
from evalrig.levels import AtSlo, at_level, at_slo, level_of, levels_of, over_levels
from evalrig.loads import Load, Rounds
from evalrig.plan import GatePlan, SuitePlan
from evalrig.types import AGAIN, REFERENCE, Check, CheckOutcome, Metric

LANES = (8, 16, 128)
SLO = {"c08": (300.0, 300.0), "c16": (150.0, 300.0), "c128": (150.0, 300.0)}
"""Requests of a block that keep the limits: of the reference, of the candidate."""


def load(rounds: int = 6, gain: tuple[float, ...] = (1.0, 1.2, 1.5), sd: float = 0.002) -> Load:
    """A round has a block at each of `LANES`; the candidate gains by concurrency."""
    random, names = np.random.default_rng(5), list[str]()
    arms: dict[str, list[float]] = {REFERENCE: [], "cheap": [], AGAIN: []}
    for number in range(rounds):
        for lanes, factor in zip(LANES, gain, strict=True):
            names.append(f"c{lanes:02d}-round-{number:02d}")
            for arm in arms:
                speed = factor if arm == "cheap" else 1.0
                arms[arm].append(100 * lanes**0.5 * speed * float(np.exp(random.normal(0, sd))))
    levels = [level_of(name) for name in names]
    values = {arm: np.array(seen) for arm, seen in arms.items()}
    told = {
        arm: {
            "slo_ok": np.array([SLO[level][arm == "cheap"] for level in levels]),
            "slo_n": np.full(len(names), 300.0),
            "slo_asked": np.full(len(names), 0.99),
        }
        for arm in arms
    }
    there = np.zeros(len(names), np.bool_)

    def of(metric: Metric, *, turned: bool) -> Rounds:
        a, b, c = ((1 / values[arm]) if turned else values[arm] for arm in arms)
        return Rounds(metric=metric, names=tuple(names), reference=a, candidate=b, again=c)

    return Load(
        rounds={RATE.name: of(RATE, turned=False), TPOT.name: of(TPOT, turned=True)},
        void={"cheap": ("c16-round-02: void: busy", "c08-round-00: void: late")},
        capacity={},
        names=tuple(names),
        told=told,
        missing=dict.fromkeys(arms, there),
    )


def check(of: Load, options: LoadRatioOptions, margin: float = 0.01) -> Check:
    gate = GatePlan(name="g", kind="load_ratio", suite="load", metric=RATE.name, margin=margin, gating=True)
    found: Evidence = replace(evidence(), loads={"load": of})
    return LoadRatio(gate, options).check(found)


def test_concurrencies_stand_in_the_order_of_their_numbers() -> None:
    assert levels_of(load()) == ("c08", "c16", "c128")


def test_a_round_is_one_pair_however_many_concurrencies_it_has() -> None:
    """Three blocks that share what slowed the machine are no three rounds: the interval would be too narrow by sqrt 3."""
    found = over_levels(load())[RATE.name]
    assert len(found.names) == 6
    assert found.names[0] == "round-00"
    ratios = found.candidate / found.reference
    assert ratios == pytest.approx((1.0 * 1.2 * 1.5) ** (1 / 3), rel=0.01)
    estimate = check(load(), LoadRatioOptions()).estimate
    assert estimate is not None
    assert estimate.n == 6


def test_a_round_without_one_of_its_blocks_is_missing() -> None:
    whole = load()
    lost = whole.rounds[RATE.name].candidate.copy()
    lost[4] = np.nan  # c16 of the second round
    rounds = {RATE.name: replace(whole.rounds[RATE.name], candidate=lost)}
    assert list(np.isnan(over_levels(replace(whole, rounds=rounds))[RATE.name].candidate)) == [
        False,
        True,
        *4 * [False],
    ]


@pytest.mark.parametrize("rounds", [4, 6, 8])
def test_a_candidate_that_cannot_serve_the_heaviest_load_at_all_does_not_pass_for_the_others(rounds: int) -> None:
    """All its blocks at 128 are missing: no mean over 8 and 16 may stand for the round."""
    whole = load(rounds, gain=(1.0, 1.0, 1.0))
    heavy = np.array([level_of(name) == "c128" for name in whole.names])
    one = whole.rounds[RATE.name]
    lost = {RATE.name: replace(one, candidate=np.where(heavy, np.nan, one.candidate))}
    found = check(replace(whole, rounds=lost, missing={**whole.missing, "cheap": heavy}), LoadRatioOptions())
    assert found.outcome is CheckOutcome.UNDECIDED
    assert f"{rounds} of {rounds} rounds lack a half" in found.reason
    there = check(
        replace(whole, rounds=lost, missing={**whole.missing, "cheap": heavy}), LoadRatioOptions(concurrency=8)
    )
    assert there.outcome is CheckOutcome.PASSED, "at 8 it serves"


def test_rounds_without_the_metric_are_counted_as_missing_too() -> None:
    """Blocks that count, without the score in most: what is left is picked."""
    whole = load(rounds=8)
    gone = np.array([int(name[-2:]) < 5 for name in whole.names])
    one = whole.rounds[RATE.name]
    few = replace(one, candidate=np.where(gone, np.nan, one.candidate))
    found = check(replace(whole, rounds={RATE.name: few}), LoadRatioOptions())
    assert found.outcome is CheckOutcome.UNDECIDED
    assert "only 3 of 8 rounds have output_tokens_per_second in both arms" in found.reason
    zeros = replace(one, candidate=np.where(gone, 0.0, one.candidate))
    nothing = check(replace(whole, rounds={RATE.name: zeros}), LoadRatioOptions())
    assert nothing.outcome is CheckOutcome.UNDECIDED
    assert "hold a zero" in nothing.reason


def test_a_concurrency_that_never_gives_a_metric_does_not_count_for_it() -> None:
    """One lane has too few requests for a p99."""
    whole = load()
    one = whole.rounds[RATE.name]
    light = np.array([level_of(name) == "c08" for name in one.names])
    arms = {arm: np.where(light, np.nan, getattr(one, arm)) for arm in ("reference", "candidate", "again")}
    found = over_levels(replace(whole, rounds={RATE.name: replace(one, **arms)}))[RATE.name]
    assert found.candidate / found.reference == pytest.approx((1.2 * 1.5) ** 0.5, rel=0.01)


def test_one_concurrency_alone_is_judged_with_its_own_rounds_and_reasons() -> None:
    part = at_level(load(), "c16")
    assert part.names == tuple(f"c16-round-{number:02d}" for number in range(6))
    assert part.void["cheap"] == ("c16-round-02: void: busy",)
    found = check(load(), LoadRatioOptions(concurrency=16, min_ratio=1.15), margin=-0.15)
    assert found.outcome is CheckOutcome.PASSED
    assert found.reason.endswith("; at 16 requests at once")
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx(1.2, rel=0.01)


def test_at_the_slo_point_each_arm_bears_what_it_can() -> None:
    """The reference keeps the SLO at 8, the candidate at 128: sqrt 16 times as many tokens, and 1.5 from its speed there."""
    found = at_slo(load(), "cheap", 0.05)
    assert isinstance(found, AtSlo)
    assert found.where == "cheap at 128 requests at once; reference at 8 requests at once"
    assert found.sure
    rounds = found.seen.rounds[RATE.name]
    assert rounds.candidate / rounds.reference == pytest.approx(6.0, rel=0.02)
    assert rounds.again / rounds.reference == pytest.approx(1.0, rel=0.02)
    passed = check(load(), LoadRatioOptions(at_slo=True, min_ratio=5), margin=-4.0)
    assert passed.outcome is CheckOutcome.PASSED
    assert passed.reason.endswith(found.where)


def near(seed: int, share: float) -> Load:
    """Two arms that are the same, and keep the SLO at 128 with a true share near the 99 % that are asked."""
    of, random = load(rounds=8, gain=(1.0, 1.0, 1.0)), np.random.default_rng(seed)
    lanes = {"c08": (48, 1.0), "c16": (192, 1.0), "c128": (768, share)}
    told = {
        arm: {
            "slo_ok": np.array([float(random.binomial(*lanes[level_of(name)])) for name in of.names]),
            "slo_n": np.array([float(lanes[level_of(name)][0]) for name in of.names]),
            "slo_asked": np.full(len(of.names), 0.99),
        }
        for arm in of.told
    }
    return replace(of, told=told)


@pytest.mark.parametrize("share", [0.9905, 0.992, 0.994])
def test_equal_arms_near_the_limit_of_the_slo_show_no_gain_by_the_luck_of_their_points(share: float) -> None:
    """The points rest on the requests that the ratio is taken on."""
    outcomes = [
        check(near(seed, share), LoadRatioOptions(at_slo=True, min_ratio=1.2), margin=-0.2).outcome
        for seed in range(200)
    ]
    assert outcomes.count(CheckOutcome.PASSED) <= 0.07 * 200
    losses = [check(near(seed, share), LoadRatioOptions(at_slo=True), margin=0.1).outcome for seed in range(200)]
    assert losses.count(CheckOutcome.FAILED) <= 0.07 * 200


def test_points_taken_as_they_are_shown_would_show_gains_by_luck() -> None:
    """Why a claim must hold wherever they may lie: of 200 studies of equal arms a quarter would pass."""
    passed = 0
    for seed in range(200):
        points = at_slo(near(seed, 0.992), "cheap", 0.05)
        assert isinstance(points, AtSlo)
        passed += check(points.seen, LoadRatioOptions(min_ratio=1.2), margin=-0.2).outcome is CheckOutcome.PASSED
    assert 0.15 * 200 < passed < 0.35 * 200


def test_an_arm_that_keeps_the_slo_nowhere_has_no_ratio_there() -> None:
    whole = load()
    told = {**whole.told, "cheap": {**whole.told["cheap"], "slo_ok": np.full(18, 200.0)}}
    found = check(replace(whole, told=told), LoadRatioOptions(at_slo=True))
    assert found.outcome is CheckOutcome.UNDECIDED
    assert "cannot tell here: cheap has no SLO point: the lightest load misses it" in found.reason


def test_the_slo_gate_can_look_at_one_concurrency() -> None:
    gate = GatePlan(name="g", kind="slo", suite="load", metric="", margin=0.01, gating=True)
    of = replace(load(), told={**load().told, "cheap": load().told[REFERENCE]})
    found = replace(evidence(), loads={"load": of})
    assert Slo(gate, SloOptions(concurrency=8)).check(found).outcome is CheckOutcome.PASSED
    assert Slo(gate, SloOptions(concurrency=16)).check(found).outcome is CheckOutcome.FAILED


GOODPUT = Metric(name="goodput", kind="ratio", units="requests/s")


@pytest.mark.parametrize(
    ("samples", "options", "metrics", "why"),
    [
        (("c08-round-01", "c128-round-01"), {"concurrency": 8}, (RATE,), ""),
        (
            ("c08-round-01", "c128-round-01"),
            {"concurrency": 9},
            (RATE,),
            "options.concurrency: 9 is none of the suite's; known: 8, 128",
        ),
        (
            ("round-01",),
            {"concurrency": 8},
            (RATE,),
            "options.concurrency: 8 is none of the suite's; load has one alone; leave it out",
        ),
        (("round-01",), {"at_slo": True}, (RATE, GOODPUT), ""),
        (
            ("round-01",),
            {"at_slo": True},
            (RATE,),
            "options.at_slo: suites.load.options.slo has no limit; set one",
        ),
        (
            ("c08-round-01",),
            {"concurrency": 8, "at_slo": True},
            (RATE,),
            "options: both `concurrency` and `at_slo`; give one",
        ),
    ],
)
def test_what_a_suite_does_not_measure_is_refused_before_the_run(
    samples: tuple[str, ...], options: dict[str, Any], metrics: tuple[Metric, ...], why: str
) -> None:
    suite = SuitePlan(
        name="load", kind="load", family="serving load", epochs=1, metrics=metrics, traced=False, samples=samples,
        again=samples, sha256="",
    )  # fmt: skip
    assert LoadRatio.unfit(LoadRatioOptions(**options), suite) == why
