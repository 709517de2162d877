"""Cost: dollars by hand, a saving that has the interval of the ratio of rates, and tokens per solved task."""

import math

import numpy as np
import pytest

from evalrig.analysis.cost import (
    Tasks,
    product,
    saving,
    tokens_per_solved,
    usd_per_million,
)
from evalrig.analysis.load_ratio import ratio_of

RATES = np.array([100.0, 101, 99, 100, 102, 100])


def test_dollars_per_million_tokens_by_hand():
    assert usd_per_million(2.5, 8, 5000) == pytest.approx(1.1111, abs=1e-4)
    assert usd_per_million(3.6, 1, 1000) == pytest.approx(1.0)
    for wrong in ((0, 1, 1), (1, 1, 0), (1, 1, math.nan)):
        with pytest.raises(ValueError, match="no cost"):
            usd_per_million(*wrong)


def test_a_saving_has_the_interval_of_the_ratio_of_rates():
    faster = RATES * 1.41 * np.array([1.0, 0.99, 1.01, 1.0, 0.995, 1.004])
    cost = [usd_per_million(2.5, 1, rate) for rate in RATES]
    found = saving(cost, [usd_per_million(2.5, 1, rate) for rate in faster], least=0.25)
    rates = ratio_of(RATES, faster)
    assert (found.value, found.low, found.high) == pytest.approx(
        (1 - 1 / rates.value, 1 - 1 / rates.low, 1 - 1 / rates.high)
    )
    assert found.value == pytest.approx(0.29, abs=0.01)
    assert found.ratio.p_go <= 0.05


def test_at_least_so_much_saved_is_tested_on_the_right_side():
    cost = np.array([1.0, 1.02, 0.99, 1.0, 1.01, 0.98])
    cheaper = 0.7 * cost * np.array([1.0, 1.01, 0.99, 1.002, 0.997, 1.0])
    assert saving(cost, cheaper, least=0.28).ratio.p_go <= 0.05
    assert saving(cost, cheaper, least=0.32).ratio.p_nogo <= 0.05
    assert saving(cheaper, cost).ratio.p_nogo <= 0.05
    assert saving(cost, cheaper, least=0.28).low > 0.28
    with pytest.raises(ValueError, match="least"):
        saving(cost, cheaper, least=1.0)


def test_one_round_saves_nothing_that_can_be_signed():
    found = saving([1.0], [0.5])
    assert (found.value, found.low, found.high, found.ratio.p_go) == (0.5, -math.inf, 1.0, 1.0)


def solved(seed, n=300, tokens=1.0, rate=0.7):
    """n tasks of differing length; both arms solve `rate` and .7 of them."""
    rng = np.random.default_rng(seed)
    length = rng.lognormal(6, 0.6, n)
    return Tasks(
        reference_tokens=length * rng.lognormal(0, 0.2, n),
        reference_solved=rng.random(n) < 0.7,
        candidate_tokens=length * tokens * rng.lognormal(0, 0.2, n),
        candidate_solved=rng.random(n) < rate,
    )


def test_tokens_per_solved_task_by_hand():
    ours = Tasks(
        reference_tokens=[100.0] * 20,
        reference_solved=[1] * 20,
        candidate_tokens=[90.0] * 20,
        candidate_solved=[1, 0] * 10,
    )
    found = tokens_per_solved(ours)
    assert found.value == pytest.approx(1.8)  # 1,800 tokens for 10 solved against 2,000 for 20
    assert (found.low < 1.8 < found.high, found.n) == (True, 20)


def test_a_variant_that_solves_less_is_dearer_although_its_tokens_are_not():
    found = tokens_per_solved(solved(1, n=3000, rate=0.5))
    assert found.value == pytest.approx(1.4, abs=0.1)
    assert found.low > 1.0
    assert found.p_nogo <= 0.05
    assert tokens_per_solved(solved(1, n=3000, rate=0.5), seed=0) == found


def test_intervals_of_tokens_per_solved_hold_the_truth():
    limits = [tokens_per_solved(solved(seed, n=120, tokens=1.2, rate=0.6)) for seed in range(100)]
    held = np.mean([found.low <= 1.4 <= found.high for found in limits])
    assert 0.82 <= held <= 0.97  # nominal: .90


def test_answers_of_one_task_stand_or_fall_together():
    one = solved(3, n=60)
    eight = {name: np.repeat(np.asarray(getattr(one, name), float), 8) for name in one.__slots__ if name != "cluster"}
    alone = tokens_per_solved(one)
    together = tokens_per_solved(Tasks(**eight, cluster=np.repeat(np.arange(60), 8)))
    assert (together.low, together.high, together.n) == (pytest.approx(alone.low), pytest.approx(alone.high), 60)
    blind = tokens_per_solved(Tasks(**eight))
    assert math.log(blind.high / blind.low) < 0.5 * math.log(together.high / together.low)


def test_with_few_solved_there_is_a_value_and_no_interval():
    few = Tasks(
        reference_tokens=[10.0] * 30,
        reference_solved=[1] * 30,
        candidate_tokens=[10.0] * 30,
        candidate_solved=[1] * 9 + [0] * 21,
    )
    found = tokens_per_solved(few)
    assert (found.value, found.interval, found.p_go, found.p_nogo) == (pytest.approx(30 / 9), False, 1.0, 1.0)
    assert "9 tasks solved" in found.method
    none = tokens_per_solved(
        Tasks(reference_tokens=[1.0], reference_solved=[1], candidate_tokens=[1.0], candidate_solved=[0])
    )
    assert math.isnan(none.value)


def test_cost_per_solved_task_joins_both_errors():
    costs = ratio_of(RATES, RATES * 0.7 * np.array([1.0, 1.01, 0.99, 1.002, 0.997, 1.0]), less=True)
    tokens = tokens_per_solved(solved(1, rate=0.5))
    found = product(costs, tokens)
    assert found.value == pytest.approx(costs.value * tokens.value)
    widths = [math.log(part.high / part.value) for part in (costs, tokens, found)]
    assert widths[2] == pytest.approx(math.hypot(widths[0], widths[1]))
    at_its_limit = product(costs, tokens, least=1 - found.high)
    assert at_its_limit.p_go == pytest.approx(0.05)
    assert product(costs, tokens, least=1 - found.low).p_nogo == pytest.approx(0.05)
    assert product(ratio_of([1.0], [2.0]), tokens).p_go == 1.0


@pytest.mark.parametrize("wrong", [[1.0, -1.0], [1.0], [math.nan, 1.0]])
def test_what_is_no_count_is_refused(wrong):
    with pytest.raises(ValueError, match=r"tasks|candidate_tokens"):
        tokens_per_solved(
            Tasks(reference_tokens=[1.0, 1.0], reference_solved=[1, 1], candidate_tokens=wrong, candidate_solved=[1, 1])
        )
