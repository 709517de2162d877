"""Plain values as text, and back: JSON, with one-key objects for what JSON lacks.

The side that reads gets exact built-in types whatever the other side sends, so nothing that it compares can lie.
"""

from __future__ import annotations

from _collections import deque  # pyright: ignore[reportMissingImports]  `collections` imports a dozen others
from _collections_abc import ItemsView, KeysView, ValuesView
from _json import encode_basestring_ascii, make_encoder, make_scanner
from itertools import islice

TYPE_CHECKING = False  # `typing` takes longer to import than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

LONGEST_RUN = 100_000
"""Items taken from an iterator."""
_SMALL = 1 << 62


class NoPlainValue(TypeError):
    """Holds what it is: `a Foo object`."""


class TooDeep(NoPlainValue):
    """Nested deeper than can be written."""


class Nonsense(ValueError):
    """Not what `encode` writes."""


class RunOut(RuntimeError):
    """An iterator was asked for more items than were taken from it."""


def encode(value: Any) -> bytes:
    """As text.

    Raises:
        NoPlainValue: something in it has no plain form.
        TooDeep: see there.
    """
    try:
        return "".join(_WRITE(_plain(value), 0)).encode()
    except RecursionError:
        raise TooDeep("a structure nested too deeply") from None


def decode(text: bytes) -> Any:
    """The value.

    Raises:
        Nonsense: see there.
    """
    try:
        value, end = _SCAN(text.decode(), 0)
    except (StopIteration, ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError) as error:
        raise Nonsense(type(error).__name__) from None
    if end != len(text):
        raise Nonsense("more than a value")
    return value


class _Reading:
    """What the scanner of `json` asks of a decoder."""

    strict = True
    object_hook = staticmethod(lambda tagged: _read(tagged))
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(float)


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() or _whole(value) else {"u": [ord(letter) for letter in value]}
    if kind is int:
        return value if -_SMALL < value < _SMALL else {"i": hex(value)}
    if kind is float or kind is bool or value is None:
        return value
    if kind is list:
        return [_plain(item) for item in value]
    tell = _TELL.get(kind)
    return tell(value) if tell else _odd(value)


def _whole(text: str) -> bool:
    """No half of a surrogate pair: two of them side by side would be read as one letter."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _items(tag: str) -> Callable[[Iterable[Any]], Any]:
    return lambda value: {tag: [_plain(item) for item in value]}


def _pairs(value: dict[Any, Any]) -> Any:
    return {"d": [[_plain(key), _plain(item)] for key, item in value.items()]}


def _odd(value: Any) -> Any:
    """What is not of a built-in type itself: its built-in base, or the items that it gives."""
    for base, bare in _BARE:
        if isinstance(value, base):
            return _plain(bare(value))
    for view, tag in ((KeysView, "k"), (ItemsView, "e"), (ValuesView, "v")):
        if isinstance(value, view):
            return {tag: [_plain(item) for item in value]}
    kind = type(value)
    family = kind.__module__.partition(".")[0]
    if (family, kind.__name__) in (("decimal", "Decimal"), ("fractions", "Fraction")):
        return {kind.__name__: str(value)}
    if family == "numpy" and hasattr(value, "tolist"):
        return _plain(value.tolist())
    if hasattr(kind, "__next__"):
        items = [_plain(item) for item in islice(value, LONGEST_RUN + 1)]
        return {"n": items} if len(items) <= LONGEST_RUN else {"m": items}
    raise NoPlainValue(f"{'an' if kind.__name__[:1].lower() in 'aeiou' else 'a'} {kind.__name__} object")


def _cut(items: list[Any]) -> Iterator[Any]:
    yield from items
    raise RunOut(f"more than {LONGEST_RUN:,} items asked of an iterator")


def _decimal(text: str) -> Any:
    from decimal import Decimal

    return Decimal(text)


def _fraction(text: str) -> Any:
    from fractions import Fraction

    return Fraction(text)


def _unwritable(value: Any) -> Any:
    raise NoPlainValue(f"a {type(value).__name__} object")


def _read(tagged: dict[str, Any]) -> Any:
    [(tag, held)] = tagged.items()
    return _READ[tag](held)


_TELL: dict[type, Callable[[Any], Any]] = {
    tuple: _items("t"),
    set: _items("s"),
    frozenset: _items("f"),
    deque: _items("q"),
    dict: _pairs,
    bytes: lambda value: {"b": value.hex()},
    bytearray: lambda value: {"a": value.hex()},
    complex: lambda value: {"c": [value.real, value.imag]},
    range: lambda value: {"r": [_plain(value.start), _plain(value.stop), _plain(value.step)]},
}
# unbound methods: a subclass may print itself as something else (an Enum of strings does)
_BARE: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (complex, lambda value: complex(value.real, value.imag)),
    (bytes, bytes),
    (bytearray, bytearray),
    (list, list),
    (tuple, tuple),
    (set, set),
    (frozenset, frozenset),
    (dict, lambda value: dict(value.items())),
    (deque, deque),
)
_READ: dict[str, Callable[[Any], Any]] = {
    "u": lambda held: "".join(map(chr, held)),
    "i": lambda held: int(held, 16),
    "t": tuple,
    "s": set,
    "f": frozenset,
    "q": deque,
    "d": dict,
    "b": bytes.fromhex,
    "a": bytearray.fromhex,
    "c": lambda held: complex(*held),
    "r": lambda held: range(*held),
    "k": lambda held: dict.fromkeys(held).keys(),
    "v": lambda held: dict(enumerate(held)).values(),
    "e": lambda held: dict(held).items(),
    "n": iter,
    "m": _cut,
    "Decimal": _decimal,
    "Fraction": _fraction,
}
_WRITE = make_encoder(None, _unwritable, encode_basestring_ascii, None, ":", ",", False, False, True)
_SCAN = make_scanner(_Reading)  # pyright: ignore[reportArgumentType]  any object with these attributes
