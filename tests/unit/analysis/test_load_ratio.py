"""Ratios of load: known answers of stats.md section 4, and studies simulated as in load.md section 4."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evalrig.analysis.load_ratio import iso_ratio, ratio_of, resolvable, rounds_for

REFERENCE = [100.0, 101, 99, 100, 102, 100]
CANDIDATE = [99.5, 100.2, 98.9, 99.6, 101.0, 99.7]
positive = st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e6)), min_size=2, max_size=11)


def test_the_known_answer():
    found = ratio_of(REFERENCE, CANDIDATE, alpha=0.05, margin=0.01)
    assert found.value == pytest.approx(0.994873, abs=5e-7)
    assert (found.low, found.high) == pytest.approx((0.992211, 0.997542), abs=5e-7)
    assert found.p_go < 0.05 < found.p_nogo
    assert found.high is not None
    assert found.high < 1 / 0.99, "equivalent as well"


@pytest.mark.parametrize(("sd", "rounds"), [(0.005, (4, 4, 3, 3)), (0.01, (8, 10, 4, 4)), (0.02, (26, 36, 8, 10))])
def test_rounds_for_one_and_two_percent(sd: float, rounds: tuple[int, ...]):
    gaps = [-math.log1p(-margin) for margin in (0.01, 0.02)]
    assert tuple(rounds_for(sd, gap, 0.05, power) for gap in gaps for power in (0.8, 0.9)) == rounds
    least = resolvable(sd, rounds[0], 0.05)
    assert least is not None
    assert least <= 0.01
    one_less = resolvable(sd, rounds[0] - 1, 0.05)
    assert one_less is not None
    assert one_less > 0.01


def test_a_latency_is_worse_when_it_is_longer():
    slower = ratio_of([1.0, 1.1, 0.9], [1.21, 1.32, 1.07], alpha=0.05, margin=0.01, less=True)
    assert slower.value is not None
    assert slower.value > 1.1
    assert slower.p_nogo < 0.05
    assert slower.p_go > 0.9


def test_a_gain_that_must_be_reached_is_a_negative_margin():
    faster = [1.25, 1.26, 1.24, 1.25]
    assert ratio_of(np.ones(4), faster, alpha=0.05, margin=-0.2).p_go < 0.05
    assert ratio_of(np.ones(4), faster, alpha=0.05, margin=-0.3).p_nogo < 0.05


def test_one_round_or_none_decides_nothing():
    for arms in (([], []), ([1.0], [2.0]), ([1.0, math.nan], [2.0, 1.0])):
        found = ratio_of(*arms, alpha=0.05, margin=0.5)
        assert (found.low, found.high, found.p_go, found.p_nogo) == (None, None, 1.0, 1.0)


def test_no_spread_in_a_few_rounds_is_no_proof():
    few, more = (ratio_of(np.ones(n), np.ones(n), alpha=0.05, margin=0.01) for n in (3, 5))
    assert few.p_go == 0.125
    assert more.p_go == 0.03125


def test_what_is_no_positive_number_is_refused():
    with pytest.raises(ValueError, match="positive"):
        ratio_of([1.0, 0.0], [1.0, 1.0], alpha=0.05)


@given(positive)
@settings(deadline=None, max_examples=60)
def test_swapping_the_arms_inverts_the_ratio(pairs: list[tuple[float, float]]):
    ours, theirs = np.array(pairs).T
    there, back = ratio_of(ours, theirs, alpha=0.05), ratio_of(theirs, ours, alpha=0.05)
    for one, other in ((there.value, back.value), (there.low, back.high), (there.high, back.low)):
        assert one is not None
        assert other is not None
        assert one * other == pytest.approx(1)


@given(positive, st.floats(0.01, 100))
@settings(deadline=None, max_examples=60)
def test_units_do_not_matter_and_void_rounds_drop_out_in_both_arms(pairs: list[tuple[float, float]], unit: float):
    ours, theirs = np.array(pairs).T
    plain = ratio_of(ours, theirs, alpha=0.05)
    with_void = ratio_of([*(ours * unit), math.nan, 7], [*(theirs * unit), 3, math.nan], alpha=0.05)
    assert with_void.n == plain.n
    assert with_void.low == pytest.approx(plain.low)


def drifting(studies: int, rounds: int, noise: float, drift: float, seed: int) -> tuple[NDArray[np.float64], ...]:
    """Log throughput of the two blocks of each round, and the drift alone block by block (2 x rounds)."""
    rng = np.random.default_rng(seed)
    carry = 0.97
    steps = rng.normal(0, drift * math.sqrt(1 - carry**2), (studies, 2 * rounds))
    path = np.empty_like(steps)
    path[:, 0] = rng.normal(0, drift, studies)
    for i in range(1, 2 * rounds):
        path[:, i] = carry * path[:, i - 1] + steps[:, i]
    return path, rng.normal(0, noise, (studies, 2 * rounds))


def interleaved(studies: int, rounds: int, noise: float, drift: float, effect: float, seed: int):
    """(reference, candidate) per study, in random order within each round."""
    path, white = drifting(studies, rounds, noise, drift, seed)
    rate = np.exp(path + white).reshape(studies, rounds, 2)
    first = np.random.default_rng(seed + 1).integers(0, 2, (studies, rounds, 1))
    reference, candidate = (np.take_along_axis(rate, order, 2)[..., 0] for order in (first, 1 - first))
    return reference, candidate * (1 - effect)


@pytest.mark.parametrize(("noise", "drift"), [(0.003, 0.02), (0.01, 0.03)])
def test_two_like_arms_differ_in_few_of_200_studies(noise: float, drift: float):
    arms = zip(*interleaved(200, 20, noise, drift, 0.0, seed=5), strict=True)
    alarms = sum(ratio_of(*arm, alpha=0.025).moved for arm in arms)
    assert alarms <= 14, f"{alarms} of 200"


def test_one_run_after_the_other_is_wrong_half_of_the_time():
    """Why rounds: the same machine, the same noise, all blocks of one arm before those of the other."""
    path, white = drifting(200, 20, 0.003, 0.02, seed=6)
    rate = np.exp(path + white)
    alarms = 0
    for ours, theirs in zip(rate[:, :20], rate[:, 20:], strict=True):
        error = math.hypot(ours.std(ddof=1), theirs.std(ddof=1)) / math.sqrt(20)
        alarms += abs(ours.mean() - theirs.mean()) > 2.02 * error
    assert alarms > 80


def test_one_percent_is_found_and_a_third_of_it_passes():
    found = [ratio_of(*arm, alpha=0.05) for arm in zip(*interleaved(200, 20, 0.003, 0.02, 0.01, 7), strict=True)]
    assert sum(one.high is not None and one.high < 1 for one in found) >= 190
    small = zip(*interleaved(200, 20, 0.003, 0.02, 0.003, 8), strict=True)
    passed = sum(ratio_of(*arm, alpha=0.05, margin=0.01).p_go <= 0.05 for arm in small)
    assert passed >= 190
    large = zip(*interleaved(200, 20, 0.003, 0.02, 0.02, 9), strict=True)
    assert sum(ratio_of(*arm, alpha=0.05, margin=0.01).p_go <= 0.05 for arm in large) == 0


def test_correlated_rounds_are_resampled_in_blocks():
    rng = np.random.default_rng(3)
    walk = np.cumsum(rng.normal(0, 0.01, 40)) * 0.5
    found = ratio_of(np.ones(40), np.exp(walk), alpha=0.05)
    assert found.method == "bootstrap over blocks of 7 rounds"
    assert found.low is not None
    assert found.high is not None
    assert found.value is not None
    assert found.low < found.value < found.high


def test_equal_speed_for_each_user_is_read_off_between_the_points_and_never_beyond():
    users = np.array([[10.0, 40.0, 80.0]])
    ours = users, 4000 / users
    theirs = users, 5000 / users
    assert iso_ratio(ours, theirs, 20.0) == pytest.approx([1.25])
    assert np.isnan(iso_ratio(ours, theirs, 90.0)).all()
