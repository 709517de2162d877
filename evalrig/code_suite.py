"""What the coding suites share: how a problem is asked, how often, and how an answer becomes an attempt."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from evalrig.ask import ask, own_seed, refuse_unfit
from evalrig.engine import Capabilities, Engine, Sampling
from evalrig.errors import UsageError
from evalrig.extraction import code_in, continued, stops, with_imports
from evalrig.proctor import Exam, Mark, mark
from evalrig.sandbox import Booth
from evalrig.suite import Attempt, Suite
from evalrig.types import Completion, Message, Metric, Sample, State, Trajectory

FAILURES = ("no_code", "syntax_error", "wrong_answer", "timeout", "crash", "truncated")
"""How a program fails to solve its problem."""
SOLVED = "solved"
"""The score of an attempt: 1.0 where all tests passed."""
PROMPTINGS = ("chat", "base")


@dataclass(kw_only=True)
class CodeOptions:
    """Keys of `suites.<name>.options` that all coding suites have."""

    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    """Of a temperature above 0: each attempt draws with a seed of its own made from it, the same in every variant."""
    prompting: str = "chat"
    """`chat`: a conversation through the chat template; `base`: the problem's text is continued as it is."""
    route: str = "completion"
    """Of `chat`: `completion` continues the template's token ids; `chat` uses the engine's chat route."""
    thinking: bool = False
    """The chat template opens a thinking block: an answer cut before `</think>` holds no program."""
    pass_at: list[int] = field(default_factory=lambda: [1])
    """k of pass@k, each with pass^k beside it where k > 1; the suite needs as many `epochs`."""
    wall_seconds: float = 10.0
    """A program that takes longer has failed."""


class CodeSuite(Suite):
    """A suite whose answers are programs."""

    family = "coding"
    runs_code = True
    failures = FAILURES
    brief: ClassVar[Mapping[str, int]] = {"max_tokens": 64}
    metrics: tuple[Metric, ...] = (Metric(name="pass@1", kind="binary", units="points", scale=100.0, of=SOLVED),)
    booth: Booth

    def __init__(self, name: str, options: Any) -> None:
        super().__init__(name, options)
        self.code_options = cast(CodeOptions, options)
        _refuse_unfit(f"suites.{name}.options", self.code_options)
        self.metrics = metrics(self.code_options.pass_at)

    def equip(self, booth: Booth) -> None:
        """See `Suite.equip`."""
        self.booth = booth

    def needs(self) -> Capabilities:
        """Text, and the chat route where it is asked for."""
        return Capabilities(chat=self.code_options.prompting == "chat" and self.code_options.route == "chat")

    async def ask(
        self, engine: Engine, sample: Sample, epoch: int, messages: tuple[Message, ...] = ()
    ) -> tuple[Completion, str]:
        """One answer, and the digest of the prompt's token ids. `messages`: in place of the sample's own, in a later turn."""
        turn = sum(message.role == "assistant" for message in messages)
        prompt = messages or sample.messages or sample.prompt
        return await ask(engine, prompt, self.code_options.route, self._sampling(sample, epoch, turn))

    def _sampling(self, sample: Sample, epoch: int, turn: int) -> Sampling:
        options = self.code_options
        words = (options.seed, self.name, sample.id, epoch, *([turn] if turn else []))
        return Sampling(
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            seed=own_seed(*words) if options.temperature else None,
            stop=() if sample.messages else stops(sample.prompt),
        )

    def found(self, said: Completion, entry_point: str, stub: str = "") -> str | None:
        """The program in an answer. Of one that a limit cut: only one that something had ended; see `guess`.

        `stub`: what was to be completed, where the problem is given as the start of a program.
        """
        return self._found(said.text, said.finish == "length", entry_point, stub)

    def guess(self, said: Completion, entry_point: str, stub: str = "") -> str | None:
        """Of an answer that a limit cut inside its program: what there is of it, without the line that was cut."""
        return self._found(said.text.rpartition("\n")[0], False, entry_point, stub) if self._out(said.text) else None

    def _found(self, text: str, cut: bool, entry_point: str, stub: str) -> str | None:
        if self.code_options.prompting == "base":
            return continued(stub, text, entry_point, cut)
        return code_in(text, entry_point, cut, self.code_options.thinking, stub)

    def _out(self, text: str) -> bool:
        """Has the thinking ended, if there was any?"""
        return not self.code_options.thinking or "</think>" in text

    async def tried(
        self, said: Completion, entry_point: str, stub: str, run: Callable[[str], Awaitable[Mark | str]]
    ) -> tuple[str | None, Mark | str | None]:
        """The program in an answer, and what `run` says of it. Of a cut answer: what passes is solved, for the limit took nothing
        that counts; of all else there is no program."""
        code = self.found(said, entry_point, stub)
        cut = code is None and said.finish == "length"
        code = self.guess(said, entry_point, stub) if cut else code
        mark = None if code is None else await run(code)
        if cut and isinstance(mark, Mark) and not mark.passed:
            return None, None
        return code, mark

    async def marked(self, exam: Exam) -> Mark | str:
        """The exam of a program, with the standard imports before it; a text: why it could not be held."""
        try:
            return await mark(self.booth, replace(exam, code=with_imports(exam.code)))
        except UsageError as error:  # of the sandbox, or of tests that are wrong themselves: neither is the model's
            return f"not graded: {error}"

    def graded(
        self,
        turns: tuple[Completion, ...],
        code: str | None,
        mark: Mark | str | None,
        prompt_sha256: str,
    ) -> Attempt:
        """The `Attempt` that answers, the program found and its mark make: scored, or truncated where a limit cut it.

        `mark`: None where nothing was run; a text where the grader failed, and why: then nothing is known of the answer.
        """
        error = mark if isinstance(mark, str) else "" if mark or code is None else "the program was not run"
        failure = "" if error else mark.failure if isinstance(mark, Mark) else _nothing(turns)
        state = State.UNSCORED if error else State.TRUNCATED if failure == "truncated" else State.SCORED
        return Attempt(
            trajectory=Trajectory(turns=turns, answer=code or "", error=error, failure=failure),
            scores={SOLVED: float(not failure)} if state is State.SCORED else {},
            state=state,
            prompt_sha256=prompt_sha256,
            retries=sum(turn.retries for turn in turns),
            sandbox=self.booth.label if mark is not None else "",
        )


def _nothing(turns: tuple[Completion, ...]) -> str:
    """Why an answer holds no program."""
    return "truncated" if turns and turns[-1].finish == "length" else "no_code"


def metrics(pass_at: list[int]) -> tuple[Metric, ...]:
    """pass@1, and for each further k the chance that any, and that all, of k answers are right."""
    return (*CodeSuite.metrics, *(metric for k in sorted(set(pass_at)) if k > 1 for metric in _repeated(k)))


def _repeated(k: int) -> tuple[Metric, Metric]:
    first = Metric(name=f"pass@{k}", kind="binary", units="points", scale=100.0, of=SOLVED, over="any", k=k)
    return first, replace(first, name=f"pass^{k}", over="all")


def _refuse_unfit(where: str, options: CodeOptions) -> None:
    refuse_unfit(where, options.max_tokens, options.temperature, options.route)
    if options.prompting not in PROMPTINGS:
        raise UsageError(f"{where}.prompting: no {options.prompting!r}; known: {', '.join(PROMPTINGS)}")
    if options.prompting == "base" and (options.thinking or options.route == "chat"):
        raise UsageError(f"{where}: `thinking` and `route: chat` need a conversation; set prompting: chat")
    if not options.pass_at or min(options.pass_at) < 1:
        raise UsageError(f"{where}.pass_at: {options.pass_at}; give numbers of 1 or more")
    if max(options.pass_at) > 1 and not options.temperature:
        raise UsageError(f"{where}.pass_at: at temperature 0 all answers are one answer; raise `temperature`")
    if not 0 < options.wall_seconds <= 600:
        raise UsageError(f"{where}.wall_seconds: {options.wall_seconds}; give more than 0 and at most 600")
