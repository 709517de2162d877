"""An arena whose tools a third party simulates in a child process. Where that process died, the attempt is played again in the next."""

import itertools
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from evalrig.arena import Arena, Finding
from evalrig.children import Child, Crashed, Forgotten, Lost
from evalrig.suite import Attempt
from evalrig.types import State, Tool, Trajectory
from evalrig.world import ToolError

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of the user's, and the tools on offer from then on."""

    words: str
    tools: tuple[Tool, ...]


async def among_simulated(attempt: Awaitable[Attempt]) -> Attempt:
    """An attempt among a third party's simulated tools, or what is filed where those failed: that is no act of the model's."""
    try:
        return await attempt
    except Lost as lost:
        error = f"the simulated tools were lost twice over one call: {lost}"
        return Attempt(trajectory=Trajectory(error=error), state=State.INFRA)
    except Crashed as crashed:
        return Attempt(trajectory=Trajectory(error=str(crashed)), state=State.UNSCORED)


class SimulatedArena(Arena):
    """One attempt: its state lives in the child, under a name that no other attempt has."""

    def __init__(self, child: Child, system: str, turns: tuple[Turn, ...], opening: Mapping[str, Any]) -> None:
        """`opening`: what the child needs to set the scene, beside `ask` and `attempt`."""
        self.child = child
        self.system = system
        self.turns = turns
        self.name = f"attempt-{next(_numbers)}"
        self._past: list[dict[str, Any]] = [{"ask": "open", "attempt": self.name, **opening}]
        """All that made the state, in its order: played again it makes the same."""
        self._turn = -1
        self._open = False

    def tools(self) -> tuple[Tool, ...]:
        """Those of this turn."""
        return self.turns[max(self._turn, 0)].tools

    def request(self) -> str | None:
        """The next turn's words."""
        self._turn += 1
        return self.turns[self._turn].words if self._turn < len(self.turns) else None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """In the child, by name among all tools of this turn.

        Raises:
            ToolError: the tool says no.
            Lost: the child died over it twice.
        """
        if name not in {tool.name for tool in self.tools()}:
            raise ToolError(f"there is no tool {name!r}")
        return await self._carried_out(name, arguments)

    async def _carried_out(self, name: str, arguments: Mapping[str, Any]) -> str:
        question = {"ask": "call", "turn": self._turn, "name": name, "arguments": dict(arguments)}
        given = await self._ask(question)
        self._past.append({**question, "attempt": self.name})
        if "refused" in given:
            raise ToolError(given["refused"])
        return given["text"]

    async def judge(self, answer: str) -> Finding:
        """By the third party's own rules."""
        given = await self._ask({"ask": "judge", "answer": answer})
        return Finding(success=given["success"], detail=given["detail"])

    async def close(self) -> None:
        """Forget the state."""
        if self._open:
            try:
                await self.child.ask({"ask": "close", "attempt": self.name})
            except Lost:
                return  # gone with the child

    async def _ask(self, question: Mapping[str, Any]) -> Any:
        """A child that died over another attempt costs this one nothing; one that dies over this question twice does."""
        asked, died = {**question, "attempt": self.name}, 0
        while True:
            try:
                if not self._open:
                    await self._play()
                return await self.child.ask(asked)
            except Forgotten:
                self._open = False
            except Lost:
                self._open, died = False, died + 1
                if died > 1:
                    raise

    async def _play(self) -> None:
        """The state as this attempt made it so far."""
        for question in self._past:
            await self.child.ask(question)
        self._open = True
