"""When two outputs of a program count as the same: what it printed, or what its function returned. Pure; `given` is hostile."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, cast

Rule = Literal["tokens", "exact"]
"""`exact`: the same text but for spaces at the ends of lines; `tokens`: moreover, the same tokens in each line, numbers by their value."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_WHOLE = re.compile(r"[+-]?[0-9]+")


def same_text(given: str, wanted: str, rule: Rule, tolerance: float) -> bool:
    """Whether a program printed what was wanted.

    Blank lines before and after, and spaces at the end of a line, never count. Lines are never joined or split. A number
    written with a point or an exponent is met within `tolerance`, absolute or relative; a whole number only by its value.
    """
    ours, theirs = _lines(wanted), _lines(given)
    if ours == theirs:
        return True
    if rule == "exact" or len(ours) != len(theirs):
        return False
    return all(_same_line(one.split(), other.split(), tolerance) for one, other in zip(theirs, ours, strict=True))


def same_value(given: object, wanted: object, tolerance: float) -> bool:
    """Whether a function returned what was wanted: values as JSON has them, a tuple for a list.

    `True` is not 1; 2.0 is 2; a wanted number with a point is met within `tolerance`, absolute or relative. NaN and infinity meet nothing.
    """
    if isinstance(wanted, bool) or isinstance(given, bool):
        return given is wanted
    if isinstance(wanted, float):
        return isinstance(given, int | float) and _near(given, wanted, tolerance)
    if isinstance(wanted, list | tuple):
        return isinstance(given, list | tuple) and _same_items(
            cast("list[object]", given), cast("list[object]", wanted), tolerance
        )
    if isinstance(wanted, Mapping):
        return isinstance(given, Mapping) and _same_fields(
            cast("Mapping[Any, object]", given), cast("Mapping[Any, object]", wanted), tolerance
        )
    try:
        return bool(given == wanted)
    except ArithmeticError:  # a signalling NaN cannot even be compared
        return False


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    first = next((at for at, line in enumerate(lines) if line), len(lines))
    last = next((at for at in range(len(lines), first, -1) if lines[at - 1]), first)
    return lines[first:last]


def _same_line(given: list[str], wanted: list[str], tolerance: float) -> bool:
    return len(given) == len(wanted) and all(
        one == other or _same_number(one, other, tolerance) for one, other in zip(given, wanted, strict=True)
    )


def _same_number(given: str, wanted: str, tolerance: float) -> bool:
    if not (_NUMBER.fullmatch(given) and _NUMBER.fullmatch(wanted)):
        return False
    if _WHOLE.fullmatch(wanted):  # past 2 ** 53 two whole numbers are one float
        return Decimal(given) == Decimal(wanted)
    return _near(float(given), float(wanted), tolerance)


def _near(given: float, wanted: float, tolerance: float) -> bool:
    try:
        return math.isfinite(given) and math.isclose(given, wanted, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # a whole number that no float holds
        return False


def _same_items(given: list[object], wanted: list[object], tolerance: float) -> bool:
    return len(given) == len(wanted) and all(
        same_value(one, other, tolerance) for one, other in zip(given, wanted, strict=True)
    )


def _same_fields(given: Mapping[Any, object], wanted: Mapping[Any, object], tolerance: float) -> bool:
    return given.keys() == wanted.keys() and all(same_value(given[key], wanted[key], tolerance) for key in wanted)
