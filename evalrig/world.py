"""What a world is: tools over a state, errands with a goal, and a shortest way that proves each errand can be done.

Pure and seeded: the same arguments give the same errands, the same calls the same state. A world is one Python file.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from evalrig.types import Tool

State: TypeAlias = dict[str, Any]
"""Plain JSON values, all the way down."""


class ToolError(Exception):
    """The tool says no, in words that the model reads and may act on. The state is as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One call of a tool."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What is asked for in a world."""

    id: str
    request: str
    """The user's words. They hold all that is needed and not found through the tools."""
    start: State
    tools: tuple[Tool, ...]
    """On offer, distractors among them, in a seeded order. One that the errand needs may be missing."""
    way: tuple[Move, ...]
    """A shortest way to the goal. Of an errand that cannot be done: the calls that show it, often none."""
    answer: tuple[str, ...] = ()
    """What the last words must contain, case aside; empty: anything."""
    tags: tuple[str, ...] = ()
    """`ids`, `recovery`, `carry`, `nested`, `missing_tool`, `missing_parameter` ...: what is hard about it."""
    cluster: str = ""

    @property
    def horizon(self) -> int:
        """Calls that the shortest way needs."""
        return len(self.way)


class World(ABC):
    """Tools over a state. Holds nothing itself: every attempt has a state of its own."""

    name: ClassVar[str]
    policy: ClassVar[str]
    """What the model is told before the request: who it is here, and the rules."""

    @abstractmethod
    def errands(self, horizon: int, count: int, seed: int) -> list[Errand]:
        """`count` different errands whose shortest way takes about `horizon` calls (exactly, but for those that cannot be done)."""

    @abstractmethod
    def call(self, state: State, move: Move) -> Any:
        """Carry a call out on `state`, in place; its arguments fit the tool's schema. Returns plain JSON values.

        Raises:
            ToolError: it cannot be done; the state is untouched, but for what says so (a tool that fails once counts its calls).
        """

    def goal(self, errand: Errand) -> State:
        """The state at the end of the shortest way."""
        state = copy.deepcopy(errand.start)
        self.walk(state, errand.way)
        return state

    def walk(self, state: State, way: Sequence[Move]) -> list[Any]:
        """What each call of a way gives; a refusal as its text."""
        given: list[Any] = []
        for move in way:
            try:
                # a copy: a state that keeps an argument must not share it with the errand
                given.append(self.call(state, Move(name=move.name, arguments=copy.deepcopy(dict(move.arguments)))))
            except ToolError as error:
                given.append({"error": str(error)})
        return given

    def reached(self, errand: Errand, state: State, answer: str) -> bool:
        """The goal, nothing else changed, and the last words hold what they must."""
        said = answer.casefold()
        return self.alike(state, self.goal(errand)) and all(words.casefold() in said for words in errand.answer)

    def alike(self, state: State, goal: State) -> bool:
        """Two states are one to the user. Most worlds compare everything; one with counters of its own leaves them out."""
        return state == goal
