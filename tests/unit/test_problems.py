"""Programming problems from files: the forms that are read, and what their tests say when they are run."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from evalrig.errors import UsageError
from evalrig.problems import Problem, key_of, read, sample_of

STUB = 'import math\n\n\ndef g(x):\n    return x\n\n\ndef f(x):\n    """Add one."""\n'
HUMANEVAL: dict[str, Any] = {
    "task_id": "HumanEval/0",
    "prompt": STUB,
    "entry_point": "f",
    "canonical_solution": "    return x + 1\n",
    "test": "def check(candidate):\n    assert candidate(g(1)) == 2\n",
}
MBPP: dict[str, Any] = {
    "task_id": 11,
    "text": "Write a function that adds one.",
    "code": "def help(x):\n    return x\n\ndef plus(x):\n    return help(x) + 1\n",
    "test_list": ["assert plus(1) == 2", "assert set([plus(2)]) == {3}"],
    "test_setup_code": "ONE = 1",
    "challenge_test_list": ["assert plus(-1) == 0"],
}


def problem(folder: Path, row: Any) -> Problem:
    return problems(folder, row)[0]


def problems(folder: Path, *rows: Any) -> list[Problem]:
    path = folder / "p.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return read(path, "here")


def passes(found: Problem, program: str) -> bool:
    """Do the tests pass in one process? The programs are this file's own."""
    names: dict[str, Any] = {}
    exec(program, names)
    tests: dict[str, Any] = {found.entry_point: names[found.entry_point]}
    exec(found.setup, tests)
    tests[found.entry_point] = names[found.entry_point]
    try:
        exec(found.tests, tests)
        if "check" in tests:
            tests["check"](names[found.entry_point])
    except AssertionError:
        return False
    return True


def test_humaneval_is_read(tmp_path: Path) -> None:
    found = problem(tmp_path, HUMANEVAL)
    assert (found.id, found.entry_point, found.inside) == ("HumanEval-0", "f", False)
    assert found.solution == f"{STUB}    return x + 1\n"
    assert found.setup == "import math\ndef g(x):\n    return x", "tests may use what the prompt defines"
    assert passes(found, found.solution)
    assert not passes(found, f"{STUB}    return x\n")
    base, chat = sample_of(found, "base"), sample_of(found, "chat")
    assert (base.prompt, base.messages) == (STUB, ())
    assert key_of(base) == key_of(chat)
    assert key_of(base).stub == STUB
    assert f"```python\n{STUB.rstrip()}\n```" in chat.messages[0].content


def test_mbpp_is_read_and_its_function_is_found_in_its_tests(tmp_path: Path) -> None:
    found = problem(tmp_path, MBPP)
    assert (found.id, found.entry_point, found.setup, found.inside) == ("11", "plus", "ONE = 1", False)
    assert passes(found, found.solution)
    assert not passes(found, "def plus(x):\n    return abs(x) + 1"), "the challenge tests count too"
    chat, base = sample_of(found, "chat").messages[0].content, sample_of(found, "base")
    assert "Name the function `plus`." in chat
    assert "assert plus(1) == 2" in chat
    assert "-1" not in chat, "challenge tests are not shown"
    assert base.prompt.startswith('"""\nWrite a function that adds one.\n')
    assert base.prompt.endswith('\n"""\n')
    assert key_of(base).stub == ""


def test_tests_that_use_more_of_a_program_run_inside_it(tmp_path: Path) -> None:
    row = {**MBPP, "code": "class P: ...\ndef plus(x): ...", "test_list": ["assert plus(P()) == 2"]}
    assert problem(tmp_path, row).inside
    assert problem(tmp_path, {"id": "a", "prompt": "Print.", "tests": "assert f(1)"}).inside, "no name is known"


def test_a_plain_line_may_hold_tests_as_text_or_list(tmp_path: Path) -> None:
    row = {"id": "a", "prompt": STUB, "entry_point": "f", "tags": ["t"], "family": "x", "level": "easy", "cluster": "c"}
    one, two = problems(
        tmp_path, {**row, "tests": "assert f(1) == 2"}, {**row, "id": "b", "tests": ["assert f(1) == 2"]}
    )
    assert one.tests == two.tests == "assert f(1) == 2"
    assert (one.tags, one.cluster) == (("x", "easy", "t"), "c")


def test_further_inputs_are_compared_with_the_reference_solution(tmp_path: Path) -> None:
    """As EvalPlus gives them; arguments are copied, so a program that changes its input fools nobody."""
    row = {**HUMANEVAL, "base_input": [[1]], "plus_input": [[-5], [7]], "atol": 0}
    found = problem(tmp_path, row)
    assert passes(found, found.solution)
    assert not passes(found, "def f(x):\n    return abs(x) + 1"), "the authors' tests alone would pass it"
    assert not passes(found, "def f(x):\n    return 0"), "the authors' tests still count"
    listed = {
        **HUMANEVAL,
        "prompt": "def f(x):\n",
        "test": "",
        "canonical_solution": "    return (sorted(x), sum(x) / 3)\n",
        "plus_input": [[[3, 1, 2]], [[0.1, 0.2, 0.3]]],
    }
    found = problem(tmp_path, listed)
    assert passes(found, "def f(x):\n    x.sort()\n    return [x, sum(x) * (1 / 3)]"), (
        "a list for a tuple, a float nearby"
    )
    assert not passes(found, "def f(x):\n    return [sorted(x), sum(x)]")


@pytest.mark.parametrize(
    ("atol", "wanted", "got", "same"),
    [
        (0, 1.0, 1.0 + 5e-7, True),
        (0, 1.0, 1.0 + 5e-6, False),
        (1e-3, 1.0, 1.0005, True),
        (0, 10**20, 10**20 + 1, False),
        (0, [True], [1], True),
        (0, {"a": 1.0}, {"a": 1.0}, True),
        (0, {"a": 1.0}, {}, False),
        (0, [1, 2], [1], False),
        (0, "1", 1, False),
        (0, None, 0, False),
    ],
)
def test_outputs_may_be_given(atol: float, wanted: Any, got: Any, same: bool, tmp_path: Path) -> None:
    row = {"id": "a", "prompt": "Add.", "entry_point": "f", "base_input": [[1]], "expected": [wanted], "atol": atol}
    assert passes(problem(tmp_path, row), f"def f(x):\n    return {got!r}") is same


def test_a_packed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(HUMANEVAL).encode() + b"\n\n"))
    assert [found.id for found in read(path, "here")] == ["HumanEval-0"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"here: cannot read .*; give a JSONL file of problems"):
        read(path, "here")


BAD = {
    "not JSON": ("{", "line 1: "),
    "no id": ({"prompt": "x", "tests": "y"}, "line 1: no id; a line holds id, prompt, entry_point and tests"),
    "no prompt": ({"id": "a", "tests": "y"}, "line 1: no prompt; a line holds"),
    "no tests": ({"id": "a", "prompt": "x"}, "line 1: no tests; give `tests`, `test`, `test_list`, or inputs with"),
    "tests of a wrong kind": ({"id": "a", "prompt": "x", "tests": 3}, "line 1: Expected `str | array`, got `int`"),
    "inputs without outputs": (
        {"id": "a", "prompt": "x", "entry_point": "f", "base_input": [[1]]},
        "line 1: inputs without outputs; give `canonical_solution` or `expected`",
    ),
    "inputs without a function": (
        {"id": "a", "prompt": "x", "base_input": [[1]], "expected": [1]},
        "line 1: inputs without a function to call; give `entry_point`",
    ),
    "too few outputs": (
        {"id": "a", "prompt": "x", "entry_point": "f", "base_input": [[1], [2]], "expected": [1]},
        "line 1: 2 inputs and 1 in `expected`; give one each",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_line(name: str, tmp_path: Path) -> None:
    row, why = BAD[name]
    with pytest.raises(UsageError) as caught:
        problems(tmp_path, row)
    assert why in str(caught.value)
    assert str(caught.value).startswith(f"here: {tmp_path / 'p.jsonl'} line 1: ")
    assert "\n" not in str(caught.value)


def test_no_file_and_an_id_given_twice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"here: cannot read .*none.jsonl': No such file or directory; give a JSONL"):
        read(tmp_path / "none.jsonl", "here")
    with pytest.raises(UsageError, match="line 2: id 'HumanEval-0' occurs twice; rename one"):
        problems(tmp_path, HUMANEVAL, HUMANEVAL)
