"""Tasks of tau2-bench's airline and retail domains, with a scripted user: not a tau2-bench score.

There a model plays the user and several rules judge. Here the user says all at once, and the database decides alone. Databases,
tools and policies are tau2-bench's, in a child process.
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

DOMAINS = ("airline", "retail")
WRITE, NO_WRITE = "write", "no_write"
LABEL = "not a tau2-bench score"
"""A tag of every sample, and part of the metric's name: other rules give other numbers."""
LENT = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")
LEAST_TURNS = 30
"""Of the model; where a task needs many calls, twice those and five."""
UP_FRONT = (
    "Below is all that I want and know, written as instructions to me. I cannot answer questions. Where you would ask me to "
    "confirm what is asked for there, take it as confirmed. Do what the policy allows, then tell me what you did."
)


@dataclass(kw_only=True)
class Tau2Options(TalkOptions):
    """Keys of `suites.<name>.options`."""

    domains: list[str] = field(default_factory=lambda: list(DOMAINS))
    due: str = WRITE
    """`write`: tasks whose known actions change the database; `no_write`: those where doing nothing is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task."""

    domain: str
    id: str
    policy: str
    words: str
    """The user's one message."""
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    """Of the known answer."""
    tools: tuple[Tool, ...]


class Tau2(TalkSuite):
    """Airline and retail tasks on tau2-bench's data with a scripted user; not a tau2-bench score."""

    Options = Tau2Options
    failures = FAILURES
    brief: ClassVar[Mapping[str, int]] = {"max_tokens": 64}
    content = ("tau2", "docstring-parser")
    metrics: tuple[Metric, ...] = (
        Metric(name="success_not_a_tau2_bench_score", of="success", kind="binary", units="points", scale=100.0),
    )

    def __init__(self, name: str, options: Tau2Options) -> None:
        super().__init__(name, options)
        self.domains, self.due = options.domains, options.due
        self.tasks: dict[str, Task] = {}
        """By sample."""
        self.left_out: dict[str, str] = {}
        """Tasks whose own known answer is refused a write, by sample, with the tools that refused: nobody can do what is due."""
        self._child: Child | None = None
        where = f"suites.{name}.options"
        if odd := [each for each in options.domains if each not in DOMAINS]:
            raise UsageError(f"{where}.domains: no domain {odd[0]!r}; known: {', '.join(DOMAINS)}")
        if not options.domains or len(set(options.domains)) < len(options.domains):
            raise UsageError(f"{where}.domains: name at least one, each once")
        if options.due not in (WRITE, NO_WRITE):
            raise UsageError(f"{where}.due: {options.due!r} is unknown; known: {WRITE}, {NO_WRITE}")

    @property
    def child(self) -> Child:
        """The process with tau2-bench's programs, for all attempts."""
        if self._child is None:
            self._child = Child("tau2_side", [fetch.folder_of(name) for name in self.content], lent=LENT)
        return self._child

    def samples(self) -> list[Sample]:
        """Tasks that can be done and are of the kind asked for, domain by domain."""
        listed = self.child.ask_now({"ask": "list", "attempt": "", "domains": self.domains})
        self.tasks, self.left_out = {}, {}
        return [sample for domain in self.domains for sample in self._of(domain, listed[domain])]

    def _of(self, domain: str, found: Mapping[str, Any]) -> list[Sample]:
        tools = tuple(Tool(**tool) for tool in found["tools"])
        offer = hashlib.sha256(json.dumps(found["tools"], sort_keys=True).encode()).hexdigest()
        rows: list[Sample] = []
        for each in found["tasks"]:
            sample, kind = f"{domain}.{each['id']}", WRITE if each["written"] else NO_WRITE
            if each["refused"]:
                self.left_out[sample] = ", ".join(each["refused"])
            elif kind == self.due:
                task = self.tasks[sample] = Task(
                    domain=domain,
                    id=each["id"],
                    policy=found["policy"],
                    words=f"{UP_FRONT}\n\n{each['instructions']}",
                    calls=tuple((name, arguments) for name, arguments in each["calls"]),
                    tools=tools,
                )
                rows.append(
                    Sample(
                        id=sample,
                        messages=_opening(task),
                        target=f"the database after {json.dumps(each['calls'])}; tools sha256 {offer}",
                        tags=(domain, kind, LABEL),
                    )
                )
        return rows

    def arena(self, task: Task) -> SimulatedArena:
        """For one attempt at a task."""
        turns = (Turn(words=task.words, tools=task.tools),)
        return SimulatedArena(self.child, task.policy, turns, {"domain": task.domain, "task": task.id})

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """One task on a database of its own."""
        return await among_simulated(self._made(engine, sample, epoch))

    async def _made(self, engine: Engine, sample: Sample, epoch: int) -> Attempt:
        task, needed = self.tasks[sample.id], len(self.tasks[sample.id].calls)
        limits = Limits(steps=max(LEAST_TURNS, 2 * needed + 5))
        taken = await self.ridden(engine, sample, epoch, self.arena(task), limits)
        return await self.attempted(engine, sample, taken, task.tools, needed if self.due == WRITE else 0)


def _opening(task: Task) -> tuple[Message, ...]:
    return (Message(role="system", content=task.policy), Message(role="user", content=task.words))
