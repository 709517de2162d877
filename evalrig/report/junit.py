"""JUnit XML for CI: a suite a candidate, a case a check. Green if and only if the candidate is GO.

fail = failure, undecided = failure of type INCONCLUSIVE, invalid = error, rehearsed = failure of type REHEARSAL; nothing is ever skipped.
"""

from xml.etree import ElementTree as ET

from evalrig.report.words import visible
from evalrig.types import CandidateVerdict, Check, CheckOutcome, Finding, Level, Outcome, Verdict

TROUBLE = {
    CheckOutcome.FAILED: ("failure", "NO-GO"),
    CheckOutcome.UNDECIDED: ("failure", "INCONCLUSIVE"),
    CheckOutcome.INVALID: ("error", "INVALID"),
    CheckOutcome.EXERCISED: ("failure", "REHEARSAL"),
    Outcome.NO_GO: ("failure", "NO-GO"),
    Outcome.INCONCLUSIVE: ("failure", "INCONCLUSIVE"),
    Outcome.INVALID: ("error", "INVALID"),
    Outcome.REHEARSAL: ("failure", "REHEARSAL"),
}


def junit(verdict: Verdict) -> bytes:
    """The whole file."""
    named = f"REHEARSAL, no verdict: {verdict.run}" if verdict.rehearsal else verdict.run
    root = ET.Element("testsuites", {"name": visible(named)})
    for name, one in verdict.candidates.items():
        own = [finding for finding in verdict.validity if finding.candidate in ("", name)]
        root.append(_suite(f"{verdict.run}.{name}", _candidate(f"{verdict.run}.{name}", one, own), verdict))
    if not verdict.candidates:
        case = _case(verdict.run, "verdict", Outcome.INVALID, "no candidate was judged")
        root.append(_suite(verdict.run, [case], verdict))
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _suite(name: str, cases: list[ET.Element], verdict: Verdict) -> ET.Element:
    suite = ET.Element("testsuite", {"name": visible(name), "tests": str(len(cases))})
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", "0")
    properties = ET.SubElement(suite, "properties")
    for key, value in (("config_sha256", verdict.config_sha256), ("exit_code", str(verdict.exit_code))):
        ET.SubElement(properties, "property", {"name": key, "value": visible(value)})
    suite.extend(cases)
    return suite


def _candidate(classname: str, one: CandidateVerdict, own: list[Finding]) -> list[ET.Element]:
    """The verdict itself is a case: whatever the checks look like, only GO is green."""
    cases = [_case(classname, "verdict", one.outcome, "; ".join(one.reasons))]
    cases += [_check(classname, check) for check in one.checks]
    for finding in own:
        if finding.level is Level.INVALID:
            where = f" ({finding.suite})" if finding.suite else ""
            cases.append(_case(classname, f"validity: {finding.rule}{where}", CheckOutcome.INVALID, finding.text))
    return cases


def _check(classname: str, check: Check) -> ET.Element:
    name = f"{check.gate} ({check.suite})"
    if check.gating:
        return _case(classname, name, check.outcome, check.reason)
    said = f"diagnostic, never changes the verdict: {check.outcome}: {check.reason}"
    return _case(classname, f"{name}, diagnostic", CheckOutcome.PASSED, said)


def _case(classname: str, name: str, outcome: CheckOutcome | Outcome, words: str) -> ET.Element:
    case = ET.Element("testcase", {"classname": visible(classname), "name": visible(name)})
    said = visible(words)
    if trouble := TROUBLE.get(outcome):
        tag, kind = trouble
        found = ET.SubElement(case, tag, {"type": kind, "message": " ".join(said.split())})
        found.text = said
    else:
        ET.SubElement(case, "system-out").text = said
    return case
