"""A child process that never outlives us: own process group, output to a log file, bounded stop, killed when the parent dies."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from evalrig.errors import EngineError

_LIBC = ctypes.CDLL(None)
"""Loaded here and not in the child: between fork and exec another thread may have left the loader's lock taken."""
STOP_SECONDS = 6.0
"""Grace after SIGTERM; the whole stop stays under 10 s."""


class Process:
    """One started program."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start `argv`; its output is appended to the log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=dict(env) if env is not None else None,
                    start_new_session=True,
                    preexec_fn=partial(_die_with_parent, os.getpid()) if sys.platform == "linux" else None,
                )
            except OSError as error:
                raise EngineError(f"{self.name}: cannot start `{argv[0]}`: {error.strerror}; see {self.log}") from error

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return self._process.pid if self._process else 0

    def alive(self) -> bool:
        """Started and not ended."""
        return self._process is not None and self._process.returncode is None

    async def wait_ready(self, ready: Callable[[], Awaitable[bool]], seconds: float) -> None:
        """Poll `ready` until it is true.

        Raises:
            EngineError: the process ended, or the deadline passed; with the log's last line.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while not await ready():
            if not self.alive():
                code = self._process.returncode if self._process else None
                raise EngineError(
                    f"{self.name}: ended with code {code} while starting: {self.last_line()}; see {self.log}"
                )
            if asyncio.get_running_loop().time() > deadline:
                raise EngineError(f"{self.name}: not ready after {seconds:.0f} s: {self.last_line()}; see {self.log}")
            await asyncio.sleep(0.05)

    def last_line(self) -> str:
        """The log's last line that says something."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 8192))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return "no log"
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:300] if said else "nothing in the log"

    async def stop(self) -> None:
        """SIGTERM to the group, SIGKILL after the grace; returns when the process is gone."""
        if self._process is None:
            return
        if self.alive():
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        self._signal(signal.SIGKILL)  # also what is left of the group after its leader ended
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _die_with_parent(parent: int) -> None:
    """Linux: SIGKILL for the child when the parent dies, even by SIGKILL."""
    _LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above: no signal will come
