"""A test script: where it failed, in words that show what was asked and what came back."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from typing import Any

NAME = "<tests>"
_WIDEST = 300


def failing(error: BaseException, tests: str, call: tuple[str, tuple[Any, ...], Any] | None) -> str:
    """One line: the statement that failed and what the last call returned. `call`: name, arguments, value."""
    line = 0
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    statement, calls = _statement(tests, line, {"candidate", call[0]} if call else set())
    said = "" if isinstance(error, AssertionError) and statement.startswith("assert ") else _words(error)
    if not call:
        returned = ""
    elif calls == 1 and not said:
        returned = f"returned {short(call[2])}"
    else:
        arguments = ", ".join(short(value) for value in call[1])
        returned = f"{call[0]}({arguments}) returned {short(call[2])}"
    return ": ".join(part for part in (_cut(statement), said, returned) if part)


def short(value: Any) -> str:
    """Its repr, or what there is to say of it."""
    try:
        return _cut(repr(value))
    except (ValueError, RecursionError, MemoryError):  # a huge int has no decimal form
        return f"a {type(value).__name__} too large to show"


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _words(error: BaseException) -> str:
    try:
        return _cut(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    except (ValueError, RecursionError, MemoryError):
        return type(error).__name__


def _statement(tests: str, line: int, names: set[str]) -> tuple[str, int]:
    """The source of the innermost statement at a line, and how many calls of these names it makes."""
    import ast  # only a failure needs it

    found: ast.stmt | None = None
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            found = node if found is None or node.lineno >= found.lineno else found
    if found is None:
        return "", 0
    calls = [node for node in ast.walk(found) if isinstance(node, ast.Call)]
    asked = sum(isinstance(node.func, ast.Name) and node.func.id in names for node in calls)
    return ast.get_source_segment(tests, found) or "", asked
