"""No sandbox: programs run as you do, with all that you may do. Limits and an end at the wall clock, nothing else."""

import contextlib

from evalrig.interpreter import anyones
from evalrig.sandbox import Limits, Ran, Sandbox, SandboxUnavailable
from evalrig.supervised import GATE, Start, Supervisor, limited, scratch


class Nothing(Sandbox):
    """Refused without the run file's second key. For machines that are a sandbox themselves."""

    kind = "none"
    version = ""
    confines = False

    def __init__(self, unsandboxed: bool) -> None:
        if not unsandboxed:
            raise SandboxUnavailable(
                "sandbox: `none` lets programs that a model wrote do all that you may do; "
                "set `unsandboxed: true` as well, or use `sandbox: bwrap`"
            )
        self.python = anyones()
        self._supervisor = Supervisor()

    def run(self, program: str, stdin: bytes, limits: Limits, slot: int) -> Ran:
        """See `Sandbox.run`."""
        with contextlib.ExitStack() as stack:
            folder = scratch(stack, program, None)
            work = str(folder / "work")
            start = Start(
                kind="none",
                argv=[*limited(limits, None), *GATE, self.python, "-I", "-S", str(folder / "main.py")],
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "HOME": work, "TMPDIR": work},
                cwd=work,
                stdin=stdin,
            )
            return self._supervisor.run(start, limits)

    def close(self) -> None:
        """See `Sandbox.close`."""
        self._supervisor.close()
