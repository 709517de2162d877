"""How numbers and foreign text are put into words: one place for rounding, signs, and for making hostile text harmless."""

import math
import unicodedata
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from decimal import Decimal
from typing import Any, TypeVar

from evalrig.types import Metric

T = TypeVar("T")
NOTHING = "–"
NOISE = "A/A (reference again)"
"""How the reference's second run is called where it stands beside others."""
SMALLEST_P = 1e-12
INVISIBLE_BUT_NEEDED = "\u200c\u200d"
"""Joiners: several scripts cannot be written without them."""


def drawn(value: float) -> float:
    """What a picture can show of a number: the same on every machine."""
    return float(f"{value:.6g}")


def visible(text: str) -> str:
    """Text that neither moves nor hides its neighbours: controls, direction overrides and lone surrogates are shown."""
    return "".join(letter if _harmless(letter) else _shown(letter) for letter in text)


def _harmless(letter: str) -> bool:
    if letter in "\n\t" or letter in INVISIBLE_BUT_NEEDED:
        return True
    code = ord(letter)
    noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return not noncharacter and unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _shown(letter: str) -> str:
    code = ord(letter)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def cleaned(value: T) -> T:
    """A tree of dataclasses and tuples in which every text is `visible`."""
    return _cleaned(value)


def _cleaned(tree: Any) -> Any:
    if isinstance(tree, str):
        tree = visible(tree) if type(tree) is str else tree  # an enum's own words are ours
    elif isinstance(tree, tuple):
        tree = tuple(_cleaned(part) for part in tree)
    elif is_dataclass(tree) and not isinstance(tree, type):
        tree = replace(tree, **{field.name: _cleaned(getattr(tree, field.name)) for field in fields(tree)})
    return tree


def cut(text: str, length: int) -> str:
    """The beginning of a long text, and how much is missing."""
    if len(text) <= length:
        return text
    return f"{text[:length]} … (cut here: {len(text) - length:,} more characters)"


def minus(text: str) -> str:
    """Typographic minus signs in a number."""
    return text.replace("-", "−")


def short(value: float) -> str:
    """A number that somebody wrote down, such as a margin: as written, without an exponent."""
    return minus(f"{Decimal(f'{value:.6g}').normalize():f}")


def significant(value: float | None, digits: int = 3) -> str:
    """A measured number. Without an exponent, so that columns can be compared by eye."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    rounded = Decimal(f"{value:#.{digits}g}")
    return minus(f"{rounded:f}") if abs(value) >= 1e-7 else minus(f"{value:.1e}")


def signed(value: float | None, digits: int = 3) -> str:
    """With a plus sign where it is above zero."""
    text = significant(value, digits)
    return f"+{text}" if value is not None and value > 0 else text


def points(value: float) -> str:
    """Percentage points, one decimal, signed; the rounding never turns a loss into −0.0."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else minus(text)


def amount(value: float | None, metric: Metric) -> str:
    """A difference of a metric as people read it, without its unit."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    scaled = metric.scale * value
    if metric.kind == "distance":
        return significant(scaled, 2)
    return points(scaled) if metric.kind == "binary" else signed(scaled, 2)


def interval(low: float | None, high: float | None, metric: Metric) -> str:
    """The limits, in words where one does not exist."""
    finite = [limit is not None and math.isfinite(limit) for limit in (low, high)]
    if not any(finite):
        return "no valid interval"
    if not all(finite):
        return f"at most {amount(high, metric)}" if finite[1] else f"at least {amount(low, metric)}"
    return f"{amount(low, metric)} to {amount(high, metric)}"


def span(low: float, high: float, digits: int = 2) -> str:
    """Limits of a level, such as a mean distance."""
    if not (math.isfinite(low) or math.isfinite(high)):
        return "no valid interval"
    return f"{significant(low, digits)} to {significant(high, digits)}"


def margin_words(margin: float, metric: Metric) -> str:
    """`5 points`, `0.05 nats per token`, `at least × 1.2`."""
    if metric.kind == "ratio" and margin <= 0:
        return f"at least × {short(1 - margin)}"
    return f"{short(metric.scale * margin)} {units(metric)}"


def units(metric: Metric) -> str:
    """The unit in running text."""
    return metric.units.replace("/token", " per token")


def percent(share: float | None, digits: int = 1) -> str:
    """A share of 1."""
    return NOTHING if share is None or not math.isfinite(share) else minus(f"{100 * share:.{digits}f} %")


def p_value(p: float | None) -> str:
    """Never 0: no finite sample proves that."""
    if p is None:
        return NOTHING
    if p < SMALLEST_P:
        return f"< {SMALLEST_P:.0e}"
    return "> 0.99" if p > 0.99 else f"{p:.2g}"


def level(alpha: float) -> str:
    """The two-sided level of an interval whose limits hold at 1 - alpha each."""
    return f"{100 * (1 - 2 * alpha):g} %"


def count(number: int, one: str, many: str = "") -> str:
    """`1 sample`, `1,200 samples`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(parts: Iterable[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    *head, tail = list(parts) or [""]
    return f"{', '.join(head)} {last} {tail}" if head else tail


def sized(number: float) -> str:
    """Bytes as people read them."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.4g} B"
