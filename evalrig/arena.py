"""What an arena is: where one attempt of a conversation with tools takes place, with a state of its own."""

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalrig.types import Tool
from evalrig.world import Errand, Move, ToolError, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How an attempt came out."""

    success: bool
    detail: str = ""
    """For people: what is missing or changed too much."""


class Arena(ABC):
    """Opened for one attempt, closed after it; shares nothing with another."""

    system: str
    """What the model is told first."""

    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """On offer now; may change between the user's turns."""

    @abstractmethod
    def request(self) -> str | None:
        """The user's next words; None: the user has nothing more to say."""

    @abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool on offer gives, as text for the model; the arguments fit its schema.

        Raises:
            ToolError: the tool says no.
        """

    @abstractmethod
    async def judge(self, answer: str) -> Finding:
        """After the last turn: was the goal reached, and nothing else changed?"""

    async def close(self) -> None:
        """Leave nothing behind."""
        return  # most hold nothing open


class ErrandArena(Arena):
    """One errand in a world: one request, and a state of its own."""

    def __init__(self, world: World, errand: Errand) -> None:
        self.world, self.errand = world, errand
        self.system = world.policy
        self._state = copy.deepcopy(errand.start)
        self._asked = False

    def tools(self) -> tuple[Tool, ...]:
        """The errand's."""
        return self.errand.tools

    def request(self) -> str | None:
        """The errand's, once."""
        if self._asked:
            return None
        self._asked = True
        return self.errand.request

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """On this attempt's state. A refusal that lies on the shortest way is part of the errand, and no error."""
        move = Move(name=name, arguments=copy.deepcopy(dict(arguments)))
        expected = move in self.errand.way
        try:
            return shown(self.world.call(self._state, move))
        except ToolError as error:
            if not expected:
                raise
            return told(str(error))

    async def judge(self, answer: str) -> Finding:
        """The goal reached, and nothing else changed."""
        if self.world.reached(self.errand, self._state, answer):
            return Finding(success=True)
        done = self.world.alike(self._state, self.world.goal(self.errand))
        return Finding(
            success=False, detail="the answer lacks what it must say" if done else "the state is not the goal"
        )


def shown(value: Any) -> str:
    """What a call gave, as text for the model: words as they are, else JSON on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def told(wrong: str) -> str:
    """What comes back to the model in place of a result, so that it may recover."""
    return json.dumps({"error": wrong}, ensure_ascii=False)
