"""Files of a data set on a hub, at a pinned revision, through the package `datasets`, which is imported only here and only when asked."""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalrig.errors import UsageError, one_line

_NAME = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})")


def unfit(name: str) -> str:
    """Why a name is not `owner/name@revision`; empty: it is. Branches and tags move, so only a commit is a revision."""
    if _NAME.fullmatch(name):
        return ""
    return f"{name!r} is not owner/name@REVISION; give the 40 hex digits of a commit as the revision"


def files(name: str, paths: Sequence[str], where: str) -> list[Path]:
    """Where the files lie on this machine, downloaded if they were not there. No code of the data set is run.

    Raises:
        UsageError: `datasets` is not installed, or the hub did not give a file.
    """
    try:
        download: Any = importlib.import_module("datasets.download")
    except ModuleNotFoundError as error:
        raise UsageError(f"{where}: needs the package `datasets`; install it, or give the files with `path`") from error
    wanted = [f"hf://datasets/{name}/{path}" for path in paths]
    try:
        return [Path(place) for place in download.DownloadManager().download(wanted)]
    except Exception as error:  # of whatever HTTP client that release of `datasets` uses
        said = one_line(f"{type(error).__name__}: {error}")[:200]
        raise UsageError(f"{where}: {name} could not be downloaded ({said}); give the files with `path`") from error
