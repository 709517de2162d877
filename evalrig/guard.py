"""Run beside what the harness starts: when the harness is gone, however it went, end the process groups that are left of it.

A parent-death signal reaches one process. vLLM's engine core and a container outlive it (wire/INDEX.md), and a bubblewrap that is
killed while it sets up leaves its child waiting for ever. Standard library only, so that it starts in no time:
`python -I -S guard.py GRACE STOP_COMMAND_AS_JSON` (isolated: beside it lies a `types.py`). The harness holds the other end of its
standard input: a line `GROUP` puts a process group under guard, `-GROUP` takes it out. GRACE: seconds after SIGTERM; 0: none is sent.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence


def main(argv: Sequence[str]) -> None:
    """Keep the list until the input ends, then clean up."""
    grace, command = float(argv[1]), json.loads(argv[2])
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        group = int(line)
        groups.discard(-group) if group < 0 else groups.add(group)
    if grace:
        for group in groups:
            _signal(group, signal.SIGTERM)
    if command:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            quiet = subprocess.DEVNULL
            subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, timeout=60, check=False)
    end = time.monotonic() + grace
    while time.monotonic() < end and any([_signal(group, 0) for group in groups]):
        time.sleep(0.05)
    for group in groups:
        _signal(group, signal.SIGKILL)


def command_line(grace: float, stop_command: Sequence[str] = (), python: str = sys.executable) -> list[str]:
    """How the harness starts one."""
    return [python, "-I", "-S", __file__, str(grace), json.dumps(list(stop_command))]


def _signal(group: int, number: int) -> bool:
    """False: no process of the group is left."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv)
