"""LiveCodeBench's release format: what is read, what is refused, and that files may not change under a run."""

import json
import pickle
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from toys.contest import HIDDEN, STDIN, packed, row, written, zipped

from evalrig.errors import RunError, UsageError
from evalrig.livecodebench import Choice, Problem, files_of, problems_of, read_tests

METHOD: dict[str, Any] = {
    "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
    "metadata": {"func_name": "add"},
    "public_test_cases": [{"input": "1\n[2]", "output": "3", "testtype": "functional"}],
    "private_test_cases": [],
}


def read(path: Path, **choice: Any) -> list[Problem]:
    return problems_of(files_of(path, "here"), Choice(**choice), "here")


def refused(path: Path, **choice: Any) -> str:
    with pytest.raises(UsageError) as caught:
        read(path, **choice)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("private", [HIDDEN, packed(json.dumps(HIDDEN)), packed(json.dumps(HIDDEN), 2)])
def test_hidden_tests_are_the_same_however_they_are_packed(private: Any, tmp_path: Path) -> None:
    [plain] = read(written(tmp_path / "plain.jsonl", row()))
    [problem] = read(written(tmp_path / "test.jsonl", row(private_test_cases=private)))
    assert problem.tests_sha256 == plain.tests_sha256
    tests = read_tests(problem)
    assert [(test.given, test.wanted, test.hidden) for test in tests.tests] == [
        ("1 2\n", "3\n", False),
        ("20 22\n", "42\n", True),
    ]
    assert (tests.function, tests.seconds) == ("", 0.0)


def test_arguments_and_results_of_functions_are_json(tmp_path: Path) -> None:
    whole = row(**METHOD) | {"metadata": json.dumps({"func_name": "add", "time_limit": 2.5, "more": 1})}
    [problem] = read(written(tmp_path / "test.jsonl", whole))
    tests = read_tests(problem)
    assert [(test.given, test.wanted) for test in tests.tests] == [((1, [2]), 3)]
    assert (tests.function, tests.seconds) == ("add", 2.5)
    assert problem.starter.startswith("class Solution:")


@pytest.mark.parametrize(
    "changed",
    [
        {"public_test_cases": [{**STDIN[0], "output": "4\n"}]},
        {"private_test_cases": [*HIDDEN, *HIDDEN]},
        {"public_test_cases": [*STDIN, *HIDDEN], "private_test_cases": []},
        {"metadata": {"time_limit": 1}},
    ],
)
def test_the_digest_tells_other_tests(changed: dict[str, Any], tmp_path: Path) -> None:
    [one] = read(written(tmp_path / "one.jsonl", row()))
    [other] = read(written(tmp_path / "other.jsonl", row(**changed)))
    assert one.tests_sha256 != other.tests_sha256


@pytest.mark.parametrize("change", ["other tests", "shorter", "gone"])
def test_files_that_change_under_a_run_end_it(change: str, tmp_path: Path) -> None:
    path = written(tmp_path / "test.jsonl", row("a"), row("b"))
    problem = read(path)[1]
    assert read_tests(problem).sha256 == problem.tests_sha256
    if change == "other tests":
        path.write_text(path.read_text().replace("42", "43"))
    elif change == "shorter":
        written(path, row("a"))
    else:
        path.unlink()
    with pytest.raises(RunError, match=r"test\.jsonl line 2: the tests of b changed while the run went on"):
        read_tests(problem)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"contest_date": "05/03/2024"}, "contest_date '05/03/2024' is no ISO 8601 date"),
        ({"contest_date": 5}, "Expected `str`, got `int`"),
        ({"private_test_cases": zipped(pickle.dumps([1]))}, "'sum': a pickle of more than one string"),
        ({"private_test_cases": packed("not json")}, "'sum': JSON is malformed"),
        ({"private_test_cases": "%%"}, "'sum': neither JSON nor base64"),
        ({"public_test_cases": [], "private_test_cases": []}, "'sum': no tests at all"),
        ({"metadata": {"func_name": "add"}}, "'sum': tests of type functional only, because metadata names func_name"),
        (METHOD | {"metadata": {}}, "'sum': tests of type stdin only, because metadata lacks func_name"),
        (METHOD | {"starter_code": ""}, "'sum': functional tests, and no starter_code"),
        (METHOD | {"metadata": {"func_name": "add; import os"}}, "func_name is no name of a function"),
        ({"metadata": {"time_limit": -1}}, "time_limit lies in 0..600 seconds"),
        ({"metadata": {"time_limit": 1e9}}, "time_limit lies in 0..600 seconds"),
        (
            METHOD | {"public_test_cases": [{"input": "1", "output": "NaN", "testtype": "functional"}]},
            "'sum': a functional test holds 'NaN', which is not JSON",
        ),
        ({"public_test_cases": [{"input": "1", "output": "1", "testtype": "other"}]}, "Invalid enum value 'other'"),
    ],
)
def test_a_line_that_cannot_be_marked_is_refused_with_its_place(
    fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "test.jsonl", row("good"), "", row(**fields))
    line = refused(path)
    assert line.startswith(f"here: {path} line 3: ")
    assert said in line
    assert line.endswith("; a line is one problem as LiveCodeBench releases them (docs/suites.md)")


@pytest.mark.parametrize("line", ["{", "[]", '{"question_id": "a"}', "\xff"])
def test_what_is_no_problem_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_bytes(line.encode("latin-1") + b"\n")
    assert refused(path).startswith(f"here: {path} line 1: ")


def test_a_window_holds_its_first_day_and_not_its_last(tmp_path: Path) -> None:
    days = ("2024-01-31T23:59:59", "2024-02-01T00:00:00", "2024-02-29", "2024-03-01T00:00:00")
    path = written(tmp_path / "test.jsonl", *(row(f"p{n}", contest_date=day) for n, day in enumerate(days)))
    window = {"since": date(2024, 2, 1), "until": date(2024, 3, 1)}
    assert [each.id for each in read(path, **window)] == ["p1", "p2"]
    assert [each.id for each in read(path)] == ["p0", "p1", "p2", "p3"]


def test_an_empty_window_says_what_there_is(tmp_path: Path) -> None:
    path = written(tmp_path / "test.jsonl", row("a"), row("b", contest_date="2025-01-02"))
    said = refused(path, since=date(2026, 1, 1))
    assert said == (
        "here: none of the 2 problems, of 2024-03-05 to 2025-01-02, is chosen; widen since, until or the filters"
    )
    assert "known: easy" in refused(path, difficulty=("hard",))
    assert refused(path, platform=("atcode",)) == "here: no problem has the platform 'atcode'; known: evalrig"
    (tmp_path / "empty.jsonl").write_text("\n")
    assert refused(tmp_path / "empty.jsonl").startswith("here: none of the 0 problems is chosen")


def test_what_is_outside_the_window_is_not_unpacked(tmp_path: Path) -> None:
    """Years of hidden tests need not be read for one month."""
    path = written(tmp_path / "test.jsonl", row("old", contest_date="2020-01-01", private_test_cases="?"), row("new"))
    assert [each.id for each in read(path, since=date(2024, 1, 1))] == ["new"]


def test_release_files_that_overlap_give_each_problem_once(tmp_path: Path) -> None:
    written(tmp_path / "test2.jsonl", row("b"), row("c"))
    written(tmp_path / "test.jsonl", row("a"), row("b", private_test_cases=packed(json.dumps(HIDDEN))))
    (tmp_path / "README.md").write_text("not a release file")
    assert [(each.id, each.place.path.name) for each in read(tmp_path)] == [
        ("a", "test.jsonl"),
        ("b", "test.jsonl"),
        ("c", "test2.jsonl"),
    ]


@pytest.mark.parametrize("other", [{"private_test_cases": []}, {"question_content": "Print the product."}])
def test_two_problems_of_one_id_are_refused(other: dict[str, Any], tmp_path: Path) -> None:
    one = written(tmp_path / "test.jsonl", row("a"))
    two = written(tmp_path / "test2.jsonl", row("a", **other))
    assert refused(tmp_path) == (f"here: {two} line 1: 'a' is another problem in {one} line 1; leave one of them out")


def test_a_path_without_release_files_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(UsageError, match=r"^here: '.*': no such file, or a folder without JSONL files; give one"):
            files_of(path, "here")
