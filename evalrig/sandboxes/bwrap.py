"""bubblewrap: own namespaces for files, processes and network, no capabilities, a list of refused system calls.

The program sees `/usr` and nothing else of the machine, and writes to a scratch folder in memory.
"""

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from evalrig.interpreter import Interpreter, interpreter
from evalrig.sandbox import Limits, Ran, Sandbox, SandboxUnavailable
from evalrig.seccomp import deny_list
from evalrig.supervised import GATE, Start, Supervisor, limited, sealed, user_of

OLDEST: Final = (0, 8)
"""The first with `--disable-userns`."""
WEAKER: Final = "install the Debian package bubblewrap, or set `sandbox: landlock` (weaker)"
ENVIRONMENT: Final = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/work",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}


class Bwrap(Sandbox):
    """The default. Needs the program `bwrap` and user namespaces, and no root."""

    kind = "bwrap"

    def __init__(self, unsandboxed: bool) -> None:
        found = shutil.which("bwrap")
        if found is None:
            raise SandboxUnavailable(f"sandbox: bwrap not found; {WEAKER}")
        self.program = found
        self.version = _version(found)
        self.filter = deny_list()
        self.python = interpreter(user_of(0))
        self._supervisor = Supervisor()
        self._walls = _walls(self.python)

    def run(self, program: str, stdin: bytes, limits: Limits, slot: int) -> Ran:
        """See `Sandbox.run`."""
        with contextlib.ExitStack() as stack:
            code, calls = sealed(stack, program.encode(errors="surrogatepass")), sealed(stack, self.filter)
            status, told = os.pipe()
            stack.callback(os.close, status)
            stack.callback(os.close, told)
            start = Start(
                kind="bwrap",
                argv=self._argv(limits, code, calls, told),
                env={},
                stdin=stdin,
                user=user_of(slot),
                fds=(code, calls, told),
                status=status,
            )
            return self._supervisor.run(start, limits)

    def close(self) -> None:
        """See `Sandbox.close`."""
        self._supervisor.close()

    def _argv(self, limits: Limits, code: int, calls: int, told: int) -> list[str]:
        scratch = f"{limits.scratch_mb << 20}"
        return [
            self.program, "--json-status-fd", str(told), "--seccomp", str(calls), *self._walls,
            "--size", scratch, "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
            "--size", scratch, "--perms", "0700", "--tmpfs", "/work", "--symlink", "work", "/tmp",
            "--ro-bind-data", str(code), "/main.py", "--chdir", "/work", "--remount-ro", "/", "--",
            *limited(limits, limits.processes), *GATE, self.python.path, "-I", "-S", "/main.py",
        ]  # fmt: skip


def _walls(python: Interpreter) -> list[str]:
    """All that does not change from run to run."""
    walls = [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--uid",
        "65534",
        "--gid",
        "65534",
        "--cap-drop",
        "ALL",
    ]
    walls += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        walls += ["--setenv", name, value]
    walls += ["--ro-bind", "/usr", "/usr"]
    for path in map(Path, ("/bin", "/lib", "/lib64")):
        if path.is_symlink():
            walls += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            walls += ["--ro-bind", str(path), str(path)]
    if python.prefix:
        walls += ["--ro-bind", python.prefix, python.prefix]
    # the first process has none of the limits and the same uid: its memory must not be within reach
    first = ["--size", "4096", "--perms", "0555", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
    return [*walls, "--proc", "/proc", *first, "--dev", "/dev"]


def _version(program: str) -> str:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"sandbox: {program} --version fails: {error}; {WEAKER}") from error
    found = re.search(r"(\d+)\.(\d+)[\d.]*", said)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise SandboxUnavailable(f"sandbox: {said.strip() or program} is too old: 0.8 is the least; {WEAKER}")
    return found[0]
