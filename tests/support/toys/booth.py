"""The sandboxes in which tests mark programs: the real one, and one that leaves the proctor to its own defences."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Sequence

import pytest

from evalrig.proctor import Case, Exam, Mark, Output, mark, outputs
from evalrig.sandbox import Booth, Limits, Ran, Sandbox, SandboxUnavailable
from evalrig.sandboxes.bwrap import Bwrap

SYSTEM = ("/bin", "/lib", "/lib64")


class Weak(Sandbox):
    """bubblewrap with its namespaces, `prlimit` inside, and no filter of system calls."""

    kind = "bwrap"
    version = "weak"

    def __init__(self, unsandboxed: bool) -> None:
        if not shutil.which("bwrap"):
            raise SandboxUnavailable("bwrap not found; install bubblewrap")

    def run(self, program: str, stdin: bytes, limits: Limits, slot: int) -> Ran:
        began = time.monotonic()
        text, given = memory(program.encode()), memory(stdin)
        user = {"user": 60000 + slot, "group": 60000 + slot, "extra_groups": []} if os.geteuid() == 0 else {}
        process = subprocess.Popen(
            self.argv(text, limits),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            pass_fds=[text],
            start_new_session=True,
            **user,  # type: ignore[arg-type]
        )
        os.close(text)
        os.close(given)
        late = threading.Event()

        def end() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(limits.wall_seconds, end)
        timer.start()
        found: list[bytes] = [b"", b""]
        readers = [threading.Thread(target=self.read, args=(process, at, found, limits)) for at in (0, 1)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        code = process.wait()
        timer.cancel()
        flooded = max(map(len, found)) > limits.output_bytes
        ended = "output" if flooded else "timeout" if late.is_set() else "exit"
        return Ran(ended=ended, code=code, stdout=found[0], stderr=found[1], seconds=time.monotonic() - began)

    def read(self, process: subprocess.Popen[bytes], at: int, found: list[bytes], limits: Limits) -> None:
        pipe = (process.stdout, process.stderr)[at]
        assert pipe
        with pipe:
            while part := os.read(pipe.fileno(), 65536):
                found[at] += part
                if len(found[at]) > limits.output_bytes:
                    process.kill()
                    return

    def argv(self, text: int, limits: Limits) -> Sequence[str]:
        size = str(limits.scratch_mb << 20)
        links = [part for path in SYSTEM if os.path.islink(path) for part in ("--symlink", os.readlink(path), path)]  # noqa: PTH114,PTH115
        limit = {
            "nproc": limits.processes,
            "core": 0,
            "nofile": limits.open_files,
            "cpu": limits.cpu_seconds,
            "fsize": limits.file_mb << 20,
            "as": limits.memory_mb << 20,
        }
        walls = f"""
            bwrap --unshare-all --unshare-user --disable-userns --uid 65534 --gid 65534 --cap-drop ALL --die-with-parent
            --new-session --clearenv --setenv LANG C.UTF-8 --setenv HOME /work --ro-bind /usr /usr --proc /proc --dev /dev
            --size {size} --tmpfs /dev/shm --remount-ro /dev --size {size} --perms 0700 --tmpfs /work --symlink work /tmp
            --ro-bind-data {text} /main.py --chdir /work
        """
        limited = [f"--{name}={value}:{value}" for name, value in limit.items()]
        python = ["/usr/bin/python3", "-I", "-S", "/main.py"]
        return [*walls.split(), *links, "--remount-ro", "/", "--", "/usr/bin/prlimit", *limited, "--", *python]


def memory(content: bytes) -> int:
    """A file that can be read twice."""
    file = os.memfd_create("toy")
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


@contextlib.contextmanager
def booth(weak: bool = False) -> Generator[Booth]:
    """The one place that chooses the sandbox of these tests. `weak`: without the filter of system calls, and its first process in sight."""
    try:
        held = Booth(Weak(False) if weak else Bwrap(False), 1)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    try:
        yield held
    finally:
        held.close()


def examined(
    code: str, tests: str, entry_point: str = "f", setup: str = "", seconds: float = 10.0, weak: bool = False
) -> Mark:
    """One exam in a booth of its own."""
    with booth(weak) as held:
        exam = Exam(code=code, tests=tests, entry_point=entry_point, setup=setup, wall_seconds=seconds)
        return asyncio.run(mark(held, exam))


def given(code: str, cases: Sequence[Case], entry_point: str = "", seconds: float = 10.0) -> list[Output]:
    """What a program gives, in a booth of its own."""
    with booth() as held:
        return asyncio.run(outputs(held, code, cases, entry_point, seconds))
