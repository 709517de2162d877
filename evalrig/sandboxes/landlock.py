"""Landlock, a list of refused system calls, and limits: weaker than bubblewrap, for where namespaces are forbidden.

What it does not keep in: whether a file outside exists, and the total of files and of memory. See docs/sandbox.md.
"""

import contextlib
import os
from pathlib import Path

from evalrig import landlocked
from evalrig.interpreter import interpreter
from evalrig.sandbox import Limits, Ran, Sandbox, SandboxUnavailable
from evalrig.seccomp import deny_list
from evalrig.supervised import GATE, Start, Supervisor, limited, scratch, sealed, user_of

READABLE = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/urandom", "/dev/zero")


class Landlock(Sandbox):
    """By name only. Needs Linux 6.7, and no program."""

    kind = "landlock"

    def __init__(self, unsandboxed: bool) -> None:
        found = landlocked.abi()
        if found < landlocked.NEEDED:
            have = f"version {found} of Landlock" if found > 0 else "no Landlock"
            raise SandboxUnavailable(f"sandbox: this kernel has {have}; use Linux 6.7 or newer, or `sandbox: bwrap`")
        self.version = f"ABI {found}"
        self.filter = deny_list(strict=True)
        self.python = interpreter(user_of(0))
        self._script = Path(landlocked.__file__).read_text("utf-8")
        self._supervisor = Supervisor()

    def run(self, program: str, stdin: bytes, limits: Limits, slot: int) -> Ran:
        """See `Sandbox.run`."""
        user = user_of(slot)
        python = self.python.path
        with contextlib.ExitStack() as stack:
            folder = scratch(stack, program, user)
            if ":" in str(folder):  # it would be read as two, and the first opened for writing
                raise SandboxUnavailable(f"sandbox: the folder {folder} has a colon; set TMPDIR to one without")
            calls = sealed(stack, self.filter)
            work, main = str(folder / "work"), str(folder / "main.py")
            reading = ":".join(filter(None, (*READABLE, self.python.prefix, main)))
            start = Start(
                kind="landlock",
                argv=[
                    *limited(limits, limits.processes + _running_as(os.getuid() if user is None else user)), python, "-I", "-S", "-c",
                    self._script, str(calls), reading, f"{work}:/dev/null", *GATE, python, "-I", "-S", main,
                ],
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "HOME": work, "TMPDIR": work},
                cwd=work,
                stdin=stdin,
                user=user,
                fds=(calls,),
            )  # fmt: skip
            return self._supervisor.run(start, limits)

    def close(self) -> None:
        """See `Sandbox.close`."""
        self._supervisor.close()


def _running_as(user: int) -> int:
    """Processes and threads of a user: the kernel counts a program's among them, also those that were killed and wait for
    the machine's first process to take note."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/task"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if path.stat().st_uid == user:
                count += len(list(path.iterdir()))
    return count
