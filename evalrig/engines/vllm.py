"""vLLM as a program of the user's own, spoken to through its OpenAI routes (`evalrig/vllm_wire.py`).

Scoring is one prefill: vLLM does not use its prefix cache for prompt logprobs. See docs/engines.md.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from evalrig import chat_wire
from evalrig.engine import Capabilities, Chat, Launch, Sampling, Scoring
from evalrig.errors import EngineError
from evalrig.launch_options import FORMATS, PARSERS, Parallel, Parsers, WeightsAndKv, refuse_auto
from evalrig.launcher import Launched, flags, redacted
from evalrig.loadgen.target import Serving
from evalrig.programs import Program
from evalrig.proof import Inventory
from evalrig.serving import streamed
from evalrig.started import StartError
from evalrig.troubles import VLLM, VLLM_WORKS
from evalrig.types import Capacity, Completion, Fingerprint, Message, Tool, Variant
from evalrig.vllm_wire import LONGEST_LIST, Client

KV_NAMES: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8_e4m3", "auto": ""}
"""Name of the KV dtype in the engine's words -> ours; `auto` tells nothing."""
ONLINE: Mapping[str, str] = {"fp8": "fp8", "fp8_per_channel": "fp8", "int8": "int8", "mxfp8": "mxfp8"}
WARNINGS = (
    r"Using \S+ data type to store kv cache[^\r\n]*",
    r"[^\r\n]*scaling factors? (?:of|to) 1\.0[^\r\n]*",
    r"[^\r\n]*may cause accuracy issues[^\r\n]*",
)
CONFIG = (
    "dtype",
    "quantization",
    "enforce_eager",
    "seed",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "max_seq_len",
    "speculative_config",
)
"""Keys of the configuration that the engine logs, and that move the digits."""


@dataclass(kw_only=True)
class VllmParallel(Parallel):
    """See `Parallel`."""

    expert_parallel: bool = False


@dataclass(kw_only=True)
class Memory:
    """Sizes; what is not given the engine chooses."""

    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


@dataclass(kw_only=True)
class Numerics:
    """What moves the digits without being a format."""

    attention_backend: str = ""
    enforce_eager: bool = False
    """Compiled and eager differ by a KL of about 0.001: the same in both arms."""
    max_logprobs: int = -1
    """The server's limit; -1 lets a few rows be taken over the whole vocabulary."""
    seed: int = 0


@dataclass(kw_only=True)
class VllmOptions:
    """Keys of `engine.options` and of a variant's `args`."""

    weights_and_kv: WeightsAndKv = field(default_factory=WeightsAndKv)
    parallel: VllmParallel = field(default_factory=VllmParallel)
    memory: Memory = field(default_factory=Memory)
    numerics: Numerics = field(default_factory=Numerics)
    parsers: Parsers = field(default_factory=Parsers)
    program: Program = field(default_factory=Program)
    extra: list[str] = field(default_factory=list[str])
    """Arguments as they are."""


class Vllm(Launched):
    """One vLLM server."""

    Options = VllmOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        prompt_logprobs=True,
        top_logprobs=-1,
        seed=True,
        decode_logprobs=-1,
        chat=True,
        tool_prompts=True,
        load=True,
        primed=True,
    )
    module = "vllm.entrypoints.openai.api_server"
    package = "vllm"
    troubles = VLLM
    online = ONLINE
    at_work = VLLM_WORKS
    table: ClassVar[Sequence[tuple[str, str, str]]] = (
        *FORMATS,
        ("parallel", "tp", "--tensor-parallel-size"),
        ("parallel", "dp", "--data-parallel-size"),
        ("parallel", "pp", "--pipeline-parallel-size"),
        ("parallel", "expert_parallel", "--enable-expert-parallel"),
        ("memory", "gpu_memory_utilization", "--gpu-memory-utilization"),
        ("memory", "max_model_len", "--max-model-len"),
        ("memory", "max_num_seqs", "--max-num-seqs"),
        ("memory", "max_num_batched_tokens", "--max-num-batched-tokens"),
        ("numerics", "attention_backend", "--attention-backend"),
        ("numerics", "enforce_eager", "--enforce-eager"),
        ("numerics", "max_logprobs", "--max-logprobs"),
        ("numerics", "seed", "--seed"),
        *PARSERS,
    )
    reserved = frozenset(
        {"--model", "--host", "--port", "--generation-config", "--logprobs-mode", "--enable-prompt-tokens-details"}
    )

    def __init__(self, variant: Variant, options: VllmOptions, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self.options: VllmOptions = options
        self._client: Client | None = None
        self._chats: chat_wire.Client | None = None
        self._version = ""
        self._cache: dict[str, str] = {}

    @classmethod
    def able(cls, options: VllmOptions) -> Capabilities:
        """As far as `max_logprobs` goes. Calls are parsed where a parser is named."""
        limit = min(options.numerics.max_logprobs, LONGEST_LIST)
        tools = bool(options.parsers.tool_call_parser)
        return replace(cls.capabilities, top_logprobs=limit, decode_logprobs=limit, tools=tools)

    @classmethod
    def resolve(cls, variant: Variant, options: VllmOptions, where: str) -> None:
        """See `Launched.resolve`; and no `auto` where it hides what is compared."""
        super().resolve(variant, options, where)
        refuse_auto(options.weights_and_kv, where)

    def arguments(self, port: int) -> list[str]:
        """See `Launched.arguments`."""
        own = ["--model", self.folder, "--host", "127.0.0.1", "--port", str(port)]
        own += ["--generation-config", "vllm", "--logprobs-mode", "raw_logprobs"]  # not the checkpoint's, not scaled
        own += ["--enable-prompt-tokens-details"]  # a load from a cold cache is seen to be one
        own += ["--enable-auto-tool-choice"] if self.options.parsers.tool_call_parser else []
        return [*own, *flags(self.table, self.options), *self.options.extra]

    def environment(self) -> Mapping[str, str]:
        """No network."""
        return {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

    def connect(self, url: str) -> Client:
        """See `Launched.connect`."""
        self._client = Client(self.variant.name, url, self.launch.request_seconds, self.launch.connections)
        self._client.max_logprobs = self.options.numerics.max_logprobs
        self._chats = chat_wire.Client(self._client, chat_wire.VLLM)
        return self._client

    def server(self) -> Client | None:
        """See `Launched.server`."""
        return self._client

    async def settle(self) -> None:
        """It is the server that was started; its model's name, version and cache."""
        card = await self.client.served()
        if str(card.get("root")) != self.folder:
            raise StartError(f"{self.variant.name}: address already in use: another server answers there", "port taken")
        self._version = str((await self.client.info("/version")).get("version", ""))
        self._cache = await self.client.cache_info()
        self.client.vocabulary = self.checkpoint.vocabulary if self.checkpoint else 0

    @property
    def client(self) -> Client:
        """The connection; there once started."""
        if self._client is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return self._client

    async def fingerprint(self) -> Fingerprint:
        """From `/version`, `/metrics`, the log and the checkpoint's own headers."""
        found = self.checkpoint
        words = redacted(self.arguments(0))
        return Fingerprint(
            engine="vllm",
            version=self._version,
            weights=self.weights_dtype(),
            kv_cache=KV_NAMES.get(said := self._cache.get("cache_dtype", ""), said),
            weights_digest=found.digest if found else "",
            tokenizer_digest=found.tokenizer_digest if found else "",
            template_digest=self.template_digest(),
            flags={**self._numerics(), "launched": " ".join(words)},
        )

    async def inventory(self) -> Inventory:
        """From the checkpoint's headers and the log."""
        found, log = self.checkpoint, self.log()
        return Inventory(
            checkpoint_bytes=found.total_bytes if found else 0,
            kv_scales="checkpoint" if found and found.kv_scales else "none",
            sampling_defaults=found.sampling_defaults if found else "",
            numerics=self._numerics(),
            warnings=tuple(match.group(0).strip() for line in WARNINGS if (match := re.search(line, log))),
        )

    async def capacity(self) -> Capacity:
        """From the labels of `vllm:cache_config_info`; the pool's bytes say nothing where its blocks were set by hand."""
        tokens = int(self._cache.get("kv_cache_size_tokens") or 0)
        held, by_hand = self._cache.get("kv_cache_memory_bytes", ""), self._cache.get("num_gpu_blocks_override", "None")
        known = held.isdigit() and by_hand == "None" and tokens
        return Capacity(
            kv_tokens=tokens,
            kv_bytes_per_token=int(held) / tokens if known else 0.0,
            max_requests=self.options.memory.max_num_seqs or 0,
        )

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        """See `Engine.tokenize`."""
        return await self.guarded(self.client.tokenize(prompt, tools, answer))

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """See `Engine.generate`."""
        return await self.guarded(self.client.generate(ids, sampling))

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """See `Engine.score`."""
        return await self.guarded(self.client.score(ids, start, top_k))

    async def decode(self, ids: Sequence[int], sampling: Sampling, top_k: int) -> tuple[Completion, Scoring]:
        """See `Engine.decode`."""
        return await self.guarded(self.client.decode(ids, sampling, top_k))

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        """See `Engine.chat`."""
        if self._chats is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return await self.guarded(self._chats.chat(chat, sampling))

    async def serving(self) -> Serving:
        """See `Engine.serving`. Its prefix cache is emptied where VLLM_SERVER_DEV_MODE=1 opens the route for that."""
        flushes = {**os.environ, **self.options.program.env}.get("VLLM_SERVER_DEV_MODE") == "1"
        return streamed(self.client, self.client.model, self.options.parallel.gpus(), flushes)

    def _numerics(self) -> dict[str, str]:
        """From the configuration that the engine logs at its start."""
        found = re.search(r"Initializing a V1 LLM engine[^\r\n]*", self.log())
        told = {
            key: match.group(1) for key in CONFIG if found and (match := re.search(rf"\b{key}=([^,]+)", found.group(0)))
        }
        return {**told, "attention_backend": self.options.numerics.attention_backend or "chosen by the engine"}
