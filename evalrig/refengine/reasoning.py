"""`<think>...</think>` at the start of an answer: the thinking told from what is said, as the text comes in."""

from enum import Enum

from evalrig.refengine.jobs import held_back

OPEN, CLOSE = "<think>", "</think>"
PARSERS = ("think",)


class _Place(Enum):
    START = "nothing but blanks yet"
    INSIDE = "thinking"
    AFTER = "blanks after the thinking"
    OUTSIDE = "speaking"


class ThinkStream:
    """Takes text in pieces of any size; what comes out does not depend on how it was cut.

    Blanks inside the tags' edges and behind the closing tag belong to neither part. Thinking that is never closed
    stays thinking. A tag anywhere but at the start is text.
    """

    def __init__(self, *, inside: bool) -> None:
        """`inside`: the prompt has opened the thinking."""
        self._place = _Place.INSIDE if inside else _Place.START
        self._may_open = True
        self._thought = False
        self._held = ""

    @property
    def thinking(self) -> bool:
        """Inside the tags."""
        return self._place is _Place.INSIDE

    @property
    def speaking(self) -> bool:
        """Behind the thinking, or there was none."""
        return self._place in (_Place.AFTER, _Place.OUTSIDE)

    def push(self, text: str) -> tuple[str, str]:
        """What became certain: (thinking, said)."""
        self._held += text
        thought = ""
        if self._place in (_Place.START, _Place.INSIDE):
            self._open()
        if self._place is _Place.INSIDE:
            thought = self._think()
        if self._place is _Place.AFTER:
            self._held = self._held.lstrip()
            if self._held:
                self._place = _Place.OUTSIDE
        said = ""
        if self._place is _Place.OUTSIDE:
            said, self._held = self._held, ""
        return thought, said

    def finish(self) -> tuple[str, str]:
        """What was held back when the answer ended: (thinking, said)."""
        rest, self._held = self._held, ""
        if self._place is _Place.INSIDE:
            return rest.rstrip(), ""
        return "", rest if self._place is _Place.START else ""

    def _open(self) -> None:
        """Passes the opening tag, which some models repeat behind a prompt that has it."""
        if not self._may_open:
            return
        start = self._held.lstrip()
        if OPEN.startswith(start) and start != OPEN:
            return  # may still become the tag
        self._may_open = False
        if start.startswith(OPEN):
            self._held, self._place = start[len(OPEN) :], _Place.INSIDE
        elif self._place is _Place.START:
            self._place = _Place.OUTSIDE

    def _think(self) -> str:
        if self._may_open:
            return ""
        if not self._thought:
            self._held = self._held.lstrip()
        at = self._held.find(CLOSE)
        if at >= 0:
            thought, self._held = self._held[:at].rstrip(), self._held[at + len(CLOSE) :]
            self._place = _Place.AFTER
        else:
            certain = self._held[: len(self._held) - held_back(self._held, (CLOSE,))].rstrip()
            thought, self._held = certain, self._held[len(certain) :]
        self._thought = self._thought or bool(thought)
        return thought
