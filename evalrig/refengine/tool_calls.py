"""Tool calls in Hermes' style, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, told from the text around
them as the answer comes in."""

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

from evalrig.refengine.jobs import held_back

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PARSERS = ("hermes",)

_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)
_ARGUMENTS = re.compile(r'\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


class PieceKind(Enum):
    """What a piece of an answer is."""

    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"
    """A call begins; the text is the function's name."""
    ARGUMENTS = "arguments"
    """More of the arguments' JSON of the call that began last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of an answer, in the order of the answer."""

    kind: PieceKind
    text: str


class _Brackets:
    """Follows the brackets of one JSON object through text that grows."""

    def __init__(self) -> None:
        self._at, self._depth = 0, 0
        self._string = self._escaped = False
        self.end: int | None = None
        """Where the object's text ends."""
        self.inner: list[int] = []
        """Where each value ends that is an object or a list and stands right inside it."""

    def follow(self, text: str) -> None:
        while self._at < len(text) and self.end is None:
            letter = text[self._at]
            self._at += 1
            if self._escaped:
                self._escaped = False
            elif letter == "\\" and self._string:
                self._escaped = True
            elif letter == '"':
                self._string = not self._string
            elif not self._string and letter in "{[":
                self._depth += 1
            elif not self._string and letter in "}]":
                self._close()

    def _close(self) -> None:
        self._depth -= 1
        if self._depth == 1:
            self.inner.append(self._at)
        elif self._depth == 0:
            self.end = self._at


class _Call:
    """The text of one call, from behind its opening tag on."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._brackets = _Brackets()
        self.text = ""
        self.name: str | None = None
        """Once it stands there as the first member, and is a function that exists."""
        self._name_end: int | None = None
        self._start: int | None = None
        """Where the arguments begin, when they follow the name."""

    @property
    def impossible(self) -> bool:
        """Something other than an object begins."""
        start = self.text.lstrip()
        return bool(start) and start[0] != "{"

    @property
    def end(self) -> int | None:
        """Where the object ends."""
        return self._brackets.end

    def push(self, text: str) -> None:
        """More text; what follows the object's end is kept as it is."""
        self.text += text
        self._brackets.follow(self.text)
        if self._name_end is None and (found := _NAME.match(self.text)):
            self._name_end = found.end()
            name = _value(found[1])
            self.name = name if isinstance(name, str) and name in self._names else None
        if (
            self._name_end is not None
            and self._start is None
            and (found := _ARGUMENTS.match(self.text, self._name_end))
        ):
            self._start = found.end()

    @property
    def certain(self) -> str:
        """The arguments so far, without the bracket that closes them: that one is sent when the whole call is sound."""
        if self._start is None:
            return ""
        end = next((at - 1 for at in self._brackets.inner if at > self._start), len(self.text))
        return self.text[self._start : end]

    def whole(self) -> tuple[str, str] | None:
        """Name and arguments' JSON of a finished object; None when it is no call of a function that exists."""
        found = _value(self.text[: self.end])
        if not isinstance(found, dict):
            return None
        name, arguments = found.get("name"), found.get("arguments", found.get("parameters", {}))
        if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
            return None
        if self.name is not None and self.name != name:
            return None  # named twice
        if self._start is None:
            return name, json.dumps(arguments)
        written = self.certain + "}"
        return (name, written) if _value(written) == arguments else None


def _value(text: str) -> Any:
    """The JSON value, None when it is none (also for `null`, which is no call either)."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


class HermesStream:
    """Takes an answer in pieces of any size; the pieces that come out add up to the same however it was cut.

    Text outside of calls is content, without the blanks that only set calls apart. What is no sound call of a function
    that exists is content too, tags and all. `early` is for streams: a name goes out as soon as it is read, so a call
    that turns out unsound later has gone out in part. Its arguments then lack their last bracket: they are complete
    in a stream exactly where the whole answer has the call.
    """

    def __init__(self, names: frozenset[str], *, early: bool) -> None:
        """`names`: the functions that may be called."""
        self._names, self._early = names, early
        self._text = ""
        self._call: _Call | None = None
        self._behind = False
        """Right behind a call: blanks and the closing tag are skipped."""
        self._gap = ""
        """Blanks after the content so far, which count only if more content follows."""
        self._spoke = False
        self._named, self._sent = False, 0
        self._pieces: list[Piece] = []
        self.begun = 0
        """Calls whose name went out."""
        self.sound = 0
        """Calls that are complete."""

    def push(self, text: str) -> list[Piece]:
        """What became certain."""
        self._text += text
        while self._step():
            pass
        return self._take()

    def finish(self) -> list[Piece]:
        """What was held back when the answer ended."""
        if self._call is not None:
            if not self._named:
                self._say(OPEN + self._call.text)
        elif not self._behind:
            self._say(self._text)
        if not self.begun:
            self._emit(PieceKind.CONTENT, self._gap)
        return self._take()

    def _step(self) -> bool:
        """Goes on through the text as far as one state reaches; False when it needs more text."""
        if self._call is not None:
            return self._read_call(self._call)
        if self._behind:
            return self._pass_close()
        at = self._text.find(OPEN)
        if at < 0:
            keep = held_back(self._text, (OPEN,))
            self._say(self._text[: len(self._text) - keep])
            self._text = self._text[len(self._text) - keep :]
            return False
        self._say(self._text[:at])
        self._text, self._call = self._text[at + len(OPEN) :], _Call(self._names)
        self._named, self._sent = False, 0
        return True

    def _read_call(self, call: _Call) -> bool:
        call.push(self._text)
        self._text = ""
        if call.impossible:
            self._say(OPEN)
            self._text, self._call = call.text, None
            return True
        if self._early and call.name is not None:
            self._send(call.name, call.certain)
        if call.end is None:
            return False
        found = call.whole()
        if found is not None:
            self._send(*found)
            self.sound += 1
        elif not self._named:
            self._say(OPEN + call.text[: call.end])
        self._behind = found is not None or self._named
        self._text, self._call = call.text[call.end :], None
        return True

    def _send(self, name: str, arguments: str) -> None:
        """Sends what is new of a call."""
        if not self._named:
            self._named = True
            self.begun += 1
            self._gap = self._gap if self._spoke else ""
            self._emit(PieceKind.CALL, name)
        self._emit(PieceKind.ARGUMENTS, arguments[self._sent :])
        self._sent = len(arguments)

    def _pass_close(self) -> bool:
        rest = self._text.lstrip()
        if CLOSE.startswith(rest) and rest != CLOSE:
            return False  # may still become the tag
        self._text = rest[len(CLOSE) :] if rest.startswith(CLOSE) else self._text
        self._behind = False
        return True

    def _say(self, text: str) -> None:
        if self.begun and not self._spoke:
            text = text.lstrip()  # blanks between calls
        said = text.rstrip()
        if said:
            self._emit(PieceKind.CONTENT, self._gap + said)
            self._gap, self._spoke = "", True
        self._gap += text[len(said) :]

    def _emit(self, kind: PieceKind, text: str) -> None:
        if text:
            self._pieces.append(Piece(kind=kind, text=text))

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces
