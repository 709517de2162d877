"""From records to steps of both arms: paired, counted, and compared only where they can be."""

from dataclasses import replace

import numpy as np
import pytest
from toys.walks import OTHER, STEPS, attempt, drawn, owed

from evalrig.analysis.hazard import clean_share, excess_hazard
from evalrig.horizon import Attempts, Horizon, horizon
from evalrig.types import Record, State, Step, Trajectory


def of(reference: list[Record], candidate: list[Record], again: list[Record] | None = None, count: int = 2) -> Horizon:
    names = [f"s-{number:03d}" for number in range(count)]
    planned = Attempts(planned=[(name, 0) for name in names], cluster={names[0]: "a"}, score="accuracy")
    found = horizon(planned, reference, candidate, again or [])
    assert found is not None
    return found


def both(words: list[str], forced: bool = True) -> list[Record]:
    return [attempt(words, f"s-{number:03d}", forced=forced) for number in range(2)]


def test_errors_are_counted_by_attempt_and_kind() -> None:
    found = of(both(["", ""]), [attempt(["", "bad_json"], "s-000"), attempt(["wrong_id", "wrong_id"], "s-001")])
    assert found.words == ("bad_json", "wrong_id")
    assert found.candidate.tally("any").errors.tolist() == [1, 2]
    assert found.candidate.tally("invalid").errors.tolist() == [1, 0]
    assert found.candidate.tally("any").steps.tolist() == [2, 2]
    assert found.reference.tally("any").errors.tolist() == [0, 0]
    steps, events = found.candidate.first("any")
    assert (steps.tolist(), events.tolist()) == ([2, 1], [True, True])
    assert found.reference.first("any")[0].tolist() == [2, 2]
    assert not found.reference.first("any")[1].any()
    assert found.candidate.success.tolist() == [0.0, 0.0]


def test_an_attempt_that_an_arm_lost_is_left_out_of_both_and_counted() -> None:
    """Pitfalls 7 and 8: a failure of the engine is neither an error nor a success."""
    gone = attempt(["wrong_id"], "s-001", state=State.INFRA, scores={})
    found = of(both(["", ""]), [attempt([""], "s-000"), gone])
    assert found.attempts == 1
    assert found.reference.tally("any").steps.tolist() == [2]
    assert (found.lost.reference, found.lost.candidate, found.lost.both, found.lost.planned) == (0, 1, 0, 2)
    assert found.lost.share == 0.5
    absent = of(both([""]), [attempt([""], "s-000")])
    assert (absent.attempts, absent.lost.candidate) == (1, 1)


def test_what_a_limit_cut_counts_with_its_steps_and_as_no_success() -> None:
    cut = attempt([""], "s-000", state=State.TRUNCATED, scores={})
    found = of(both([""]), [cut, attempt([""], "s-001")])
    assert found.candidate.success.tolist() == [0.0, 1.0]
    assert found.lost.candidate == 0


def test_order_of_records_and_epochs_does_not_matter() -> None:
    records = [attempt([word] * 3, "s-000", epoch=epoch) for epoch, word in enumerate(("", "wrong_id"))]
    planned = Attempts(planned=[("s-000", 0), ("s-000", 1)], cluster={}, score="accuracy")
    found = horizon(planned, records, records[::-1])
    assert found is not None
    assert found.candidate.tally("any").errors.tolist() == found.reference.tally("any").errors.tolist() == [0, 3]
    assert found.cluster.tolist() == [0, 0]


def test_forced_steps_are_all_compared_with_the_reference_free_ones_up_to_the_first_that_differs() -> None:
    forced = of(both(["", "", ""]), both(["wrong_id", "", "wrong_id"]))
    assert forced.forced
    assert forced.candidate.apart.tolist() == [1, 0, 1] * 2
    free = of(both(["", "", ""], forced=False), both(["", "wrong_id", "", ""], forced=False))
    assert not free.forced
    assert free.candidate.apart.tolist() == [0, 1, -1, -1] * 2
    assert free.candidate.tally("divergence").steps.tolist() == [2, 2]
    assert free.reference.tally("divergence").errors.tolist() == [0, 0]


def test_a_longer_attempt_is_not_compared_beyond_the_reference_s() -> None:
    found = of(both([""], forced=False), both(["", ""], forced=False))
    assert found.candidate.apart.tolist() == [0, -1] * 2


def test_the_second_run_stands_beside_the_same_attempts() -> None:
    found = of(both(["", ""]), both(["", ""]), [attempt(["", "wrong_id"], "s-001")])
    assert found.again.tally("divergence").steps.tolist() == [0, 2]
    assert found.again.tally("divergence").errors.tolist() == [0, 1]
    assert np.isnan(found.again.success[0])


def test_a_divergence_need_not_be_an_error() -> None:
    other = Record(
        variant="cheap", suite="quiz", sample="s-000", epoch=0, state=State.SCORED,
        trajectory=Trajectory(steps=(Step(due=STEPS[""].due, said=OTHER),)),
    )  # fmt: skip
    found = of(both([""]), [other, replace(other, sample="s-001")])
    assert found.candidate.tally("any").errors.sum() == 0
    assert found.candidate.tally("divergence").errors.tolist() == [1, 1]


def test_suites_without_steps_have_no_horizon() -> None:
    assert horizon(owed(1), [attempt([], "s-0000")], [attempt([], "s-0000")]) is None
    assert horizon(owed(1), [], []) is None


@pytest.mark.parametrize("hazard", [0.005, 0.02, 0.1])
def test_a_scripted_model_with_a_known_error_rate_gives_the_hazard_and_the_right_p_to_the_n(hazard: float) -> None:
    """The rate lies in its interval in about 90 of 100 studies, and (1 - h)^n is the share of clean attempts."""
    inside, gaps = 0, list[float]()
    for seed in range(60):
        rng = np.random.default_rng([seed, int(1e4 * hazard)])
        lengths = rng.integers(5, 41, 100).tolist()
        perfect, wrong = drawn(rng, lengths, 0.0, "reference"), drawn(rng, lengths, hazard, "cheap")
        found = horizon(owed(100), perfect, wrong)
        assert found is not None
        tally = found.candidate.tally("any")
        test = excess_hazard(found.reference.tally("any"), tally, 0.001, found.cluster)
        inside += test.low <= hazard <= test.high
        predicted, observed = clean_share(tally)
        gaps.append(predicted - observed)
    assert 48 <= inside <= 60
    assert abs(np.mean(gaps)) < 0.015
