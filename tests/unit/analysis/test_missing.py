"""Missing scores: the three worked cases, and that no reading lets them vanish."""

import numpy as np
import pytest

from evalrig.analysis.missing import missing_bounds
from evalrig.analysis.paired import decision


@pytest.fixture
def reference():
    scores = np.ones(3000)
    scores[:300] = 0
    return scores


def test_a_candidate_that_alone_loses_answers_is_invalid(reference):
    candidate = reference.copy()
    candidate[300:308] = np.nan
    bounds = missing_bounds(reference, candidate, 0.01)
    assert bounds.outcome == "differential"
    assert bounds.p_differential == pytest.approx(0.0039, abs=1e-4)
    assert (bounds.missing_reference, bounds.missing_candidate) == (0.0, pytest.approx(8 / 3000))


def test_a_few_missing_in_both_arms_change_nothing(reference):
    candidate, again = reference.copy(), reference.copy()
    candidate[300:305] = np.nan
    again[400:405] = np.nan
    bounds = missing_bounds(again, candidate, 0.01)
    assert bounds.outcome == "ok"
    assert decision(bounds.worst) == decision(bounds.itt) == "pass"
    assert bounds.worst.estimate == pytest.approx(-0.001667, abs=1e-6)
    assert bounds.best.estimate == pytest.approx(+0.001667, abs=1e-6)


def test_missing_scores_that_could_turn_the_verdict_leave_it_open(reference):
    candidate, again = reference.copy(), reference.copy()
    candidate[300:320] = np.nan
    candidate[500:515] = 0
    again[400:420] = np.nan
    bounds = missing_bounds(again, candidate, 0.01, max_missing=0.02)
    assert bounds.itt.estimate == pytest.approx(-0.005)
    assert decision(bounds.itt) == "pass"
    assert bounds.worst.estimate == pytest.approx(-0.01167, abs=1e-5)
    assert decision(bounds.worst) == "undecided"
    assert bounds.outcome == "disagree"


def test_too_many_missing(reference):
    candidate, again = reference.copy(), reference.copy()
    candidate[300:320] = np.nan
    again[300:320] = np.nan
    assert missing_bounds(again, candidate, 0.01).outcome == "too_many"
    assert missing_bounds(again, candidate, 0.01, max_missing=0.01).outcome == "ok"


def test_no_missing_score_may_be_allowed(reference):
    candidate = reference.copy()
    assert missing_bounds(reference, candidate, 0.01, max_missing=0.0).outcome == "ok"
    candidate[300] = np.nan
    assert missing_bounds(reference, candidate, 0.01, max_missing=0.0).outcome == "too_many"


def test_an_arm_without_any_score_never_passes():
    nothing = np.full(400, np.nan)
    assert missing_bounds(nothing, nothing, 0.05).outcome == "too_many"
    assert missing_bounds(np.ones(400), nothing, 0.05).outcome == "differential"


def test_nothing_missing_gives_one_reading(reference):
    bounds = missing_bounds(reference, reference, 0.01)
    assert bounds.itt == bounds.worst == bounds.best
    assert (bounds.outcome, bounds.p_differential) == ("ok", 1.0)


def test_bounds_enclose_the_primary_reading():
    rng = np.random.default_rng(4)
    reference, candidate = rng.uniform(0, 1, 200), rng.uniform(0, 1, 200)
    candidate[:9] = np.nan
    reference[5:12] = np.nan
    bounds = missing_bounds(reference, candidate, 0.1, np.repeat(np.arange(50), 4), max_missing=0.2)
    assert bounds.worst.estimate < bounds.itt.estimate < bounds.best.estimate


@pytest.mark.parametrize("bad", [-0.1, 1.2, np.inf])
def test_scores_outside_their_range_are_refused(bad):
    with pytest.raises(ValueError, match="candidate"):
        missing_bounds([0.0, 1.0], [0.0, bad], 0.01)


def test_unpaired_arms_are_refused():
    with pytest.raises(ValueError, match="pair them"):
        missing_bounds([0.0, 1.0], [0.0], 0.01)
