"""Growth of the error rate along a task: size, power, and data that have no answer."""

import numpy as np
import pytest

from evalrig.analysis.accumulation import accumulation, logit_cluster


def drawn(rng, growth: float, tasks: int = 150, hazard: float = 0.05):
    """Both arms of tasks of 5 to 40 steps; the candidate's errors grow by `growth` a step, the reference's do not."""
    steps = rng.integers(5, 41, tasks)
    cluster = np.tile(np.repeat(np.arange(tasks), steps), 2)
    step = np.tile(np.concatenate([np.arange(1, n + 1) for n in steps]), 2)
    arm = np.repeat([0, 1], steps.sum())
    rate = np.minimum(hazard * (1 + growth * arm) ** (step - 1), 0.9)
    return rng.random(len(step)) < rate, step, arm, cluster


def test_a_logit_of_one_column_is_the_log_odds():
    found = logit_cluster(np.ones((8, 1)), [1, 0, 0, 0, 1, 0, 0, 0], None)
    assert found is not None
    assert found.coefficients[0] == pytest.approx(np.log(0.25 / 0.75))
    assert found.errors[0] == pytest.approx(np.sqrt(8 / 7 / (8 * 0.25 * 0.75)))


def test_without_growth_the_test_rejects_about_one_study_in_twenty():
    rng = np.random.default_rng(1)
    found = [accumulation(*drawn(rng, 0.0))[0] for _ in range(300)]
    assert sum(one is not None and one.p <= 0.05 for one in found) <= 26


def test_growth_of_five_percent_a_step_is_seen_and_its_size_told():
    rng = np.random.default_rng(2)
    found = [accumulation(*drawn(rng, 0.05))[0] for _ in range(40)]
    assert sum(one is not None and one.p <= 0.05 for one in found) >= 30
    relative = np.median([one.relative for one in found if one is not None])
    assert 1.3 < relative < 2.2  # 1.05^10 is 1.63, in odds a little more


def test_data_without_an_answer_give_a_reason_and_no_number():
    step, arm, cluster = np.tile(np.arange(1, 11), 50), np.repeat([0, 1], 250), np.tile(np.repeat(np.arange(25), 10), 2)
    clean = np.zeros(500)
    assert accumulation([], [], [], [])[1] == "no steps"
    assert accumulation(clean, step, arm, cluster) == (None, "the reference has no errors")
    some = np.where((arm == 0) & (step % 4 == 0), 1.0, 0.0)
    assert accumulation(some, step, arm, cluster) == (None, "the candidate has no errors")
    assert accumulation(np.where(arm == 1, 1.0, some), step, arm, cluster)[1] == "the candidate has errors only"
    alike = (step + cluster) % 4 == 0
    assert accumulation(alike, step, arm, cluster) == (None, "both arms err at the same steps")
    few = cluster < 10
    assert accumulation(some[few], step[few], arm[few], cluster[few])[1] == "10 clusters; at least 20 are needed"
    separated = np.where(step > 8, 1.0, 0.0)
    assert "no finite growth" in accumulation(separated, step, arm, cluster)[1]
    assert "no finite growth" in accumulation(some + (arm == 1) * (step % 3 == 0), np.ones(500), arm, cluster)[1]
