"""A process of its own for third-party simulated tools: JSON lines over pipes, bounded in time, started again when it died.

It runs without our environment's packages and without ours: `python -I -S -B`, the standard library, and fetched folders whose
files were verified. The code is a third party's and not a model's; what a model wrote reaches it as JSON values alone.
"""

import asyncio
import importlib.util
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from evalrig.errors import RunError, UsageError, one_line

_SERVE = Path(__file__).parent / "simulated" / "serve.py"
START_SECONDS = 60.0
"""A first answer takes longer: it waits for imports, on a machine that may be busy."""


class Lost(Exception):
    """The process died over a question, or took too long and was killed: what it held is gone."""


class Forgotten(Lost):
    """It does not know this attempt: it was started again since."""


class Crashed(RunError):
    """The third party's code failed over what a model did: that attempt cannot be judged. Uncaught it ends the run."""


_OF_AN_ATTEMPT = ("call", "judge", "single")
"""Questions about what a model did. A crash over any other is a bug that every attempt would meet."""


class Child:
    """One process for many attempts, one question at a time. Started by the first question, ended with this object."""

    def __init__(self, side: str, folders: Sequence[Path], seconds: float = 20.0, lent: Sequence[str] = ()) -> None:
        """`side`: a module's name in `evalrig/simulated/`; `seconds`: for one question; `lent`: modules of our own environment
        that it sees besides, which no pinned file can stand for (compiled ones)."""
        self.side = side
        self.folders = tuple(folders)
        self.seconds = seconds
        self.lent = tuple(lent)
        self.starts = 0
        self._turn = threading.Lock()
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix=side
        )  # a slow call must not fill the loop's own threads
        self._process: _Piped | None = None

    @property
    def pid(self) -> int:
        """Process id; 0: none runs."""
        return self._process.pid if self._process else 0

    async def ask(self, question: Mapping[str, Any]) -> Any:
        """What the side answers.

        Raises:
            Lost: it died over it, took too long, or (`Forgotten`) does not know the attempt.
            Crashed: its code raised over a call or a check of one attempt.
            RunError: it cannot be started, or has a bug: no attempt can be made.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.ask_now, question)

    def ask_now(self, question: Mapping[str, Any]) -> Any:
        """As `ask`, where blocking does no harm."""
        with self._turn:
            fresh = self._process is None
            process = self._process = self._process or self._started()
            try:
                line = process.ask(json.dumps(question), START_SECONDS if fresh else self.seconds)
            except Lost as lost:
                process.end()
                self._process = None
                if fresh and not process.answered:
                    raise RunError(f"simulated tools `{self.side}`: {lost}") from lost
                raise
        found = json.loads(line)
        if "crash" in found:
            kind = Crashed if question.get("ask") in _OF_AN_ATTEMPT else RunError
            raise kind(f"simulated tools `{self.side}`: {one_line(str(found['crash']))[-400:]}")
        given = found["given"]
        if isinstance(given, dict) and given.get("unknown"):
            raise Forgotten("it was started again")
        return given

    def _started(self) -> "_Piped":
        self.starts += 1
        process = _Piped(self.side, self.folders, self.seconds, self.lent)
        weakref.finalize(self, process.end)  # also when the interpreter ends
        return process


class _Piped:
    """One started process and its pipes."""

    def __init__(self, side: str, folders: Sequence[Path], seconds: float, lent: Sequence[str]) -> None:
        program = [str(_SERVE), str(_SERVE.with_name(f"{side}.py")), str(math.ceil(seconds))]
        self._home = tempfile.TemporaryDirectory(prefix="evalrig-simulated-", ignore_cleanup_errors=True)
        places = (*folders, _lent(Path(self._home.name), lent))
        argv = [sys.executable, "-I", "-S", "-B", *program, *map(str, places)]
        env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}  # no keys in it
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=env,
            cwd=self._home.name,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.answered = False
        self._rest = b""

    def ask(self, line: str, seconds: float) -> bytes:
        """One line there, one line back."""
        until = time.monotonic() + seconds
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Lost(self._words("it had died")) from error
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise Lost(f"no answer within {seconds:.0f} s, killed")
            if not (more := os.read(pipe, 1 << 16)):
                raise Lost(self._words("it died"))
            self._rest += more
        found, _, self._rest = self._rest.partition(b"\n")
        self.answered = True
        return found

    def end(self) -> None:
        """Kill it and all that it started; nothing is left of it."""
        if self._process.returncode is not None:
            return  # done before: its number may be another's by now
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._home.cleanup()

    def _words(self, what: str) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return one_line(f"{what}: {lines[-1][:300]}" if lines else what)


def _lent(home: Path, names: Sequence[str]) -> Path:
    """A folder in which only the named modules of our environment are seen."""
    folder = home / "lent"
    folder.mkdir()
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise UsageError(f"the simulated tools need the package `{name}`; install it")
        origin = Path(spec.origin)
        found = origin.parent if spec.submodule_search_locations else origin
        (folder / found.name).symlink_to(found)
    return folder
