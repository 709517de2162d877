"""The project's own Python exercises: every solution that is called right passes, and every other one fails."""

import ast
import collections
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from evalrig import fetch
from evalrig.analysis.paired import noninferiority
from evalrig.suites.code_basics import CodeBasics, CodeBasicsOptions

CHILD = """
import doctest, json, sys

def outcome(work):
    try:
        work()
    except SyntaxError:
        return "syntax"
    except Exception:
        return "failed"
    return "passed"

def tried(problem, body):
    def work():
        space = {}
        exec(problem["prompt"] + body + "\\n" + problem["tests"], space)
        space["check"](space[problem["entry_point"]])
    return outcome(work)

def examples(problem):
    space = {}
    exec(problem["prompt"] + problem["canonical_solution"], space)
    name = problem["entry_point"]
    shown = doctest.DocTestParser().get_doctest(space[name].__doc__, space, name, None, 0)
    failed, count = doctest.DocTestRunner(verbose=False).run(shown, out=lambda text: None)
    return [failed, count]

for line in sys.stdin:
    problem = json.loads(line)
    print(json.dumps({
        "id": problem["id"],
        "right": tried(problem, problem["canonical_solution"]),
        "wrong": [tried(problem, body) for body in problem["wrong_solutions"]],
        "empty": tried(problem, "\\n    pass\\n"),
        "examples": examples(problem),
    }))
"""


def problems() -> list[dict[str, Any]]:
    text = fetch.path_of("coding_basics").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """What one child process made of every solution: the programs are our own, the time limit is for accidents."""
    given = fetch.path_of("coding_basics").read_bytes()
    done = subprocess.run([sys.executable, "-I", "-c", CHILD], input=given, capture_output=True, timeout=60, check=True)
    return {each["id"]: each for each in map(json.loads, done.stdout.splitlines())}


def test_the_right_solutions_pass_and_every_wrong_one_fails(outcomes: dict[str, Any]) -> None:
    asked = problems()
    assert list(outcomes) == [problem["id"] for problem in asked]
    for problem in asked:
        found = outcomes[problem["id"]]
        assert (found["right"], found["empty"]) == ("passed", "failed"), problem["id"]
        assert found["wrong"] == ["failed"] * len(problem["wrong_solutions"]), problem["id"]
        assert len(set(problem["wrong_solutions"])) == len(problem["wrong_solutions"]) >= 2, problem["id"]


def test_the_examples_in_the_docstrings_are_what_the_right_solution_gives(outcomes: dict[str, Any]) -> None:
    counts = collections.Counter(tuple(found["examples"]) for found in outcomes.values())
    assert set(counts) <= {(0, 1), (0, 2), (0, 3)}


def test_every_problem_is_another_one() -> None:
    asked = problems()
    assert len(asked) >= 150
    for said in ("id", "entry_point", "tests", "prompt"):
        assert len({problem[said] for problem in asked}) == len(asked), said
    texts = {problem["prompt"].partition('"""')[2].partition(">>>")[0] for problem in asked}
    assert len(texts) == len(asked)
    ideas = collections.Counter(problem["idea"] for problem in asked if "idea" in problem)
    assert min(ideas.values()) >= 2


def test_a_candidate_that_changes_no_answer_can_pass_at_the_margin_of_the_release_policy() -> None:
    """In clusters by idea, as many as eight problems each, a loss of five points was excluded only where ten clusters changed."""
    samples = CodeBasics("basics", CodeBasicsOptions()).samples()
    assert not any(sample.cluster for sample in samples)
    solved = np.arange(len(samples)) % 2.0
    assert noninferiority(solved - solved, 0.05).p_go < 0.001
    pairs = np.repeat([sample.id for sample in samples], 2)  # code_repair: two wrong programs of each, a cluster
    assert noninferiority(np.zeros(len(pairs)), 0.05, pairs).p_go < 0.001


def test_families_levels_and_the_part_for_a_short_demo() -> None:
    asked = problems()
    levels = collections.Counter(problem["level"] for problem in asked)
    assert set(levels) == {"trivial", "easy", "moderate"}
    assert min(levels.values()) >= 30
    families = collections.Counter(problem["family"] for problem in asked)
    assert len(families) >= 8
    assert min(families.values()) >= 10


def test_a_short_demo_asks_every_second_trivial_problem_of_a_family() -> None:
    """Chosen by place: choosing what a reference happens to solve would favour the reference."""
    asked = problems()
    trivial = collections.defaultdict[str, list[bool]](list)
    for problem in asked:
        tags = problem.get("tags", [])
        assert tags in ([], ["demo"])
        if problem["level"] == "trivial":
            trivial[problem["family"]].append(bool(tags))
        else:
            assert not tags
    assert all(chosen == [index % 2 == 1 for index in range(len(chosen))] for chosen in trivial.values())
    assert 50 <= sum(map(sum, trivial.values())) <= 70


@pytest.mark.parametrize("problem", problems(), ids=lambda problem: problem["id"])
def test_a_problem_asks_for_plain_values_and_has_tests_enough(problem: dict[str, Any]) -> None:
    """The grader hands arguments and results to another process by value."""
    optional = {"idea", "tags"}
    assert set(problem) - optional == {
        *("id", "family", "level", "prompt", "entry_point", "tests", "canonical_solution", "wrong_solutions")
    }
    assert problem["id"] == f"{problem['family']}-{problem['entry_point'].replace('_', '-')}"
    assert problem["prompt"] == problem["prompt"].rstrip(), "small models end a code block after a line break"
    [check] = ast.parse(problem["tests"]).body
    assert isinstance(check, ast.FunctionDef)
    assert 4 <= len(check.body) <= 8
    results = set[str]()
    for line in check.body:
        assert isinstance(line, ast.Assert)
        assert isinstance(line.test, ast.Compare)
        call, [expected] = line.test.left, line.test.comparators
        assert isinstance(call, ast.Call)
        for value in (*call.args, expected):
            ast.literal_eval(value)
        results.add(ast.unparse(expected))
    assert len(results) > 1, "one constant would pass"


def test_the_problems_are_what_their_script_writes() -> None:
    path = fetch.path_of("coding_basics")
    script = path.with_name("generate.py")
    written = subprocess.run([sys.executable, str(script)], capture_output=True, timeout=60, check=True).stdout
    assert written == path.read_bytes()
