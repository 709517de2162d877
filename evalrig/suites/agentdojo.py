"""AgentDojo's 97 user tasks, without attacks: one request, many calls in a workspace, a bank, a chat or a travel agency.

Each task has a check of its own, which reads the environment that the calls leave and, of some, the last words. The environments
and the checks are AgentDojo's programs, in a child process.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from evalrig import fetch
from evalrig.children import Child
from evalrig.engine import Engine
from evalrig.errors import UsageError
from evalrig.free_run import Limits
from evalrig.simulation import SimulatedArena, Turn, among_simulated
from evalrig.suite import Attempt
from evalrig.talk_suite import FAILURES, TalkOptions, TalkSuite
from evalrig.types import Message, Metric, Sample, Tool, Trace

SUITES = ("workspace", "travel", "banking", "slack")
LENT = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "yaml", "idna")
LEAST_TURNS = 15
"""Of the model, as upstream; where a task needs many calls, twice those and five."""


@dataclass(kw_only=True)
class AgentdojoOptions(TalkOptions):
    """Keys of `suites.<name>.options`."""

    environments: list[str] = field(default_factory=lambda: list(SUITES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One user task."""

    environment: str
    id: str
    prompt: str
    needed: int
    """Calls of the known answer."""
    tools: tuple[Tool, ...]


class Agentdojo(TalkSuite):
    """AgentDojo's user tasks."""

    Options = AgentdojoOptions
    failures = FAILURES
    brief: ClassVar[Mapping[str, int]] = {"max_tokens": 64}
    content = ("agentdojo", "deepdiff", "orderly-set", "docstring-parser", "email-validator")
    metrics: tuple[Metric, ...] = (Metric(name="success", kind="binary", units="points", scale=100.0),)

    def __init__(self, name: str, options: AgentdojoOptions) -> None:
        super().__init__(name, options)
        self.environments = options.environments
        self.tasks: dict[str, Task] = {}
        """By sample."""
        self.system = ""
        self._child: Child | None = None
        where = f"suites.{name}.options.environments"
        if odd := [each for each in options.environments if each not in SUITES]:
            raise UsageError(f"{where}: no environment {odd[0]!r}; known: {', '.join(SUITES)}")
        if not options.environments or len(set(options.environments)) < len(options.environments):
            raise UsageError(f"{where}: name at least one, each once")

    @property
    def child(self) -> Child:
        """The process with AgentDojo's programs, for all attempts."""
        if self._child is None:
            self._child = Child("agentdojo_side", [fetch.folder_of(name) for name in self.content], lent=LENT)
        return self._child

    def samples(self) -> list[Sample]:
        """Tasks, environment by environment."""
        listed = self.child.ask_now({"ask": "list", "attempt": ""})
        self.system, self.tasks = listed["system"], {}
        rows: list[Sample] = []
        for environment in self.environments:
            found = listed["suites"][environment]
            tools = tuple(Tool(**tool) for tool in found["tools"])
            offer = hashlib.sha256(json.dumps(found["tools"], sort_keys=True).encode()).hexdigest()
            for task in found["tasks"]:
                sample = f"{environment}.{task['id']}"
                self.tasks[sample] = Task(
                    environment=environment,
                    id=task["id"],
                    prompt=task["prompt"],
                    needed=task["needed"],
                    tools=tools,
                )
                rows.append(
                    Sample(
                        id=sample,
                        messages=self._opening(task["prompt"]),
                        target=f"{task['needed']} calls, tools sha256 {offer}",
                        tags=(environment, task["difficulty"]),
                    )
                )
        return rows

    def arena(self, task: Task) -> SimulatedArena:
        """For one attempt at a task."""
        turns = (Turn(words=task.prompt, tools=task.tools),)
        return SimulatedArena(self.child, self.system, turns, {"suite": task.environment, "task": task.id})

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """One task in an environment of its own."""
        return await among_simulated(self._made(engine, sample, epoch))

    async def _made(self, engine: Engine, sample: Sample, epoch: int) -> Attempt:
        task = self.tasks[sample.id]
        limits = Limits(steps=max(LEAST_TURNS, 2 * task.needed + 5))
        taken = await self.ridden(engine, sample, epoch, self.arena(task), limits)
        return await self.attempted(engine, sample, taken, task.tools, task.needed)

    def _opening(self, prompt: str) -> tuple[Message, ...]:
        return (Message(role="system", content=self.system), Message(role="user", content=prompt))

    def gold(self, arena: SimulatedArena) -> Any:
        """The known answer to a task whose arena is open: calls and last words."""
        return self.child.ask_now({"ask": "gold", "attempt": arena.name})
