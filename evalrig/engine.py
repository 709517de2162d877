"""What an engine is: a process that is started, watched, read back and stopped, and that answers HTTP."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from evalrig.errors import EngineError
from evalrig.loadgen.target import Gauges, Serving
from evalrig.proof import Inventory
from evalrig.troubles import Trouble
from evalrig.types import Capacity, Completion, Fingerprint, Message, Tool, Variant

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do. A suite that needs more is refused before anything starts."""

    prompt_logprobs: bool = False
    top_logprobs: int = 0
    """Largest K per position; -1: the whole vocabulary."""
    seed: bool = False
    """The same seed gives the same tokens."""
    chat: bool = False
    """Conversations through the engine's own chat route, as users' clients speak."""
    tools: bool = False
    """Tool calls are parsed there."""
    decode_logprobs: int = 0
    """Largest K of the lists that come with generated tokens; -1: the whole vocabulary."""
    cached_prefix: bool = False
    """Can score what follows a prefix that is read from the KV cache."""
    load: bool = False
    """Can be loaded by the load client: `Engine.serving`."""
    primed: bool = False
    """Under load a prompt that was sent before is read from its prefix cache."""
    tool_prompts: bool = False
    """Token ids of conversations with tools, tool calls and reasoning, through its own chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Of repeated tokens; the defaults do nothing."""

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Explicit on every request: an engine's defaults may differ between checkpoints."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    penalties: Penalties = Penalties()
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One turn that is asked for."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of the tool that must be called."""
    stream: bool = False
    """As a stream of events, put together again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Logprobs of given tokens (teacher forcing). Natural log, float32 as the engine gave them.

    Row i belongs to `token_ids[i]` and is conditional on every token before it.
    """

    token_ids: NDArray[np.int32]
    """Shape [n]."""
    logprobs: NDArray[np.float32]
    """Shape [n]: of the actual token."""
    top_ids: NDArray[np.int32]
    """Shape [n, K], by falling logprob; K = 0 where not asked for."""
    top_logprobs: NDArray[np.float32]
    """Shape [n, K]."""
    seconds: float = 0.0
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Where one engine process is started, and how long it may take."""

    log: Path
    start_seconds: float
    request_seconds: float
    hang_seconds: float | None = None
    """Without an answer or a sign of work while calls are in flight: then it hangs. None: by `request_seconds` (watch.py)."""
    restarts: int = 1
    """How often a run may start the variant again after a crash or a hang."""
    connections: int = 64
    """Calls in flight at most."""
    say: Callable[[str], None] = lambda line: None
    """How far a slow start is."""


class Engine(ABC):
    """One running engine of one variant. Errors of the engine are `EngineError`, never a score."""

    Options: ClassVar[type]
    """Dataclass of the kind's own keys."""
    capabilities: ClassVar[Capabilities]
    troubles: ClassVar[tuple[Trouble, ...]] = ()
    """What is looked for in `launch.log` while the engine runs; empty: it writes none, or nothing known."""
    at_work: ClassVar[str] = ""
    """Pattern of a line there that only an engine which computes tokens writes; empty: there is none."""

    def __init__(self, variant: Variant, options: Any, launch: Launch) -> None:
        self.variant = variant
        self.options = options
        self.launch = launch
        self.beat: Callable[[float], None] = lambda seconds: None
        """Told of a block of load by its client (`Driver.listen`); who watches the engine listens."""

    @classmethod
    def able(cls, options: Any) -> Capabilities:
        """What an engine with these options can do."""
        return cls.capabilities

    @classmethod
    def content(cls, variant: Variant) -> tuple[str, ...]:
        """Fetched models the variant names, by card name."""
        return ()

    @classmethod
    def resolve(cls, variant: Variant, options: Any, where: str) -> None:
        """Look up what the variant names (weights, files) before anything starts; `where` leads the error.

        Raises:
            UsageError: something is not there, or the options do not go together.
        """
        return  # some kinds look nothing up

    @classmethod
    def reach(cls, variant: Variant, options: Any, where: str) -> None:
        """As `resolve`, for what only the machine has that runs the engine: called by `run`, not by `show`.

        Raises:
            UsageError: no such checkpoint or program here, or the program does not know a flag.
        """
        return  # some kinds are found anywhere

    @property
    def logs(self) -> tuple[Path, ...]:
        """Files that its processes write to."""
        return (self.launch.log,)

    @abstractmethod
    async def start(self) -> None:
        """Start and wait for readiness. Raises `EngineError` with the reason from the log."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the whole process group, within 10 s. Harmless when not started."""

    @abstractmethod
    def alive(self) -> bool:
        """False once the engine is gone: calls then fail for a reason that no retry mends."""

    @abstractmethod
    async def fingerprint(self) -> Fingerprint:
        """What the engine says it is."""

    async def inventory(self) -> Inventory:
        """What was loaded and how, as far as it can be read; empty: the engine does not tell."""
        return Inventory()

    @abstractmethod
    async def capacity(self) -> Capacity:
        """What it holds and costs, in its own words."""

    @abstractmethod
    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        """Token ids of a text, or of a conversation through the engine's own chat template, with the tools it shows.

        `answer`: ready for an answer; False: up to the end of the last message. Tools, tool calls and reasoning need
        `Capabilities.tool_prompts`; a template may leave out what it has no place for.
        """

    async def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Text of each token by itself, special ones included; empty: the engine has no route for it."""
        return ()

    @abstractmethod
    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """Continue token ids."""

    @abstractmethod
    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """Logprobs of `ids[start:]`, each given all before it; `start` >= 1; top_k -1: the whole vocabulary."""

    async def score_cached(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """As `score`, with what stands before `start` read from the KV cache, as while decoding.

        Raises:
            EngineError: fewer tokens came from the cache than should have: another measurement.
        """
        raise EngineError(f"{self.variant.name}: the engine cannot score over a cached prefix")

    async def decode(self, ids: Sequence[int], sampling: Sampling, top_k: int) -> tuple[Completion, Scoring]:
        """Continue token ids, with the top-K list at each generated token: what the decode path computes."""
        raise EngineError(f"{self.variant.name}: the engine gives no top-K lists with what it generates")

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        """Answer a conversation through the engine's chat route; `Completion.message` is what to pass back.

        Raises:
            EngineError: no answer, or one that ended without a reason.
        """
        raise EngineError(f"{self.variant.name}: the engine has no chat route")

    async def serving(self) -> Serving:
        """How the load client reaches it."""
        raise EngineError(f"{self.variant.name}: the engine cannot be loaded")

    async def carry(self, block: Awaitable[T]) -> T:
        """Wait for a block that the load client sends: one call in flight. `beat`, and not its end, tells that it is answered."""
        return await block

    async def flush(self) -> bool:
        """Empty the prefix cache. False: it cannot be, or requests run; salted prompts must do."""
        return False

    async def gauges(self) -> Gauges | None:
        """One reading of its own metrics; None: it has none."""
        return None
