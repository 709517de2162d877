"""Shares of requests within an SLO, and how much load a variant bears and keeps it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalrig.analysis.attainment import Attained, SloPoint, attained, requests_needed, slo_point


def level(within: float, everything: float) -> Attained:
    found = attained([within], [everything])
    assert found is not None
    return found


def test_as_many_requests_as_the_rule_names_certify_a_share_and_one_fewer_does_not() -> None:
    """.05^(1/299) = .99003: known from MLPerf's tables as the least sample of 99 % at 95 % confidence."""
    assert requests_needed(0.99) == 299
    assert level(299, 299).low(0.05) >= 0.99
    assert level(298, 298).low(0.05) < 0.99


@given(st.integers(1, 400), st.integers(1, 400), st.floats(0.5, 0.999))
def test_the_limits_and_the_p_values_say_the_same(within: int, outside: int, share: float) -> None:
    one = level(within, within + outside)
    assert one.low(0.05) < one.value < one.high(0.05)
    assert (one.p_below(share) <= 0.05) == (one.low(0.05) >= share) or abs(one.low(0.05) - share) < 1e-6
    assert (one.p_above(share) <= 0.05) == (one.high(0.05) <= share) or abs(one.high(0.05) - share) < 1e-6


def test_rounds_without_requests_tell_nothing() -> None:
    assert attained([np.nan, 3.0], [np.nan, 4.0]) == Attained(within=3, all=4, effect=1)
    assert attained([np.nan], [np.nan]) is None
    assert attained([0.0], [0.0]) is None


def test_the_point_is_the_last_before_the_slo_is_missed() -> None:
    levels = [level(1000, 1000), level(1000, 1000), level(950, 1000), level(1000, 1000)]
    assert slo_point(levels, 0.99) == SloPoint(shown=1, possible=1, why="")
    assert slo_point(levels[:2], 0.99) == SloPoint(shown=1, possible=1, why="")
    assert slo_point([level(1000, 1000), None], 0.99) == SloPoint(shown=0, possible=0, why="")


def test_what_is_not_shown_to_keep_the_slo_is_not_shown_to_miss_it() -> None:
    """297 of 299 at 99 %: the true point may lie at either."""
    assert slo_point([level(1000, 1000), level(297, 299)], 0.99) == SloPoint(shown=0, possible=1, why="")


@pytest.mark.parametrize(
    ("first", "possible", "why"),
    [
        (level(950, 1000), -1, "the lightest load misses it: 950 of 1,000 requests within it"),
        (level(96, 96), 1, "too few requests to show 99 %: 96 of 96 requests within it; 299 of as many would"),
        (None, -1, "nothing was held against limits of time"),
    ],
)
def test_without_a_point_it_is_said_why(first: Attained | None, possible: int, why: str) -> None:
    assert slo_point([first, level(1000, 1000)], 0.99) == SloPoint(shown=-1, possible=possible, why=why)
