"""A running engine at a URL, that somebody else started: asked, never started or stopped. What it cannot tell is "not told"."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from evalrig import chat_wire, sglang_wire, vllm_wire
from evalrig.engine import Capabilities, Chat, Engine, Launch, Sampling, Scoring
from evalrig.errors import EngineError, UsageError
from evalrig.loadgen.target import Gauges, Serving
from evalrig.serving import streamed
from evalrig.types import Capacity, Completion, Fingerprint, Message, Tool, Variant

LOST = 5
"""Calls in a row that met no server, until the engine counts as gone."""
KV_NAMES: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8_e4m3", "auto": "", "None": ""}
ABLE: Mapping[str, Capabilities] = {
    "sglang": Capabilities(
        prompt_logprobs=True,
        top_logprobs=1000,
        cached_prefix=True,
        decode_logprobs=1000,
        chat=True,
        tool_prompts=True,
        load=True,
        primed=True,
    ),
    "vllm": Capabilities(
        prompt_logprobs=True,
        top_logprobs=20,
        seed=True,
        decode_logprobs=20,
        chat=True,
        tool_prompts=True,
        load=True,
        primed=True,
    ),
    "openai": Capabilities(chat=True, tools=True),
}
"""By dialect. OpenAI's own has neither token ids of a text nor logprobs of a prompt."""
DIALECTS: Mapping[str, chat_wire.Dialect] = {
    "sglang": chat_wire.SGLANG,
    "vllm": chat_wire.VLLM,
    "openai": chat_wire.OPENAI,
}


@dataclass(kw_only=True)
class EndpointOptions:
    """Keys of `engine.options` and of a variant's `args`."""

    base_url: str = ""
    """`http://host:port`, with or without `/v1`; default: the variant's `weights`."""
    model: str = ""
    """Name it is served under; default: the one that is served."""
    api_key_env: str = ""
    """Environment variable that holds the key; the key itself is never written down."""
    dialect: str = "vllm"
    """What is spoken there: vllm, sglang, openai."""
    top_logprobs: int | None = None
    """Largest K it gives; default: 20 of vLLM, 1000 of SGLang."""
    vocabulary: int = 0
    """Size, where known: ids above it are then not sent (SGLang dies of them)."""
    tools: bool | None = None
    """The server parses tool calls (it was started with a parser); default: of `openai` yes, of the others no."""
    gpus: int = 1
    """How many stand behind it, for figures per GPU: it does not tell."""
    may_flush: bool = False
    """Its prefix cache may be emptied before a block of load; whoever else uses the server would feel it."""


class Endpoint(Engine):
    """One URL."""

    Options = EndpointOptions
    capabilities: ClassVar[Capabilities] = ABLE["vllm"]

    def __init__(self, variant: Variant, options: EndpointOptions, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self.options: EndpointOptions = options
        self._client: sglang_wire.Client | vllm_wire.Client | None = None
        self._chats: chat_wire.Client | None = None
        self._told: dict[str, str] = {}

    @classmethod
    def able(cls, options: EndpointOptions) -> Capabilities:
        """As configured. The whole vocabulary is not asked of a server whose size and load are not ours."""
        usual = ABLE.get(options.dialect, Capabilities())
        limit = usual.top_logprobs if options.top_logprobs is None else max(0, options.top_logprobs)
        limit = min(limit, vllm_wire.LONGEST_LIST) if usual.prompt_logprobs else 0
        tools = usual.tools if options.tools is None else options.tools
        return replace(usual, top_logprobs=limit, decode_logprobs=limit, tools=tools)

    @classmethod
    def resolve(cls, variant: Variant, options: EndpointOptions, where: str) -> None:
        """A URL, a dialect that is known."""
        url = urlsplit(_url(variant, options))
        if url.scheme not in ("http", "https") or not url.hostname:
            at, given = ("args.base_url", options.base_url) if options.base_url else ("weights", variant.weights)
            raise UsageError(f"{where}.{at}: {given!r} is no URL; give http://host:port of a running engine")
        if url.username or url.password or url.query:
            raise UsageError(
                f"{where}: a URL with a password or a key would be written down; give `api_key_env` instead"
            )
        if options.dialect not in ABLE:
            raise UsageError(f"{where}.args.dialect: no dialect {options.dialect!r}; give {', '.join(ABLE)}")
        if not 0 <= (options.top_logprobs or 0) <= vllm_wire.LONGEST_LIST:
            limit = f"0 to {vllm_wire.LONGEST_LIST}: the whole vocabulary is not asked of a server that is not ours"
            raise UsageError(f"{where}.args.top_logprobs: {options.top_logprobs}; {limit}")
        if options.gpus < 1:
            raise UsageError(f"{where}.args.gpus: {options.gpus}; 1 is the least")

    @classmethod
    def reach(cls, variant: Variant, options: EndpointOptions, where: str) -> None:
        """The key is there."""
        if options.api_key_env and not os.environ.get(options.api_key_env):
            at = f"{where}.args.api_key_env"
            raise UsageError(f"{at}: no environment variable {options.api_key_env!r}; set it to the key")

    async def start(self) -> None:
        """Connect, and ask who is there."""
        kind = sglang_wire.Client if self.options.dialect == "sglang" else vllm_wire.Client
        key = os.environ.get(self.options.api_key_env, "") if self.options.api_key_env else ""
        seconds, url = self.launch.request_seconds, _url(self.variant, self.options)
        self._client = client = kind(self.variant.name, url, seconds, self.launch.connections, key)
        client.vocabulary = self.options.vocabulary
        if not await client.ready() and not await client.status("/v1/models"):
            raise EngineError(f"{self.variant.name}: no server answers at {url}; start it, or correct the URL")
        self._told = await self._ask(client)
        self._chats = chat_wire.Client(client, DIALECTS[self.options.dialect], self.options.model)

    async def stop(self) -> None:
        """The engine goes on; only the connections end."""
        if self._client is not None:
            await self._client.close()
            self._client = self._chats = None

    def alive(self) -> bool:
        """Connected, and not lost for several calls in a row."""
        return self._client is not None and self._client.lost < LOST

    async def fingerprint(self) -> Fingerprint:
        """What it tells; empty: not told, so not provable."""
        told = self._told
        kv_cache = told.get("kv_cache_dtype", told.get("cache_dtype", ""))
        return Fingerprint(
            engine=f"endpoint ({self.options.dialect})",
            version=told.get("version", ""),
            weights="",
            kv_cache=KV_NAMES.get(kv_cache, kv_cache),
            flags={"model": told.get("model", self.options.model)},
        )

    async def capacity(self) -> Capacity:
        """Tokens in the KV cache, where told."""
        return Capacity(
            kv_tokens=int(self._told.get("kv_cache_size_tokens", self._told.get("max_total_num_tokens", "0"))),
            max_requests=int(self._told.get("max_running_requests", "0")),
        )

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        """See `Engine.tokenize`."""
        if self.options.dialect == "openai":
            raise EngineError(f"{self.variant.name}: OpenAI's routes give no token ids of a text")
        return await self.client.tokenize(prompt, tools, answer)

    async def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """See `Engine.pieces`; of SGLang's routes only."""
        return await self._client.pieces(ids) if isinstance(self._client, sglang_wire.Client) else ()

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """See `Engine.generate`."""
        return await self.client.generate(ids, sampling)

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """See `Engine.score`."""
        return await self.client.score(ids, start, top_k)

    async def score_cached(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """See `Engine.score_cached`."""
        if not isinstance(self.client, sglang_wire.Client):
            return await super().score_cached(ids, start, top_k)
        return await self.client.score_cached(ids, start, top_k)

    async def decode(self, ids: Sequence[int], sampling: Sampling, top_k: int) -> tuple[Completion, Scoring]:
        """See `Engine.decode`. A server of somebody else's may scale SGLang's logprobs by the temperature."""
        if self.options.dialect == "sglang" and sampling.temperature not in (0.0, 1.0):
            name = self.variant.name
            raise EngineError(f"{name}: lists at temperature {sampling.temperature} may be scaled by it; give 0 or 1")
        return await self.client.decode(ids, sampling, top_k)

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        """See `Engine.chat`."""
        if self._chats is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return await self._chats.chat(chat, sampling)

    async def serving(self) -> Serving:
        """See `Engine.serving`."""
        if self.options.dialect == "openai":
            return await super().serving()
        model = self._told.get("model") or self.options.model or "default"
        return streamed(self.client, model, self.options.gpus, self.options.may_flush)

    async def flush(self) -> bool:
        """See `Engine.flush`; only where that was allowed."""
        return self.options.may_flush and await self.client.flush()

    async def gauges(self) -> Gauges | None:
        """See `Engine.gauges`."""
        return await self.client.gauges() if self.options.dialect != "openai" else None

    @property
    def client(self) -> sglang_wire.Client | vllm_wire.Client:
        """The connection; there once started."""
        if self._client is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return self._client

    async def _ask(self, client: sglang_wire.Client | vllm_wire.Client) -> dict[str, str]:
        """Version, KV cache, model: whatever is shown. Only what is named here is kept: such pages can hold keys."""
        if isinstance(client, vllm_wire.Client):
            client.model = self.options.model
            client.max_logprobs = max(0, self.able(self.options).top_logprobs)
            await client.served()
            told: dict[str, Any] = {**await client.cache_info(), "model": client.model}
            told |= await _page(client, "/version")
        else:
            told = await _page(client, "/server_info")
            client.page = int(told.get("page_size") or 1)
            told["model"] = told.get("served_model_name", "")
        keys = ("version", "kv_cache_dtype", "cache_dtype", "model")
        keys += ("kv_cache_size_tokens", "max_total_num_tokens", "max_running_requests")
        return {key: str(told[key]) for key in keys if told.get(key)}


async def _page(client: sglang_wire.Client | vllm_wire.Client, path: str) -> dict[str, Any]:
    """A page of facts; empty where the server does not show it."""
    if await client.status(path) != 200:
        return {}
    found = await client.info(path)
    return dict(found) if isinstance(found, dict) else {}


def _url(variant: Variant, options: EndpointOptions) -> str:
    return (options.base_url or variant.weights).rstrip("/").removesuffix("/v1")
