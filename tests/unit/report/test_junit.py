"""JUnit XML: green if and only if the candidate is GO."""

from xml.etree import ElementTree as ET

import pytest

from evalrig.report.junit import junit
from evalrig.types import CandidateVerdict, Check, CheckOutcome, Finding, Level, Outcome, Verdict


def check(outcome: CheckOutcome, gating: bool = True, reason: str = "seen") -> Check:
    return Check(gate="accuracy", suite="piqa", outcome=outcome, reason=reason, gating=gating)


def verdict(outcome: Outcome, *checks: Check, findings: tuple[Finding, ...] = (), reason: str = "why") -> Verdict:
    one = CandidateVerdict(outcome=outcome, scope="", reasons=(reason,), checks=checks)
    return Verdict(
        run="nightly",
        config_sha256="ab",
        outcome=outcome,
        exit_code=1,
        candidates={"int4": one},
        validity=findings,
        accounting=(),
    )


def suite(of: Verdict) -> ET.Element:
    found = ET.fromstring(junit(of)).find("testsuite")
    assert found is not None
    return found


def numbers(of: Verdict) -> tuple[str | None, ...]:
    return tuple(suite(of).get(key) for key in ("tests", "failures", "errors", "skipped"))


def test_go_is_green() -> None:
    assert numbers(verdict(Outcome.GO, check(CheckOutcome.PASSED))) == ("2", "0", "0", "0")


def test_fail_is_a_failure_and_undecided_is_one_of_its_own_type() -> None:
    assert numbers(verdict(Outcome.NO_GO, check(CheckOutcome.FAILED))) == ("2", "2", "0", "0")
    of = verdict(Outcome.INCONCLUSIVE, check(CheckOutcome.UNDECIDED))
    assert [case.get("type") for case in suite(of).iter("failure")] == ["INCONCLUSIVE", "INCONCLUSIVE"]


def test_invalid_is_an_error() -> None:
    assert numbers(verdict(Outcome.INVALID, check(CheckOutcome.INVALID))) == ("2", "0", "2", "0")


@pytest.mark.parametrize("outcome", [Outcome.INVALID, Outcome.INCONCLUSIVE, Outcome.NO_GO])
def test_without_checks_or_with_passing_ones_only_go_is_green(outcome: Outcome) -> None:
    for of in (verdict(outcome), verdict(outcome, check(CheckOutcome.PASSED))):
        _, failures, errors, _ = numbers(of)
        assert (failures, errors) != ("0", "0")


def test_no_candidates_is_an_error() -> None:
    empty = Verdict(
        run="r", config_sha256="", outcome=Outcome.INVALID, exit_code=3, candidates={}, validity=(), accounting=()
    )
    assert numbers(empty) == ("1", "0", "1", "0")


def test_a_diagnostic_passes_and_says_its_outcome() -> None:
    of = verdict(Outcome.GO, check(CheckOutcome.PASSED), check(CheckOutcome.FAILED, gating=False, reason="fell"))
    assert numbers(of) == ("3", "0", "0", "0")
    said = [out.text for out in suite(of).iter("system-out")]
    assert said[-1] == "diagnostic, never changes the verdict: fail: fell"


def test_invalid_findings_of_the_run_and_of_the_candidate_are_errors() -> None:
    findings = (
        Finding(rule="registration", level=Level.INVALID, text="changed"),
        Finding(rule="engaged", level=Level.INVALID, text="identical", candidate="int4", suite="kl"),
        Finding(rule="engaged", level=Level.INVALID, text="another's", candidate="fp8"),
        Finding(rule="logprobs", level=Level.OK, text="fine"),
    )
    of = verdict(Outcome.INVALID, findings=findings)
    assert [case.get("name") for case in suite(of).iter("testcase")] == [
        "verdict",
        "validity: registration",
        "validity: engaged (kl)",
    ]


def test_hostile_text_stays_text() -> None:
    evil = "]]> <script>alert(1)</script> & \x00 \ud800 \u202e \ufffe"
    of = verdict(Outcome.NO_GO, check(CheckOutcome.FAILED, reason=evil), reason=evil)
    written = junit(of)
    assert b"<script>" not in written
    failure = next(suite(of).iter("failure"))
    assert failure.text == "]]> <script>alert(1)</script> & ␀ ⟨U+D800⟩ ⟨U+202E⟩ ⟨U+FFFE⟩"
