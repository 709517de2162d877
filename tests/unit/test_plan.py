"""Planning is pure: the same run file and samples give the same plan, and what is elsewhere does not matter."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.nouns import run_config, samples, small_plan

from evalrig.config.schema import SuiteConfig
from evalrig.plan import choose, sample_digest
from evalrig.types import AGAIN, REFERENCE

SHARE = st.floats(0.01, 1.0)


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 60), st.integers(0, 2**31), SHARE)
def test_the_same_input_gives_the_same_plan(count: int, seed: int, again: float) -> None:
    def made() -> object:
        config = run_config(quiz=SuiteConfig(kind="quiz", again=again))
        config.seed = seed
        return small_plan(config, {"quiz": samples(count)})

    assert made() == made()


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 60), st.integers(0, 2**31), st.integers(1, 60))
def test_samples_are_a_seeded_permutation_and_a_limit_is_its_prefix(count: int, seed: int, limit: int) -> None:
    whole = choose(samples(count), None, seed, "quiz")
    assert sorted(sample.id for sample in whole) == [sample.id for sample in samples(count)]
    assert choose(samples(count), limit, seed, "quiz") == whole[:limit]


def test_another_seed_or_suite_gives_another_order() -> None:
    orders = {
        tuple(sample.id for sample in choose(samples(30), None, seed, suite))
        for seed, suite in [(0, "quiz"), (1, "quiz"), (0, "exam")]
    }
    assert len(orders) == 3


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 60), SHARE)
def test_the_share_of_a_a_is_drawn_from_the_samples_once_each(count: int, again: float) -> None:
    config = run_config(quiz=SuiteConfig(kind="quiz", again=again))
    suite = small_plan(config, {"quiz": samples(count)}).suite("quiz")
    assert len(suite.again) == len(set(suite.again)) == math.ceil(count * again)
    assert set(suite.again) <= set(suite.samples)


def test_a_a_comes_in_another_order() -> None:
    suite = small_plan(run_config(quiz=SuiteConfig(kind="quiz", again=1.0)), {"quiz": samples(30)}).suite("quiz")
    assert set(suite.again) == set(suite.samples)
    assert suite.again != suite.samples


def test_unseeded_shuffles_do_not_change_sample_ids_when_a_suite_is_added_elsewhere() -> None:
    alone = small_plan(run_config(quiz=SuiteConfig(kind="quiz")))
    joined = small_plan(run_config(exam=SuiteConfig(kind="exam"), quiz=SuiteConfig(kind="quiz")))
    assert alone.suite("quiz") == joined.suite("quiz")


def test_every_variant_has_a_cell_for_each_suite_and_epoch_and_a_a_comes_last() -> None:
    config = run_config(quiz=SuiteConfig(kind="quiz", epochs=2, again=0.5), exam=SuiteConfig(kind="exam"))
    plan = small_plan(config, traced=["exam"])
    assert [(c.variant, c.suite, c.epoch, c.stage) for c in plan.cells] == [
        (REFERENCE, "exam", 0, "trace"),
        *(
            (variant, suite, epoch, "attempt")
            for variant in (REFERENCE, "cheap", AGAIN)
            for suite, epoch in (("quiz", 0), ("quiz", 1), ("exam", 0))
        ),
    ]
    for cell in plan.cells:
        assert cell.samples == plan.expected(cell.variant, plan.suite(cell.suite))


def test_a_gate_of_a_suite_that_is_not_run_is_named_not_dropped() -> None:
    config = run_config()
    config.gates["far"] = run_config(far=SuiteConfig(kind="far")).gates["far_gate"]
    plan = small_plan(config)
    assert [gate.name for gate in plan.gates] == ["quiz_gate"]
    assert plan.unused_gates == ("far",)


def test_re_scoring_against_a_re_shuffled_answer_key_shows_in_the_digest() -> None:
    one, two = samples(2)
    assert sample_digest([one, two]) != sample_digest([two, one])


@pytest.mark.parametrize("key", ["prompt", "target", "choices", "cluster"])
def test_any_change_of_a_sample_shows_in_the_digest(key: str) -> None:
    from dataclasses import replace

    [one] = samples(1)
    other = replace(one, **{key: ("a",) if key == "choices" else "other"})
    assert sample_digest([one]) != sample_digest([other])
