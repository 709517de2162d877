"""Run beside an engine: when the harness is gone, however it went, end the engine's process group and whatever it left elsewhere.

A parent-death signal reaches one process. vLLM's engine core and a container outlive it (wire/INDEX.md).
Standard library only, so that it starts in no time: `python -I -S guard.py GROUP STOP_COMMAND_AS_JSON` (isolated:
beside it lies a `types.py`), the harness holding the other end of its standard input.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

GRACE = 6.0


def main(argv: Sequence[str]) -> None:
    """Wait for the end of the input, then clean up."""
    group, command = int(argv[1]), json.loads(argv[2])
    sys.stdin.buffer.read()
    _signal(group, signal.SIGTERM)
    if command:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            quiet = subprocess.DEVNULL
            subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, timeout=60, check=False)
    end = time.monotonic() + GRACE
    while time.monotonic() < end and _signal(group, 0):
        time.sleep(0.05)
    _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """False: no process of the group is left."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv)
