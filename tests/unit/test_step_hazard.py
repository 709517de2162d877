"""The gate on excess errors per step: what it decides, what it leaves open, and how often it errs."""

from dataclasses import replace

import numpy as np
import pytest
from toys.nouns import evidence, gate_plan
from toys.walks import attempt, drawn, owed

from evalrig.errors import UsageError
from evalrig.gates.step_hazard import StepHazard, StepHazardOptions
from evalrig.horizon import horizon
from evalrig.types import Check, CheckOutcome, Metric, Record, State

PASSED, FAILED, UNDECIDED, INVALID = (
    CheckOutcome.PASSED,
    CheckOutcome.FAILED,
    CheckOutcome.UNDECIDED,
    CheckOutcome.INVALID,
)
TASK = StepHazardOptions(task_margin=0.02)
DERIVED = StepHazard.margin_of(gate_plan("step_hazard", "accuracy", 0.0), TASK)


def judged(
    reference: list[Record],
    candidate: list[Record],
    margin: float = DERIVED,
    again: list[Record] | None = None,
    of: str = "any",
) -> Check:
    gate = StepHazard(gate_plan("step_hazard", "accuracy", margin), StepHazardOptions(of=of))
    found = horizon(owed(max(len(reference), len(candidate))), reference, candidate, again or [])
    return gate.check(replace(evidence(), horizons={"quiz": found} if found else {}))


def arms(
    hazards: tuple[float, float], count: int = 300, seed: int = 1, word: str = "wrong_id"
) -> tuple[list[Record], list[Record]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 41, count).tolist()
    reference = drawn(rng, lengths, hazards[0], "reference", word)
    return reference, drawn(rng, lengths, hazards[1], "cheap", word)


def test_three_errors_in_a_hundred_steps_in_place_of_two_nearly_always_fail_and_two_rarely_do() -> None:
    """Tasks of 5 to 40 steps, 300 of them; margin from a task that may lose 2 points of 60 over 30 steps."""
    assert pytest.approx(0.0011301, abs=1e-7) == DERIVED
    worse = [judged(*arms((0.02, 0.03), seed=seed)).outcome for seed in range(200)]
    same = [judged(*arms((0.02, 0.02), seed=seed)).outcome for seed in range(1000, 1100)]
    assert worse.count(FAILED) >= 180
    assert worse.count(PASSED) == 0
    assert same.count(FAILED) <= 10


def test_an_excess_below_the_margin_passes_and_one_above_fails_with_the_numbers() -> None:
    passed = judged(*arms((0.02, 0.02)), margin=0.02)
    assert passed.outcome is PASSED
    assert passed.reason.startswith("an excess of errors of 2 points per step is excluded: ")
    assert "300 attempts" in passed.reason
    assert passed.estimate is not None
    assert passed.estimate.n == 300
    failed = judged(*arms((0.02, 0.1)), margin=0.02)
    assert failed.outcome is FAILED
    assert failed.p_nogo < 1e-6


def test_too_few_attempts_are_undecided_and_say_how_many_are_needed() -> None:
    found = judged(*arms((0.02, 0.02), 60))
    assert found.outcome is UNDECIDED
    assert found.needed is not None
    assert found.needed > 60
    assert f"needs about {found.needed:,} attempts" in found.reason
    assert (found.p_go, found.p_nogo) == (1.0, 1.0)


def test_invalid_calls_are_another_count_than_errors() -> None:
    """0.2 points: no invalid call among many passes, among few it does not, and wrong ids do not count."""
    many, few = arms((0.02, 0.02), 100), arms((0.02, 0.02), 30)
    assert judged(*many, margin=0.002, of="invalid").outcome is PASSED
    assert judged(*few, margin=0.002, of="invalid").outcome is UNDECIDED
    broken = judged(*arms((0.0, 0.02), 100, word="bad_json"), margin=0.002, of="invalid")
    assert broken.outcome is FAILED
    assert "more invalid calls than the reference by over 0.2 points per step are shown" in broken.reason


def test_divergence_is_held_against_the_reference_s_own_second_run() -> None:
    reference, candidate = arms((0.0, 0.1), 200)
    lengths = [len(record.trajectory.steps) for record in reference]
    rng = np.random.default_rng(9)
    again, worse = drawn(rng, lengths, 0.1, "reference_again"), drawn(rng, lengths, 0.3, "cheap")
    assert judged(reference, candidate, 0.05, again, "divergence").outcome is PASSED
    found = judged(reference, worse, 0.05, again[:100], "divergence")
    assert found.outcome is FAILED
    assert "reference against itself" in found.reason
    assert "100 attempts" in found.reason
    unrepeated = judged(reference, candidate, 0.05, [], "divergence").reason
    assert "not run again" in unrepeated
    assert unrepeated.endswith("; raise suites.quiz.again")


def test_a_reference_that_errs_at_nearly_every_step_could_not_have_shown_damage() -> None:
    """SmolLM2 cannot call tools: both arms wrong everywhere is no pass."""
    found = judged(*arms((1.0, 1.0)), margin=0.1)
    assert found.outcome is UNDECIDED
    assert found.reason == "no assay sensitivity: 100.0% of the reference's own steps are errors"
    assert found.needed is None


def test_nothing_to_judge_is_undecided() -> None:
    assert "nothing to judge along the way" in judged([attempt([])], [attempt([])]).reason
    assert judged([], []).outcome is UNDECIDED
    assert judged([attempt([""], "s-0000")], [attempt([], "s-0000")]).reason == "an arm has no step"


def test_attempts_that_one_arm_loses_more_often_are_no_pass() -> None:
    """Pitfalls 7 and 11: an arm that crashes on its long attempts must not gain from it."""
    reference, candidate = arms((0.02, 0.02))
    crashed = [replace(record, state=State.INFRA, scores={}) for record in candidate[:10]]
    found = judged(reference, [*crashed, *candidate[10:]], margin=0.05)
    assert found.outcome is INVALID
    assert (
        "attempts lost: 0 of the reference, 10 of the candidate, of 300; the arms lose attempts unequally"
        in found.reason
    )
    gate = StepHazard(gate_plan("step_hazard", "accuracy", 0.05), StepHazardOptions())
    apart = horizon(owed(300), reference[20:], candidate[:280])
    assert apart is not None
    few = gate.check(replace(evidence(), horizons={"quiz": apart}))
    assert few.outcome is UNDECIDED
    assert few.reason == ("attempts lost: 20 of the reference, 20 of the candidate, of 300; more than 0.05 of them")
    assert (few.p_go, few.p_nogo) == (1.0, 1.0)


def test_the_margin_is_written_or_derived_never_both_nor_neither() -> None:
    def margin(written: float, **options: float) -> float:
        return StepHazard.margin_of(gate_plan("step_hazard", "accuracy", written), StepHazardOptions(**options))  # type: ignore[arg-type]

    assert margin(0.002) == 0.002
    with pytest.raises(UsageError, match="give one, the other 0"):
        margin(0.002, task_margin=0.02)
    for wrong in ({"task_margin": 0.0}, {"task_margin": 0.7}, {"task_margin": 0.02, "horizon": 0}):
        with pytest.raises(UsageError, match=r"gates\.accuracy_gate\.options: a loss of .* is no margin"):
            margin(0.0, **wrong)


@pytest.mark.parametrize(
    ("options", "words"), [({"of": "some"}, r"\.of is 'some'"), ({"max_missing": 1.0}, "max_missing")]
)
def test_options_out_of_range_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        StepHazard(gate_plan("step_hazard", "accuracy"), StepHazardOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("margin", [0.0, 1.0, -0.1, float("nan")])
def test_a_margin_that_is_no_rate_is_refused(margin: float) -> None:
    with pytest.raises(UsageError, match="errors per step, above 0 and below 1"):
        StepHazard(gate_plan("step_hazard", "", margin), StepHazardOptions())


def test_it_needs_no_metric_and_earns_nothing_alone() -> None:
    assert StepHazard.accepts(Metric(name="a", kind="binary", units="points"))
    assert StepHazard.accepts(None)
    assert not StepHazard.accepts(Metric(name="a", kind="distance", units="nats"))
    assert not StepHazard.earns
