"""The power table against the published cells, and findings about the reference's own noise."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.analysis.noise import aa_findings
from evalrig.analysis.paired import n_needed, resolvable_margin
from evalrig.analysis.power import cannot_decide, power_rows, suite_power


@pytest.mark.parametrize(
    ("discordance", "expected"),
    [
        (0.005, [310, 429, 393, 526, 484, 670, 630, 1231]),
        (0.01, [619, 857, 785, 1051, 967, 1339, 1261, 2467]),
        (0.02, [1237, 1713, 1570, 2102, 1933, 2677, 2523, 4940]),
        (0.05, [3092, 4282, 3925, 5254, 4831, 6691, 6308, 12359]),
        (0.10, [6183, 8564, 7849, 10508, 9661, 13382, 12617, 24725]),
        (0.20, [12366, 17128, 15698, 21015, 19321, 26763, 25234, 49455]),
    ],
)
def test_items_needed(discordance, expected):
    cases = [
        (0.01, 0.0, 0.05, 0.8),
        (0.01, 0.0, 0.05, 0.9),
        (0.01, 0.0, 0.025, 0.8),
        (0.01, 0.0, 0.025, 0.9),
        (0.008, 0.0, 0.05, 0.8),
        (0.008, 0.0, 0.05, 0.9),
        (0.01, -0.003, 0.05, 0.8),
        (0.01, -0.005, 0.05, 0.8),
    ]
    assert [n_needed(m, discordance, theta, a, p) for m, theta, a, p in cases] == expected


def test_identical_answers_need_items_too():
    assert n_needed(0.01, 0.0) == 299
    assert n_needed(0.008, 0.0) == 373


def test_no_number_of_items_excludes_the_true_loss():
    with pytest.raises(ValueError, match="theta"):
        n_needed(0.01, 0.05, theta=-0.01)


@pytest.mark.parametrize(
    ("n", "points", "digits"),
    [
        (50, [5.8, 5.8, 5.8, 7.9, 11.1], 1),
        (164, [1.8, 1.9, 2.8, 4.3, 6.1], 1),
        (198, [1.5, 1.8, 2.5, 4.0, 5.6], 1),
        (500, [0.8, 1.1, 1.6, 2.5, 3.5], 1),
        (1319, [0.5, 0.7, 1.0, 1.5, 2.2], 1),
        (5000, [0.25, 0.35, 0.5, 0.8, 1.1], 2),
        (14042, [0.15, 0.21, 0.30, 0.47, 0.66], 2),
    ],
)
def test_smallest_margin_a_suite_decides(n, points, digits):
    found = [100 * resolvable_margin(n, psi, 0.05, 0.8) for psi in (0.005, 0.01, 0.02, 0.05, 0.10)]
    assert found == pytest.approx(points, abs=0.055 if digits == 1 else 0.02)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.integers(1, 20000), st.floats(0.001, 0.3))
def test_enough_items_means_a_margin_within_reach(n, margin):
    for row in power_rows(n, margin):
        assert row.decides == (n >= row.needed)
        assert not row.decides or row.resolvable <= margin + 1e-9
        assert row.decides or row.resolvable >= margin - 1e-9


def test_sentence_before_the_run():
    row = power_rows(164, 0.01)[1]
    assert cannot_decide("humaneval", 164, 0.01, row) == (
        'suite "humaneval" (n=164, discordance 2.0%) cannot decide 1 pt: needs about 1237 items (or margin 2.7 pt)'
    )


def test_several_suites_need_more_power_each():
    assert suite_power(1) == pytest.approx(0.8)
    assert suite_power(6) == pytest.approx(0.9667, abs=1e-4)


@pytest.mark.parametrize("bad", [0, -3])
def test_no_items_decide_nothing(bad):
    with pytest.raises(ValueError, match="n"):
        resolvable_margin(bad, 0.02)
    with pytest.raises(ValueError, match="suites"):
        suite_power(bad)


def test_findings_about_the_reference():
    assert aa_findings([]) == []
    assert aa_findings([0.5, 0.00001, 0.02]) == ["ok", "invalid", "warn"]
    assert aa_findings([0.04, 0.9, 0.9, 0.9, 0.9, 0.9]) == ["ok"] * 6  # one in four honest nights shows one of these
    with pytest.raises(ValueError, match="pvalues"):
        aa_findings([math.nan])
