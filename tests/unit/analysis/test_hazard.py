"""Errors per step: known answers, and error rates at the margin."""

import math

import numpy as np
import pytest

from evalrig.analysis.hazard import (
    Excess,
    Tally,
    _Count,
    clean_share,
    compounding_delta,
    excess_hazard,
    hazard_ratio,
    margin_per_step,
    recovery,
)

MARGIN = margin_per_step(0.02, 0.6, 30)


def tally(errors, steps) -> Tally:
    return Tally(errors=np.asarray(errors, np.float64), steps=np.asarray(steps, np.float64))


# ---- known answers


def test_hazard_ratio_known_answer():
    found = hazard_ratio(tally([1, 0, 2, 1], [10] * 4), tally([2, 1, 2, 2], [10] * 4))
    assert found is not None
    assert found.ratio == pytest.approx(1.75)
    assert found.log_se == pytest.approx(0.303046, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((0.85765, 3.57081), abs=1e-5)
    assert found.p == pytest.approx(0.08098, abs=1e-5)


def test_a_ratio_to_no_errors_is_no_number():
    assert hazard_ratio(tally([0] * 4, [10] * 4), tally([2, 1, 2, 2], [10] * 4)) is None


def test_margin_and_compounding_known_answers():
    assert margin_per_step(0.02, 0.6, 30) == pytest.approx(0.0011301, abs=1e-7)
    assert compounding_delta(0.02, 0.022, 30) == pytest.approx(-0.0324, abs=5e-5)
    for wrong in ((0.6, 0.6, 30), (0.0, 0.6, 30), (0.02, 1.2, 30), (0.02, 0.6, 0), (math.nan, 0.6, 30)):
        with pytest.raises(ValueError, match="is no margin"):
            margin_per_step(*wrong)


def test_no_failure_in_a_thousand_calls_still_leaves_room_for_three():
    assert _Count(errors=0, steps=1000, inflation=1).upper(0.05) == pytest.approx(0.00299, abs=5e-6)
    assert _Count(errors=0, steps=1000, inflation=2).upper(0.05) == pytest.approx(0.005974, abs=1e-6)


# ---- excess


def test_excess_of_equal_steps_is_the_mean_difference_with_a_cluster_error():
    """The linearised error of a difference of rates is CR1's where both arms have the same steps."""
    rng = np.random.default_rng(1)
    steps = rng.integers(5, 41, 60).astype(float)
    ours, theirs = rng.binomial(steps.astype(int), 0.1), rng.binomial(steps.astype(int), 0.15)
    found = excess_hazard(tally(ours, steps), tally(theirs, steps), 0.01)
    difference = theirs - ours
    mean = difference.sum() / steps.sum()
    se = math.sqrt(60 / 59 * np.sum((difference - mean * steps) ** 2)) / steps.sum()
    assert found.value == pytest.approx(mean)
    assert found.high - found.low == pytest.approx(2 * 1.671093 * se, rel=1e-5)


def zeros(attempts: int, steps: int = 20) -> Tally:
    return tally([0] * attempts, [steps] * attempts)


def test_no_errors_in_either_arm_pass_only_with_enough_steps():
    """0/n rule: no failure seen is not no failure possible."""
    few, many = (excess_hazard(zeros(n), zeros(n), 0.002) for n in (50, 100))
    assert few.p_go == pytest.approx((1 - 0.002) ** 1000)
    assert few.p_go > 0.05 > many.p_go
    assert few.high == pytest.approx(-math.expm1(math.log(0.05) / 1000))
    assert few.needed is not None
    assert 50 < few.needed <= 100
    assert (many.needed, many.p_nogo) == (None, 1.0)


def test_errors_in_one_attempt_are_worth_one():
    """Clusters: ten errors of one attempt are no ten independent ones."""
    bunched, spread = np.zeros(100), np.zeros(100)
    bunched[0], spread[:9] = 9, 1
    one, nine = (excess_hazard(zeros(100), tally(e, [20] * 100), 0.0001) for e in (bunched, spread))
    assert one.high > nine.high
    assert one.p_nogo > 0.05 >= nine.p_nogo


def test_equal_arms_with_many_errors_pass_by_what_is_new():
    """Identical answers: the errors are the reference's own, and none is new."""
    errors = np.arange(300) % 3
    same = tally(errors, [20] * 300)
    found = excess_hazard(same, same, 0.002)
    assert (found.value, found.p_nogo) == (0.0, 1.0)
    assert found.p_go < 0.05
    assert "0 errors anew in 6000 steps" in found.method


def test_few_clusters_that_all_fall_are_enough_for_a_failure():
    found = excess_hazard(zeros(12), tally([10 + n % 3 for n in range(12)], [20] * 12), 0.01)
    assert found.p_nogo < 0.05


def test_malformed_tallies_are_refused():
    with pytest.raises(ValueError, match="more errors than steps"):
        tally([3], [2])
    with pytest.raises(ValueError, match="shape"):
        tally([1], [2, 3])
    with pytest.raises(ValueError, match="a rate of nothing is not 0"):
        excess_hazard(tally([0], [0]), tally([0], [0]), 0.01)
    with pytest.raises(ValueError, match="2 attempts for 1"):
        excess_hazard(tally([0], [1]), tally([0, 0], [1, 1]), 0.01)
    for margin in (0.0, math.nan):
        with pytest.raises(ValueError, match="margin"):
            excess_hazard(zeros(3), zeros(3), margin)


def studies(hazard: float, excess: float, count: int, attempts: int, seed: int) -> list[Excess]:
    """Attempts of 5 to 40 steps that share a frailty between the arms, errors otherwise independent."""
    rng = np.random.default_rng(seed)
    found: list[Excess] = []
    for _ in range(count):
        steps = rng.integers(5, 41, attempts)
        frailty = rng.gamma(4.0, 0.25, attempts)
        ours, theirs = (rng.binomial(steps, np.minimum(h * frailty, 1)) for h in (hazard, hazard + excess))
        found.append(excess_hazard(tally(ours, steps), tally(theirs, steps), MARGIN))
    return found


def test_at_the_margin_neither_claim_is_made_more_often_than_alpha():
    found = studies(0.02, MARGIN, 1000, 150, 3)
    assert sum(one.p_go <= 0.05 for one in found) <= 70
    assert sum(one.p_nogo <= 0.05 for one in found) <= 70


@pytest.mark.parametrize("hazard", [0.0005, 0.002])
def test_rare_errors_at_the_margin_are_not_passed_too_often(hazard):
    found = studies(hazard, MARGIN, 600, 100, 5)
    assert sum(one.p_go <= 0.05 for one in found) <= 45
    assert sum(one.p_nogo <= 0.05 for one in found) <= 45


def test_the_interval_holds_the_true_excess():
    found = studies(0.02, 0.01, 500, 150, 7)
    assert 0.87 <= np.mean([one.low <= 0.01 <= one.high for one in found]) <= 0.93


# ---- compounding and recovery


def test_independent_errors_compound_as_predicted_and_bunched_ones_do_not():
    rng = np.random.default_rng(2)
    steps = rng.integers(5, 41, 4000)
    predicted, observed = clean_share(tally(rng.binomial(steps, 0.03), steps))
    assert predicted == pytest.approx(observed, abs=0.02)
    bunched = np.where(np.arange(4000) % 30 == 0, steps, 0)
    predicted, observed = clean_share(tally(bunched, steps))
    assert observed > predicted + 0.3


def test_recovery_is_the_score_of_attempts_with_an_error():
    count, share = recovery(tally([0, 1, 2, 1, 1], [5] * 5), [1, 1, 0, math.nan, 1])
    assert (count, share) == (3, pytest.approx(2 / 3))
    assert recovery(tally([0], [5]), [1])[0] == 0
    assert all(math.isnan(x) for x in clean_share(tally([0], [0])))
