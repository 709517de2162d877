"""A model's program as a module: compiled, loaded, and its entry point found."""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

PATH = "/program.py"
Module = type(sys)


def compiled(code: str) -> CodeType | str:
    """Or why it is no Python."""
    try:
        return compile(code, PATH, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    except (ValueError, OverflowError) as error:  # zero bytes, lone surrogates
        return f"{type(error).__name__}: {error}"


def load(code: CodeType, name: str) -> ModuleType:
    """Run it under a name. `__main__`: as a program that was started."""
    module = Module(name)
    module.__dict__["__file__"] = PATH
    sys.modules[name] = module
    sys.argv = [PATH]
    for ending in ("exit", "quit"):  # the interpreter was started without `site`, which gives them
        builtins.__dict__.setdefault(ending, sys.exit)
    exec(code, module.__dict__)
    return module


def entry(module: ModuleType, dotted: str) -> Any:
    """`function`, or `Class.method` of a new object.

    Raises:
        NameError, AttributeError: the program has none.
    """
    name, _, method = dotted.partition(".")
    try:
        found = module.__dict__[name]
    except KeyError:
        raise NameError(f"name {name!r} is not defined") from None
    return getattr(found(), method) if method else found


def described(error: BaseException) -> str:
    """One line; the error's own words may fail too."""
    try:
        words = str(error)[:500]
    except Exception:  # noqa: BLE001  the program's class, the program's code
        words = "?"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
