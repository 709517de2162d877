"""Runs hostile programs in a sandbox, as we are or as a normal user, and looks for what they leave behind."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evalrig.sandbox import Limits, Ran, Sandbox

USER = 1500
"""A normal user's uid; nobody needs to have it."""
AT_ONCE = 4

PRELUDE = """
import ctypes, errno, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def call(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result
def tried(name, reach):
    try:
        said = f"DONE {reach()}"
    except OSError as error:
        said = errno.errorcode.get(error.errno, str(error))
    except BaseException as error:
        said = type(error).__name__
    print(name, "=", said, flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program and what it is given."""

    text: str
    stdin: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    slot: int | None = None
    """None: any."""
    alone: bool = False
    """After all others: of one normal user, what it starts counts against every other program's limit."""


def run_here(sandbox: Sandbox, programs: Mapping[str, Program]) -> dict[str, Ran]:
    """All of them, a few at once."""
    slots = list(range(1, AT_ONCE + 1))  # 0 is for programs that ask for it

    def one(program: Program) -> Ran:
        slot = slots.pop()
        try:
            limits = Limits(**program.limits)
            used = slot if program.slot is None else program.slot
            return sandbox.run(PRELUDE + program.text, program.stdin.encode(), limits, used)
        finally:
            slots.append(slot)

    together = {name: program for name, program in programs.items() if not program.alone}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ran = dict(zip(together, pool.map(one, together.values()), strict=True))
    return {name: ran[name] if name in ran else one(program) for name, program in programs.items()}


DROP = f"""
import ctypes, importlib, json, os, sys, unicodedata, concurrent.futures.thread, encodings.idna, multiprocessing
from evalrig.plugins import find
from evalrig.sandbox import Sandbox, SandboxUnavailable, probe
from toys import walls
asked = json.load(sys.stdin)
kind = find("sandboxes", asked["kind"], Sandbox, "sandbox")
import evalrig.seccomp
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({USER})
    os.setuid({USER})
if asked["forbid"]:  # as a container without user namespaces
    s = evalrig.seccomp
    calls = s.TABLES[os.uname().machine]
    lines = [s._op(s.LOAD, s.NUMBER), *s._where(calls.clone, s.FIRST, [s._op(s.ANY_BIT, s.NAMESPACES, 0, 1)])]
    lines += [s._op(s.EQUAL, calls.denied["unshare"], 0, 1), s._refuse(1), s._op(s.RETURN, s.ALLOW)]
    code = ctypes.create_string_buffer(b"".join(lines))
    program = __import__("struct").pack("HxxxxxxQ", (len(code) - 1) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
try:
    sandbox = kind(True)
    version = probe(sandbox)
except SandboxUnavailable as error:
    print(json.dumps({{"refused": str(error)}}))
    sys.exit()
ran = walls.run_here(sandbox, {{name: walls.Program(**one) for name, one in asked["programs"].items()}})
print(json.dumps({{name: {{"ended": r.ended, "code": r.code, "stdout": r.stdout.decode("latin-1"),
    "stderr": r.stderr.decode("latin-1"), "seconds": r.seconds}} for name, r in ran.items()}}))
"""


def as_user(kind: str, programs: Mapping[str, Program], forbid: bool = False) -> dict[str, Any]:
    """All of them, by a process that has become a normal user. `forbid`: one that may not make namespaces."""
    asked = json.dumps(
        {"kind": kind, "forbid": forbid, "programs": {name: asdict(program) for name, program in programs.items()}}
    )
    path = os.pathsep.join(path for path in sys.path if path)
    said = subprocess.run(
        [sys.executable, "-c", DROP], input=asked, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=200
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    answer = json.loads(said.stdout)
    if "refused" in answer:
        return answer
    return {
        name: Ran(**{**ran, "stdout": ran["stdout"].encode("latin-1"), "stderr": ran["stderr"].encode("latin-1")})
        for name, ran in answer.items()
    }


def alive(tag: str) -> list[str]:
    """Command lines on this machine that hold a tag."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if tag in line and int(path.parent.name) != os.getpid():
            found.append(line)
    return found


def gone(tag: str, seconds: float = 3.0) -> bool:
    """Nothing with the tag runs, now or soon."""
    end = time.monotonic() + seconds
    while alive(tag):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
