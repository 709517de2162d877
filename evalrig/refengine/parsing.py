"""A chat answer taken apart: thinking, content and tool calls, whole or as it comes in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evalrig.refengine.reasoning import ThinkStream
from evalrig.refengine.tokenizer import TextStream
from evalrig.refengine.tool_calls import HermesStream, Piece, PieceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsing:
    """What is looked for in the answers to one request; by default nothing."""

    tools: frozenset[str] = frozenset()
    """Functions that may be called; none: calls are not looked for."""
    reasoning: bool = False
    """Thinking is kept apart."""
    thinking: bool = False
    """The prompt has opened the thinking."""
    opening: str = ""
    """The end of the prompt that belongs to the answer already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call."""

    name: str
    arguments: str
    """A JSON object, as the model wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A finished answer."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]


class AnswerStream:
    """Takes the text of one answer in pieces of any size; the opening of the answer comes out with the first."""

    def __init__(self, parsing: Parsing, *, early: bool = True) -> None:
        """`early`: see HermesStream."""
        self._opening = parsing.opening
        self._think = ThinkStream(inside=parsing.thinking) if parsing.reasoning else None
        self._tools = HermesStream(parsing.tools, early=early) if parsing.tools else None

    @property
    def called(self) -> bool:
        """A complete call was seen."""
        return self._tools is not None and self._tools.sound > 0

    def push(self, text: str) -> list[Piece]:
        """What became certain."""
        text, self._opening = self._opening + text, ""
        thought, said = ("", text) if self._think is None else self._think.push(text)
        return [*_piece(PieceKind.REASONING, thought), *self._speak(said)]

    def finish(self) -> list[Piece]:
        """What was held back when the answer ended."""
        pieces = self.push("")
        thought, said = ("", "") if self._think is None else self._think.finish()
        pieces += [*_piece(PieceKind.REASONING, thought), *self._speak(said)]
        return pieces + ([] if self._tools is None else self._tools.finish())

    def _speak(self, text: str) -> list[Piece]:
        return _piece(PieceKind.CONTENT, text) if self._tools is None else self._tools.push(text)


def _piece(kind: PieceKind, text: str) -> list[Piece]:
    return [Piece(kind=kind, text=text)] if text else []


def parse(text: str, parsing: Parsing) -> Parts:
    """The whole answer at once: a call that is cut or unsound is content."""
    stream = AnswerStream(parsing, early=False)
    return assemble([*stream.push(text), *stream.finish()])


def assemble(pieces: Iterable[Piece]) -> Parts:
    """The answer that pieces add up to."""
    texts = {PieceKind.CONTENT: "", PieceKind.REASONING: ""}
    calls: list[list[str]] = []
    for piece in pieces:
        if piece.kind is PieceKind.CALL:
            calls.append([piece.text, ""])
        elif piece.kind is PieceKind.ARGUMENTS:
            calls[-1][1] += piece.text
        else:
            texts[piece.kind] += piece.text
    return Parts(
        content=texts[PieceKind.CONTENT],
        reasoning=texts[PieceKind.REASONING],
        calls=tuple(Call(name=name, arguments=arguments) for name, arguments in calls),
    )


def reasoning_tokens(ids: Sequence[int], stream: TextStream, parsing: Parsing) -> int:
    """How many of an answer's tokens are thinking, the closing tag's included; 0 where it is not kept apart."""
    if not parsing.reasoning:
        return 0
    think = ThinkStream(inside=parsing.thinking)
    seen = think.thinking
    think.push(parsing.opening)
    for count, token in enumerate(ids):
        if think.speaking:
            return count if seen else 0
        think.push(stream.push(token))
        seen = seen or think.thinking
    return len(ids) if seen else 0
