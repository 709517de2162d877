"""llama.cpp's native HTTP dialect (`/completion`, `/tokenize`, `/apply-template`), as recorded from build 11549.

The server ignores `echo` and `prompt_logprobs` without a word, so nothing here asks for them. Everything it sends is
checked: a reply that lacks a row, continues other tokens than given, or ends without a reason is an `EngineError`.
"""

import asyncio
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import httpx
import msgspec

from evalrig.chat_wire import Dialect
from evalrig.conversation import conversation
from evalrig.engine import Penalties, Sampling
from evalrig.errors import EngineError
from evalrig.exposition import page
from evalrig.loadgen.target import Gauges
from evalrig.types import Completion, Message, Tool
from evalrig.wire import Wire

UNTOUCHED: Final[Mapping[str, Any]] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "logit_bias": [],
    "ignore_eos": False,
    "post_sampling_probs": False,
    "samplers": ["temperature"],
    "cache_prompt": False,
    "return_tokens": True,
    "stream": False,
}
"""Sent with every request: the server's defaults (temperature 0.8, top-k 40, top-p 0.95, min-p 0.05) come from anywhere."""

LOOK_BACK: Final = 65536
"""Tokens that penalties look back over: the default are 64, and -1 is refused."""
_NATIVE: Final = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty")
CHAT: Final = Dialect(
    top_k="top_k",
    top_k_off=0,
    min_p="min_p",
    repetition="repeat_penalty",
    reasoning="reasoning_content",
    always={
        **{key: value for key, value in UNTOUCHED.items() if key not in (*_NATIVE, "return_tokens", "stream")},
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "repeat_last_n": LOOK_BACK,
        "logprobs": True,
        "top_logprobs": 1,
    },
)
"""Its chat route takes the native parameters too. Token ids come with logprobs alone."""

LOADED: Final[Mapping[str, Any]] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
    "cache_prompt": False,
}
"""Laid over the requests of a load."""


class Top(msgspec.Struct):
    """One entry of a list. None: the server had no number (NaN)."""

    id: int
    logprob: float | None


class Row(msgspec.Struct):
    """One answered token: its own logprob, and the most likely ones, by falling logprob."""

    id: int
    logprob: float | None
    top_logprobs: list[Top] = []


class _Timings(msgspec.Struct):
    cache_n: int


class Answer(msgspec.Struct):
    """`/completion`, what of it is used; a missing key is an unknown shape. Of whole vocabularies the texts are skipped unread."""

    content: str
    tokens: list[int]
    stop: bool
    stop_type: str
    truncated: bool
    tokens_evaluated: int
    timings: _Timings
    completion_probabilities: list[Row] = []


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Prompt(msgspec.Struct):
    prompt: str


class _Content(msgspec.Struct):
    content: str


T = TypeVar("T")


class Client(Wire):
    """Calls to one server. `vocabulary` and `context` bound what is sent; calls above `slots` wait here, not in the server."""

    def __init__(self, name: str, base_url: str, seconds: float, slots: int) -> None:
        super().__init__(name, base_url, seconds)
        self.context = 0
        self.slots = asyncio.Semaphore(slots)

    async def ready(self) -> bool:
        """True once the server takes requests: while it loads, every path is 503."""
        return await self.status("/health") == 200

    async def info(self, path: str) -> dict[str, Any]:
        """`/props` or `/v1/models`."""
        return (await self._call("GET", path, None, dict[str, Any]))[0]

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        """Ids of a text without special tokens added, or of a conversation through the chat template.

        `/tokenize` understands no messages, so the template is applied first. llama.cpp takes a leading BOS off the
        template's text when the tokenizer adds one: hence `add_special` for conversations.
        """
        if isinstance(prompt, str):
            text, special = prompt, False
        else:
            body = conversation(prompt, tools, CHAT.reasoning, answer)
            found, _ = await self._call("POST", "/apply-template", body, _Prompt)
            text, special = found.prompt, True
        body = {"content": text, "add_special": special, "parse_special": True}
        return tuple((await self._call("POST", "/tokenize", body, _Tokens))[0].tokens)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Text of ids; bytes that are no UTF-8 come as U+FFFD."""
        self.check_ids(ids)
        return (await self._call("POST", "/detokenize", {"tokens": list(ids)}, _Content))[0].content

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `ids` by sampling."""
        return (await self.decode(ids, sampling, 1))[0]

    async def decode(self, ids: Sequence[int], sampling: Sampling, k: int) -> tuple[Completion, list[Row]]:
        """As `generate`, with the row of each new token and its K best; no rows where one is a piece of a character.

        The server keeps back the row of a token that ends in half a character.
        """
        if sampling.max_tokens < 1:  # 0 would answer one token, -1 without end
            raise ValueError(f"max_tokens {sampling.max_tokens}: at least 1")
        body = {"prompt": list(ids), "n_predict": sampling.max_tokens, "n_probs": k, **_params(sampling)}
        answer, retries = await self.complete(body)
        finish = {"eos": "stop", "word": "stop", "limit": "length"}.get(answer.stop_type, "")
        if not finish or not answer.stop:
            kind = answer.stop_type or "no"
            raise EngineError(f"{self.name}: an answer ended with {kind} finish reason; counted as a failed call")
        whole = [row.id for row in answer.completion_probabilities] == answer.tokens
        rows = answer.completion_probabilities if whole else []
        completion = Completion(
            text=answer.content,
            token_ids=tuple(answer.tokens),
            logprobs=tuple(number(row.logprob) for row in rows),
            prompt_tokens=len(ids),
            completion_tokens=len(answer.tokens),
            finish=finish,
            retries=retries,
        )
        return completion, rows

    async def complete(self, body: Mapping[str, Any]) -> tuple[Answer, int]:
        """`/completion` with checked ids, cold, and not cut by the context; with the number of retries."""
        prompt: list[int] = body["prompt"]
        self.check_ids(prompt)
        if self.context and len(prompt) >= self.context:
            text = f"{len(prompt)} tokens do not fit the context of {self.context}; raise `context_length`"
            raise EngineError(f"{self.name}: {text}")
        async with self.slots:
            answer, retries = await self._call("POST", "/completion", {**UNTOUCHED, **body}, Answer)
        if answer.tokens_evaluated != len(prompt):
            raise EngineError(f"{self.name}: answered a prompt of {answer.tokens_evaluated} tokens, not {len(prompt)}")
        if answer.timings.cache_n:
            cached = f"{answer.timings.cache_n} prompt tokens came from the prefix cache although it is off"
            raise EngineError(f"{self.name}: {cached}: such numbers depend on the order of requests")
        if answer.truncated:
            raise EngineError(
                f"{self.name}: the context of {self.context} tokens ended an answer; raise `context_length`"
            )
        return answer, retries

    async def gauges(self) -> Gauges | None:
        """From `/metrics` and `/slots`: a slot's tokens are those of its prompt and of its answer so far.

        How long prompts and answers took is told, for how many requests is not. It puts no request back.
        """
        told = page(await self.text("/metrics"))
        if not told.samples:
            return None
        slots = await self.text("/slots")
        with self.shape("/slots"):
            held = json.loads(slots) if slots else []
            used = sum(slot["n_prompt_tokens"] for slot in held if slot["is_processing"])
            room = sum(slot["n_ctx"] for slot in held)
        seconds = {"prefill": "llamacpp:prompt_seconds_total", "decode": "llamacpp:tokens_predicted_seconds_total"}
        return Gauges(
            at=time.monotonic(),
            running=told.total("llamacpp:requests_processing"),
            waiting=told.total("llamacpp:requests_deferred"),
            kv_usage=used / room if room else math.nan,
            preemptions=0.0,
            prompt_tokens=told.total("llamacpp:prompt_tokens_total"),
            generated_tokens=told.total("llamacpp:tokens_predicted_total"),
            phases={phase: (told.total(name), math.nan) for phase, name in seconds.items() if name in told.samples},
        )

    def complaint(self, reply: httpx.Response) -> str:
        """`{"error": {"code", "message", "type"}}`, or what came instead."""
        try:
            return str(reply.json()["error"]["message"])[:200]
        except (ValueError, KeyError, TypeError):
            return super().complaint(reply)

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, shape: type[T]) -> tuple[T, int]:
        """Reply, read as `shape` straight from its bytes, and number of retries."""
        reply, retries = await self.fetch(method, path, body)
        return self._read(reply.content, path, shape), retries

    def _read(self, content: bytes, path: str, shape: type[T]) -> T:
        """A reply of another shape is the engine's fault, not a crash of ours and not an answer."""
        try:
            return msgspec.json.decode(content, type=shape)
        except msgspec.MsgspecError as error:
            said = content[:80].decode(errors="replace")
            raise EngineError(f"{self.name}: {path} answered in an unknown shape: {error}: {said!r}") from error


def number(logprob: float | None) -> float:
    """NaN for none; llama.cpp writes the smallest float32 where a probability is 0."""
    if logprob is None:
        return float("nan")
    return float("-inf") if logprob < -1e30 else logprob


def _params(sampling: Sampling) -> dict[str, Any]:
    """Penalties, temperature, then the cuts, as the other engines do; only the samplers that do something are named."""
    acting = {
        "penalties": sampling.penalties != Penalties(),
        "temperature": True,
        "top_k": sampling.top_k > 0,
        "top_p": sampling.top_p < 1.0,
        "min_p": sampling.min_p > 0.0,
    }
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_k": max(sampling.top_k, 0),
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.penalties.presence,
        "frequency_penalty": sampling.penalties.frequency,
        "repeat_penalty": sampling.penalties.repetition,
        "samplers": [name for name, acts in acting.items() if acts],
        "stop": list(sampling.stop),
    }
    if acting["penalties"]:
        params["repeat_last_n"] = LOOK_BACK
    if sampling.seed is not None:
        params["seed"] = sampling.seed
    return params
