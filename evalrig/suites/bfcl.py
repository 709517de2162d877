"""Berkeley Function Calling Leaderboard v4: conversations of several turns over simulated services, and single turns.

Several turns: after each turn the services must be in the state that the known answer leaves, and what it looks up must have been
looked up. Single turns: the calls are held against the values allowed. The rules are BFCL's own programs, in a child process.
"""

import ast
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from evalrig import fetch, steps
from evalrig.bfcl_entries import ANSWERED, CATEGORIES, MULTI_TURN, WITHOUT, Entry, entries, tool_name
from evalrig.children import Child, Lost
from evalrig.engine import Engine
from evalrig.errors import UsageError
from evalrig.free_run import Limits
from evalrig.simulation import SimulatedArena, Turn, among_simulated
from evalrig.suite import Attempt
from evalrig.talk_suite import FAILURES, TalkOptions, TalkSuite, seen_sha256
from evalrig.types import Completion, Message, Metric, Sample, State, Step, Trace, Trajectory

SYSTEM = (
    "You act for the user through tools. Do all that a request asks before you answer in words. "
    "Where a tool or a detail that is needed is missing, say so."
)
MORE = "There are more tools on offer now. Please go on with what was asked before."
TURNS = 21
"""Of the model for one request: twenty with calls, as upstream, and the words."""


@dataclass(kw_only=True)
class BfclOptions(TalkOptions):
    """Keys of `suites.<name>.options`."""

    categories: list[str] = field(default_factory=lambda: list(MULTI_TURN))


class Bfcl(TalkSuite):
    """BFCL, by category."""

    Options = BfclOptions
    failures = FAILURES
    brief: ClassVar[Mapping[str, int]] = {"max_tokens": 64}
    content = ("bfcl", "mpmath")
    metrics: tuple[Metric, ...] = (Metric(name="success", kind="binary", units="points", scale=100.0),)

    def __init__(self, name: str, options: BfclOptions) -> None:
        super().__init__(name, options)
        self.categories = options.categories
        self.entries: dict[str, Entry] = {}
        """By sample."""
        self._child: Child | None = None
        where = f"suites.{name}.options.categories"
        if odd := [category for category in options.categories if category not in CATEGORIES]:
            raise UsageError(f"{where}: no category {odd[0]!r}; known: {', '.join(CATEGORIES)}")
        if not options.categories or len(set(options.categories)) < len(options.categories):
            raise UsageError(f"{where}: name at least one, each once")

    @property
    def child(self) -> Child:
        """The process with BFCL's programs, for all attempts."""
        if self._child is None:
            self._child = Child("bfcl_side", [fetch.folder_of(name) for name in self.content])
        return self._child

    def samples(self) -> list[Sample]:
        """Entries, category by category. What is varied from one source is one cluster."""
        folder = fetch.folder_of("bfcl")
        self.entries = {entry.id: entry for category in self.categories for entry in entries(folder, category)}
        return [_sample(entry) for entry in self.entries.values()]

    def arena(self, entry: Entry) -> SimulatedArena:
        """For one attempt at an entry of several turns."""
        turns = tuple(
            Turn(
                words="\n\n".join(message.content for message in entry.messages(turn)) or MORE, tools=entry.tools(turn)
            )
            for turn in range(len(entry.raw["question"]))
        )
        names = [function["name"] for function in entry.functions]
        opening = {"entry": {**entry.raw, "truth": entry.truth}, "names": names}
        return SimulatedArena(self.child, SYSTEM, turns, opening)

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """One conversation, or one turn."""
        entry = self.entries[sample.id]
        made = self._ridden if entry.category in MULTI_TURN else self._asked
        return await among_simulated(made(engine, sample, entry, epoch))

    async def _ridden(self, engine: Engine, sample: Sample, entry: Entry, epoch: int) -> Attempt:
        arena = self.arena(entry)
        limits = Limits(steps=TURNS * len(arena.turns), per_request=TURNS)
        taken = await self.ridden(engine, sample, epoch, arena, limits)
        needed = sum(len(turn) for turn in entry.truth)
        return await self.attempted(engine, sample, taken, entry.tools(), needed)

    async def _asked(self, engine: Engine, sample: Sample, entry: Entry, epoch: int) -> Attempt:
        dialect, tools = self.dialect(engine), entry.tools()
        said, message = await dialect.ask(engine, sample.messages, tools, self.sampling(sample.id, epoch))
        step = steps.taken(message.tool_calls, message.content, tools)
        cut = said.finish == "length"
        wrong = "truncated" if cut else await self._wrong(entry, message, step)
        trajectory = Trajectory(
            turns=(said,),
            answer=_shown(said, step),
            failure=wrong,
            steps=(_step(step, entry, wrong),),
            protocol=dialect.protocol,
        )
        return Attempt(
            trajectory=trajectory,
            scores={} if cut else {"success": float(not wrong)},
            state=State.TRUNCATED if cut else State.SCORED,
            prompt_sha256=await seen_sha256(engine, dialect, sample.messages, tools, said.prompt_tokens),
            retries=said.retries,
        )

    async def _wrong(self, entry: Entry, message: Message, step: Step) -> str:
        """What is wrong with a single turn, as a word; empty: nothing. A schema is no rule of BFCL's, its checker is."""
        if entry.category in WITHOUT:
            return "went_on" if message.tool_calls or step.error == "parser_lost" else ""
        if not message.tool_calls:
            return step.error or "gave_up"
        if step.error in ("bad_json", "unknown_tool"):
            return step.error
        if entry.category not in ANSWERED:
            return step.error
        calls = [{call.name: steps.canonical(call.arguments)} for call in message.tool_calls]
        due = sorted(tool_name(name) for each in entry.truth for name in each)
        question = {
            "ask": "single",
            "attempt": "",
            "functions": entry.functions,
            "calls": calls,
            "allowed": entry.truth,
            "category": entry.category,
        }
        found = await self._single(question)
        if found["success"]:
            return ""
        return step.error or ("wrong_arguments" if sorted(c.name for c in message.tool_calls) == due else "wrong_tool")

    async def _single(self, question: Mapping[str, Any]) -> Any:
        """Asked again where the child died over it: it has no state that could be lost."""
        try:
            return await self.child.ask(question)
        except Lost:
            return await self.child.ask(question)


def gold(entry: Entry) -> list[list[tuple[str, dict[str, Any]]]]:
    """The known answer's calls by name and arguments, turn by turn; they are Python text with literals alone."""
    words = {function["name"]: list(function["parameters"].get("properties", {})) for function in entry.functions}
    return [[_call(text, words) for text in turn] for turn in entry.truth]


def _call(text: str, words: Mapping[str, list[str]]) -> tuple[str, dict[str, Any]]:
    tree: Any = ast.parse(text.strip(), mode="eval").body
    named = dict(zip(words[tree.func.id], tree.args, strict=False)) | {word.arg: word.value for word in tree.keywords}
    return tree.func.id, {name: ast.literal_eval(value) for name, value in named.items()}


def _sample(entry: Entry) -> Sample:
    multi = entry.category in MULTI_TURN
    opening = (Message(role="system", content=SYSTEM),) if multi else ()
    whole = json.dumps([entry.raw, entry.truth, entry.functions], sort_keys=True)
    offer = hashlib.sha256(json.dumps(entry.functions, sort_keys=True).encode()).hexdigest()[:16]
    return Sample(
        id=entry.id,
        messages=(*opening, *entry.messages()),
        target=f"sha256 {hashlib.sha256(whole.encode()).hexdigest()}",
        cluster=f"multi_turn_{entry.id.rsplit('_', 1)[1]}" if multi else f"tools-{offer}",
        tags=(entry.category,),
    )


def _shown(said: Completion, step: Step) -> str:
    return said.text if step.stopped else step.said


def _step(step: Step, entry: Entry, wrong: str) -> Step:
    due = "[]" if entry.category in WITHOUT else json.dumps(entry.truth) if entry.truth else ""
    return Step(
        due=due,
        said=step.said,
        error=wrong,
        named=wrong not in ("wrong_tool", "gave_up", "went_on"),
        valid=step.valid,
        stopped=step.stopped,
    )
