"""The gate on how answers fail, from records to verdict."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.coding import Coding, CodingOptions
from toys.nouns import evidence, gate_plan, pairs, record
from toys.runs import carry_out, run_file

from evalrig.errors import UsageError
from evalrig.evidence import failure_of
from evalrig.gates.failure_drift import FailureDrift, FailureDriftOptions
from evalrig.suite import Attempt, sound
from evalrig.types import Check, CheckOutcome, Outcome, State, Trajectory

N = 300


def share(*failed: int) -> np.ndarray:
    found = np.zeros(N)
    found[list(failed)] = 1
    return found


def checked(shares: dict[str, tuple[Any, Any]], margin: float = 0.05, **options: Any) -> Check:
    gate = FailureDrift(gate_plan("failure_drift", "", margin), FailureDriftOptions(**options))
    failures = {("quiz", word): pairs(*sides) for word, sides in shares.items()}
    other = {("other", "timeout"): pairs(share(), share(*range(200)))}
    return gate.check(replace(evidence(), failures={**failures, **other}))


def test_no_word_that_grew_passes_and_earns_nothing() -> None:
    found = checked({"timeout": (share(1, 2), share(2, 3)), "crash": (share(), share())})
    assert found.outcome is CheckOutcome.PASSED
    assert found.reason.startswith("no way of failing became more frequent by 5 points: of 2 the most ")
    assert found.p_go <= 0.05
    assert not FailureDrift.earns


def test_one_word_that_grew_fails_whatever_the_others_do() -> None:
    found = checked({"crash": (share(*range(60)), share()), "timeout": (share(1), share(*range(60)))})
    assert found.outcome is CheckOutcome.FAILED
    assert found.reason.startswith(
        "answers fail otherwise, by more than 5 points: timeout +20 points (0.3% to 20.0%), 90 % interval +16 to +24"
    )
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx(59 / 300)
    assert found.p_nogo <= 0.05


def test_only_the_words_that_were_asked_for_are_judged() -> None:
    words = {"crash": (share(), share()), "timeout": (share(1), share(*range(60)))}
    assert checked(words, words=["crash"]).outcome is CheckOutcome.PASSED
    assert checked(words, words=["timeout"]).outcome is CheckOutcome.FAILED


def test_too_few_samples_are_undecided_and_say_how_many_are_needed() -> None:
    found = checked({"timeout": (share(1, 2, 3), share(*range(20)))}, margin=0.06)
    assert found.outcome is CheckOutcome.UNDECIDED
    assert found.needed is not None
    assert found.needed > N
    assert f"needs about {found.needed} samples" in found.reason
    assert (found.p_go, found.p_nogo) == (1.0, 1.0)


def test_attempts_that_one_arm_lost_are_stability_and_no_failure() -> None:
    """Pitfalls 7 and 8: what the engine did not answer is missing, not a way of failing."""
    candidate = share(1)
    candidate[100:110] = np.nan
    found = checked({"timeout": (share(1), candidate)})
    assert found.outcome is CheckOutcome.INVALID
    assert (
        "missing attempts: 0.0% of the reference, 3.3% of the candidate; the arms lose attempts unequally"
        in found.reason
    )


def test_a_margin_of_everything_is_refused() -> None:
    with pytest.raises(UsageError, match=r"0\.05 means five points"):
        FailureDrift(gate_plan("failure_drift", "", 1.0), FailureDriftOptions())


def piqa_alone(folder: Path) -> dict[str, Any]:
    return {"piqa": {"kind": "piqa", "options": {"path": str(folder / "piqa.jsonl")}}}


def test_a_suite_without_words_or_without_that_word_is_refused_before_anything_starts(tmp_path: Path) -> None:
    gate = {"kind": "failure_drift", "suite": "piqa", "margin": 0.05}
    with pytest.raises(
        UsageError, match=r"gates\.drift: its suite does not tell how attempts fail; name one that does"
    ):
        carry_out(run_file(tmp_path / "a", {"quiet": {}}, suites=piqa_alone(tmp_path / "a"), gates={"drift": gate}))
    code = {"kind": "toys.coding"}
    gate = {**gate, "suite": "code", "options": {"words": ["tiemout"]}}
    with pytest.raises(UsageError, match=r"options\.words: no failure 'tiemout'; known: syntax_error, wrong_answer"):
        carry_out(run_file(tmp_path / "b", {"quiet": {}}, suites={"code": code}, gates={"drift": gate}))
    gate = {**gate, "options": {}, "metric": "solved"}
    with pytest.raises(UsageError, match=r"gates\.drift\.metric: no metric 'solved'; .*fits `failure_drift`"):
        carry_out(run_file(tmp_path / "c", {"quiet": {}}, suites={"code": code}, gates={"drift": gate}))


def test_a_word_that_the_suite_has_not_named_is_refused() -> None:
    suite = Coding("code", CodingOptions())
    with pytest.raises(UsageError, match=r"suites\.code: a failure 'dog_ate_it', not among its `failures`"):
        sound(Attempt(trajectory=Trajectory(failure="dog_ate_it")), suite)


@pytest.mark.parametrize(
    ("state", "word", "expected"),
    [
        (State.SCORED, "", ""),
        (State.SCORED, "timeout", "timeout"),
        (State.TRUNCATED, "", "truncated"),
        (State.TRUNCATED, "truncated", "truncated"),
        (State.REFUSED, "", "refused"),
        (State.INFRA, "timeout", None),
        (State.UNSCORED, "", None),
    ],
)
def test_what_a_record_says_of_its_failure(state: State, word: str, expected: str | None) -> None:
    assert failure_of(record(state=state, trajectory=Trajectory(failure=word))) == expected


def run_of(folder: Path, gating: bool, **options: Any) -> Any:
    suites = {"code": {"kind": "toys.coding", "options": options}}
    gates = {
        "solved": {"kind": "noninferior", "suite": "code", "metric": "solved", "margin": 0.1},
        "drift": {"kind": "failure_drift", "suite": "code", "margin": 0.05, "gating": gating},
    }
    path = run_file(folder, {"late": {"noise": 0.02}, "quiet": {"noise": 0.02}}, suites=suites, gates=gates)
    return carry_out(path).verdict


def test_equal_scores_with_other_failures_are_no_go_where_the_gate_is_gating(tmp_path: Path) -> None:
    verdict = run_of(tmp_path / "a", True, slow={"late": 0.6})
    assert {name: one.outcome for name, one in verdict.candidates.items()} == {
        "late": Outcome.NO_GO,
        "quiet": Outcome.GO,
    }
    shown = run_of(tmp_path / "b", False, slow={"late": 0.6})
    assert {one.outcome for one in shown.candidates.values()} == {Outcome.GO}


def test_the_drift_gate_alone_earns_no_go(tmp_path: Path) -> None:
    gates = {"drift": {"kind": "failure_drift", "suite": "code", "margin": 0.05}}
    path = run_file(tmp_path, {"quiet": {"noise": 0.02}}, suites={"code": {"kind": "toys.coding"}}, gates=gates)
    verdict = carry_out(path).verdict
    [check] = verdict.candidates["quiet"].checks
    assert check.outcome is CheckOutcome.PASSED
    assert verdict.outcome is Outcome.INCONCLUSIVE
