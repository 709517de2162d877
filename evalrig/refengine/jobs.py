"""A job: one prompt on its way through the engine, what was asked of it and what has come of it so far."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalrig.refengine.cache import CachedSequence
from evalrig.refengine.logprobs import LogprobWish, RowLogprobs
from evalrig.refengine.sampling import Sampling
from evalrig.refengine.tokenizer import TextStream, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """What ends an answer before its length does."""

    texts: tuple[str, ...] = ()
    """Strings, looked for in the decoded answer and cut off it."""
    ids: frozenset[int] = frozenset()
    """Token ids, the model's end tokens among them; the token stays in the ids and is left out of the text."""
    keep: bool = False
    """Leave the matched string in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A request for one prompt, checked: the engine runs it without looking back at the JSON."""

    identity: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    """0: only score the prompt."""
    sampling: Sampling
    stop: StopRules = field(default_factory=StopRules)
    wish: LogprobWish | None = None
    skip_special_tokens: bool = True
    stream: bool = False
    """Report every token, not only the end."""

    @property
    def most_tokens(self) -> int:
        """Tokens the cache must be able to hold for it (the last answer token is never fed back)."""
        return len(self.prompt) + max(0, self.max_new_tokens - 1)

    @property
    def reusable(self) -> int:
        """Prompt tokens whose keys and values are enough: nobody asks what the model says after them."""
        last = len(self.prompt) - 1
        return last if self.wish is None else min(self.wish.start, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Why a job ended."""

    kind: str
    """"stop" or "length"."""
    matched: int | str | None = None
    """The token id or the string that stopped it."""
    length: int = 0
    """Tokens generated."""

    def wire(self) -> dict[str, Any]:
        """As `meta_info.finish_reason` has it."""
        return (
            {"type": "length", "length": self.length}
            if self.kind == "length"
            else {"type": "stop", "matched": self.matched}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """News of a job, sent from the compute thread."""

    count: int
    """Answer tokens so far."""
    text: str
    """Answer text so far; while unfinished, without a tail that may turn out to be the start of a stop string."""
    finish: Finish | None = None
    error: str | None = None
    """What went wrong inside the engine; the job is over then."""


@dataclass(slots=True, kw_only=True)
class Clock:
    """Moments of a job. Wall time in seconds since the epoch; durations from the monotonic clock."""

    received: float = field(default_factory=time.time)
    started: float = field(default_factory=time.perf_counter)
    queued: float = 0.0
    """Seconds from arrival to admission."""
    prefilled: float = 0.0
    """Seconds from arrival to the end of the prompt's last chunk."""
    finished: float = 0.0
    """Seconds from arrival to the end."""

    def elapsed(self) -> float:
        """Seconds since arrival."""
        return time.perf_counter() - self.started


class Job:
    """A running job. Only the compute thread changes it; its lists grow at the end, so that others may read what an
    Update counted."""

    def __init__(self, spec: JobSpec, tokenizer: Tokenizer, notify: Callable[[Update], None]) -> None:
        self.spec, self.notify, self.clock = spec, notify, Clock()
        self.sequence: CachedSequence | None = None
        self.cached = 0
        """Prompt tokens that came from the prefix cache."""
        self.output_ids: list[int] = []
        self.input_rows: list[RowLogprobs] = []
        """One a prompt position from `wish.start` + 1 on."""
        self.output_rows: list[RowLogprobs] = []
        self.finish: Finish | None = None
        self.text = ""
        self._stream = TextStream(tokenizer, skip_special=spec.skip_special_tokens)

    @property
    def length(self) -> int:
        """Tokens known: prompt and answer."""
        return len(self.spec.prompt) + len(self.output_ids)

    def tokens(self, first: int, count: int) -> Sequence[int]:
        """The tokens at positions first .. first + count."""
        prompt = self.spec.prompt
        if first >= len(prompt):
            return self.output_ids[first - len(prompt) : first - len(prompt) + count]
        return prompt[first : first + count]

    def accept(self, token: int) -> None:
        """Appends an answer token; sets `finish` when it is the last."""
        self.output_ids.append(token)
        count = len(self.output_ids)
        if token in self.spec.stop.ids:
            self.finish = Finish(kind="stop", matched=token, length=count)
            self.text += self._stream.finish()
            return
        known = len(self.text)
        self.text += self._stream.push(token)
        at_length = count >= self.spec.max_new_tokens
        if at_length:
            self.text += self._stream.finish()
        if not self._stopped_by_text(known, count) and at_length:
            self.finish = Finish(kind="length", length=count)

    def only_scored(self) -> None:
        """Ends a job that asked for no answer."""
        self.finish = Finish(kind="length", length=0)

    def update(self) -> Update:
        """The present state, to be sent."""
        hidden = 0 if self.finish else held_back(self.text, self.spec.stop.texts)
        return Update(count=len(self.output_ids), text=self.text[: len(self.text) - hidden], finish=self.finish)

    def _stopped_by_text(self, known: int, count: int) -> bool:
        """Looks for the first stop string that ends in the text after `known`."""
        found: list[tuple[int, str]] = []
        for text in self.spec.stop.texts:
            at = self.text.find(text, max(0, known - len(text) + 1))
            if at >= 0:
                found.append((at, text))
        if not found:
            return False
        at, text = min(found, key=lambda pair: (pair[0], -len(pair[1])))
        self.text = self.text[: at + len(text) * self.spec.stop.keep]
        self.finish = Finish(kind="stop", matched=text, length=count)
        return True


def held_back(text: str, marks: Sequence[str]) -> int:
    """Length of the longest tail of `text` that is the beginning, not the whole, of one of `marks`."""
    return max(
        (n for mark in marks for n in range(1, min(len(mark), len(text) + 1)) if text.endswith(mark[:n])), default=0
    )
