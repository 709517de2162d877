"""The iso-SLO ratio: curves whose true ratio is known, ends that nothing may be read beyond, and rounds that miss points."""

import math

import numpy as np
import pytest

from evalrig.analysis.iso_slo import curve, iso_ratio, read_at

LANES = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def powers(rounds, factor=1.0, slower=0.3, noise=0.0, seed=0):
    """gpu = factor x 5000 x user^-slope, a straight line in log-log; [rounds, points] with noise of the machine."""
    rng = np.random.default_rng(seed)
    user = 100 * np.tile(LANES**-slower, (rounds, 1)) * np.exp(rng.normal(size=(rounds, 1)) * noise)
    return user, factor * 5000 * user ** (-1 / slower + 1)


def test_at_equal_speed_the_ratio_is_the_one_between_the_curves():
    found, why = iso_ratio(curve(*powers(8)), curve(*powers(8, factor=1.27)), at=60.0)
    assert why == ""
    assert found is not None
    assert found.ratio.value == pytest.approx(1.27)
    assert (found.low_at, found.high_at, found.rounds) == (pytest.approx(100 * 16**-0.3), pytest.approx(100.0), 8)


def test_at_equal_concurrency_the_ratio_would_be_another():
    """The trap that it avoids: a variant that is faster for each user at the same concurrency is elsewhere on its curve."""
    ours = powers(6)
    theirs = (ours[0] * 1.2, ours[1] * 1.2)
    found, _ = iso_ratio(curve(*ours), curve(*theirs), at=70.0)
    assert found is not None
    assert found.ratio.value == pytest.approx(1.2 ** (1 / 0.3), rel=1e-6)
    assert found.ratio.value > 1.8 > (theirs[1] / ours[1]).mean()


def test_noise_that_slows_both_arms_of_a_round_cancels():
    rng = np.random.default_rng(3)
    slow = np.exp(rng.normal(size=(10, 1)) * 0.2)
    (user, gpu), (user_2, gpu_2) = powers(10), powers(10, factor=1.3)
    found, _ = iso_ratio(curve(user, gpu * slow), curve(user_2, gpu_2 * slow), at=70.0)
    assert found is not None
    assert found.ratio.value == pytest.approx(1.3)
    assert found.ratio.sd_log < 1e-9


def test_without_a_speed_the_middle_of_what_all_rounds_reach_is_taken():
    rng = np.random.default_rng(4)
    (user, gpu), (user_2, gpu_2) = powers(8, noise=0.05, seed=1), powers(8, factor=1.1, noise=0.05, seed=2)
    noise = np.exp(rng.normal(size=(2, *gpu.shape)) * 0.03)
    found, _ = iso_ratio(curve(user, gpu * noise[0]), curve(user_2, gpu_2 * noise[1]))
    assert found is not None
    assert found.at == pytest.approx(math.sqrt(found.low_at * found.high_at))
    assert found.ratio.n == 8
    assert found.ratio.low < 1.1 < found.ratio.high


def test_nothing_is_read_beyond_the_ends_of_a_curve():
    one = curve([[50.0, 100.0]], [[2000.0, 1000.0]])
    assert [read_at(one, at)[0] for at in (50.0, 100.0)] == pytest.approx([2000.0, 1000.0])
    assert read_at(one, math.sqrt(5000.0))[0] == pytest.approx(math.sqrt(2e6))
    assert all(math.isnan(read_at(one, at)[0]) for at in (49.9, 100.1))


def test_curves_that_do_not_overlap_give_no_ratio():
    slow, fast = curve([[10.0, 20.0]], [[200.0, 100.0]]), curve([[30.0, 40.0]], [[200.0, 100.0]])
    found, why = iso_ratio(slow, fast)
    assert found is None
    assert "in no round do both variants reach the same" in why
    assert iso_ratio(slow, slow, at=25.0) == (
        None,
        "in no round do both variants reach 25 tokens per second for a user",
    )


def test_rounds_that_overlap_in_different_places_need_a_speed():
    ours = curve([[10.0, 20.0], [40.0, 80.0]], [[2.0, 1.0], [2.0, 1.0]])
    found, why = iso_ratio(ours, ours)
    assert found is None
    assert "say at which to compare" in why
    one, _ = iso_ratio(ours, ours, at=15.0)
    assert one is not None
    assert (one.ratio.n, one.rounds) == (1, 2)
    assert not one.ratio.interval


def test_a_missing_point_is_bridged_and_a_missing_round_drops_out():
    user, gpu = powers(4)
    user[0, 2] = math.nan
    gpu[1] = math.nan
    found, _ = iso_ratio(curve(user, gpu), curve(*powers(4, factor=1.5)), at=66.0)
    assert found is not None
    assert (found.ratio.n, found.ratio.value) == (3, pytest.approx(1.5))


def test_points_of_equal_speed_count_as_one():
    assert read_at(curve([[50.0, 50.0]], [[100.0, 400.0]]), 50.0)[0] == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("user", "gpu"), [([1.0], [1.0]), ([[1.0, 2.0]], [[1.0]]), ([[0.0]], [[1.0]]), ([[1.0]], [[math.inf]])]
)
def test_what_is_no_curve_is_refused(user, gpu):
    with pytest.raises(ValueError, match="`"):
        curve(user, gpu)
