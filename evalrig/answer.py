"""What a model's text answers, and whether that is right. Pure; the text is hostile until parsed.

An answer is found without a look at the target (except by `contains`), then compared. It is, in this order: the last
`\\boxed{}`; the last JSON object, where one is asked for; what follows the last "answer is"; the last fenced block; the line before an
explanation; the last line.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Literal, NoReturn

Match = Literal["exact", "verbatim", "number", "choice", "json", "contains"]

_MARKER = re.compile(r"\banswer\b[^\n.:=]{0,40}?(?:\bis\b[ \t]*:?|[:=])[ \t]*\**:?[ \t]*", re.IGNORECASE)
_BRACE = re.compile(r"\\boxed\s*\{|[{}]")
_EXPLANATION = re.compile(
    r"\n[ \t*_#>(]*(?:explanation|reason|reasoning|because|since|note|here is why)\b", re.IGNORECASE
)
_ASIDE = re.compile(
    r"(?<=\S)(?:[,;.]?\s+(?:because|since)\b.*|\.\s+(?:this|that|it|explanation|note)\b.*|\s+\([^()]*\)\.?)$",
    re.IGNORECASE | re.DOTALL,
)
_LATEX = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}|\\[()\[\]]|(?<!\w)\$(?=[^$]*\$)|\$$")
_NUMERIC = re.compile(
    r"(?:(?<![\w)])([-+−]))?[$€£]?(?<![\w^.])((?:[0-9]|\.[0-9])[0-9.,:/^\u00a0\u202f⁰¹²³⁴-⁹]*(?:[eE][-+]?[0-9]{1,4}(?![0-9]))?)"
)
_PLAIN = re.compile(r"(?:[0-9]+|[0-9]{1,3}(?:[,\u00a0\u202f][0-9]{3})+)?(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_LETTER = re.compile(r"\W*(?:(?:option|choice)\W+)?([a-z])(?:\W*$|\s*[).:,\]*])", re.IGNORECASE)
_LAYERS = 8
"""Marks around an answer, or asides behind it, that are taken off; more is no answer but a model that repeats itself."""
_QUOTES = (("```", "```"), ("**", "**"), ("`", "`"), ('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"))


def found(text: str, match: Match, cut: bool = False, thinking: bool = False) -> str | None:
    """The answer that a text gives, as written; None: none, or none that was complete.

    `cut`: a limit ended the text. Then only an answer counts that something closes: a brace, a fence, the end of the line that
    announces it, an explanation begun below it. `thinking`: the prompt opened a thinking block, so a cut text that never
    leaves it holds no answer.
    """
    _, left, rest = text.rpartition("</think>")
    if (cut and thinking and not left) or "<think>" in rest:
        return None
    if (boxed := _boxed(rest)) is not None:
        return boxed
    if match == "json" and (objects := list(_objects(rest))):
        return objects[-1]
    if markers := list(_MARKER.finditer(rest)):
        return _announced(rest[markers[-1].end() :], cut)
    if match == "contains":
        return None if cut else rest
    if blocks := list(_blocks(rest)):
        return blocks[-1]
    head, *explained = _EXPLANATION.split(rest.lstrip(), maxsplit=1)
    return None if cut and not explained else _last_line(head)


def right(answer: str, answers: Sequence[str], match: Match) -> bool:
    """Is a found answer one of the accepted ones? See docs/suites.md for what each kind of match forgives."""
    read = _READ[match]
    said = read(answer)
    if match == "contains":
        return any(re.search(rf"(?<!\w){re.escape(read(each))}(?!\w)", said) for each in answers)
    return said is not None and any(_equal(said, read(each)) for each in answers)


def unfit(answers: Sequence[str], match: Match) -> str:
    """Why a question's answers can never be met; empty: they can."""
    if not answers:
        return "no answer is given"
    dead = [each for each in answers if "\n" in each or _READ[match](each) in (None, "")]
    return f"{dead[0]!r} is no answer in one line for match `{match}`" if dead else ""


def _boxed(text: str) -> str | None:
    """What the last `\\boxed{...}` that is closed holds."""
    opened: list[int | None] = []
    last: tuple[int, int] | None = None
    for brace in _BRACE.finditer(text):
        if brace[0] != "}":
            opened.append(None if brace[0] == "{" else brace.end())
        elif opened and (start := opened.pop()) is not None and (last is None or start > last[0]):
            last = start, brace.start()
    return text[slice(*last)] if last else None


def _blocks(text: str) -> Iterator[str]:
    """Fenced blocks that are closed, line by line: a pattern would take the square of the time on a loop of fences."""
    block: list[str] | None = None
    for line in text.split("\n"):
        mark = line.strip()
        if block is None:
            block = [] if mark.startswith("```") and "`" not in mark[3:] else None
        elif mark == "```":
            yield "\n".join(block).strip()
            block = None
        else:
            block.append(line)


def _objects(text: str) -> Iterator[str]:
    """Outermost JSON objects in a text, as written."""
    place = text.find("{")
    while place >= 0:
        try:
            _, end = _DECODER.raw_decode(text, place)
        except ValueError:
            end = place + 1
        except RecursionError:
            return  # deeper than any answer is, and so would be what begins one brace further on
        else:
            yield text[place:end]
        place = text.find("{", end)


def _announced(tail: str, cut: bool) -> str | None:
    """The answer after "answer is": on that line, or in what stands right below."""
    line, ended, below = tail.partition("\n")
    if line.strip(" \t*"):
        return line.strip() if ended or not cut else None
    if below.lstrip().startswith("```") and (blocks := list(_blocks(below))):
        return blocks[0]
    line, ended, _ = below.lstrip().partition("\n")
    return line.strip() if ended or not cut else None


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2].strip()


def _bare(text: str) -> str:
    """Without marks around it: quotes, bold, backticks; only in pairs, for an id may end in one."""
    text = text.strip()
    for _ in range(_LAYERS):
        for first, last in _QUOTES:
            if len(text) > len(first + last) and text.startswith(first) and text.endswith(last):
                text = text[len(first) : -len(last)].strip()
                break
        else:
            break
    return text


def _unmarked(text: str) -> str:
    """Without LaTeX, bold, and an aside at the end."""
    text = _LATEX.sub(lambda each: each[1] or "", text.strip()).replace("**", "").strip()
    for _ in range(_LAYERS):
        if (shorter := _ASIDE.sub("", text)) == text:
            break
        text = shorter
    return text


def _exact(text: str) -> str:
    """Case, spaces, marks, a bullet and final punctuation do not count."""
    words = unicodedata.normalize("NFKC", re.sub(r"^\s*[-*•]\s+", "", _unmarked(text)))
    return re.sub(r"\s*,\s*", ",", " ".join(_bare(_bare(words).rstrip(".!?;:, ")).split())).casefold()


def _verbatim(text: str) -> str:
    """Marks around it do not count, nor a full stop after it."""
    return _bare(_bare(text).removesuffix("."))


def _words(text: str) -> str:
    """Case and spaces do not count."""
    return " ".join(unicodedata.normalize("NFKC", text.replace("**", "")).split()).casefold()


def _number(text: str) -> Decimal | None:
    """The last number of the last line. A fraction, a time, a power, a decimal comma: None, for none of its parts is the answer."""
    numbers = _NUMERIC.findall(_last_line(_unmarked(text)))
    if not numbers:
        return None
    sign, digits = numbers[-1]
    digits = digits.rstrip(".,:/^\u00a0\u202f")
    if not _PLAIN.fullmatch(digits):
        return None
    value = Decimal(re.sub(r"[,\u00a0\u202f]", "", digits))
    return -value if sign in ("-", "−") else value


def _choice(text: str) -> str | None:
    """The letter, where the answer begins with one that stands alone: the article in "A cat" is none."""
    letter = _LETTER.match(_unmarked(text))
    return letter[1].upper() if letter else None


def _json(text: str) -> Any:
    """The object; names and values as written, numbers as Decimal."""
    try:
        value = _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _equal(one: Any, other: Any) -> bool:
    """Of one kind all the way down: Python takes `true` for 1. No deeper than the shallower of the two."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        pair: tuple[dict[str, Any], dict[str, Any]] = one, other
        return pair[0].keys() == pair[1].keys() and all(_equal(pair[0][key], pair[1][key]) for key in pair[0])
    if isinstance(one, list):
        rows: tuple[list[Any], list[Any]] = one, other
        return len(rows[0]) == len(rows[1]) and all(map(_equal, *rows))
    return bool(one == other)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _decimal(number: str) -> Decimal:
    try:
        return Decimal(number)
    except ArithmeticError as error:
        raise ValueError("an exponent beyond all bounds") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_once, parse_float=_decimal, parse_int=Decimal, parse_constant=_no_constant
)
_READ: dict[Match, Any] = {
    "exact": _exact,
    "verbatim": _verbatim,
    "number": _number,
    "choice": _choice,
    "json": _json,
    "contains": _words,
}
"""Kind of match -> what of a text is compared."""
