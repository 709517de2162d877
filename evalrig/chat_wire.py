"""Chat and tool calls over `/v1/chat/completions`, through OpenAI's own client, as users' clients speak.

That client builds and sends the requests. Its retries are off: the rule is ours, the same in every arm (`wire.py`). The
events of a stream are read here (`chat_reply.py`), because it hides whether `[DONE]` came.
"""

import json
import math
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx

from evalrig.chat_reply import Assembly, events
from evalrig.conversation import conversation
from evalrig.engine import Chat, Sampling
from evalrig.errors import EngineError
from evalrig.types import Completion
from evalrig.wire import Fault, Wire

PATH: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one kind of server differs from OpenAI's own route. Docs: docs/engines.md."""

    top_k: str = ""
    """Key of the parameter; empty: not taken."""
    top_k_off: int = -1
    min_p: str = ""
    repetition: str = ""
    reasoning: str = ""
    """Key under which an assistant's reasoning is passed back; empty: none is taken."""
    always: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sent with every request: what gives token ids back, and defaults that must not decide."""


SGLANG: Final = Dialect(
    top_k="top_k",
    min_p="min_p",
    repetition="repetition_penalty",
    reasoning="reasoning_content",
    always={"return_token_ids": True},
)
VLLM: Final = replace(SGLANG, reasoning="reasoning")
OPENAI: Final = Dialect()


class Client:
    """Conversations with one server. `model` empty: the first that it serves."""

    def __init__(self, wire: Wire, dialect: Dialect, model: str = "") -> None:
        self.wire = wire
        self.dialect = dialect
        self._asked = model
        self._model = ""
        self._openai: Any = None

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        """See `Engine.chat`.

        Raises:
            ValueError: a request that some server takes for another (llama.cpp: max_tokens -1 is without end).
            EngineError: no answer, or one that ended without a reason.
        """
        check(chat, sampling)
        own, extra = self._parameters(sampling)
        body = {**conversation(chat.messages, chat.tools, self.dialect.reasoning), **own, **_choice(chat)}
        if chat.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= {"model": await self._served(), "extra_body": extra}
        began = time.monotonic()
        try:
            answer, retries = await self.wire.tried(lambda: self._ask(body), PATH)
        except EngineError as error:
            if not _unreadable(chat):
                raise
            words = "the conversation holds tool-call arguments that are no JSON, sent as the model wrote them"
            raise EngineError(f"{error}; {words}") from error
        return replace(answer, seconds=time.monotonic() - began, retries=retries)

    async def _ask(self, body: Mapping[str, Any]) -> Completion:
        """One try."""
        client, openai = self._client()
        answer = Assembly()
        try:
            async with client.chat.completions.with_streaming_response.create(**body) as reply:
                with self.wire.shape(PATH):
                    if body.get("stream"):
                        async for event in events(self._within(reply.http_response)):
                            answer.take(event, "delta")
                    else:
                        answer.take(json.loads(await reply.read()), "message")
                    return answer.completion()
        except openai.APIStatusError as error:
            raise Fault.of_status(error.status_code, error.response.text) from error
        except openai.APIConnectionError as error:
            raise Fault.of_transport(error.__cause__ if isinstance(error.__cause__, Exception) else error) from error
        except httpx.RequestError as error:
            raise Fault.of_transport(error) from error

    async def _within(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The bytes of a stream. Its pieces may come for ever; a whole reply may not either."""
        end = time.monotonic() + self.wire.seconds
        async for piece in response.aiter_bytes():
            yield piece
            if time.monotonic() > end:
                raise httpx.ReadTimeout(f"a stream took longer than {self.wire.seconds:g} s")

    def _client(self) -> tuple[Any, Any]:
        """OpenAI's client over our connections: no proxy, no retries, no organisation from the environment."""
        import openai  # 0.7 s: with the first chat

        if self._openai is None:
            nobody: dict[str, Any] = {"OpenAI-Organization": openai.Omit(), "OpenAI-Project": openai.Omit()}
            connections: Any = self.wire.http  # newer releases name another package's class and take both
            limit: Any = self.wire.http.timeout
            self._openai = openai.AsyncOpenAI(
                base_url=f"{str(self.wire.http.base_url).rstrip('/')}/v1",
                api_key=self.wire.key or "none",
                http_client=connections,
                timeout=limit,
                max_retries=0,
                default_headers=nobody,
            )
        return self._openai, openai

    async def _served(self) -> str:
        """The model's name, looked up once: SGLang and llama.cpp answer to any name, and SGLang repeats it."""
        if not self._model:
            found = await self.wire.info("/v1/models")
            with self.wire.shape("/v1/models"):
                names = [str(card["id"]) for card in found["data"]]
            if not names or (self._asked and self._asked not in names):
                raise self.wire.failure(f"it does not serve {self._asked or 'anything'!r}; name one of /v1/models")
            self._model = self._asked or names[0]
        return self._model

    def _parameters(self, sampling: Sampling) -> tuple[dict[str, Any], dict[str, Any]]:
        """Every parameter by name: what OpenAI's client knows, and what goes into the body beside it."""
        penalties, dialect = sampling.penalties, self.dialect
        own: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": penalties.presence,
            "frequency_penalty": penalties.frequency,
        }
        if sampling.stop:
            own["stop"] = list(sampling.stop)
        if sampling.seed is not None:
            own["seed"] = sampling.seed
        top_k = sampling.top_k if sampling.top_k > 0 else dialect.top_k_off
        extra: dict[str, Any] = dict(dialect.always)
        for name, key, value, off in (
            ("top_k", dialect.top_k, top_k, dialect.top_k_off),
            ("min_p", dialect.min_p, sampling.min_p, 0.0),
            ("a repetition penalty", dialect.repetition, penalties.repetition, 1.0),
        ):
            if key:
                extra[key] = value
            elif value != off:
                raise self.wire.failure(f"its route takes no {name}; it was not sent")
        return own, extra


def check(chat: Chat, sampling: Sampling) -> None:
    """Refuse what a server may take for another request.

    Raises:
        ValueError: out of range, or a choice of tool without that tool.
    """
    penalties = sampling.penalties
    if sampling.max_tokens < 1:
        raise ValueError(f"max_tokens {sampling.max_tokens}: at least 1")
    for name, value, low, high in (
        ("temperature", sampling.temperature, 0.0, math.inf),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("presence penalty", penalties.presence, -2.0, 2.0),
        ("frequency penalty", penalties.frequency, -2.0, 2.0),
    ):
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(f"{name} {value}: from {low:g} to {high:g}")
    if not 0 < sampling.top_p <= 1 or sampling.top_k < -1 or not 0 < penalties.repetition < math.inf:
        raise ValueError("top_p is above 0 and at most 1, top_k at least -1, the repetition penalty above 0")
    if not chat.messages:
        raise ValueError("a chat without messages")
    if chat.tool_choice not in ("auto", "none", *(tool.name for tool in chat.tools)) and not (
        chat.tool_choice == "required" and chat.tools
    ):
        raise ValueError(f"tool_choice {chat.tool_choice!r} without such a tool")


def _choice(chat: Chat) -> dict[str, Any]:
    """Of the tool; nothing where there are none."""
    if not chat.tools:
        return {}
    named = {"type": "function", "function": {"name": chat.tool_choice}}
    return {"tool_choice": chat.tool_choice if chat.tool_choice in ("auto", "none", "required") else named}


def _unreadable(chat: Chat) -> bool:
    """True: some call in the history has arguments that are no JSON."""
    for message in chat.messages:
        for call in message.tool_calls:
            try:
                json.loads(call.arguments)
            except (ValueError, RecursionError):  # the model's: a number or a nesting may be past any limit
                return True
    return False
