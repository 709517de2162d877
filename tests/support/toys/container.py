"""What `docker run` and `docker rm -f` are to an engine: the client's end leaves the container, which only its name reaches.

container.py STATE run NAME PROGRAM ...    start the program in a session of its own, beyond the caller's group, and wait
container.py STATE rm NAME                 end it, and add the name to STATE/removed
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> None:
    state, verb, name = Path(argv[0]), argv[1], argv[2]
    if verb == "run":
        inside = subprocess.Popen(argv[3:], start_new_session=True)
        (state / f"{name}.pid").write_text(str(inside.pid))
        sys.exit(inside.wait())
    with contextlib.suppress(OSError):
        os.killpg(int((state / f"{name}.pid").read_text()), signal.SIGKILL)
    with (state / "removed").open("a") as file:
        file.write(f"{name}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
