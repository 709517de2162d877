"""What the coding suites share: how a problem is asked, how often, and how an answer becomes an attempt."""

from dataclasses import dataclass, field
from typing import Any

from evalrig.engine import Capabilities, Engine
from evalrig.proctor import Mark
from evalrig.sandbox import Booth
from evalrig.suite import Suite
from evalrig.types import Completion, Message, Metric, Sample

FAILURES = ("no_code", "syntax_error", "wrong_answer", "timeout", "crash", "truncated")
"""How a program fails to solve its problem."""
SOLVED = "solved"
"""The score of an attempt: 1.0 where all tests passed."""


@dataclass(kw_only=True)
class CodeOptions:
    """Keys of `suites.<name>.options` that all coding suites have."""

    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    prompting: str = "chat"
    """`chat`: a conversation through the chat template; `base`: the problem's text is continued as it is."""
    route: str = "completion"
    """Of `chat`: `completion` continues the template's token ids; `chat` uses the engine's chat route."""
    thinking: bool = False
    pass_at: list[int] = field(default_factory=lambda: [1])
    """k of pass@k, each with pass^k beside it where k > 1; the suite needs as many `epochs`."""
    wall_seconds: float = 10.0
    """A program that takes longer has failed."""


class CodeSuite(Suite):
    """A suite whose answers are programs."""

    family = "coding"
    runs_code = True
    failures = FAILURES
    metrics: tuple[Metric, ...]
    booth: Booth

    def __init__(self, name: str, options: Any) -> None:
        super().__init__(name, options)

    def equip(self, booth: Booth) -> None:
        """See `Suite.equip`."""
        self.booth = booth

    def needs(self) -> Capabilities:
        """Text, and the chat route where it is asked for."""
        raise NotImplementedError

    async def ask(
        self, engine: Engine, sample: Sample, epoch: int, messages: tuple[Message, ...] = ()
    ) -> tuple[Completion, str]:
        """One answer, and the digest of the prompt's token ids. `messages`: in place of the sample's own, in a later turn."""
        raise NotImplementedError

    def graded(self, turns: tuple[Completion, ...], code: str | None, mark: Mark | None, prompt_sha256: str) -> Any:
        """The `Attempt` that answers, the program found and its mark make: scored, or truncated where a limit cut it."""
        raise NotImplementedError
