"""Where the shipped content (run files, suites, launch recipes) lies: inside the wheel, or beside the package in a checkout."""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def content_dir(name: str) -> Path:
    """The folder `conf`, `suites` or `runners` as shipped.

    The wheel's copy is looked for first: beside an installed package lies site-packages, where any
    other wheel may have dropped a folder of that name. An editable install has no copy there.
    """
    shipped = _PACKAGE / "_content" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def cache_dir() -> Path:
    """The user's cache for fetched models and data: `$XDG_CACHE_HOME/evalrig`, by default `~/.cache/evalrig`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "evalrig"
