"""Short questions with short answers, graded on the text that the model generates: right or wrong, nothing between.

A text that a limit cut before its answer was complete is `truncated`; every other text is graded, an empty one as wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import msgspec

from evalrig import answer
from evalrig.ask import ask, own_seed, refuse_unfit
from evalrig.content import content_dir
from evalrig.engine import Capabilities, Engine, Sampling
from evalrig.errors import UsageError
from evalrig.suite import Attempt, Grader, Suite
from evalrig.types import Completion, Message, Metric, Sample, State, Trace, Trajectory


@dataclass(kw_only=True)
class ShortAnswersOptions:
    """Keys of `suites.<name>.options`."""

    path: str = ""
    """JSONL of {id, messages or prompt, answers, match, tags}; default: the 300 that evalrig ships."""
    max_tokens: int = 512
    """Longest answer, thinking included."""
    temperature: float = 0.0
    seed: int = 0
    """Of a temperature above 0: each attempt draws with a seed of its own made from it, the same in every variant."""
    route: str = "completion"
    """`completion`: token ids of the chat template are continued. `chat`: the engine's chat route."""
    thinking: bool = False
    """The chat template opens a thinking block: an answer cut before `</think>` holds nothing to grade."""


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    answers: tuple[str, ...]
    match: answer.Match = "exact"
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    tags: tuple[str, ...] = ()


class ShortAnswers(Suite):
    """Exact answers to short questions, by generation."""

    Options = ShortAnswersOptions
    family = "instruction following"
    brief: ClassVar[Mapping[str, int]] = {"max_tokens": 64}
    metrics: tuple[Metric, ...] = (Metric(name="accuracy", kind="binary", units="points", scale=100.0),)

    def __init__(self, name: str, options: ShortAnswersOptions) -> None:
        super().__init__(name, options)
        self.options: ShortAnswersOptions = options
        refuse_unfit(f"suites.{name}.options", options.max_tokens, options.temperature, options.route)

    def needs(self) -> Capabilities:
        """Text. No seed: a sampled answer is graded, never repeated."""
        return Capabilities(chat=self.options.route == "chat")

    def samples(self) -> list[Sample]:
        """One a question. `target`: the accepted answers, one a line; the first tag says how they are compared."""
        own = self.options.path
        path = Path(own).expanduser() if own else content_dir("suites") / "short_answers" / "questions.jsonl"
        where = f"suites.{self.name}.options.path"
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise UsageError(f"{where}: cannot read {str(path)!r}: {error.strerror}; give a JSONL file") from error
        rows: dict[str, Sample] = {}
        for number, line in enumerate(lines, 1):
            if line.strip():
                question = self._question(line, f"{where}: {path} line {number}")
                if question.id in rows:
                    raise UsageError(f"{where}: {path} line {number}: id {question.id!r} occurs twice; rename one")
                rows[question.id] = _sample(question)
        return list(rows.values())

    def _question(self, line: bytes, where: str) -> _Question:
        try:
            question = msgspec.json.decode(line, type=_Question)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{where}: {error}; a line holds id, messages or prompt, answers, match") from error
        if bool(question.prompt) == bool(question.messages):
            raise UsageError(f"{where}: needs either `prompt` or `messages`; give one of them")
        if question.prompt and self.options.route == "chat":
            raise UsageError(f"{where}: a `prompt` has no chat route; give `messages`, or set route: completion")
        if question.messages and question.messages[-1].role != "user":
            raise UsageError(f"{where}: the last message is the {question.messages[-1].role}'s; end with the user's")
        if fault := answer.unfit(question.answers, question.match):
            raise UsageError(f"{where}: {fault}; correct `answers` or `match`")
        return question

    def grader(self) -> Grader:
        """See `Suite.grader`: as its own answers are graded, but a text cut below `max_tokens` might still have come right."""

        def grade(sample: Sample, said: Completion) -> float | None:
            attempt = _graded(said, sample, self.options.thinking, "")
            if attempt.state is State.TRUNCATED:
                return 0.0 if said.completion_tokens >= self.options.max_tokens else None
            return attempt.scores["accuracy"]

        return grade

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """Ask once, find the answer, compare."""
        said, prompt = await ask(
            engine, sample.messages or sample.prompt, self.options.route, self._sampling(sample.id, epoch)
        )
        return _graded(said, sample, self.options.thinking, prompt)

    def _sampling(self, sample: str, epoch: int) -> Sampling:
        if not self.options.temperature:
            return Sampling(max_tokens=self.options.max_tokens)
        seed = own_seed(self.options.seed, self.name, sample, epoch)
        return Sampling(max_tokens=self.options.max_tokens, temperature=self.options.temperature, seed=seed)


def _sample(question: _Question) -> Sample:
    return Sample(
        id=question.id,
        prompt=question.prompt,
        messages=question.messages,
        target="\n".join(question.answers),
        tags=(question.match, *question.tags),
    )


def _graded(said: Completion, sample: Sample, thinking: bool, prompt_sha256: str) -> Attempt:
    """The attempt that a text makes: scored, or truncated where a limit cut it before its answer was complete."""
    match = cast(answer.Match, sample.tags[0])
    cut = said.finish == "length"
    given = answer.found(said.text, match, cut, thinking)
    correct = given is not None and answer.right(given, sample.target.split("\n"), match)
    truncated = cut and given is None
    return Attempt(
        trajectory=Trajectory(turns=(said,), answer=given or ""),
        scores={} if truncated else {"accuracy": float(correct)},
        state=State.TRUNCATED if truncated else State.SCORED,
        prompt_sha256=prompt_sha256,
        retries=said.retries,
    )
