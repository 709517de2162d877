"""A child process: watched while it starts, stopped within ten seconds, never left behind."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from evalrig.errors import EngineError
from evalrig.process import STOP_SECONDS, Process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process groups and parent-death signals as on Linux")


def argv(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def gone(pid: int, seconds: float = 10.0) -> bool:
    """The process is no more, or only a zombie that its own parent has not yet looked at."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def number_in(path: Path, seconds: float = 10.0) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{path} was not written")


def carry(test: Callable[[], Awaitable[None]]) -> float:
    """Run, and say how long it took."""
    began = time.monotonic()
    asyncio.run(asyncio.wait_for(test(), 30))  # type: ignore[arg-type]
    return time.monotonic() - began


def test_not_ready_until_it_says_so(tmp_path: Path) -> None:
    said = tmp_path / "said"
    process = Process("fast", tmp_path / "logs" / "engine.log")

    async def ready() -> bool:
        return said.is_file()

    async def test() -> None:
        await process.start(argv(f"import time; time.sleep(.3); open({str(said)!r}, 'w'); time.sleep(60)"))
        assert process.alive()
        await process.wait_ready(ready, 20)
        assert said.is_file()
        await process.stop()
        assert not process.alive()
        assert gone(process.pid)

    carry(test)


def test_an_early_end_is_told_with_the_last_line_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    process = Process("slow", log)

    async def never() -> bool:
        return False

    async def test() -> None:
        await process.start(argv("print('loading'); print('no such model: /x'); print(' '); raise SystemExit(3)"))
        line = re.escape(f"slow: ended with code 3 while starting: no such model: /x; see {log}")
        with pytest.raises(EngineError, match=f"^{line}$"):
            await process.wait_ready(never, 20)
        await process.stop()

    assert carry(test) < 15


def test_a_deadline_is_kept(tmp_path: Path) -> None:
    process = Process("slow", tmp_path / "engine.log")

    async def never() -> bool:
        return False

    async def test() -> None:
        await process.start(argv("import time; time.sleep(60)"))
        with pytest.raises(EngineError, match=r"^slow: not ready after 0 s: nothing in the log; see "):
            await process.wait_ready(never, 0.3)
        await process.stop()
        assert gone(process.pid)

    assert carry(test) < 15


def test_a_program_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    process = Process("absent", tmp_path / "engine.log")
    line = f"absent: cannot start `/no/such/program`: No such file or directory; see {tmp_path / 'engine.log'}"

    async def test() -> None:
        with pytest.raises(EngineError) as caught:
            await process.start(["/no/such/program"])
        assert str(caught.value) == line
        await process.stop()

    carry(test)


def test_one_that_ignores_sigterm_is_killed_within_ten_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert STOP_SECONDS < 9
    monkeypatch.setattr("evalrig.process.STOP_SECONDS", 0.5)
    said = tmp_path / "said"
    code = (
        f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(said)!r}, 'w').write('1'); time.sleep(60)"
    )
    process = Process("deaf", tmp_path / "engine.log")

    async def test() -> None:
        await process.start(argv(code))
        await asyncio.to_thread(number_in, said)
        began = time.monotonic()
        await process.stop()
        assert 0.5 <= time.monotonic() - began < 9
        assert gone(process.pid)

    carry(test)


@pytest.mark.parametrize("leader_ends", [False, True])
def test_grandchildren_end_too(tmp_path: Path, leader_ends: bool) -> None:
    said = tmp_path / "said"
    code = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)']); "
        f"open({str(said)!r}, 'w').write(str(child.pid)); {'sys.exit(1)' if leader_ends else 'time.sleep(60)'}"
    )
    process = Process("parent", tmp_path / "engine.log")

    async def test() -> None:
        await process.start(argv(code))
        grandchild = await asyncio.to_thread(number_in, said)
        while leader_ends and process.alive():
            await asyncio.sleep(0.02)
        assert not gone(grandchild, 0)
        await process.stop()
        assert gone(grandchild)

    assert carry(test) < 20


def test_a_child_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    said = tmp_path / "said"
    harness = (
        "import asyncio, pathlib, sys; from evalrig.process import Process\n"
        "async def main():\n"
        "    p = Process('x', pathlib.Path(sys.argv[1]) / 'engine.log')\n"
        "    await p.start([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        "    (pathlib.Path(sys.argv[1]) / 'said').write_text(str(p.pid))\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    parent = subprocess.Popen([sys.executable, "-c", harness, str(tmp_path)])
    try:
        child = number_in(said, 30)
        assert not gone(child, 0)
        os.kill(parent.pid, signal.SIGKILL)
        assert gone(child)
    finally:
        parent.kill()
        parent.wait(10)


def test_stopping_what_never_started_is_harmless(tmp_path: Path) -> None:
    process = Process("never", tmp_path / "engine.log")
    asyncio.run(process.stop())
    assert (process.pid, process.alive(), process.last_line()) == (0, False, "no log")


def test_a_child_whose_parent_died_before_it_could_ask_for_the_signal_ends_itself() -> None:
    """Between fork and prctl the parent may be killed: then no signal ever comes."""
    code = "import os; from evalrig.process import _die_with_parent as ask; ask(os.getppid() + {0}); os._exit(7)"
    ended = [subprocess.run([sys.executable, "-c", code.format(n)], timeout=60).returncode for n in (0, 1)]
    assert ended == [7, 1]
