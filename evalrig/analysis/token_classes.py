"""What each token of an answer is for: the class of a token, from its text and what stands before it.

Rules, in this order, character by character over the joined token texts:

1. end of turn: a marker that ends the turn;
2. tool call: from an opening marker to its closing one. Inside, *arguments* are the values: scalars of the JSON below a
   key `arguments` or `parameters`, or anywhere in it after a marker like `[ARGS]`, and the text between
   `<arg_value>` or `<parameter=...>` and its end. Everything else is *structure*: markers, punctuation, keys, the name;
3. digits: 0-9, outside tool calls, whatever surrounds them;
4. code: between triple backticks, the fences included;
5. reasoning: from an opening marker to its closing one, both included; a closing one without an opening one makes
   everything before it reasoning, since many templates open it themselves;
6. prose: the rest.

What is never closed runs to the end. A token is of the class most of its characters are of, blanks aside, and of the
class that comes first in it when two are equal.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class TokenClass(IntEnum):
    """Stored as int8 beside each token."""

    STRUCTURE = 0
    ARGUMENT = 1
    DIGITS = 2
    CODE = 3
    REASONING = 4
    PROSE = 5
    END = 6


NAMES: tuple[str, ...] = (
    "tool-call structure",
    "tool arguments",
    "digits",
    "code",
    "reasoning",
    "prose",
    "end of turn",
)
"""By value of `TokenClass`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """Strings by which a family of models marks the parts of an answer; the defaults know the common ones."""

    calls: tuple[tuple[str, str], ...] = (
        ("<tool_call>", "</tool_call>"),
        ("<function_call>", "</function_call>"),
        ("[TOOL_CALLS]", ""),
        ("<|python_tag|>", ""),
        ("<|tool_call_begin|>", "<|tool_call_end|>"),
        ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        ("<|channel|>commentary to=", "<|call|>"),
    )
    """Opening and closing; "" closes at the end of the turn."""
    arguments: tuple[str, ...] = (
        "[ARGS]",
        "<|tool_call_argument_begin|>",
        "<｜tool▁sep｜>",
        "<|message|>",
    )
    """After one of them, inside a call, all scalars of the JSON are arguments."""
    reasoning: tuple[tuple[str, str], ...] = (
        ("<think>", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<|channel|>analysis", "<|end|>"),
    )
    ends: tuple[str, ...] = (
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<｜end▁of▁sentence｜>",
        "<|return|>",
        "<|user|>",
        "<end_of_turn>",
        "</s>",
    )


COMMON = Markers()

_FENCE = "```"
_VALUE = re.compile(r"<(arg_value|parameter)(?:=[^>]*)?>(.*?)(?:</\1>|\Z)", re.DOTALL)
_JSON = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
_UNDER = ("arguments", "parameters")


def classify(texts: Sequence[str], markers: Markers = COMMON, reasoning_open: bool = False) -> NDArray[np.int8]:
    """The `TokenClass` of each token [n] of one answer, given their decoded texts in order.

    The texts must contain the special tokens' own text, or no call, no reasoning and no end can be seen. A token whose
    text is empty (part of a character) has the class of what follows it. `reasoning_open`: the prompt's template
    has opened the reasoning already.
    """
    text = "".join(texts)
    marks = _characters(text, markers, reasoning_open)
    blank = np.fromiter((c.isspace() for c in text), dtype=np.bool_, count=len(text))
    out = np.full(len(texts), TokenClass.PROSE, dtype=np.int8)
    begin = 0
    for i, piece in enumerate(texts):
        end = begin + len(piece)
        inside = marks[begin:end]
        seen = inside[~blank[begin:end]]
        if seen.size or inside.size:
            out[i] = _most(seen if seen.size else inside)
        elif len(marks):
            out[i] = marks[min(begin, len(marks) - 1)]
        begin = end
    return out


def _most(marks: NDArray[np.int8]) -> int:
    counts = np.bincount(marks, minlength=len(NAMES))
    best = counts.max()
    return next(int(mark) for mark in marks if counts[mark] == best)


def _characters(text: str, markers: Markers, reasoning_open: bool) -> NDArray[np.int8]:
    """Class of each character; later steps overrule earlier ones."""
    marks = np.full(len(text), TokenClass.PROSE, dtype=np.int8)
    for begin, end in _reasoning(text, markers, reasoning_open):
        marks[begin:end] = TokenClass.REASONING
    for begin, end in _spans(text, _FENCE, _FENCE):
        marks[begin:end] = TokenClass.CODE
    marks[np.fromiter((c in "0123456789" for c in text), dtype=np.bool_, count=len(text))] = TokenClass.DIGITS
    for opening, closing in markers.calls:
        for begin, end in _spans(text, opening, closing):
            marks[begin:end] = TokenClass.STRUCTURE
            for first, last in _arguments(text[begin:end], markers):
                marks[begin + first : begin + last] = TokenClass.ARGUMENT
    for marker in markers.ends:
        for found in re.finditer(re.escape(marker), text):
            marks[found.start() : found.end()] = TokenClass.END
    return marks


def _reasoning(text: str, markers: Markers, already_open: bool) -> Iterator[tuple[int, int]]:
    for opening, closing in markers.reasoning:
        first, close = text.find(opening), text.find(closing)
        if close >= 0 and not 0 <= first < close and closing.startswith(("</", "[/")):
            yield 0, close + len(closing)
        yield from _spans(text, opening, closing)
    if already_open:
        closes = [at + len(closing) for _, closing in markers.reasoning if (at := text.find(closing)) >= 0]
        yield 0, min(closes, default=len(text))


def _spans(text: str, opening: str, closing: str) -> Iterator[tuple[int, int]]:
    """From each opening to the end of its closing, or to the end of the text."""
    at = text.find(opening)
    while at >= 0:
        close = text.find(closing, at + len(opening)) if closing else -1
        end = close + len(closing) if close >= 0 else len(text)
        yield at, end
        at = text.find(opening, end)


def _arguments(call: str, markers: Markers) -> Iterator[tuple[int, int]]:
    """Spans of argument values inside one call."""
    values = [found.span(2) for found in _VALUE.finditer(call)]
    yield from values
    if values:
        return
    begins = [at + len(marker) for marker in markers.arguments if (at := call.find(marker)) >= 0]
    begin = min(begins, default=None)
    yield from _scalars(call, begin)


def _scalars(call: str, arguments_from: int | None) -> Iterator[tuple[int, int]]:
    """Spans of JSON scalars below an arguments key, or, from `arguments_from` on, of all; strings without quotes.

    A string right after `{` or `,` in an object, or before a colon, is a key. Words outside any bracket (a function's
    name, a code fence) are structure.
    """
    depth: list[tuple[str, bool]] = []  # bracket, and whether all below it are arguments
    pending: tuple[int, int] | None = None
    key, below = "", False
    for found in _JSON.finditer(call, arguments_from or 0):
        word = found[0]
        if word in "{[":
            inherited = depth[-1][1] if depth else arguments_from is not None
            depth.append((word, inherited or below))
            pending, below = None, False
        elif word == ":":
            key = call[slice(*pending)] if pending else ""
            pending, below = None, key in _UNDER
        else:
            if pending and depth and (below or depth[-1][1]):
                yield pending
            pending = None
            if word in "}]" and depth:
                depth.pop()
            below = below and word not in "},]"
            if word not in "}],":
                pending = _inner(found.span(), word)
    if pending and depth and (below or depth[-1][1]):
        yield pending


def _inner(span: tuple[int, int], word: str) -> tuple[int, int]:
    if not word.startswith('"'):
        return span
    closed = len(word) > 1 and word.endswith('"')
    return span[0] + 1, span[1] - (1 if closed else 0)
