"""pass@k and pass^k against known answers, and against all the draws that they stand for."""

from itertools import combinations

import pytest

from evalrig.analysis.repeated import chance_of_all, chance_of_any


def test_known_answers() -> None:
    assert chance_of_any(3, 10, 5) == pytest.approx(0.9166667, abs=5e-8)
    assert chance_of_all(3, 10, 5) == 0.0
    assert chance_of_all(8, 10, 2) == pytest.approx(28 / 45)
    assert chance_of_any(4, 10, 1) == chance_of_all(4, 10, 1) == pytest.approx(0.4)


@pytest.mark.parametrize("n", range(1, 8))
def test_both_are_means_over_all_draws(n: int) -> None:
    for right in range(n + 1):
        answers = [1] * right + [0] * (n - right)
        for k in range(1, n + 1):
            draws = list(combinations(answers, k))
            assert chance_of_any(right, n, k) == pytest.approx(sum(map(any, draws)) / len(draws))
            assert chance_of_all(right, n, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_a_rate_to_a_power_is_biased() -> None:
    """Pitfall: pass^N printed as rate**N. With 1 of 2 right no two answers were both right; the power says 25 %."""
    assert chance_of_all(1, 2, 2) == 0.0 != 0.5**2
    assert chance_of_any(1, 2, 2) == 1.0 != 1 - 0.5**2
    assert chance_of_any(3, 10, 5) > 1 - 0.7**5


@pytest.mark.parametrize(("right", "n", "k"), [(-1, 5, 1), (6, 5, 1), (1, 5, 0), (1, 5, 6)])
def test_draws_that_cannot_be_made_are_refused(right: int, n: int, k: int) -> None:
    with pytest.raises(ValueError, match="drawn"):
        chance_of_any(right, n, k)
    with pytest.raises(ValueError, match="drawn"):
        chance_of_all(right, n, k)
