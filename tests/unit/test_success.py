"""Success of a candidate from the reference's own answers: graded by the suite that lent the question, shown with its status."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from toys.runs import carry_out, run_file

from evalrig.analysis.monte_carlo import Drawn
from evalrig.analysis.responses import Spoken, responses
from evalrig.analysis.reweighted import success_change
from evalrig.errors import UsageError
from evalrig.evidence import Gathered
from evalrig.report.estimated import USABLE, summed_up
from evalrig.report.view import page
from evalrig.report.words import NOTHING, significant, span
from evalrig.run import Finished
from evalrig.suites.kl import Kl, KlOptions
from evalrig.suites.short_answers import ShortAnswers, ShortAnswersOptions
from evalrig.types import AGAIN, REFERENCE, SUCCESS, UNGRADED, Completion, Message, Outcome, Sample

FAIR = Drawn(temperature=1.0, truncated=False, raw=True)
MOST = 400


def questions(path: Path, rows: int = 40) -> Path:
    """Any text with a word of that letter is right: the toy writes one now and then."""
    path.write_text(
        "".join(
            json.dumps(
                {
                    "id": f"q-{n:02d}",
                    "messages": [{"role": "user", "content": f"say {chr(97 + n % 26)}{n}"}],
                    "answers": ["A", "B", "C", "D"],
                    "match": "contains",
                }
            )
            + "\n"
            for n in range(rows)
        )
    )
    return path


def asked(folder: Path, tokens: int, **more: Any) -> Finished:
    folder.mkdir(parents=True)
    path = run_file(folder, {"cheap": {"noise": 0.02}}, **more)
    tree = yaml.safe_load(path.read_text())
    tree["suites"]["kl"]["options"] |= {"prompts": "none", "suites": ["short"], "tokens": tokens}
    options = {"path": str(questions(folder / "q.jsonl")), "max_tokens": MOST}
    tree["suites"]["short"] = {"kind": "short_answers", "options": options}
    tree["gates"]["right"] = {
        "kind": "noninferior",
        "suite": "short",
        "metric": "accuracy",
        "margin": 0.3,
        "gating": False,
    }
    path.write_text(yaml.safe_dump(tree))
    return carry_out(path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return asked(tmp_path_factory.mktemp("success") / "run", MOST)


def test_the_reference_alone_is_graded_and_as_the_lending_suite_grades(finished: Finished) -> None:
    traces = {trace.sample: trace for trace in finished.folder.traces("kl")}
    lender = ShortAnswers("short", ShortAnswersOptions(max_tokens=MOST))
    asked_of = {sample.id: sample for sample in finished.folder.samples("short")}
    records = finished.folder.records(REFERENCE, "kl")
    assert len(records) == 40
    for record in records:
        trace = traces[record.sample]
        said = Completion(text=trace.text, completion_tokens=len(trace.token_ids), finish=trace.finish)
        assert record.scores[SUCCESS] == lender.grader()(asked_of[record.sample.removeprefix("short.")], said)
    assert {record.scores[SUCCESS] for record in records} == {0.0, 1.0}, "or nothing was told apart"
    for variant in ("cheap", AGAIN):
        assert not [r for r in finished.folder.records(variant, "kl") if {SUCCESS, UNGRADED} & r.scores.keys()]


def test_what_only_the_reference_has_is_no_pair_and_no_finding(finished: Finished) -> None:
    assert {metric.name for suite in finished.folder.plan().suites for metric in suite.metrics} == {
        "kl",
        "logprob",
        "accuracy",
        "lead",
    }
    assert finished.verdict.outcome is not Outcome.INVALID
    assert not [f for f in finished.verdict.validity if SUCCESS in f.text.split()]


def test_the_estimate_is_shown_with_its_self_check(finished: Finished) -> None:
    gathered = Gathered(finished.folder)
    shown = page(finished.folder, finished.verdict, gathered)
    [view] = shown.distances
    [row] = view.certificates.estimates.rows
    [part] = gathered.evidence("cheap").answers["kl"].responses.graded
    found = success_change(part.log_drop, part.success, part.prompt, FAIR, 0.05)
    assert found.refusal is None
    assert (row.label, *row.cells[:3]) == ("cheap", "short", USABLE, "40")
    assert row.cells[4:6] == (significant(100 * found.estimate), span(100 * found.low, 100 * found.high))
    assert row.cells[6] == f"{found.effective:,.0f} of 40"
    assert "Success estimated from the reference" in (finished.folder.path / "report.html").read_text()
    [line] = summed_up([("kl", view.certificates)])
    assert line.startswith("Success of cheap on short, estimated from the reference's answers in kl: a change of ")
    assert line.replace("−", "-") in (finished.folder.path / "summary.md").read_text().replace("−", "-")


def test_answers_cut_before_they_can_be_graded_make_it_unusable_and_none_is_called_wrong(tmp_path: Path) -> None:
    finished = asked(tmp_path / "short", 4)
    records = finished.folder.records(REFERENCE, "kl")
    cut = [record for record in records if UNGRADED in record.scores]
    assert cut
    assert not any(SUCCESS in record.scores for record in cut)
    [view] = page(finished.folder, finished.verdict).distances
    [row] = view.certificates.estimates.rows
    assert row.cells[1].startswith(f"not usable: {len(cut)} answers of 40 cut before")
    assert set(row.cells[4:]) == {NOTHING}


def test_the_lender_says_when_a_cut_answer_is_wrong() -> None:
    grade = ShortAnswers("short", ShortAnswersOptions(max_tokens=8)).grader()
    sample = Sample(id="a", messages=(Message(role="user", content="6 * 7?"),), target="42", tags=("exact",))
    assert grade(sample, Completion(text="the answer", completion_tokens=8, finish="length")) == 0.0
    assert grade(sample, Completion(text="the answer", completion_tokens=7, finish="length")) is None
    assert grade(sample, Completion(text="42", completion_tokens=2, finish="stop")) == 1.0
    assert grade(sample, Completion(text="", completion_tokens=1, finish="stop")) == 0.0


def test_a_grade_that_is_none_is_refused() -> None:
    suite = Kl("kl", KlOptions(prompts="none", suites=["quiz"]))
    suite.draw({"quiz": [Sample(id="a", prompt="x")]}, {"quiz": lambda sample, said: 2.0})

    class Engine:
        class variant:
            role = "reference"

    trace: Any = type("T", (), {"sample": "quiz.a", "text": "", "token_ids": (1,), "finish": "stop"})
    engine: Any = Engine
    with pytest.raises(UsageError, match=r"'quiz.a' was graded 2.0; a grade lies in 0..1"):
        suite._success(engine, trace)


def test_graded_answers_give_the_known_change_by_source() -> None:
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.66, 0.23, 0.11])
    rows = np.random.default_rng(3).choice(3, size=(4000, 4), p=p)
    said = [
        Spoken(
            prompt=f"p{i}",
            reference_logprob=np.log(p[row]),
            candidate_logprob=np.log(q[row]),
            cut=False,
            success=float((row == 0).all()) if i % 2 else None,
            source="quiz",
        )
        for i, row in enumerate(rows)
    ]
    [part] = responses(said, FAIR).graded
    assert (part.source, len(part.success)) == ("quiz", 2000)
    found = success_change(part.log_drop, part.success, part.prompt, FAIR)
    assert found.refusal is None
    assert found.low < 0.66**4 - 0.7**4 < found.high
    assert found.high - found.low < 0.01, "far narrower than two runs of 2,000 answers would be"
