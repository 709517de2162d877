"""Drift of failures: paired, signed so that more failures is worse, exact where nothing was seen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.analysis.binary import exact_pvalue
from evalrig.analysis.drift import drift
from evalrig.analysis.paired import noninferiority


def shares(n: int, failed: int, more: int = 0, fewer: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """`failed` of n fail in the reference; in the candidate `fewer` of them do not, and `more` of the others do."""
    reference = np.zeros(n)
    reference[:failed] = 1
    candidate = reference.copy()
    candidate[:fewer] = 0
    candidate[failed : failed + more] = 1
    return reference, candidate


def test_more_failures_is_worse_and_fewer_is_not() -> None:
    [more, fewer] = drift({"timeout": shares(300, 10, more=45), "crash": shares(300, 60, fewer=45)}, 0.05)
    assert (more.word, more.decision(0.05)) == ("timeout", "fail")
    assert more.excess.value == pytest.approx(0.15)
    assert 0.05 < more.excess.low < 0.15 < more.excess.high
    assert (more.reference, more.candidate) == pytest.approx((10 / 300, 55 / 300))
    assert (fewer.word, fewer.decision(0.05)) == ("crash", "pass")
    assert fewer.excess.high < 0


def test_a_failure_that_nobody_saw_is_tested_exactly() -> None:
    """All zeros is no proof of zero: (1 - margin)^n, so 58 items do not exclude five points, and 59 do."""
    for n, decision in ((58, "undecided"), (59, "pass")):
        [none] = drift({"crash": (np.zeros(n), np.zeros(n))}, 0.05)
        assert none.excess.p_below == pytest.approx(0.95**n)
        assert none.decision(0.05) == decision
        assert none.excess.low < 0 < none.excess.high
        assert none.excess.value == 0


def test_one_word_alone_is_the_exact_test_of_the_score() -> None:
    [one] = drift({"timeout": shares(200, 20, more=9, fewer=2)}, 0.05)
    test = noninferiority([-1.0] * 9 + [1.0] * 2 + [0.0] * 189, 0.05)
    assert (one.excess.p_below, one.excess.p_above) == (test.p_go, test.p_nogo)
    assert one.excess.p_above == exact_pvalue(9, 2, 200, -0.05, "less")
    assert (one.excess.low, one.excess.high) == (-test.high, -test.low)


def test_several_words_are_several_chances() -> None:
    """Alone it fails; among twelve it does not."""
    alone = {"timeout": shares(200, 20, more=18)}
    [one] = drift(alone, 0.05)
    assert one.decision(0.05) == "fail"
    quiet = {f"word-{n}": shares(200, 20) for n in range(11)}
    among = drift({**alone, **quiet}, 0.05)[0]
    assert among.excess.p_above == pytest.approx(12 * one.excess.p_above)
    assert among.decision(0.05) == "undecided"
    assert among.excess.p_below == one.excess.p_below, "to pass, every word must: no correction"


def test_an_attempt_that_is_missing_is_no_better_than_one_that_failed() -> None:
    """Pitfall 8: dropping the bad ones must not help. Of 100, two lost in each arm leave nothing decided that they could turn."""
    reference, candidate = shares(100, 5)
    [whole] = drift({"crash": (reference, candidate)}, 0.05)
    assert whole.decision(0.05) == "pass"
    candidate[[50, 51]], reference[[60, 61]] = np.nan, np.nan
    [lost] = drift({"crash": (reference, candidate)}, 0.05)
    assert lost.decision(0.05) == "undecided"
    assert lost.excess.p_below > whole.excess.p_below
    assert (lost.reference, lost.candidate) == pytest.approx((5 / 98, 5 / 98)), "shares are of what was measured"
    candidate[50:60] = np.nan
    assert drift({"crash": (reference, candidate)}, 0.05)[0].missing == "too_many"


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=30, max_size=60
    ),  # which of two words, or none, in each arm
    st.sampled_from([0.02, 0.05, 0.2]),
)
def test_shares_of_words_that_exclude_each_other_add_up(drawn: list[tuple[int, int]], margin: float) -> None:
    arms = np.array(drawn).T
    found = drift({str(word): (arms[0] == word, arms[1] == word) for word in range(3)}, margin)
    assert sum(one.reference for one in found) == pytest.approx(1)
    assert sum(one.excess.value for one in found) == pytest.approx(0, abs=1e-12)
    for one in found:
        assert one.excess.value == pytest.approx(one.candidate - one.reference, abs=1e-12)
        assert one.excess.low <= one.excess.value <= one.excess.high
        assert not (one.excess.p_below <= 0.05 and one.excess.p_above <= 0.05)


def test_no_words_are_no_drift() -> None:
    assert drift({}, 0.05) == []
