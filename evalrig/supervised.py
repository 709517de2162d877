"""A program that is started, watched and ended: wall clock, output cap, and an end of all that it started.

The command's last words are `GATE`: it says that all is set up, and waits for one line before it becomes the program. So the
clock starts with the program, and a set-up that fails is never taken for the program's failure. Its first words are `LATCH`: it
waits for one line before it becomes the command, until the guard (guard.py) knows its process group. So a harness that is killed
in the middle of a start leaves nothing behind, though bubblewrap would: its child waits for ever for a parent that was killed.
"""

import contextlib
import fcntl
import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from evalrig import guard
from evalrig.interpreter import anyones
from evalrig.sandbox import SLOTS, Limits, Ran, SandboxUnavailable

LATCH: Final = ("/bin/sh", "-c", 'read -r go && exec "$@"', "sh")
GATE: Final = ("/bin/sh", "-c", 'echo; read -r go && exec "$@"', "sh")
START_SECONDS: Final = 60.0
"""For the sandbox to be set up, on a machine that is busy with an engine."""
GONE_SECONDS: Final = 5.0
"""For the kernel to end what was killed."""
CHUNK: Final = 65536
FIRST_USER: Final = 60000
PRLIMIT: Final = "/usr/bin/prlimit"

End = Literal["exit", "timeout", "output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One command and what it is given."""

    kind: str
    """For errors."""
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "/"
    stdin: bytes = b""
    user: int | None = None
    """Uid and gid to become first."""
    fds: Sequence[int] = ()
    """Passed on under their own numbers."""
    status: int | None = None
    """Where bubblewrap tells the pid of the first process in its namespace."""


def user_of(slot: int) -> int | None:
    """A real uid for the programs of a slot where we are root; None: we are not, and they run as we do.

    A limit on processes does nothing for uid 0, whatever namespace it is in.
    """
    if not 0 <= slot < SLOTS:
        raise ValueError(f"slot {slot}: 0 to {SLOTS - 1}")
    return FIRST_USER + slot if os.geteuid() == 0 else None


def limited(limits: Limits, processes: int | None) -> list[str]:
    """The command that sets the limits of each process for what follows it. `processes` None: their number is not limited."""
    if not Path(PRLIMIT).is_file():
        raise SandboxUnavailable(f"sandbox: {PRLIMIT} not found; install the Debian package util-linux")
    most = {
        "nproc": processes,
        "core": 0,
        "nofile": limits.open_files,
        "cpu": limits.cpu_seconds,
        "fsize": limits.file_mb << 20,
        "as": limits.memory_mb << 20,
    }
    return [PRLIMIT, *(f"--{name}={value}:{value}" for name, value in most.items() if value is not None), "--"]


def sealed(stack: contextlib.ExitStack, content: bytes) -> int:
    """A file in memory that nobody can change any more; its descriptor, closed with the stack."""
    fd = os.memfd_create("evalrig", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    stack.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0xF)  # against writing, growing, shrinking and further seals
    return fd


def scratch(stack: contextlib.ExitStack, program: str, user: int | None) -> Path:
    """A folder with `main.py`, which is the program, and `work`, where it may write; gone with the stack."""
    folder = Path(tempfile.mkdtemp(prefix="evalrig-"))
    stack.callback(_remove, folder)
    main, work = folder / "main.py", folder / "work"
    main.write_bytes(program.encode(errors="surrogatepass"))
    work.mkdir(mode=0o700)
    folder.chmod(0o711)
    main.chmod(0o444)
    if user is not None:
        os.chown(work, user, user)
    return folder


def _remove(folder: Path) -> None:
    """Whatever a hostile program made of it: a thousand levels, folders closed to their owner."""
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        if folder.exists():
            subprocess.run([*command, "--", str(folder)], stdin=subprocess.DEVNULL, capture_output=True, check=False)


class Supervisor:
    """Runs commands, each in the thread that asks, and ends them all when it is closed."""

    def __init__(self) -> None:
        self._closing = os.eventfd(0, os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._closing)
        self._guard = Guard()

    def run(self, start: Start, limits: Limits) -> Ran:
        """Run to the end or a limit. `code` is as bubblewrap and shells give it: 128 + signal, where `status` is given.

        Raises:
            SandboxUnavailable: it was not set up, or not ended.
        """
        with contextlib.ExitStack() as stack:
            watched = Watched(start, limits, self._guard, stack)
            watched.selector.register(self._closing, selectors.EVENT_READ, watched.closed)
            return watched.run()

    def close(self) -> None:
        """End what runs: the event stays, so later runs end at once."""
        os.eventfd_write(self._closing, 1)


class Guard:
    """A process that kills the groups it was told of when we are gone, however we went."""

    def __init__(self) -> None:
        argv, pipe, quiet = guard.command_line(0, python=anyones()), subprocess.PIPE, subprocess.DEVNULL
        try:
            process = subprocess.Popen(argv, bufsize=0, stdin=pipe, stdout=quiet, stderr=quiet, start_new_session=True)
        except OSError as error:
            raise SandboxUnavailable(
                f"sandbox: its guard cannot be started: {error.strerror}; free processes"
            ) from error
        assert process.stdin is not None
        self._told = process.stdin
        weakref.finalize(self, _dismiss, process)

    def tell(self, group: int) -> None:
        """Put a group under guard; with a minus before it, take it out."""
        try:
            self._told.write(b"%d\n" % group)
        except BrokenPipeError as error:
            raise SandboxUnavailable(
                "sandbox: its guard was killed; start the run again with `evalrig resume`"
            ) from error


def _dismiss(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


@dataclass(slots=True)
class Stream:
    """What was read of one output."""

    fd: int
    most: int
    content: bytearray = field(default_factory=bytearray)
    open: bool = True

    def read(self) -> bool:
        """Read what is there, to the cap at most. False: nothing is there now."""
        try:
            chunk = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        self.open = bool(chunk)
        self.content += chunk
        return self.open and not self.over

    @property
    def over(self) -> bool:
        """More was printed than may be."""
        return len(self.content) > self.most


class Watched:
    """One process from its start to its end."""

    def __init__(self, start: Start, limits: Limits, warden: Guard, stack: contextlib.ExitStack) -> None:
        self.start, self.limits, self.guard = start, limits, warden
        self.first = -1  # `_end` asks for it, however early something fails
        self.selector = stack.enter_context(selectors.DefaultSelector())
        self.process = self._popen()
        pipes = self.process.stdin, self.process.stdout, self.process.stderr
        inlet, out, err = [stack.enter_context(pipe).fileno() for pipe in pipes if pipe is not None]
        stack.callback(self._end)  # for what fails here; `run` ends it before anything is closed
        self.guard.tell(self.process.pid)
        with contextlib.suppress(BrokenPipeError):  # it ended at once: what it said tells why
            os.write(inlet, b"\n")
        exit_ = os.pidfd_open(self.process.pid)
        stack.callback(os.close, exit_)
        self.selector.register(exit_, selectors.EVENT_READ, self._exited)
        self.out, self.err = Stream(out, limits.output_bytes + 1), Stream(err, limits.output_bytes)  # 1: the gate's
        for fd in (inlet, out, err):
            os.set_blocking(fd, False)
        for stream in (self.out, self.err):
            self.selector.register(stream.fd, selectors.EVENT_READ, lambda one=stream: self._read(one))
        self.inlet, self.feed = inlet, memoryview(b"go\n" + start.stdin)
        self.began: float | None = None
        self.deadline = time.monotonic() + START_SECONDS
        self.stack = stack
        self.ended: End | None = None

    def run(self) -> Ran:
        """To its end."""
        try:
            while self.ended is None:
                late = time.monotonic() >= self.deadline
                for key, _ in self.selector.select(max(0.0, self.deadline - time.monotonic())):
                    key.data()
                if late and self.ended is None:  # what happened while we could not look counts
                    self.ended = "timeout"
            seconds = time.monotonic() - (self.began or self.deadline)
        finally:
            self._end()
        for stream in (self.out, self.err):
            while stream.open and not stream.over and stream.read():
                pass
        if self.began is None:
            raise SandboxUnavailable(f"sandbox: {self.start.kind} cannot be set up: {self._why()}; see docs/sandbox.md")
        if self.ended == "exit" and (self.out.over or self.err.over):
            self.ended = "output"
        most = self.limits.output_bytes
        return Ran(
            ended=self.ended,
            code=self._code() if self.ended == "exit" else None,
            stdout=bytes(self.out.content[1 : 1 + most]),
            stderr=bytes(self.err.content[:most]),
            seconds=max(0.0, seconds),
        )

    def closed(self) -> None:
        """We are told to end."""
        raise SandboxUnavailable("sandbox: closed while a program ran; nothing was marked")

    def _popen(self) -> subprocess.Popen[bytes]:
        pipe, user = subprocess.PIPE, self.start.user
        try:
            return subprocess.Popen(
                [*LATCH, *self.start.argv], bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(self.start.env), cwd=self.start.cwd,
                pass_fds=tuple(self.start.fds), start_new_session=True, user=user, group=user, extra_groups=None if user is None else [],
            )  # fmt: skip
        except OSError as error:
            raise SandboxUnavailable(
                f"sandbox: cannot start {self.start.argv[0]}: {error.strerror}; free processes and memory, or install it"
            ) from error

    def _read(self, stream: Stream) -> None:
        stream.read()
        if stream is self.out and self.began is None and stream.content:
            self._open_gate()
        if stream.over:
            self.ended = "output"
        elif not stream.open:
            self.selector.unregister(stream.fd)

    def _open_gate(self) -> None:
        """All is set up: the clock starts, and the program with it."""
        if self.start.status is not None:  # it stands at the gate: the pid is still its own
            said = re.search(rb'"child-pid": *(\d+)', _there(self.start.status))
            if said is None:
                raise SandboxUnavailable(
                    "sandbox: bwrap does not tell its first process; install bubblewrap 0.8 or newer"
                )
            with contextlib.suppress(ProcessLookupError):
                self.first = os.pidfd_open(int(said[1]))
                self.stack.callback(os.close, self.first)
        self.began = time.monotonic()
        self.deadline = self.began + self.limits.wall_seconds
        self.selector.register(self.inlet, selectors.EVENT_WRITE, self._feed)

    def _feed(self) -> None:
        try:
            self.feed = self.feed[os.write(self.inlet, self.feed[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.feed = self.feed[:0]  # it does not listen
        if not self.feed:
            self.selector.unregister(self.inlet)
            assert self.process.stdin is not None
            self.process.stdin.close()

    def _exited(self) -> None:
        self.ended = "exit"

    def _end(self) -> None:
        """Kill all that is left, and wait until it is gone. Harmless when done before."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self.first >= 0:  # the kernel ends every process of a namespace with its first
                signal.pidfd_send_signal(self.first, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(SandboxUnavailable):  # the next run says so
            self.guard.tell(-self.process.pid)
        if self.first >= 0 and not _gone(self.first):
            raise SandboxUnavailable("sandbox: a program could not be ended; look for processes in state D")

    def _code(self) -> int:
        code = self.process.returncode
        if self.start.status is None:
            return code
        if code < 0:
            raise SandboxUnavailable(
                f"sandbox: {self.start.kind} was killed by signal {-code}; look for lack of memory"
            )
        return 128 - code if 128 < code <= 128 + signal.SIGRTMAX else code

    def _why(self) -> str:
        said = self.err.content.decode(errors="replace").strip().splitlines()
        ended = (
            f"ended with code {self.process.returncode}"
            if self.ended == "exit"
            else f"not ready in {START_SECONDS:.0f} s"
        )
        return " ".join(said[-1].split())[:300] if said else ended


def _there(fd: int) -> bytes:
    os.set_blocking(fd, False)
    try:
        return os.read(fd, CHUNK)
    except BlockingIOError:
        return b""


def _gone(pidfd: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(pidfd, selectors.EVENT_READ)
        return bool(selector.select(GONE_SECONDS))
