"""Which Python the model's programs run under: one that lies where a sandbox may look."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evalrig.sandbox import SandboxUnavailable

SYSTEM: Final = "/usr/bin/python3"
OPEN: Final = ("/usr", "/opt")
"""Folders that hold programs and nobody's files."""
REMEDY: Final = "install the Debian package python3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python by its real path."""

    path: str
    prefix: str = ""
    """Folder that must be shown beside `/usr`; empty: none."""


def anyones(system: str = SYSTEM) -> str:
    """A Python that any user may start, as far as there is one: ours may lie in a closed home."""
    return system if Path(system).exists() else sys.executable


def interpreter(user: int | None, system: str = SYSTEM, running: str = sys.executable) -> Interpreter:
    """The system's Python; where there is none, the one that runs evalrig, if it lies in the open.

    `user`: the uid that will run it.

    Raises:
        SandboxUnavailable: neither can be shown to a program.
    """
    named = system if Path(system).exists() else running
    real = Path(named).resolve()
    if not any(real.is_relative_to(folder) for folder in OPEN):
        raise SandboxUnavailable(f"sandbox: {named} is {real}, which lies under neither {' nor '.join(OPEN)}; {REMEDY}")
    prefix = "" if real.is_relative_to("/usr") else str(real.parent.parent)
    if closed := [part for part in real.parents if not _open_to(part, user)]:
        raise SandboxUnavailable(f"sandbox: {real}: {closed[-1]} is closed to uid {user}; {REMEDY}")
    return Interpreter(path=str(real), prefix=prefix)


def _open_to(folder: Path, user: int | None) -> bool:
    return os.access(folder, os.X_OK) if user is None else bool(folder.stat().st_mode & 0o001)
