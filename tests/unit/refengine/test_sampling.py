"""Draws: repeatable by seed, independent of anything else, and as frequent as the probabilities say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from evalrig.refengine.arrays import F32
from evalrig.refengine.logprobs import LogprobWish, best, row_logprobs
from evalrig.refengine.sampling import Penalties, Sampling, draw

ROW: F32 = np.log(np.array([0.5, 0.2, 0.15, 0.1, 0.05], np.float32)) + 3


def drawn(sampling: Sampling, count: int = 4000) -> list[int]:
    return [draw(ROW, sampling, position) for position in range(count)]


def counts(tokens: list[int]) -> list[int]:
    return np.bincount(tokens, minlength=len(ROW)).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_match_the_probabilities(temperature: float) -> None:
    weights = np.exp(ROW.astype(np.float64) / temperature)
    observed = counts(drawn(Sampling(temperature=temperature, seed=11)))
    assert chisquare(observed, weights / weights.sum() * 4000).pvalue > 0.001


def test_the_same_seed_and_position_draw_the_same_and_others_do_not() -> None:
    once, again = drawn(Sampling(seed=7), 200), drawn(Sampling(seed=7), 200)
    assert once == again
    assert once != drawn(Sampling(seed=8), 200)
    assert once != drawn(Sampling(seed=7, branch=1), 200)


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 10**6))
def test_every_seed_and_position_can_be_drawn(seed: int, position: int) -> None:
    assert 0 <= draw(ROW, Sampling(seed=seed, branch=3), position) < len(ROW)


def test_temperature_zero_takes_the_first_of_the_most_likely() -> None:
    row = np.array([0.0, 2.0, 2.0, 1.0], np.float32)
    assert draw(row, Sampling(temperature=0.0, seed=1), 5) == 1


def test_top_k_and_top_p_limit_the_support() -> None:
    assert set(drawn(Sampling(top_k=2))) == {0, 1}
    assert set(drawn(Sampling(top_p=0.5))) == {0}  # the first token alone reaches a half
    assert set(drawn(Sampling(top_p=0.51))) == {0, 1}
    assert set(drawn(Sampling(top_p=0.86))) == {0, 1, 2, 3}
    assert set(drawn(Sampling(top_k=1, temperature=5.0))) == {0}


def test_top_p_is_a_share_of_what_top_k_leaves() -> None:
    # Of the first three (0.5, 0.2, 0.15) the first two hold 0.82.
    assert set(drawn(Sampling(top_k=3, top_p=0.8))) == {0, 1}


def test_restricted_draws_keep_the_ratios() -> None:
    observed = counts(drawn(Sampling(top_k=2, seed=5)))[:2]
    assert chisquare(observed, [4000 * 0.5 / 0.7, 4000 * 0.2 / 0.7]).pvalue > 0.001


@given(
    values=st.lists(st.integers(-30, 30), min_size=100, max_size=600),
    count=st.integers(1, 100),
)
def test_best_is_a_stable_sort_cut_off(values: list[int], count: int) -> None:
    row = np.array(values, np.float32) / 4
    expected = sorted(range(len(row)), key=lambda i: (-row[i], i))[:count]
    assert best(row.astype(np.float32), count).tolist() == expected


def test_a_row_with_nan_shows_it() -> None:
    row = np.arange(49152).astype(np.float32)
    row[7] = np.nan
    assert np.isnan(row_logprobs(row, LogprobWish(start=0, top=5), 3).chosen)


def test_row_logprobs_are_normalised_over_the_whole_vocabulary() -> None:
    row = np.random.default_rng(0).standard_normal(5000).astype(np.float32) * 5
    found = row_logprobs(row, LogprobWish(start=0, top=5000, ids=(3, 1)), 42)
    assert found.top_logprobs is not None
    assert found.wanted is not None
    assert np.exp(found.top_logprobs.astype(np.float64)).sum() == pytest.approx(1, abs=1e-6)
    exact = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    assert found.chosen == pytest.approx(exact[42], abs=1e-6)
    assert found.wanted.tolist() == pytest.approx([exact[3], exact[1]], abs=1e-6)


def test_min_p_leaves_out_what_is_unlikely_beside_the_best() -> None:
    assert set(drawn(Sampling(min_p=0.25, seed=1))) == {0, 1, 2}
    assert set(drawn(Sampling(min_p=0.41, seed=1), 200)) == {0}
    assert set(drawn(Sampling(min_p=0.1, top_k=2, seed=1))) == {0, 1}
    observed = counts(drawn(Sampling(min_p=0.25, seed=3)))
    assert chisquare(observed[:3], np.array([0.5, 0.2, 0.15]) / 0.85 * 4000).pvalue > 0.001


def test_penalties_are_of_what_the_answer_holds() -> None:
    row = np.array([2.0, 1.5, -1.0, -1.2], np.float32)

    def taken(answer: list[int], **penalties: float) -> int:
        return draw(row, Sampling(temperature=0, penalties=Penalties(**penalties)), 0, answer)

    assert taken([], presence=2) == 0
    assert taken([0], presence=0.4) == 0
    assert taken([0], presence=0.6) == 1
    assert taken([0, 0], frequency=0.2) == 0
    assert taken([0, 0, 0], frequency=0.2) == 1
    assert taken([0], repetition=1.5) == 1
    assert taken([0, 1, 2], repetition=0.5) == 0
    low = np.array([-1.0, -1.2], np.float32)
    assert draw(low, Sampling(temperature=0, penalties=Penalties(repetition=1.5)), 0, [0]) == 1
    assert row.tolist() == [2.0, 1.5, -1.0, np.float32(-1.2)]
