"""Ratios of paired rounds of load: known answers, studies in which the truth is known, and what no one may claim."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.analysis.load_floor import beside_floor, floor_of, two_sided
from evalrig.analysis.load_power import resolvable_effect, rounds_needed, rounds_power
from evalrig.analysis.load_ratio import cannot_tell, mean_log, ratio_of

REFERENCE = [100, 101, 99, 100, 102, 100]
CANDIDATE = [99.5, 100.2, 98.9, 99.6, 101.0, 99.7]

STUDIES = 200
ROUNDS = 20
MEMORY = 0.98
"""Lag-1 correlation of the machine's drift from block to block."""
BOXES = {"quiet": (0.003, 0.02), "shared": (0.01, 0.03), "busy": (0.03, 0.10)}
"""Machine -> spread of a block's own noise, and of the drift, on the log scale."""


def drift(rng, studies, blocks, spread, memory=MEMORY):
    """AR(1), stationary, [studies, blocks]."""
    steps = rng.normal(size=(studies, blocks)) * spread * math.sqrt(1 - memory**2)
    found = np.empty((studies, blocks))
    found[:, 0] = rng.normal(size=studies) * spread
    for block in range(1, blocks):
        found[:, block] = memory * found[:, block - 1] + steps[:, block]
    return found


def studies(seed, box, effect=0.0, rounds=ROUNDS, interleaved=True):
    """Tokens per second of reference and candidate, [studies, rounds] each; the candidate has exp(effect) times the speed.

    Interleaved: both run in each round, in random order. Otherwise all of the one and then all of the other.
    """
    rng = np.random.default_rng(seed)
    noise, wander = BOXES[box]
    blocks = drift(rng, STUDIES, 2 * rounds, wander) + rng.normal(size=(STUDIES, 2 * rounds)) * noise
    if not interleaved:
        return 1000 * np.exp(blocks[:, :rounds]), 1000 * np.exp(blocks[:, rounds:] + effect)
    first = rng.integers(0, 2, size=(STUDIES, rounds))
    pairs = blocks.reshape(STUDIES, rounds, 2)
    ours = np.take_along_axis(pairs, first[:, :, None], axis=2)[:, :, 0]
    theirs = np.take_along_axis(pairs, 1 - first[:, :, None], axis=2)[:, :, 0]
    return 1000 * np.exp(ours), 1000 * np.exp(theirs + effect)


def alarms(arms):
    """Share of studies in which an A/A comparison says that the reference differs from itself."""
    floors = [floor_of(ours, again) for ours, again in zip(*arms, strict=True)]
    return np.mean([floor is not None and two_sided(floor) <= 0.05 for floor in floors])


def test_known_answer():
    found = ratio_of(REFERENCE, CANDIDATE)
    assert (found.value, found.low, found.high) == pytest.approx((0.994873, 0.992211, 0.997542), abs=1e-6)
    assert found.p_go <= 0.05 < found.p_nogo
    assert (found.n, found.method, found.needed) == (6, "t over 6 rounds", None)


@pytest.mark.parametrize(
    ("sd", "margin", "at_80", "at_90"),
    [(0.005, 0.01, 4, 4), (0.01, 0.01, 8, 10), (0.02, 0.01, 26, 36), (0.01, 0.02, 4, 4), (0.02, 0.02, 8, 10)],
)
def test_rounds_for_80_and_90_percent_power(sd, margin, at_80, at_90):
    assert (rounds_needed(sd, margin), rounds_needed(sd, margin, power=0.9)) == (at_80, at_90)


def test_power_is_that_of_simulated_studies():
    rng = np.random.default_rng(5)
    logs = rng.normal(size=(4000, 8)) * 0.01
    t = (logs.mean(axis=1) - math.log(0.99)) / (logs.std(axis=1, ddof=1) / math.sqrt(8))
    assert np.mean(t > 1.894579) == pytest.approx(rounds_power(8, 0.01, -math.log(0.99)), abs=0.02)


def test_what_is_resolved_needs_as_many_rounds_as_there_are():
    for n in (4, 8, 26, 2000):
        effect = resolvable_effect(n, 0.02)
        assert rounds_needed(0.02, effect * 1.001) == pytest.approx(n, abs=max(1, n // 300))
        assert (rounds_needed(0.02, effect * 0.98) or 0) > n
    assert resolvable_effect(1, 0.02) == 1.0


def test_a_noisy_machine_is_told_how_many_pairs_it_would_take():
    rng = np.random.default_rng(2)
    ours = 100 * np.exp(rng.normal(size=9) * 0.03)
    found = ratio_of(ours, np.roll(ours, 1) * np.exp(rng.normal(size=9) * 0.03))
    assert min(found.p_go, found.p_nogo) > 0.05
    assert found.needed is not None
    assert found.needed > 9
    assert cannot_tell(found, 0.01).startswith(
        f"cannot tell here: would need {found.needed} pairs for a loss of 1 %; 9 "
    )


def test_no_number_of_pairs_settles_a_ratio_that_is_the_bound():
    assert rounds_needed(0.01, 0.01, truth=0.99) is None
    with pytest.raises(ValueError, match="margin"):
        ratio_of([1.0], [1.0], margin=1.0)


def test_one_pair_has_no_interval_and_claims_nothing():
    found = ratio_of([100.0, math.nan, 90.0], [200.0, 150.0, math.nan])
    assert (found.value, found.low, found.high, found.n) == (pytest.approx(2.0), 0.0, math.inf, 1)
    assert (found.p_go, found.p_nogo, found.differs) == (1.0, 1.0, False)
    assert cannot_tell(found, 0.01) == "cannot tell here: 1 round: no interval"


def test_no_pair_and_pairs_with_a_zero_claim_nothing():
    for found in (ratio_of([], []), ratio_of([math.nan], [1.0]), ratio_of([1.0, 0.0, 2.0], [1.0, 1.0, 2.0])):
        assert math.isnan(found.value)
        assert (found.p_go, found.p_nogo, found.interval) == (1.0, 1.0, False)
    assert ratio_of([1.0, 0.0, 2.0], [1.0, 1.0, 2.0]).method == "1 of 3 rounds hold a zero, which has no ratio"


@pytest.mark.parametrize(
    ("ours", "theirs"), [([1.0], [1.0, 2.0]), ([-1.0], [1.0]), ([1.0], [math.inf]), ([[1.0]], [[1.0]])]
)
def test_what_is_no_rounds_is_refused(ours, theirs):
    with pytest.raises(ValueError, match="reference"):
        ratio_of(ours, theirs)


def test_identical_rounds_are_a_point_but_three_of_them_decide_nothing():
    two, three, five = (ratio_of([100.0] * n, [101.0] * n) for n in (2, 3, 5))
    assert (two.interval, two.method, two.p_go) == (False, "2 identical rounds: no interval", 1.0)
    assert three.low == three.high == pytest.approx(1.01)
    assert (three.p_go, three.p_nogo, three.needed) == (0.125, 1.0, 5)
    assert "identical in all 3 rounds" in cannot_tell(three, 0.01)
    assert (five.p_go, five.needed) == (0.03125, None)
    on_the_bound = ratio_of([100.0] * 9, [99.0] * 9)
    assert (on_the_bound.p_go, on_the_bound.p_nogo, on_the_bound.needed) == (1.0, 1.0, None)


def test_for_a_latency_less_is_better_and_its_inverse_is_judged_alike():
    rates, times = ratio_of(REFERENCE, CANDIDATE), ratio_of(1 / np.array(REFERENCE), 1 / np.array(CANDIDATE), less=True)
    assert times.value == pytest.approx(1 / rates.value)
    assert (times.p_go, times.p_nogo) == pytest.approx((rates.p_go, rates.p_nogo))
    assert ratio_of(REFERENCE, CANDIDATE, less=True).p_go < rates.p_go


def test_a_gain_is_asked_for_by_a_negative_margin():
    faster = 1.4 * np.array(CANDIDATE)
    assert ratio_of(REFERENCE, faster, margin=-0.3).p_go <= 0.05
    assert ratio_of(REFERENCE, faster, margin=-0.5).p_nogo <= 0.05
    needed = ratio_of([100, 101, 99], [140, 150, 132], margin=-0.35).needed
    assert needed is not None
    assert needed > 3


speeds = st.lists(st.floats(10, 1000), min_size=3, max_size=30)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(speeds, st.randoms(use_true_random=False))
def test_swapped_arms_invert_the_ratio_and_its_interval(ours, random):
    theirs = [value * random.uniform(0.8, 1.3) for value in ours]
    there, back = ratio_of(ours, theirs), ratio_of(theirs, ours)
    assert (back.value, back.low, back.high) == pytest.approx((1 / there.value, 1 / there.high, 1 / there.low))
    assert (back.method, back.sd_log) == (there.method, pytest.approx(there.sd_log))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(speeds, st.floats(1e-6, 1e6), st.randoms(use_true_random=False))
def test_another_unit_changes_nothing(ours, unit, random):
    theirs = [value * random.uniform(0.8, 1.3) for value in ours]
    plain, scaled = ratio_of(ours, theirs), ratio_of(np.array(ours) * unit, np.array(theirs) * unit)
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx((plain.value, plain.low, plain.high))
    assert (scaled.p_go, scaled.p_nogo, scaled.method) == (
        pytest.approx(plain.p_go, abs=1e-9),
        pytest.approx(plain.p_nogo, abs=1e-9),
        plain.method,
    )


@settings(deadline=None, derandomize=True, max_examples=60)
@given(speeds, st.randoms(use_true_random=False))
def test_a_missing_block_takes_its_partner_with_it(ours, random):
    theirs = [value * random.uniform(0.8, 1.3) for value in ours]
    lost = {place: random.choice(("ours", "theirs", "both")) for place in range(len(ours)) if random.random() < 0.3}
    left = [math.nan if lost.get(place) in ("ours", "both") else value for place, value in enumerate(ours)]
    right = [math.nan if lost.get(place) in ("theirs", "both") else value for place, value in enumerate(theirs)]
    kept = [place for place in range(len(ours)) if place not in lost]
    found, plain = ratio_of(left, right), ratio_of([ours[k] for k in kept], [theirs[k] for k in kept])
    assert repr(found) == repr(plain)


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("rounds", [8, 20])
def test_the_reference_against_itself_alarms_in_at_most_7_of_100_studies(box, rounds):
    """Five sets of 200 studies: of one set at a true 5 % the share itself wanders by 1.5 points."""
    assert np.mean([alarms(studies(seed, box, rounds=rounds)) for seed in range(5)]) <= 0.07


@pytest.mark.parametrize("box", BOXES)
def test_one_variant_after_the_other_sees_differences_that_are_not_there(box):
    """Why rounds exist: under drift all blocks of one variant and then all of the other differ in most A/A studies."""
    assert alarms(studies(11, box, interleaved=False)) >= 0.30
    assert alarms(studies(11, box, interleaved=False, rounds=8)) >= 0.30


def test_an_overhead_of_1_percent_is_found_on_a_quiet_machine():
    sets = [studies(seed, "quiet", effect=math.log(0.99)) for seed in range(5)]
    found = [ratio_of(ours, theirs) for arms in sets for ours, theirs in zip(*arms, strict=True)]
    assert np.mean([ratio.high < 1.0 for ratio in found]) >= 0.99
    assert np.mean([ratio.p_go <= 0.05 for ratio in found]) <= 0.07  # it is the margin itself: a pass is an error


def test_an_overhead_of_a_third_of_a_percent_passes_below_1_percent():
    arms = studies(4, "quiet", effect=-0.003)
    passed = [ratio_of(ours, theirs).p_go <= 0.05 for ours, theirs in zip(*arms, strict=True)]
    assert np.mean(passed) >= 0.95


def test_a_busy_machine_passes_and_fails_nothing_but_says_that_it_cannot_tell():
    arms = studies(6, "busy", effect=-0.003)
    found = [ratio_of(ours, theirs) for ours, theirs in zip(*arms, strict=True)]
    open_ones = [ratio for ratio in found if min(ratio.p_go, ratio.p_nogo) > 0.05]
    assert len(open_ones) >= 0.75 * STUDIES
    assert all(ratio.needed is None or ratio.needed > ROUNDS for ratio in open_ones)
    assert np.mean([ratio.needed is None for ratio in open_ones]) <= 0.05


def test_rounds_that_go_together_get_a_wider_interval():
    rng = np.random.default_rng(8)
    logs = drift(rng, 400, 60, 0.01, memory=0.5)
    missed, missed_by_t = 0, 0
    for one in logs:
        found = ratio_of(np.ones(60), np.exp(one))
        missed += found.differs
        missed_by_t += abs(one.mean()) > 1.6711 * one.std(ddof=1) / math.sqrt(60)
        assert found.sd_log >= one.std(ddof=1) * (1 - 1e-9)
    assert missed_by_t >= 0.25 * 400  # nominal: 10 %
    assert missed <= 0.6 * missed_by_t
    assert ratio_of(np.ones(60), np.exp(logs[0])).method.startswith("moving blocks of 8 over 60 rounds")
    assert ratio_of(np.ones(60), np.exp(rng.permutation(logs[0]))).method == "t over 60 rounds"


def test_the_error_of_moving_blocks_is_what_a_bootstrap_draws():
    rng = np.random.default_rng(9)
    logs = drift(rng, 1, 36, 1.0, memory=0.6)[0]
    found = mean_log(logs)
    assert found is not None
    starts = rng.integers(0, 31, size=(20000, 6))
    drawn = logs[starts[:, :, None] + np.arange(6)].mean(axis=(1, 2))
    blocks = np.lib.stride_tricks.sliding_window_view(logs, 6).mean(axis=1)
    about_own_mean = found.se**2 - (blocks.mean() - logs.mean()) ** 2 * 6 / 30  # the bootstrap is centred on the blocks
    assert np.var(drawn) == pytest.approx(about_own_mean * 30 / 36, rel=0.03)


def test_a_claim_stands_beside_what_the_reference_does_to_itself():
    rng = np.random.default_rng(1)
    ours, theirs, again = (100 * np.exp(rng.normal(size=12) * 0.004 + shift) for shift in (0, 0.2, 0))
    claim = beside_floor(ours, theirs, again)
    assert claim.resolved
    assert not claim.suspicious
    assert claim.words.startswith("beyond the noise floor, A/A ")
    assert claim.floor is not None
    assert claim.floor.low <= 1 <= claim.floor.high
    assert 0.001 < claim.resolvable < 0.02


def test_an_a_a_that_differs_from_1_makes_the_claim_suspicious():
    rng = np.random.default_rng(1)
    ours, theirs, again = (100 * np.exp(rng.normal(size=12) * 0.004 + shift) for shift in (0, 0.03, 0.02))
    claim = beside_floor(ours, theirs, again)
    assert claim.ratio.differs
    assert claim.suspicious
    assert "the reference differs from itself" in claim.words


def test_without_a_a_rounds_the_noise_floor_is_not_known():
    for again in ([], [math.nan] * 6):
        claim = beside_floor(REFERENCE, CANDIDATE, again)
        assert (claim.floor, claim.suspicious) == (None, False)
        assert claim.words == "no A/A rounds: what no difference looks like here is not known"
    alone = beside_floor([1.0], [2.0], [1.0])
    assert (alone.resolved, alone.resolvable, alone.words) == (
        False,
        1.0,
        "nothing can be claimed: 1 round: no interval",
    )


def test_rounding_is_no_difference():
    ours = np.array([0.1, 0.2, 0.3])
    found = ratio_of(ours, ours * 3 / 3 * (1 + 2e-16))
    assert found.method.startswith("identical in all 3 rounds")
    assert not found.differs
    assert not beside_floor(ours, ours * (1 + 3e-16), ours).resolved
