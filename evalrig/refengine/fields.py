"""Reading a JSON object field by field: each value is checked for type and range before anything uses it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec


class BadRequest(Exception):
    """A value the server cannot serve; the message is for the client. Answered with status 400."""


class MalformedRequest(BadRequest):
    """The body is no JSON object of the expected shape. Answered with status 400, in the shape of a schema error."""


class UnknownField(BadRequest):
    """A sampling parameter that does not exist. Answered with status 400, in a shape of its own."""


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. MalformedRequest for anything else (NaN and Infinity are not JSON)."""
    try:
        parsed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _schema_error("json_invalid", "body", f"JSON decode error: {error}") from error
    if not isinstance(parsed, dict):
        raise _schema_error("dict_type", "body", "Input should be a valid dictionary")
    return cast("dict[str, Any]", parsed)


def _schema_error(kind: str, where: str, message: str) -> MalformedRequest:
    return MalformedRequest(f"1 validation error:\n  {{'type': {kind!r}, 'loc': {where!r}, 'msg': {message!r}}}")


def wrong_type(name: str, expected: str, value: object) -> MalformedRequest:
    """The error for a field that is not `expected`."""
    return _schema_error(f"{expected}_type", name, f"Input should be a valid {expected}, got {shown(value)}")


def shown(value: object) -> str:
    """`value` as text, cut to what fits an error message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Fields:
    """One JSON object. Every reader returns its default for an absent field and for null."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def raw(self, name: str) -> Any:
        """The unchecked value, None when absent."""
        return self._values.get(name)

    def names(self) -> set[str]:
        """The fields that are there and not null."""
        return {name for name, value in self._values.items() if value is not None}

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean."""
        return default if self.raw(name) is None else as_flag(name, self.raw(name))

    def whole(self, name: str, default: int) -> int:
        """An integer; a boolean or a fraction is none."""
        return default if self.raw(name) is None else as_whole(name, self.raw(name))

    def real(self, name: str, default: float) -> float:
        """A finite number; a boolean is none."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(name, "number", value)
        if not math.isfinite(value) or abs(value) > 1e300:
            raise BadRequest(f"{name} must be a finite number, got {shown(value)}.")
        return float(value)

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong_type(name, "string", value)
        return value

    def mapping(self, name: str) -> "Fields":
        """A nested object; an empty one when absent."""
        value = self.raw(name)
        if value is None:
            return Fields({})
        if not isinstance(value, dict):
            raise wrong_type(name, "dictionary", value)
        return Fields(cast("dict[str, Any]", value))

    def texts(self, name: str) -> tuple[str, ...]:
        """A string or a list of strings."""
        value = self.raw(name)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        items = as_list(name, value)
        for item in items:
            if not isinstance(item, str):
                raise wrong_type(name, "string", item)
        return tuple(items)

    def wholes(self, name: str) -> tuple[int, ...] | None:
        """A list of integers; None when absent."""
        value = self.raw(name)
        return None if value is None else as_wholes(name, value)


def as_flag(name: str, value: object) -> bool:
    """`value`, which must be a boolean."""
    if not isinstance(value, bool):
        raise wrong_type(name, "boolean", value)
    return value


def as_whole(name: str, value: object) -> int:
    """`value`, which must be an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "integer", value)
    return value


def as_list(name: str, value: object) -> Sequence[Any]:
    """`value`, which must be a list."""
    if not isinstance(value, list):
        raise wrong_type(name, "list", value)
    return cast("list[Any]", value)


def as_wholes(name: str, value: object) -> tuple[int, ...]:
    """`value`, which must be a list of integers."""
    items = as_list(name, value)
    for item in items:
        # One exact type test an item: prompts are long, and a boolean is an int to isinstance.
        if type(item) is not int:
            raise wrong_type(name, "integer", item)
    return tuple(items)
