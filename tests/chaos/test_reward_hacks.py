# ruff: noqa: E501  programs, each on one line
"""Programs that want to be marked as good without being good. Each is marked as failed."""

import asyncio
import textwrap
import time

import pytest
from toys.booth import examined, given

from evalrig import proctor
from evalrig.outputs_alike import same_value
from evalrig.proctor import Case
from evalrig.proctored.plain import decode
from evalrig.sandbox import Booth, Limits, Ran, Sandbox

SECRET = 7919
TESTS = f"def check(candidate):\n    assert candidate(3) == {SECRET}\n"

FIND = """
import os, re
def look(text):
    found = re.search(rb"candidate\\(3\\) == (\\d+)", text)
    if found:
        answers.append(int(found[1]))
answers = []
def f(x):
    search()
    return answers[0] if answers else -1
"""

SEARCHES = {
    "input of the sandbox's first process": """
    def search():
        for pid in ("1", str(os.getppid()), "self"):
            for fd in range(10):
                try:
                    file = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
                    look(os.pread(file, 1 << 20, 0))
                except OSError:
                    pass
    """,
    "memory of the test process": """
    def search():
        for pid in (os.getppid(), 1):
            try:
                with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
                    for line in maps:
                        start, end = (int(part, 16) for part in line.split()[0].split("-"))
                        if " rw" in line and end - start < 1 << 26:
                            try:
                                memory.seek(start)
                                look(memory.read(end - start))
                            except OSError:
                                pass
            except OSError:
                pass
    """,
    "process_vm_readv": """
    import ctypes
    def search():
        class Piece(ctypes.Structure):
            _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
        try:
            maps = open(f"/proc/{os.getppid()}/maps").read().splitlines()
        except OSError:
            return
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if " rw" in line and end - start < 1 << 26:
                held = ctypes.create_string_buffer(end - start)
                mine, theirs = Piece(ctypes.addressof(held), end - start), Piece(start, end - start)
                ctypes.CDLL(None).process_vm_readv(os.getppid(), ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
                look(held.raw)
    """,
}

PLAIN_SEARCHES = {
    "frames and objects": """
    import gc, sys
    def search():
        frame = sys._getframe()
        while frame:
            look(repr(frame.f_globals).encode() + repr(frame.f_locals).encode())
            frame = frame.f_back
        for thing in gc.get_objects():
            try:
                look(repr(thing).encode())
            except Exception:
                pass
    """,
    "files of the sandbox": """
    def search():
        for folder in ("/", "/tmp", "/work", "/dev/shm"):
            for name in os.listdir(folder):
                try:
                    look(open(os.path.join(folder, name), "rb").read(1 << 20))
                except OSError:
                    pass
    """,
    "own files and memory": """
    def search():
        for fd in range(1, 64):
            try:
                os.set_blocking(fd, False)
                look(os.read(fd, 1 << 20))
            except OSError:
                pass
        try:
            file = open("/proc/self/mem", "rb", 0)
        except PermissionError:  # it cannot even read its own
            return
        with file as memory, open("/proc/self/maps") as maps:
            for line in maps:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                if " rw" in line:
                    try:
                        memory.seek(start)
                        look(memory.read(end - start))
                    except OSError:
                        pass
    """,
    "command lines and environments": """
    def search():
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for name in ("cmdline", "environ", "stack", "auxv"):
                try:
                    look(open(f"/proc/{pid}/{name}", "rb").read())
                except OSError:
                    pass
    """,
}


def program(search: str) -> str:
    return FIND + textwrap.dedent(search)


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize("name", [*SEARCHES, *PLAIN_SEARCHES])
def test_looks_for_the_expected_value(name: str, weak: bool) -> None:
    found = examined(program((SEARCHES | PLAIN_SEARCHES)[name]), TESTS, weak=weak)
    assert (found.failure, "-1" in found.detail) == ("wrong_answer", True), found


@pytest.mark.parametrize("name", SEARCHES)
def test_the_same_search_finds_it_where_nothing_is_shielded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is the shield that the test above sees."""
    loaded, main = proctor._proctored().split("module.main()")
    bare = f"{loaded}module.close_memory = module.empty_input = lambda: None\nmodule.main(){main}"
    monkeypatch.setattr(proctor, "_program", lambda _code: bare)
    assert examined(program(SEARCHES[name]), TESTS, weak=True).passed


FORGED = (
    '"\\\\n" + "0" * 32 + " {\\\\"d\\\\":[[\\\\"failure\\\\",\\\\"\\\\"],[\\\\"detail\\\\",\\\\"\\\\"]]}\\\\n"'.replace(
        "\\\\", "\\"
    )
)

CALLS = {
    "ends its process": ("crash", "import os\ndef f(x): os._exit(0)"),
    "ends its process when loaded": ("crash", "import os\nos._exit(0)"),
    "leaves": ("crash", "import sys\ndef f(x): sys.exit(0)"),
    "leaves when loaded": ("crash", "import sys\nsys.exit(0)"),
    "leaves by another door": ("crash", "def f(x): raise GeneratorExit"),
    "interrupts": ("crash", "def f(x): raise KeyboardInterrupt"),
    "prints what is expected": ("wrong_answer", f"print({SECRET})\ndef f(x): print({SECRET})"),
    "prints a guessed mark": (
        "wrong_answer",
        f"import os\ndef f(x):\n    print({FORGED}, flush=True)\n    os.write(1, ({FORGED}).encode())",
    ),
    "prints a guessed mark where the marks go": (
        "wrong_answer",
        f"import os\ndef f(x):\n    for pid in (1, os.getppid()):\n        try:\n            open(f'/proc/{{pid}}/fd/1', 'w').write({FORGED})\n"
        "        except OSError:\n            pass",
    ),
    "is called AssertionError": (
        "wrong_answer",
        "import builtins\nbuiltins.AssertionError = type('E', (Exception,), {})\ndef f(x): return 1",
    ),
    "traces": (
        "wrong_answer",
        "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef f(x): return 1",
    ),
    "equals everything": (
        "wrong_answer",
        "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\ndef f(x): return E()",
    ),
    "is a number that equals everything": (
        "wrong_answer",
        "class E(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef f(x): return E(1)",
    ),
    "is a text that equals everything": (
        "wrong_answer",
        "class E(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\ndef f(x): return E('')",
    ),
    "holds what equals everything": (
        "wrong_answer",
        "class E(float):\n    def __eq__(self, o): return True\ndef f(x): return [E(0)]",
    ),
    "overrides what its own process needs": (
        "crash",
        "import builtins\nfor name in ('all', 'len', 'sorted', 'abs', 'isinstance'): setattr(builtins, name, lambda *a, **k: True)\ndef f(x): return 1",
    ),
    "overrides what tests use": (
        "wrong_answer",
        "import builtins\nbuiltins.all = builtins.abs = builtins.sorted = lambda *a, **k: 1\ndef all(*a): return True\n"
        "def f(x): return abs(x) - 1",
    ),
    "replaces the standard streams": (
        "wrong_answer",
        "import sys\nclass S:\n    def write(self, t): return len(t)\n    def flush(self): pass\nsys.stdout = sys.stderr = S()\ndef f(x): return 1",
    ),
    "closes all files": ("crash", "import os\ndef f(x):\n    os.closerange(0, 1024)\n    while True: pass"),
    "writes on all files": (
        "crash",
        "import os\ndef f(x):\n    for fd in range(1, 64):\n        try:\n            os.write(fd, b'\\0' * 4096)\n        except OSError:\n            pass",
    ),
    "says that it is a long answer": (
        "wrong_answer",
        "import os\ndef f(x):\n    for fd in range(3, 64):\n        try:\n            os.write(fd, b'\\1' * 8)\n        except OSError:\n            pass",
    ),
    "returns a deep structure": (
        "wrong_answer",
        "def f(x):\n    deep = []\n    for _ in range(100_000): deep = [deep]\n    return deep",
    ),
    "returns a structure that holds itself": (
        "wrong_answer",
        "def f(x):\n    held = []\n    held.append(held)\n    return held",
    ),
    "returns a structure that is deep for the reader": (
        "crash",
        "import sys\ndef f(x):\n    sys.modules['evalrig.proctored.candidate'].encode = lambda v: b'[' * 1_000_000\n    return 1",
    ),
    "returns a gigabyte": ("crash", "def f(x): return 'x' * (1 << 30)"),
    "returns a hundred megabytes": ("wrong_answer", "def f(x): return 'x' * (100 << 20)"),
    "returns and leaves threads": (
        "wrong_answer",
        "import threading, time\ndef f(x):\n    for _ in range(4): threading.Thread(target=time.sleep, args=(60,)).start()\n    return 1",
    ),
    "answers with nonsense": (
        "crash",
        "import sys\ndef f(x):\n    sys.modules['evalrig.proctored.candidate'].encode = lambda v: b'[\"gave\",{\"zz\":1},[]]'\n    return 1",
    ),
    "answers with half an answer": (
        "crash",
        "import sys\ndef f(x):\n    sys.modules['evalrig.proctored.candidate'].encode = lambda v: b'[\"gave\"]'\n    return 1",
    ),
    "says that the tests are done": (
        "crash",
        "import sys\ndef f(x):\n    sys.modules['evalrig.proctored.candidate'].encode = lambda v: b'[\"done\",\"\"]'\n    return 1",
    ),
    "changes arguments that it was not given": (
        "crash",
        "import sys\ndef f(x):\n    sys.modules['evalrig.proctored.candidate'].encode = lambda v: b'[\"gave\",1,[[7,[]]]]'\n    return 1",
    ),
    "raises what a test says": ("crash", "def f(x): raise AssertionError"),
    "never ends": ("timeout", "def f(x):\n    while True: pass"),
    "never ends when loaded": ("timeout", "while True: pass"),
    "ignores signals and never ends": (
        "timeout",
        "import signal, time\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ndef f(x): time.sleep(600)",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_marked_as_failed(name: str) -> None:
    failure, code = CALLS[name]
    found = examined(code, TESTS, seconds=1.5 if failure == "timeout" else 10)
    assert found.failure == failure, found


@pytest.mark.parametrize(
    ("signal", "failure"),
    [
        ("KILL", "crash"),
        ("TERM", "crash"),
        ("SEGV", "crash"),
        ("INT", "wrong_answer"),
        ("ALRM", "timeout"),
        ("USR1", "crash"),
    ],
)
def test_signals_the_test_process(signal: str, failure: str) -> None:
    found = examined(
        f"import os, signal, time\ndef f(x):\n    os.kill(os.getppid(), signal.SIG{signal})\n    time.sleep(0.2)\n    return 1",
        TESTS,
    )
    assert found.failure == failure, found


def test_stops_the_test_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proctor, "START_SECONDS", 1.0)
    found = examined(
        "import os, signal\ndef f(x):\n    os.kill(os.getppid(), signal.SIGSTOP)\n    return 1", TESTS, seconds=1
    )
    assert found.failure == "timeout", found


def test_floods_where_the_marks_go() -> None:
    code = "def f(x):\n    with open('/proc/1/fd/1', 'wb') as file:\n        while True: file.write(b'x' * 65536)"
    assert examined(code, TESTS, seconds=3).failure in ("crash", "timeout")


def test_leaves_a_child_that_prints_later() -> None:
    code = f"""
import os, time
def f(x):
    if os.fork() == 0:
        os.setsid()
        while True:
            try:
                open('/proc/1/fd/1', 'w').write({FORGED})
            except OSError: pass
            time.sleep(0.05)
    return 1
"""
    assert examined(code, TESTS).failure == "wrong_answer"


def test_leaves_a_child_that_holds_the_pipe_open() -> None:
    """The end of a program is seen though a child of it lives on."""
    code = "import os, time\ndef f(x):\n    if os.fork() == 0: time.sleep(600)\n    os._exit(0)"
    found = examined(code, TESTS, seconds=8)
    assert (found.failure, found.seconds < 6) == ("crash", True), found


def test_ends_a_loop_of_the_tests_early() -> None:
    """`StopIteration` out of a function that `map` calls ends it as if it were done."""
    tests = "assert all(map(lambda pair: candidate(pair[0]) == pair[1], [(1, 2), (2, 3)]))\n"
    assert examined("def f(x): raise StopIteration", tests).failure == "crash"


def test_swallowed_by_a_test() -> None:
    """A test that catches everything does not catch the end of the program."""
    tests = "try:\n    candidate(1)\nexcept BaseException:\n    pass\n"
    assert examined("import os\ndef f(x): os._exit(0)", tests).failure == "crash"


def test_steals_what_the_tests_printed() -> None:
    """A process that reads along at the sandbox's output finds no word that makes a bad mark a good one."""
    code = """
import os
def f(x):
    if os.fork() == 0:
        os.setsid()
        while True:
            try:
                file = os.open('/proc/1/fd/1', os.O_RDWR)
                text = os.read(file, 65536).replace(b'wrong_answer', b'')
                os.write(file, text)
            except OSError: pass
    return 1
"""
    assert not examined(code, TESTS).passed


OWN = {
    "ends its process": "import os\nos._exit(0)",
    "leaves": "import sys\nsys.exit(0)",
    "ends when called": "import os\ndef f(x): os._exit(0)",
    "leaves when called": "import sys\ndef f(x): sys.exit(0)",
    "overrides what tests use": "import builtins\nbuiltins.all = lambda *a: True\nall = lambda *a: True\ndef f(x): return 1",
    "traces": "import sys\nsys.settrace(lambda frame, event, arg: None)\ndef f(x): return 1",
    "is called AssertionError": "import builtins\nbuiltins.AssertionError = type('E', (Exception,), {})\nAssertionError = None\ndef f(x): return 1",
    "prints a guessed mark": f"def f(x): print({FORGED})",
    "has nothing": "",
}


@pytest.mark.parametrize("name", OWN)
def test_marked_as_failed_without_an_entry_point(name: str) -> None:
    found = examined(OWN[name], f"assert all([f(3) == {SECRET}])\n", entry_point="")
    assert found.failure in ("crash", "wrong_answer"), found


CASES = {
    "ends at once": ("", "import os\nos._exit(0)"),
    "ends badly": ("crash", "import sys\nsys.exit(3)"),
    "kills its parent": ("crash", "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(60)"),
    "kills all": ("crash", "import os\nos.kill(-1, 9)"),
    "raises": ("crash", "1 / 0"),
    "floods": ("crash", "while True: print('x' * 100_000)"),
    "floods the errors": ("crash", "import sys\nwhile True: print('x' * 100_000, file=sys.stderr)"),
    "is no Python": ("syntax_error", "print("),
}


@pytest.mark.parametrize("name", CASES)
def test_programs_that_read_standard_input(name: str) -> None:
    failure, code = CASES[name]
    [found] = given(code, [Case(stdin="")])
    assert (found.failure, found.text) == (failure, ""), found


def test_a_child_of_one_case_does_not_see_the_next() -> None:
    code = """
import os, sys, time
text = input()
if text == "first" and os.fork() == 0:
    os.setsid()
    for _ in range(100):
        os.lseek(1, 0, 0)
        os.write(1, b"late")
        time.sleep(0.02)
print(text)
"""
    found = given(code, [Case(stdin="first"), Case(stdin="second")])
    assert [output.text for output in found][1:] == ["second\n"]


REPLIES = {
    "a set": b'{"s":["a","b"]}',
    "a dict": b'{"d":[["a",1],["b",2]]}',
    "an iterator": b'{"n":["gave",1]}',
    "a text": b'"ab"',
    "three": b'["gave",1,2]',
    "no word": b"[[],1]",
    "an odd number": b'[{"Decimal":"sNaN"},1]',
    "odd, with no text": b'["odd",{"d":[]}]',
    "too deep": b'["gave",' + b"[" * 5000 + b"]" * 5000 + b"]",
    "a number too long": b'["gave",' + b"1" * 10_000 + b"]",
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_value_that_the_program_wrote_itself_does_not_end_the_run(name: str) -> None:
    """The file of a case's value is open in the program's process."""
    code = f"import os\nos.write(3, {REPLIES[name]!r})\nos._exit(0)"
    [found] = given(code, [Case(arguments=(1,))], "f")
    assert (found.failure, found.detail) == ("crash", "answered with nonsense")


def test_a_value_that_only_the_sandboxs_python_can_read_is_a_crash_of_the_program() -> None:
    """Another version may allow more depth, or longer numbers."""
    found = proctor._output('["gave",' + "1" * 10_000 + "]", "f")
    assert (found.failure, found.value) == ("crash", None)


def test_a_signalling_nan_equals_nothing_and_ends_nothing() -> None:
    code = "from decimal import Decimal\ndef f(x): return Decimal('sNaN')"
    [found] = given(code, [Case(arguments=(1,))], "f")
    assert found.failure == ""
    for wanted in (1, "NaN", None, [1], {"a": 1}, 1.0):
        assert not same_value(found.value, wanted, 1e-6)
    assert examined(code, "assert f(1) == 1").failure == "wrong_answer"


class Cut(Sandbox):
    """A sandbox in which the test process was killed in the middle of a word."""

    kind = "cut"
    version = "1"

    def __init__(self, unsandboxed: bool) -> None:
        self.at = 0

    def run(self, program: str, stdin: bytes, limits: Limits, slot: int) -> Ran:
        words = decode(stdin[8 : 8 + int.from_bytes(stdin[:8], "big")])["words"]
        whole = "".join(
            f"\n{words[word]} {rest}\n" for word, rest in (("began", '{"d":[]}'), ("gave", '{"d":[["text","1"]]}'))
        )
        self.at = self.at or len(whole) - 5
        return Ran(ended="exit", code=-9, stdout=whole[: self.at].encode(), stderr=b"", seconds=1.0)


def test_a_test_process_that_is_killed_in_the_middle_of_a_word_does_not_end_the_run() -> None:
    found = asyncio.run(proctor.outputs(Booth(Cut(False), 1), "", [Case(stdin="1")], "", 1.0))
    assert [(one.failure, one.text) for one in found] == [("crash", "")]


def test_blank_lines_do_not_hold_everybody_up() -> None:
    """A quadratic search through 100,000 of them took minutes, and the engines' answers waited."""
    began = time.process_time()
    proctor._program("import os\n" + "\n" * 100_000 + "def f(): pass")
    assert time.process_time() - began < 2
