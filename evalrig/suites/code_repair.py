"""Repairing programs over several turns: a wrong program and what its tests said; what the model answers is tested, and it may try again.

A sample is a problem with one of its wrong solutions. Each turn sees the whole conversation, so errors of a variant add up as they do in
an agent's loop. The score is by turn: solved within the first, the first two ... turns.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from evalrig.code_suite import SOLVED, CodeOptions
from evalrig.content import content_dir
from evalrig.engine import Engine
from evalrig.errors import EngineError, UsageError, one_line
from evalrig.problem_suite import ProblemSuite
from evalrig.problems import SAID, Key, Problem, read, sample_of, wrong_solutions
from evalrig.proctor import Mark
from evalrig.suite import Attempt
from evalrig.types import Completion, Message, Metric, Sample, State, Trace

TURNS: Final = 3
MOST_TURNS: Final = 20
LONGEST: Final = 1000
"""Characters of what a test run said that are shown to the model: the rest is the program's own, and may be anything."""
WORDS: Final = {
    "syntax_error": "it is no valid Python",
    "wrong_answer": "a test says no",
    "timeout": "it did not end in time",
    "crash": "it raised an error or was ended",
    "no_code": "no whole program was found in the answer",
}
_ADDRESS: Final = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_TOO_LONG: Final = re.compile(r"context (?:length|size)|maximum allowed length|exceed_context_size", re.IGNORECASE)
"""How SGLang, vLLM, llama.cpp and refengine refuse a prompt that has no room."""


@dataclass(kw_only=True)
class CodeRepairOptions(CodeOptions):
    """Keys of `suites.<name>.options`. Not `pass_at` and `prompting`: it is a conversation, and its score is by turn."""

    turns: int = TURNS
    """How often the model may try."""
    path: str = ""
    """JSONL of problems with `wrong_solutions`, `.gz` or not; default: those of `coding_basics`."""
    levels: list[str] = field(default_factory=list[str])
    """Only the problems that have one of these tags (a level, a family). Default: all; what a small model can repair is trivial."""


class _Broken(msgspec.Struct, frozen=True):
    """What a sample is graded by, kept as its target."""

    key: Key
    wrong: str
    """The whole program that is to be repaired."""


def solved_by(turns: int) -> tuple[Metric, ...]:
    """Solved within the first 1 ... `turns` turns."""
    return tuple(
        Metric(name=f"solved@{turn}", kind="binary", units="points", scale=100.0) for turn in range(1, turns + 1)
    )


class CodeRepair(ProblemSuite):
    """Programs repaired with the output of their tests in view."""

    Options = CodeRepairOptions
    metrics: tuple[Metric, ...] = solved_by(TURNS)

    def __init__(self, name: str, options: CodeRepairOptions) -> None:
        super().__init__(name, options)
        self.options: CodeRepairOptions = options
        where = f"suites.{name}.options"
        if not 1 <= options.turns <= MOST_TURNS:
            raise UsageError(f"{where}.turns: {options.turns}; give 1 to {MOST_TURNS}")
        if options.prompting != "chat" or list(options.pass_at) != [1]:
            raise UsageError(f"{where}: a repair is a conversation scored by turn; leave `prompting` and `pass_at` out")
        self.metrics = solved_by(options.turns)
        self._opened: dict[str, str] = {}

    def samples(self) -> list[Sample]:
        """One for each wrong solution, called `<problem>.<number>`; those of one problem are a cluster."""
        own, where = self.options.path, f"suites.{self.name}.options.path"
        path = Path(own).expanduser() if own else content_dir("suites") / "coding_basics" / "problems.jsonl"
        problems = read(path, where)
        wrong = wrong_solutions(path, where)
        if bare := [problem.id for problem in problems if not wrong[problem.id]]:
            raise UsageError(f"{where}: {path}: {bare[0]!r} has no `wrong_solutions`; there is nothing to repair")
        chosen = [
            problem for problem in problems if not self.options.levels or set(self.options.levels) & {*problem.tags}
        ]
        if not chosen:
            known = ", ".join(sorted({tag for problem in problems for tag in problem.tags})) or "none"
            raise UsageError(f"suites.{self.name}.options.levels: no problem has {self.options.levels}; known: {known}")
        return [sample for problem in chosen for sample in _samples(problem, wrong[problem.id])]

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """Ask, test, show what the tests said, ask again."""
        broken = msgspec.json.decode(sample.target, type=_Broken)
        opened = await self._opening(sample, broken)
        if isinstance(opened, Attempt):
            return opened
        messages, turns, prompt = (Message(role="user", content=opened),), tuple[Completion, ...](), ""
        while True:
            try:
                said, digest = await self.ask(engine, sample, epoch, messages)
            except EngineError as error:
                if not turns or not _TOO_LONG.search(str(error)):
                    raise  # one turn without an answer, and nothing is known of the attempt
                return self._without_room(turns, prompt, str(error))
            turns, prompt = (*turns, said), prompt or digest  # later prompts hold the model's own words
            code, mark = await self.examined(said, broken.key)
            attempt = self.graded(turns, code, mark, prompt)
            failure = attempt.trajectory.failure
            if attempt.state is not State.SCORED or not failure or len(turns) == self.options.turns:
                return self._by_turn(attempt, len(turns))
            detail = mark.detail if isinstance(mark, Mark) else ""
            messages = (*messages, _passed_back(said), Message(role="user", content=_again(failure, detail)))

    async def _opening(self, sample: Sample, broken: _Broken) -> str | Attempt:
        """The first message, the same text in every arm of a run; an attempt that is missing where the sandbox failed.

        Raises:
            UsageError: the wrong program passes its tests.
        """
        if sample.id not in self._opened:
            mark = await self.marked(self._exam(broken.key, broken.wrong))
            if isinstance(mark, str):
                return self.graded((), None, mark, "")
            if mark.passed:
                raise UsageError(
                    f"suites.{self.name}: {sample.id}: the wrong program passes its tests; correct the file"
                )
            text = f"{sample.messages[0].content}\n\n{_said(mark.failure, mark.detail)}\n\nRepair it. {SAID}"
            self._opened.setdefault(sample.id, text)
        return self._opened[sample.id]

    def _by_turn(self, attempt: Attempt, turn: int) -> Attempt:
        """With its scores: solved in `turn`, or not at all. Without any where a limit cut it or the sandbox failed."""
        solved = bool(attempt.scores.get(SOLVED))
        scores = {metric.name: float(solved and turn <= at) for at, metric in enumerate(self.metrics, 1)}
        scored = attempt.state is State.SCORED
        return replace(attempt, scores=scores if scored else {}, sandbox=self.booth.label)

    def _without_room(self, turns: tuple[Completion, ...], prompt: str, why: str) -> Attempt:
        """The conversation has outgrown the context: cut by a limit, as an answer is that outgrows its own."""
        cut = self.graded((replace(turns[-1], finish="length"),), None, None, prompt)
        return self._by_turn(replace(cut, trajectory=replace(cut.trajectory, turns=turns, error=why)), len(turns))


def _samples(problem: Problem, wrong: tuple[str, ...]) -> Iterator[Sample]:
    asked = sample_of(problem, "chat")
    key = msgspec.json.decode(asked.target, type=Key)
    for number, program in enumerate(wrong, 1):
        yield replace(
            asked,
            id=f"{problem.id}.{number}",
            messages=(Message(role="user", content=_asked(problem, key, program)),),
            target=msgspec.json.encode(_Broken(key=key, wrong=program)).decode(),
            cluster=problem.cluster or problem.id,
        )


def _asked(problem: Problem, key: Key, program: str) -> str:
    described = "" if key.stub else f"\n\n{problem.prompt.strip()}"
    return f"This Python program does not do what its description says.{described}\n\n```python\n{program.strip()}\n```"


def _said(failure: str, detail: str) -> str:
    """What a test run said, in one line of bounded length; addresses are other ones in every process."""
    line = _ADDRESS.sub("0x...", one_line(detail[: 4 * LONGEST]))
    shown = line if len(line) <= LONGEST else f"{line[:LONGEST]} ... (cut)"
    return f"Its tests fail: {WORDS[failure]}{f': {shown}' if shown else ''}"


def _again(failure: str, detail: str) -> str:
    words = f"There is nothing to test: {WORDS[failure]}" if failure == "no_code" else _said(failure, detail)
    return f"{words}\n\nTry again. {SAID}"


def _passed_back(said: Completion) -> Message:
    """As the model's chat template wants it: the chat route keeps reasoning apart; a template that is continued cuts `</think>` itself."""
    return said.message or Message(role="assistant", content=said.text)
