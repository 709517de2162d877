"""What a suite is: it yields samples and turns each into an attempt with scores."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from evalrig.engine import Capabilities, Engine, Scoring
from evalrig.errors import UsageError
from evalrig.loadgen.block import Block
from evalrig.loadgen.served import Served
from evalrig.sandbox import Booth
from evalrig.types import NON_FINITE, Completion, Metric, Sample, State, Trace, Trajectory

Grader: TypeAlias = Callable[[Sample, Completion], float | None]
"""How right a text answers a sample, 0..1. None: it cannot tell, because the text was cut where its suite would not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came out of one sample, before it is filed as a record."""

    trajectory: Trajectory
    scores: dict[str, float] = field(default_factory=dict[str, float])
    state: State = State.SCORED
    prompt_sha256: str = ""
    tokens_sha256: str = ""
    """Digest of the stream of tokens it is about, where that is no trace."""
    tokens: Scoring | None = None
    """Per-token logprobs to keep, columnar."""
    audit: Scoring | None = None
    """Rows over the whole vocabulary to keep."""
    retries: int = 0
    sandbox: str = ""
    """Back end and version under which the model's programs ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAttempt(Attempt):
    """An attempt that was a block of load. A void block is `UNSCORED`: missing in both arms."""

    block: Block
    served: Served


def sound(attempt: Attempt, suite: "Suite") -> Attempt:
    """The attempt, or in place of one with NaN or infinite numbers a missing one: a comparison with NaN would say "wrong".

    Raises:
        UsageError: the suite gave a binary metric a score that no judge can take, or a failure a word that it has not named.
    """
    word = attempt.trajectory.failure
    if word and word not in suite.failures:
        raise UsageError(f"suites.{suite.name}: a failure {word!r}, not among its `failures`; name it there")
    for metric in suite.metrics:
        score = attempt.scores.get(metric.score, 0.0)
        if metric.over != "mean" and score not in (0.0, 1.0) and not np.isnan(score):
            raise UsageError(f"suites.{suite.name}: {metric.score} scored {score}; {metric.name} counts 0 and 1 alone")
        if metric.kind == "binary" and not (0.0 <= score <= 1.0 or np.isnan(score)):
            raise UsageError(f"suites.{suite.name}: {metric.name} scored {score}; a binary score lies in 0..1")
    numbers = [*attempt.scores.values(), *(x for turn in attempt.trajectory.turns for x in turn.logprobs)]
    if np.isfinite(numbers).all():
        return attempt
    turns = tuple(replace(turn, logprobs=()) for turn in attempt.trajectory.turns)
    return replace(attempt, state=State.INFRA, scores={}, trajectory=Trajectory(turns=turns, error=NON_FINITE))


class Suite(ABC):
    """A suite. `samples` is deterministic: its digest is fixed before the first request."""

    Options: ClassVar[type]
    family: ClassVar[str]
    metrics: tuple[Metric, ...]
    traced: bool = False
    """True: the reference answers first (`trace`), and every variant attempts the same token stream."""
    rescored: bool = False
    """True: every variant answers by itself, and the reference then scores the same tokens (`rescore`)."""
    blocks: bool = False
    """True: an attempt is a block of load (`LoadAttempt`). A sample is a round, in which every variant runs the same schedule,
    one after the other in random order, with nothing else on the machine."""
    seed: int = 0
    """The run's, given before anything else is asked of it."""
    brief: ClassVar[Mapping[str, int]] = {}
    """Largest values that numeric options, or those in a list, take in a rehearsal, where one attempt is long work."""
    content: tuple[str, ...] = ()
    """Fetched data it reads, by card name; none where the options name the user's own file."""
    sources: tuple[str, ...] = ()
    """Other suites of the run whose samples it takes as prompts."""
    runs_code: bool = False
    """It runs programs that the model wrote: it is equipped with a sandbox before anything starts."""
    failures: tuple[str, ...] = ()
    """Words that `Trajectory.failure` can take; their shares are compared between variants. Empty: it tells of none."""

    def __init__(self, name: str, options: Any) -> None:
        self.name = name
        self.options = options

    def needs(self) -> Capabilities:
        """What an engine must be able to do."""
        return Capabilities()

    def rescoring(self) -> Capabilities:
        """What the reference's engine must be able to do beyond `needs`, for suites with `rescored`."""
        return Capabilities()

    @abstractmethod
    def samples(self) -> list[Sample]:
        """All samples, in the order of their source."""

    def draw(self, lent: Mapping[str, Sequence[Sample]], graders: Mapping[str, Grader]) -> list[Sample]:
        """All samples, those made of `lent` among them: what the suites in `sources` run, by suite, and their graders."""
        return self.samples()

    def lend(self, chosen: Sequence[Sample]) -> Sequence[Sample]:
        """What a suite that names this one in its `sources` takes, of the samples that the run has here: most lend those."""
        return chosen

    def equip(self, booth: Booth) -> None:
        """Given before the first request where programs run, for suites with `runs_code`."""
        raise TypeError(f"{type(self).__name__} runs no programs: `runs_code` is true and `equip` is not written")

    def grader(self) -> Grader | None:
        """What grades an answer to its samples by the text alone, for suites that borrow them; None: there is no such thing."""
        return None

    def settle(self, chosen: Sequence[Sample]) -> None:
        """Told before the first request which samples the run has, in its order."""
        return  # most suites treat all alike

    async def trace(self, engine: Engine, sample: Sample, epoch: int, seed: int) -> Trace:
        """The reference's own answer, for suites with `traced`."""
        raise TypeError(f"{type(self).__name__} is not traced: `traced` is true and `trace` is not written")

    @abstractmethod
    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """Ask and score once."""

    async def rescore(self, engine: Engine, sample: Sample, said: Completion) -> Attempt:
        """The reference on what another variant answered, for suites with `rescored`."""
        raise TypeError(f"{type(self).__name__} is not rescored: `rescored` is true and `rescore` is not written")


def ids_sha256(ids: Sequence[int] | Iterable[int]) -> str:
    """Digest of a token stream."""
    return hashlib.sha256(np.asarray(list(ids), np.int64).tobytes()).hexdigest()
