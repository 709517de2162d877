"""From a kind to its class: `kind: piqa` on the shelf `suites` is the module `evalrig/suites/piqa.py`; a dotted kind, or the path
of a `.py` file, is the user's own."""

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from evalrig.errors import UsageError

T = TypeVar("T")


def kinds(shelf: str) -> list[str]:
    """The names on a shelf (`engines`, `suites`, `gates`, `runners`, `worlds`); imports none of them."""
    package = importlib.import_module(f"evalrig.{shelf}")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def find(shelf: str, kind: str, base: type[T], where: str) -> type[T]:
    """The one subclass of `base` defined in the module that `kind` names.

    Raises:
        UsageError: unknown kind (with the closest), a third-party package that is not installed, or a
            module without exactly one such class. `where` leads the line.
    """
    module = _import(shelf, kind, where)
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, base)
        and value is not base
        and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise UsageError(f"{where}: `{kind}` defines {len(found)} {base.__name__} classes; it must define exactly one")
    return found[0]


def make(kind: type[T], *arguments: Any) -> T:
    """An object of a kind that was found."""
    return kind(*arguments)


def _import(shelf: str, kind: str, where: str) -> ModuleType:
    if kind.endswith(".py"):
        return _load(Path(kind).expanduser(), where)
    name = kind if "." in kind.strip(".") else f"evalrig.{shelf}.{kind}"  # a relative name names nothing
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            known = kinds(shelf)
            close = get_close_matches(kind, known, 1)
            hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(known)}"
            raise UsageError(f"{where}: no {shelf.removesuffix('s')} `{kind}`; {hint}") from error
        raise UsageError(f"{where}: `{kind}` needs the package `{missing}`; install it") from error


def _load(path: Path, where: str) -> ModuleType:
    """A module from a file, under a name of its own: two files may be called alike."""
    if not path.is_file():
        raise UsageError(f"{where}: no file {str(path)!r}; give a path from where evalrig is started")
    name = f"evalrig_own_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{where}: {str(path)!r} is no Python module; give a `.py` file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
