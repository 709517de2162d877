# ruff: noqa: E501  programs, each on one line
"""Honest programs, and tests that are wrong themselves."""

import ast
import asyncio
import math
from collections import deque
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from toys.booth import booth, examined, given

from evalrig import proctor
from evalrig.errors import UsageError
from evalrig.proctor import Case, Exam, mark
from evalrig.proctored.plain import LONGEST_RUN, Nonsense, NoPlainValue, RunOut, decode, encode
from evalrig.sandbox import Booth, Limits, Ran, Sandbox, SandboxUnavailable

GOOD = {
    "recursion": ("def f(n): return 1 if n < 2 else n * f(n - 1)", "assert candidate(5) == 120"),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)",
        "assert f(5000) == 5000",
    ),
    "generator": (
        "def f(n):\n    for i in range(n): yield i",
        "assert list(f(3)) == [0, 1, 2] and sorted(f(2)) == [0, 1]",
    ),
    "endless generator": (
        "import itertools\ndef f(): return itertools.count()",
        "c = f()\nassert [next(c), next(c)] == [0, 1]",
    ),
    "map and zip": ("def f(a): return zip(map(str, a), a)", "assert list(f([1])) == [('1', 1)]"),
    "views": ("def f(d): return d.keys()", "assert f({1: 2}) == {1} and len(f({1: 2, 3: 4})) == 2"),
    "in place": (
        "def f(a, d, s, b):\n    a.sort(); d[1] = 2; s.add(3); b.append(65)",
        "a, d, s, b = [2, 1], {}, set(), bytearray()\nassert f(a, d, s, b) is None\nassert (a, d, s, b) == ([1, 2], {1: 2}, {3}, b'A')",
    ),
    "keywords": ("def f(a, *, b=1): return a + b", "assert f(1, b=2) == 3"),
    "prints": ("def f(x):\n    print('x' * 3_000_000)\n    return x", "assert f(1) == 1"),
    "imports": (
        "from typing import List\nimport math, collections, itertools, re, functools, heapq, bisect\ndef f(a: List[int]) -> int: return heapq.nsmallest(1, a)[0]",
        "assert f([2, 1]) == 1",
    ),
    "data classes": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(x): return P(x).x",
        "assert f(1) == 1",
    ),
    "named tuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
        "assert f() == (1, 2)",
    ),
    "enum of texts": (
        "from enum import Enum\nclass C(str, Enum):\n    RED = 'red'\ndef f(): return C.RED",
        "assert f() == 'red'",
    ),
    "counters and queues": (
        "from collections import Counter, deque, defaultdict, OrderedDict\ndef f(): return [Counter('a'), deque([1]), defaultdict(int, a=1), OrderedDict(a=1)]",
        "from collections import deque\nassert f() == [{'a': 1}, deque([1]), {'a': 1}, {'a': 1}]",
    ),
    "exceptions": (
        "class Bad(ValueError): pass\ndef f(x):\n    if x < 0: raise Bad('low')\n    return x",
        "try:\n    f(-1)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'low'",
    ),
    "huge number": ("def f(): return 7 ** 9000", "assert f() == 7 ** 9000"),
    "threads": (
        "import threading\ndef f():\n    got = []\n    ts = [threading.Thread(target=got.append, args=(i,)) for i in range(5)]\n    [t.start() for t in ts]; [t.join() for t in ts]\n    return sorted(got)",
        "assert f() == [0, 1, 2, 3, 4]",
    ),
    "main is not run": ("def f(): return 1\nif __name__ == '__main__':\n    raise SystemExit(1)", "assert f() == 1"),
    "processes": (
        "import subprocess\ndef f(): return subprocess.run(['echo', 'x'], capture_output=True, text=True).stdout",
        "assert f() == 'x\\n'",
    ),
    "state": ("count = 0\ndef f():\n    global count\n    count += 1\n    return count", "assert [f(), f()] == [1, 2]"),
    "large argument": ("def f(a): return sum(a)", "assert f(list(range(300_000))) == sum(range(300_000))"),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_program_passes(name: str) -> None:
    code, tests = GOOD[name]
    found = examined(code, tests)
    assert found.passed, found


def test_a_method_is_an_entry_point() -> None:
    assert examined(
        "class S:\n    def f(self, x): return x", "assert candidate(1) == 1 and f(2) == 2", entry_point="S.f"
    ).passed


def test_setup_helps_the_tests_only() -> None:
    setup = "from math import isclose\ndef poly(x): return x * x\ndef f(x):\n    '''To do.'''"
    assert examined("def f(x): return x ** 0.5", "assert isclose(poly(f(2)), 2)", setup=setup).passed
    assert (
        examined("def f(x): return poly(x)", "assert f(2) == 4", setup=setup).detail
        == "NameError: name 'poly' is not defined"
    )


def test_tests_with_classes_run_beside_the_program() -> None:
    tests = "class Sub(Node): pass\nassert Sub(1).x == 1 and len('ab') == 2"
    code = "class Node:\n    def __init__(self, x): self.x = x"
    assert examined(code, tests, entry_point="").passed
    found = examined(code, "assert Node(1).x == 2", entry_point="")
    assert (found.failure, found.detail) == ("wrong_answer", "assert Node(1).x == 2")


DETAILS = {
    "one call": ("return x", "assert f(1) == 2", "wrong_answer", "assert f(1) == 2: returned 1"),
    "over lines": ("return x", "assert (\n    f(1)\n    == 2\n)", "wrong_answer", "assert ( f(1) == 2 ): returned 1"),
    "loop": (
        "return x",
        "def same(a, b):\n    assert a == b\nfor i in range(2):\n    same(candidate(i), 0)",
        "wrong_answer",
        "assert a == b: f(1) returned 1",
    ),
    "own words": (
        "return x",
        "if f(1) != 2:\n    raise AssertionError('no')",
        "wrong_answer",
        "raise AssertionError('no'): AssertionError: no: f(1) returned 1",
    ),
    "cannot be used": (
        "pass",
        "assert abs(f(1) - 2) < 1",
        "wrong_answer",
        "assert abs(f(1) - 2) < 1: TypeError: unsupported operand type(s) for -: 'NoneType' and 'int': f(1) returned None",
    ),
    "no plain value": (
        "return f",
        "assert f(1) == 2",
        "wrong_answer",
        "returned a function object, which is no plain value",
    ),
    "raised": ("return 1 // 0", "assert f(1) == 2", "crash", "ZeroDivisionError: integer division or modulo by zero"),
    "endless recursion": (
        "return f(x)",
        "assert f(1) == 2",
        "crash",
        "RecursionError: maximum recursion depth exceeded",
    ),
    "memory": ("return bytearray(1 << 40)", "assert f(1) == 2", "crash", "MemoryError"),
    "too large to show": (
        "return 7 ** 9000",
        "assert f(1) == 2",
        "wrong_answer",
        "assert f(1) == 2: returned a int too large to show",
    ),
}


@pytest.mark.parametrize("name", DETAILS)
def test_says_what_went_wrong(name: str) -> None:
    body, tests, failure, detail = DETAILS[name]
    found = examined(f"def f(x): {body}", tests)
    assert (found.failure, found.detail) == (failure, detail)


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("def f(x) return", "SyntaxError: expected ':' (line 1)"),
        ("x = 1\n  y = 2", "IndentationError: unexpected indent (line 2)"),
        ("def f(): '\ud800'", "UnicodeEncodeError"),
        ("\0", "null"),
        ("import nothing_like_it\ndef f(x): return 1", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("def g(x): return 1", "NameError: name 'f' is not defined"),
    ],
)
def test_a_program_that_cannot_be_loaded(code: str, detail: str) -> None:
    found = examined(code, "assert f(1) == 1")
    assert detail in found.detail
    assert found.failure == ("crash" if "import" in code or "g(" in code else "syntax_error")


def test_a_terminal_does_not_obey_a_detail() -> None:
    found = examined("def f(x): raise ValueError('\\x1b[2J\\nnext')", "f(1)")
    assert found.detail == "ValueError: \N{REPLACEMENT CHARACTER}[2J next"


@pytest.mark.parametrize(
    ("tests", "setup", "words"),
    [
        ("assert f(1) ==", "", "SyntaxError"),
        ("assert g(1) == 1", "", "NameError: name 'g' is not defined"),
        ("assert f(1) == unknown", "", "NameError: name 'unknown' is not defined"),
        ("f(1)", "import nothing_like_it", "ModuleNotFoundError"),
        ("assert f(print) == 1", "", "the tests pass a builtin_function_or_method object to 'f'"),
        ("pass", "", "the tests never call 'f'"),
        ("assert 1 == 2\nassert f(1) == 1", "", "AssertionError"),
        ("f(1)\nimport nothing_like_it", "", "ModuleNotFoundError"),
        ("def check(candidate):\n    pass", "", "the tests never call 'f'"),
    ],
)
def test_wrong_tests_are_no_fault_of_the_program(tests: str, setup: str, words: str) -> None:
    with pytest.raises(UsageError, match="correct the tests") as caught:
        examined("def f(x): return x", tests, setup=setup)
    assert words in str(caught.value)


@pytest.mark.parametrize("said", ["1 +", "unknown", "__import__('nothing_like_it')", "__import__('sys').exit()"])
def test_a_text_that_the_tests_cannot_evaluate_is_the_programs_fault(said: str) -> None:
    """Else a wrong answer would be none at all, and missing from the score."""
    found = examined(f"def f(x): return {said!r}", "assert eval(f(1)) == 1")
    assert found.failure == "wrong_answer", found


READERS = {
    "input": "print(int(input()) + int(input()))",
    "lines": "import sys\nprint(sum(int(line) for line in sys.stdin))",
    "bytes": "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
    "file": "print(sum(map(int, open(0).read().split())))",
    "device": "print(sum(map(int, open('/dev/stdin').read().split())))",
    "descriptor": "import os\nprint(sum(map(int, os.read(0, 100).split())))",
    "main": "def main():\n    print(int(input()) + int(input()))\nif __name__ == '__main__':\n    main()",
    "exit": "print(int(input()) + int(input()))\nexit()",
    "sys.exit": "import sys\nprint(int(input()) + int(input()))\nsys.exit()",
    "write": "import sys\nsys.stdout.write(str(int(input()) + int(input())) + '\\n')",
    "buffer": "import sys\nsys.stdout.buffer.write(b'%d\\n' % (int(input()) + int(input())))",
    "thread": "import threading\ndef run(): print(int(input()) + int(input()))\nthreading.Thread(target=run).start()",
    "at exit": "import atexit\na, b = int(input()), int(input())\natexit.register(lambda: print(a + b))",
    "bound late": "import sys\ninput = sys.stdin.readline\nprint(int(input()) + int(input()))",
    "data classes": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nprint(P(int(input()) + int(input())).x)",
}


@pytest.mark.parametrize("name", READERS)
def test_a_program_that_reads_standard_input(name: str) -> None:
    found = given(READERS[name], [Case(stdin="1\n2\n"), Case(stdin="30\n4\n")])
    assert [(output.failure, output.text) for output in found] == [("", "3\n"), ("", "34\n")], found


def test_large_input_and_output() -> None:
    text = "12345 789\n" * 2_000_000
    [found] = given("import sys\nsys.stdout.write(sys.stdin.read()[:10_000_000])", [Case(stdin=text)])
    assert found.failure == ""
    assert found.text == text[:10_000_000]


def test_functions_and_methods_return_values() -> None:
    cases = [Case(arguments=([3, 1], "x")), Case(arguments=([], "y"))]
    found = given(
        "class Solution:\n    def f(self, a, b):\n        print('seen')\n        return {b: (a, {1})}",
        cases,
        "Solution.f",
    )
    assert [output.value for output in found] == [{"x": ([3, 1], {1})}, {"y": ([], {1})}]
    assert given("def f(n): return (i for i in range(n))", [Case(arguments=(3,))], "f")[0].value == [0, 1, 2]
    [odd] = given("def f(n): return object()", [Case(arguments=(3,))], "f")
    assert (odd.failure, odd.detail) == ("crash", "returned an object object, which is no plain value")
    [left] = given("import os\ndef f(n): os._exit(0)", [Case(arguments=(3,))], "f")
    assert (left.failure, left.detail) == ("crash", "ended before it returned")


def test_each_case_is_fresh_and_has_its_own_time() -> None:
    found = given(
        "import time\ntime.sleep(float(input()))\nprint(1)",
        [Case(stdin=text) for text in ("0.6", "0.6", "9", "0")],
        seconds=1.5,
    )
    assert [output.failure for output in found] == ["", "", "timeout"]
    found = given(
        "seen = []\ndef f(x):\n    seen.append(x)\n    return seen", [Case(arguments=(1,)), Case(arguments=(2,))], "f"
    )
    assert [output.value for output in found] == [[1], [2]]


def test_no_cases_are_no_outputs() -> None:
    assert given("print(1)", []) == []


class Mute(Sandbox):
    """A sandbox in which nothing starts."""

    kind = "mute"
    version = "1"

    def __init__(self, unsandboxed: bool) -> None: ...

    def run(self, program: str, stdin: bytes, limits: Limits, slot: int) -> Ran:
        return Ran(ended="exit", code=1, stdout=b"", stderr=b"no interpreter\n", seconds=0)


def test_a_sandbox_in_which_nothing_runs_is_no_score() -> None:
    exam = Exam(code="def f(): return 1", tests="assert f() == 1", entry_point="f")
    with pytest.raises(SandboxUnavailable, match="mute 1: no exam can be held in it: no interpreter"):
        asyncio.run(mark(Booth(Mute(False), 1), exam))


def test_a_machine_that_is_too_busy_to_begin_an_exam_makes_no_score_also_later() -> None:
    """It began once; what then ends before it began, by lack of time or memory, is still no fault of a program."""
    exam = Exam(code="def f(): return 1", tests="assert f() == 1", entry_point="f")
    with booth() as held:
        assert asyncio.run(mark(held, exam)).passed
        held.sandbox.run = lambda *_: Ran(ended="timeout", code=None, stdout=b"", stderr=b"", seconds=20)  # type: ignore[method-assign]
        with pytest.raises(SandboxUnavailable, match="no exam can be held in it: ended by timeout, status None"):
            asyncio.run(mark(held, exam))
        with pytest.raises(SandboxUnavailable, match="no exam can be held in it"):
            asyncio.run(proctor.outputs(held, "print(1)", [Case(stdin="")], "", 1.0))


def test_a_program_that_ends_the_test_process_does_not_end_the_run() -> None:
    exam = Exam(code="import os\nos.kill(os.getppid(), 9)", tests="assert f() == 1", entry_point="f")
    with booth() as held:
        assert asyncio.run(mark(held, exam)).failure == "crash"


def test_another_version_of_python_compiles_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    other = proctor._proctored().replace("MAGIC_NUMBER ==", "MAGIC_NUMBER !=")
    monkeypatch.setattr(proctor, "_program", lambda _code: other)
    assert examined("def f(): return 1", "assert f() == 1").passed


def test_the_text_that_runs_in_the_sandbox_is_for_python_3_9() -> None:
    for path in (Path(proctor.__file__).parent / "proctored").glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 9))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters(categories=["Cs"])),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner)
        | st.sets(st.integers())
        | st.frozensets(st.text())
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and repr(left) == repr(right)


@drawn(VALUES)
def test_values_arrive_as_they_are(value: Any) -> None:
    assert decode(encode(value)) == value
    assert type(decode(encode(value))) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        1 << 5000,
        -(1 << 62),
        True,
        range(1, 9, 2),
        bytearray(b"x"),
        deque([1]),
        Decimal("1.10"),
        Fraction(1, 3),
        "\ud83d\ude00",
        "😀",
    ],
)
def test_odd_values_arrive_as_they_are(value: Any) -> None:
    assert same(decode(encode(value)), value) or value == decode(encode(value)) == 1 << 5000


def test_a_text_that_equals_everything_arrives_as_the_text_that_it_is() -> None:
    class Liar(str):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = str.__hash__

        def __str__(self) -> str:
            return "other"

    found = decode(encode([Liar("x"), {Liar("k"): Liar("v")}]))
    assert found == ["x", {"k": "v"}]
    assert found != ["y", {"k": "v"}]
    assert type(found[0]) is str


def test_what_has_no_plain_value_is_named() -> None:
    with pytest.raises(NoPlainValue, match="a lock object"):
        encode([__import__("threading").Lock()])


def test_an_iterator_is_never_cut_in_silence() -> None:
    found = decode(encode(iter(range(LONGEST_RUN + 5))))
    with pytest.raises(RunOut):
        list(found)
    assert list(decode(encode(iter(range(LONGEST_RUN))))) == [*range(LONGEST_RUN)]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b'{"t":[1],"s":[2]}',
        b'{"zz":1}',
        b'{"d":5}',
        b'{"i":"x"}',
        b'{"s":[[1]]}',
        b'{"Fraction":"1/0"}',
        b'{"u":[-1]}',
        b"\xff",
        b"[" * 100_000,
        b"1" * 10_000,
    ],
)
def test_nonsense_is_nonsense(text: bytes) -> None:
    with pytest.raises(Nonsense):
        decode(text)
