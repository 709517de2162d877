"""Kaplan-Meier curves: known answers and the ends of the curve."""

import numpy as np
import pytest

from evalrig.analysis.survival import kaplan_meier

TIMES, EVENTS = [1, 2, 2, 3, 5, 5, 8], [1, 1, 0, 1, 0, 1, 0]


def test_known_answers():
    found = kaplan_meier(TIMES, EVENTS, alpha=0.025)
    assert found.steps.tolist() == [1, 2, 3, 5]
    assert found.at_risk.tolist() == [7, 6, 4, 3]
    assert found.events.tolist() == [1, 1, 1, 1]
    assert found.share == pytest.approx([0.857143, 0.714286, 0.535714, 0.357143], abs=1e-6)
    assert (found.low[0], found.high[0]) == pytest.approx((0.33405, 0.97856), abs=1e-5)
    assert ((found.low < found.share) & (found.share < found.high)).all()
    assert found.attempts == 7


def test_where_nobody_is_left_the_curve_is_zero_and_does_not_crash():
    found = kaplan_meier([1, 2], [1, 1])
    assert found.share.tolist() == [0.5, 0.0]
    assert (found.low[1], found.high[1]) == (0.0, 0.0)


def test_without_an_event_there_is_no_fall():
    assert kaplan_meier([4, 5], [0, 0]).steps.size == 0
    assert kaplan_meier([], []).attempts == 0


@pytest.mark.parametrize(("time", "event"), [([0], [1]), ([1, 2], [1]), ([[1]], [[1]])])
def test_malformed_times_are_refused(time, event):
    with pytest.raises(ValueError, match="`time`"):
        kaplan_meier(time, event)


def test_a_constant_hazard_gives_a_geometric_curve():
    rng = np.random.default_rng(4)
    first = rng.geometric(0.05, 5000)
    found = kaplan_meier(np.minimum(first, 20), first <= 20)
    assert found.share == pytest.approx(0.95 ** np.arange(1, 21), abs=0.02)
