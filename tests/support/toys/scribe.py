"""An engine that writes what a test wants, and a sandbox that runs nothing."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evalrig.engine import Chat, Launch, Sampling
from evalrig.sandbox import Booth, Limits, Ran, Sandbox
from evalrig.suite import Attempt, Suite
from evalrig.types import Completion, Message, Sample, Tool, Variant
from toys.engine import Toy, ToyOptions


class Scribe(Toy):
    """Answers with what `write` makes of the prompt, and keeps what it was asked."""

    def __init__(self, write: Callable[[str], str], finish: str = "stop") -> None:
        variant = Variant(name="scribe", role="reference", engine="toys.engine", weights="toy")
        super().__init__(variant, ToyOptions(), Launch(log=Path(), start_seconds=1, request_seconds=1))
        self.write, self.finish = write, finish
        self.prompts: dict[tuple[int, ...], str] = {}
        self.asked: list[Any] = []
        self.sampled: list[Sampling] = []

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        ids = await super().tokenize(prompt, tools, answer)
        self.prompts[ids] = prompt if isinstance(prompt, str) else prompt[-1].content
        return ids

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        return self._written(tuple(ids), self.prompts[tuple(ids)], sampling)

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        return self._written(chat, chat.messages[-1].content, sampling)

    def _written(self, asked: Any, prompt: str, sampling: Sampling) -> Completion:
        self.asked.append(asked)
        self.sampled.append(sampling)
        return Completion(text=self.write(prompt), finish=self.finish, prompt_tokens=7, retries=1)


class Idle(Sandbox):
    """Is there, and runs nothing."""

    kind = "idle"
    version = "1"

    def __init__(self, unsandboxed: bool = False) -> None:
        self.unsandboxed = unsandboxed

    def run(self, program: str, stdin: bytes, limits: Limits, slot: int) -> Ran:
        raise AssertionError("nothing is run here")


def written(suite: Suite, sample: Sample, scribe: Scribe, epoch: int = 0, booth: Booth | None = None) -> Attempt:
    """One attempt of a suite on what a scribe writes."""

    async def go() -> Attempt:
        suite.equip(booth or Booth(Idle(), 1))
        await scribe.start()
        return await suite.attempt(scribe, sample, epoch, None)

    return asyncio.run(go())
