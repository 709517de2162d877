"""The contest problems that evalrig ships: what their script writes, and of every kind that the format has."""

import ast
import collections
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from evalrig import fetch
from evalrig.livecodebench import Choice, problems_of, read_tests
from evalrig.outputs_alike import same_text


def rows(name: str) -> list[dict[str, Any]]:
    text = fetch.path_of("livecodebench", name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_the_sample_is_what_its_script_writes(tmp_path: Path) -> None:
    """Compared unpacked: the bytes of zlib may differ between machines."""
    shipped = fetch.path_of("livecodebench", "sample.jsonl")
    script = shipped.with_name("generate.py")
    subprocess.run([sys.executable, str(script), str(tmp_path)], timeout=60, check=True)
    assert (tmp_path / "solutions.jsonl").read_bytes() == shipped.with_name("solutions.jsonl").read_bytes()
    ours, again = (
        [json.loads(line) for line in path.read_text().splitlines()] for path in (shipped, tmp_path / shipped.name)
    )
    for one, other in zip(ours, again, strict=True):
        assert {**one, "private_test_cases": ""} == {**other, "private_test_cases": ""}
    pairs = [problems_of([path], Choice(), "here") for path in (shipped, tmp_path / shipped.name)]
    assert [each.tests_sha256 for each in pairs[0]] == [each.tests_sha256 for each in pairs[1]]


def test_the_sample_has_every_kind_of_problem_and_of_packing() -> None:
    lines = rows("sample.jsonl")
    assert len({row["question_id"] for row in lines}) == len(lines) >= 12
    assert set(lines[0]) == {
        *("question_title", "question_content", "platform", "question_id", "contest_id", "contest_date"),
        *("starter_code", "difficulty", "public_test_cases", "private_test_cases", "metadata"),
    }
    kinds = collections.Counter(("packed", "plain")[row["private_test_cases"].startswith("[")] for row in lines)
    ways = collections.Counter("func_name" in json.loads(row["metadata"]) for row in lines)
    assert min(kinds.values()) >= 5
    assert min(ways.values()) >= 5
    assert {row["difficulty"] for row in lines} == {"easy", "medium", "hard"}
    assert len({row["contest_date"][:7] for row in lines}) >= 10
    assert {row["platform"] for row in lines} == {"evalrig"}, "no problem of theirs, and none that says so"
    assert sum("time_limit" in json.loads(row["metadata"]) for row in lines) == 2


def test_every_problem_has_solutions_that_pass_and_that_fail_and_tests_of_both_sorts() -> None:
    problems = problems_of([fetch.path_of("livecodebench", "sample.jsonl")], Choice(), "here")
    solutions = {row["question_id"]: row for row in rows("solutions.jsonl")}
    assert list(solutions) == [problem.id for problem in problems]
    for problem in problems:
        tests = read_tests(problem).tests
        assert {test.hidden for test in tests} == {False, True}
        assert len(tests) >= 4
        assert len(solutions[problem.id]["wrong"]) >= 2
        ast.parse(solutions[problem.id]["reference"])
    failures = collections.Counter(wrong["failure"] for row in solutions.values() for wrong in row["wrong"])
    assert set(failures) == {"wrong_answer", "crash", "timeout", "syntax_error"}


def test_the_example_in_a_statement_is_a_public_test() -> None:
    for problem in problems_of([fetch.path_of("livecodebench", "sample.jsonl")], Choice(), "here"):
        if not problem.starter:
            _, _, example = problem.statement.partition("Example input:\n")
            given, _, wanted = example.partition("\n\nExample output:\n")
            first = read_tests(problem).tests[0]
            assert first.given == f"{given}\n"
            assert same_text(wanted, first.wanted, "exact", 0.0)
