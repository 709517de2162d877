"""Step by step along trajectories that are given: at each step, is the next act the one that is due?

No error carries over to the next step, so every step is evidence of its own. What is followed: the shortest way of a world's
errands, what the reference did by itself, or the user's recorded conversations.
"""

import hashlib
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import numpy as np

from evalrig.arena import ErrandArena
from evalrig.conversations import Conversation, read
from evalrig.dialect import Dialect, call_id
from evalrig.distractors import choices
from evalrig.engine import Capabilities, Engine, Scoring
from evalrig.errors import UsageError
from evalrig.forced_steps import Stage, follow, stages, walked
from evalrig.sources import STEP
from evalrig.steps import ERRORS, compared, unfit
from evalrig.suite import Attempt, ids_sha256
from evalrig.talk_suite import seen_sha256
from evalrig.tool_suite import ToolOptions, ToolSuite
from evalrig.types import FIXED, Completion, Message, Metric, Sample, State, Step, ToolCall, Trace, Trajectory

Score = Callable[[Sequence[int], int], Awaitable[Scoring]]
FREE_SLACK: Final = 5
"""Turns that the reference may take beyond twice the calls needed, where it makes the trajectories."""
CHOICES: Final = 8
"""Steps of an errand that are scored as choices, where the run file names no number."""

ACTS = (
    Metric(name="agreement", kind="continuous", units="points", scale=100.0),
    Metric(name="schema_valid", kind="continuous", units="points", scale=100.0),
    Metric(name="trigger", kind="continuous", units="points", scale=100.0),
)
LIKELIHOODS = (
    Metric(name="accuracy", kind="binary", units="points", scale=100.0, chance=0.25),
    Metric(name="lead", kind="continuous", units="nats"),
)


@dataclass(kw_only=True)
class ToolStepsOptions(ToolOptions):
    """Keys of `suites.<name>.options`."""

    trajectories: str = "solver"
    """`solver`: the shortest way of each errand; `reference`: what the reference does by itself."""
    path: str = ""
    """JSONL of recorded conversations, in place of both."""
    scoring: str = "generate"
    """`generate`: the model writes its next act; `choice`: which of four calls it finds likeliest, for models that cannot act."""
    steps: int = 0
    """Steps followed of each errand, drawn with `seed`; 0: all (`choice`: 8)."""
    leg: str = "prefill"
    """Of `choice`: `cached_prefix` reads the history from the KV cache, as while decoding, and computes it once for four calls."""


class ToolSteps(ToolSuite):
    """Steps along given trajectories."""

    Options = ToolStepsOptions
    brief: ClassVar[Mapping[str, int]] = {"max_tokens": 64, "steps": 2}
    failures = ERRORS
    metrics: tuple[Metric, ...] = (*ACTS, *LIKELIHOODS)

    def __init__(self, name: str, options: ToolStepsOptions) -> None:
        super().__init__(name, options)
        where = f"suites.{name}.options"
        if options.trajectories not in ("solver", "reference"):
            raise UsageError(f"{where}.trajectories: no {options.trajectories!r}; known: solver, reference")
        if options.scoring not in ("generate", "choice"):
            raise UsageError(f"{where}.scoring: no {options.scoring!r}; known: generate, choice")
        if options.scoring == "choice" and (options.trajectories, options.protocol) not in (
            ("solver", "auto"),
            ("solver", "text"),
        ):
            raise UsageError(
                f"{where}.scoring: choice follows the solver's way or a `path`, and is told in text; change one of them"
            )
        if options.leg not in ("prefill", "cached_prefix"):
            raise UsageError(f"{where}.leg: no leg {options.leg!r}; known: prefill, cached_prefix")
        if options.steps < 0:
            raise UsageError(f"{where}.steps: {options.steps}; 0 is all")
        if options.path and options.trajectories != "solver":
            raise UsageError(f"{where}.path: recorded conversations are followed as they are; leave `trajectories` out")
        self.path = options.path
        self.recorded: dict[str, tuple[Stage, ...]] = {}
        self.choice, self.cached = options.scoring == "choice", options.leg == "cached_prefix"
        self.traced = options.trajectories == "reference"
        self.count = options.steps or (CHOICES if self.choice else 0)
        self.metrics = LIKELIHOODS if self.choice else ACTS

    def needs(self) -> Capabilities:
        """Logprobs of given tokens where calls are chosen from, else what talking about tools needs."""
        choice = Capabilities(prompt_logprobs=True, cached_prefix=self.cached)
        return choice if self.choice else super().needs()

    def samples(self) -> list[Sample]:
        """Errands, or recorded conversations. Where calls are chosen from, those that need none are left out."""
        if self.path:
            found = read(Path(self.path).expanduser(), f"suites.{self.name}.options.path")
            for one in found:
                if wrong := unfit(one.stages[0].tools):
                    raise UsageError(f"suites.{self.name}.options.path: {self.path}: {one.id}: {wrong}; correct it")
            self.recorded = {one.id: one.stages for one in found}
            rows = [_recorded(one) for one in found]
            return [row for row in rows if any(stage.due for stage in self.recorded[row.id])] if self.choice else rows
        rows = super().samples()
        return [row for row in rows if self.errands[row.id][1].way] if self.choice else rows

    def lend(self, chosen: Sequence[Sample]) -> Sequence[Sample]:
        """Each step followed at which a call is due, as a finished turn of its own, tagged with its number.

        With `protocol: text` in the words of that protocol, else for the engine's own template. What the reference will do by
        itself nobody knows yet: of those errands the openings.
        """
        if self.traced:
            return chosen
        rows: list[Sample] = []
        for sample in chosen:
            found = self._stages(sample, None)
            rows += [
                _finished(sample, place + 1, found[place], self.talk.protocol == "text")
                for place in self._drawn(sample, range(len(found)))
                if found[place].due
            ]
        return rows

    def _stages(self, sample: Sample, trace: Trace | None) -> Sequence[Stage]:
        """What is followed: as recorded, as the reference went, or the shortest way."""
        if self.path:
            return self.recorded[sample.id]
        world, errand = self.errands[sample.id]
        messages = walked(world, errand) if trace is None else msgspec.json.decode(trace.text, type=tuple[Message, ...])
        return stages(messages, errand.tools)

    async def trace(self, engine: Engine, sample: Sample, epoch: int, seed: int) -> Trace:
        """The reference's own way, freely; a turn that was cut is no step to follow."""
        world, errand = self.errands[sample.id]
        arena = ErrandArena(world, errand)
        limits = self.limits(sample, FREE_SLACK)
        taken = await self.ridden(engine, sample, epoch, arena, limits)
        messages = list(taken.messages)
        if taken.end == "truncated" and messages[-1].role == "assistant":
            messages.pop()
        text = msgspec.json.encode(messages).decode()
        return Trace(sample=sample.id, epoch=epoch, prompt_ids=(), token_ids=(), text=text, finish=taken.end)

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """The steps of one errand."""
        found = self._stages(sample, trace)
        if self.choice:
            return await self._chosen(engine, sample, found)
        dialect = self.dialect(engine)
        drawn = self._drawn(sample, range(len(found)))
        turns, steps = await follow(engine, found, dialect, self.sampling(sample.id, epoch), drawn)
        trajectory = Trajectory(turns=turns, failure=_worst(steps), steps=steps, protocol=dialect.protocol)
        if not steps:
            return Attempt(trajectory=Trajectory(error="the reference took no step"), state=State.UNSCORED)
        first = found[drawn[0]]
        return Attempt(
            trajectory=trajectory,
            scores=_scores(steps),
            prompt_sha256=await seen_sha256(engine, dialect, first.messages, first.tools, turns[0].prompt_tokens),
            tokens_sha256=_sha256(found),
            retries=sum(turn.retries for turn in turns),
        )

    def _drawn(self, sample: Sample, places: Sequence[int]) -> list[int]:
        """Which steps are followed: the same in every variant and epoch."""
        if not 0 < self.count < len(places):
            return list(places)
        return sorted(random.Random(f"{self.options.seed}/{sample.id}/steps").sample(list(places), self.count))

    async def _chosen(self, engine: Engine, sample: Sample, found: Sequence[Stage]) -> Attempt:
        """The likelihood of the right call and of three wrong ones, at some steps."""
        offered = {
            place: calls
            for place in range(len(found))
            if (calls := choices(found, place, random.Random(f"{self.options.seed}/{sample.id}/{place}")))
        }
        drawn = self._drawn(sample, sorted(offered))
        if not drawn:
            return Attempt(trajectory=Trajectory(error="no step has three wrong calls"), state=State.UNSCORED)
        score = engine.score_cached if self.cached else engine.score
        asked = [await _ask(engine, score, found[place], offered[place]) for place in drawn]
        steps = tuple(step for _, step, _, _ in asked)
        return Attempt(
            trajectory=Trajectory(
                turns=tuple(turn for turns, *_ in asked for turn in turns),
                failure=_worst(steps),
                steps=steps,
                protocol="text",
            ),
            scores={
                "accuracy": float(np.mean([not step.error for step in steps])),
                "lead": float(np.mean([lead for *_, lead in asked])),
            },
            prompt_sha256=ids_sha256([token for _, _, ids, _ in asked for token in ids]),
            retries=sum(turn.retries for turns, *_ in asked for turn in turns),
        )


async def _ask(
    engine: Engine, score: Score, stage: Stage, calls: Sequence[ToolCall]
) -> tuple[tuple[Completion, ...], Step, tuple[int, ...], float]:
    """One step: a scoring of each call, the one it finds likeliest as a step, all token ids, and the right one's lead in nats.

    A tie is no knowledge of the right call. One after the other: the first leaves the history in the cache for the others.
    """
    dialect = Dialect("text")
    prompt = await engine.tokenize(dialect.shown(stage.messages, stage.tools))
    texts = [dialect.call_text((call,)) for call in calls]
    turns = [_turn(text, prompt, await score([*prompt, *await engine.tokenize(text)], len(prompt))) for text in texts]
    likelihood = [sum(turn.logprobs) for turn in turns]
    lead = likelihood[0] - max(likelihood[1:])
    said = calls[0] if lead > 0 else calls[1 + int(np.argmax(likelihood[1:]))]
    step = compared((said,), "", stage.due, stage.tools)
    ids = (*prompt, *(token for turn in turns for token in turn.token_ids))
    return tuple(turns), step, ids, lead


def _turn(text: str, prompt: tuple[int, ...], scoring: Scoring) -> Completion:
    return Completion(
        text=text,
        token_ids=tuple(int(i) for i in scoring.token_ids),
        logprobs=tuple(float(x) for x in scoring.logprobs),
        prompt_tokens=len(prompt),
        seconds=round(scoring.seconds, 4),
        retries=scoring.retries,
    )


def _scores(steps: Sequence[Step]) -> dict[str, float]:
    """Shares of the steps followed. `trigger`: words where words are due, and calls where calls are; a cut turn is neither."""
    return {
        "agreement": float(np.mean([not step.error for step in steps])),
        "schema_valid": float(np.mean([step.valid for step in steps])),
        "trigger": float(np.mean([step.error != "truncated" and step.stopped == (step.due == "[]") for step in steps])),
        "errors": float(sum(bool(step.error) for step in steps)),
        "steps": float(len(steps)),
    }


def _worst(steps: Sequence[Step]) -> str:
    """The first error, by which an attempt is told from another."""
    return next((step.error for step in steps if step.error), "")


def _recorded(one: Conversation) -> Sample:
    return Sample(
        id=one.id, messages=one.stages[0].messages, target=f"sha256 {_sha256(one.stages)}", tags=("recorded",)
    )


def _finished(sample: Sample, step: int, stage: Stage, spoken: bool) -> Sample:
    """A step with the call that is due as its last message."""
    made = sum(len(message.tool_calls) for message in stage.messages)
    calls = tuple(
        ToolCall(id=call_id(made + n), name=name, arguments=json.dumps(dict(given), ensure_ascii=False))
        for n, (name, given) in enumerate(stage.due)
    )
    messages = (*stage.messages, Message(role="assistant", content="", tool_calls=calls))
    return replace(
        sample,
        id=f"{sample.id}.{step}",
        messages=Dialect("text").shown(messages, stage.tools) if spoken else messages,
        tools=() if spoken else stage.tools,
        cluster=sample.cluster or sample.id,
        tags=(*sample.tags, FIXED, f"{STEP}{step}"),
    )


def _sha256(found: Sequence[Stage]) -> str:
    return hashlib.sha256(msgspec.json.encode(found)).hexdigest()
