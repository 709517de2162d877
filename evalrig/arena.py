"""What an arena is: where one attempt of a conversation with tools takes place, with a state of its own."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalrig.types import Tool


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
