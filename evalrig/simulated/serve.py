"""The loop of such a process: `python -I -S -B serve.py SIDE SECONDS FOLDER...`; a JSON line asks, a JSON line answers.

SIDE is the program beside this one that knows the third party's code, which lies in the folders. They are searched after the
standard library, so that nothing in them takes its place. Whatever that code prints goes to standard error.
"""

import gc
import importlib.util
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

MEMORY = 4 << 30
"""Address space in bytes: a call that wants more fails by itself, and takes nobody with it."""


def main(side: str, seconds: str, *folders: str) -> None:
    """Answer until the input ends, which it also does when who asks has died."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path += folders
    program = _load(Path(side))
    gc.freeze()  # what was imported is not looked through again
    for line in sys.stdin:
        signal.alarm(int(seconds) + 5)  # also where nobody is left to end it
        answers.write(_answer(program, line) + "\n")
        answers.flush()
        signal.alarm(0)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"side_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _answer(program: Any, line: str) -> str:
    """What the side says to a question; a crash of it as `crash`, which is never a score."""
    try:
        return json.dumps({"given": program.answer(json.loads(line))})
    except Exception:  # noqa: BLE001 - reported to who asked, in its own words, and raised there
        return json.dumps({"crash": traceback.format_exc()[-2000:]})


if __name__ == "__main__":
    main(*sys.argv[1:])
