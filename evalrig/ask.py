"""One question put to an engine, the same way in every suite that lets the model write: route, seed, and the digest of what was asked."""

import hashlib

from evalrig.engine import Chat, Engine, Sampling
from evalrig.errors import UsageError
from evalrig.suite import ids_sha256
from evalrig.types import Completion, Message

ROUTES = ("completion", "chat")
"""`completion` continues the token ids of the chat template; `chat` uses the engine's chat route."""


def refuse_unfit(where: str, max_tokens: int, temperature: float, route: str) -> None:
    """Options that all such suites have.

    Raises:
        UsageError: one is out of range.
    """
    if max_tokens < 1 or not 0 <= temperature <= 2:
        raise UsageError(f"{where}: max_tokens is at least 1, temperature is in 0..2; correct it")
    if route not in ROUTES:
        raise UsageError(f"{where}.route: no route {route!r}; known: {', '.join(ROUTES)}")


def own_seed(*words: object) -> int:
    """A seed made of what names an attempt: each its own, the same in every variant."""
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


async def ask(
    engine: Engine, prompt: str | tuple[Message, ...], route: str, sampling: Sampling
) -> tuple[Completion, str]:
    """One answer, and the digest of the prompt's token ids."""
    ids = await engine.tokenize(prompt)
    if route == "chat" and not isinstance(prompt, str):
        said = await engine.chat(Chat(messages=prompt), sampling)
        return said, ids_sha256(
            [*ids, said.prompt_tokens]
        )  # the route applies the template itself: its count must agree
    return await engine.generate(ids, sampling), ids_sha256(ids)
