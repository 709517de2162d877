"""SGLang as a program of the user's own, spoken to in its native dialect (`evalrig/sglang_wire.py`).

Facts behind the choices: docs/engines.md.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from evalrig import chat_wire
from evalrig.engine import Capabilities, Chat, Launch, Sampling, Scoring
from evalrig.errors import EngineError, UsageError
from evalrig.launcher import Launched, StartError, flags, redacted
from evalrig.programs import Program
from evalrig.sglang_wire import Client
from evalrig.troubles import SGLANG, SGLANG_WORKS
from evalrig.types import Capacity, Completion, Fingerprint, Inventory, Message, Variant

KV_LINE = re.compile(r"KV [Cc]ache (?:is )?allocated\. dtype: (?:torch\.)?(\w+)")
"""The last one counts: with sizing after capture the first is an upper bound."""
KV_NAMES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "float32": "f32",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}
ONLINE: Mapping[str, str] = {
    "fp8": "fp8",
    "nvfp4_online": "nvfp4",
    "mxfp8": "mxfp8",
    "w8a8_fp8": "fp8",
    "mxfp4": "mxfp4",
}
"""`--quantization` of a checkpoint that is not quantised -> dtype of the weights."""
WARNINGS = (
    r"Using FP8 KV cache but no scaling factors[^\r\n]*",
    r"[^\r\n]*An error occurred while reading[^\r\n]*",
    r"Defaulting to KV cache scaling factors[^\r\n]*",
    r"[^\r\n]*KV Cache might lead to an accuracy drop[^\r\n]*",
)
NUMERICS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "sampling_backend",
    "dtype",
    "quantization",
    "chunked_prefill_size",
    "page_size",
    "tp_size",
    "dp_size",
    "ep_size",
    "pp_size",
    "enable_deterministic_inference",
    "enable_fp32_lm_head",
    "disable_radix_cache",
    "random_seed",
    "sampling_defaults",
    "speculative_algorithm",
    "enable_mixed_chunk",
    "context_length",
)
"""Keys of `/server_info` that move the digits."""


@dataclass(kw_only=True)
class WeightsAndKv:
    """Formats."""

    dtype: str = "bfloat16"
    quantization: str = ""
    """Empty: as the checkpoint's config says."""
    kv_cache_dtype: str = "bfloat16"
    """Never `auto`: that is FP8 for some models and cards."""
    quantization_param_path: str = ""
    """JSON of KV scales."""


@dataclass(kw_only=True)
class Parallel:
    """Over how many GPUs, and how. Other reduction orders give other last digits: keep it equal where that can be."""

    tp: int = 1
    dp: int | None = None
    ep: int | None = None
    pp: int | None = None


@dataclass(kw_only=True)
class Memory:
    """Sizes; what is not given the engine chooses."""

    mem_fraction_static: float | None = None
    max_total_tokens: int | None = None
    context_length: int | None = None
    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None


@dataclass(kw_only=True)
class Numerics:
    """What moves the digits without being a format."""

    attention_backend: str = ""
    deterministic: bool = False
    fp32_lm_head: bool = False
    disable_radix_cache: bool = False
    random_seed: int = 0
    scoring: str = "prefill"
    """`prefill`: as one cold prompt. `cached_prefix`: what stands before the scored tokens is read from the cache first
    filled with it; without that many back ends never read a quantised KV cache while scoring."""


@dataclass(kw_only=True)
class Parsers:
    """Tool calls, reasoning, chat template."""

    tool_call_parser: str = ""
    reasoning_parser: str = ""
    chat_template: str = ""


@dataclass(kw_only=True)
class SglangOptions:
    """Keys of `engine.options` and of a variant's `args`."""

    weights_and_kv: WeightsAndKv = field(default_factory=WeightsAndKv)
    parallel: Parallel = field(default_factory=Parallel)
    memory: Memory = field(default_factory=Memory)
    numerics: Numerics = field(default_factory=Numerics)
    parsers: Parsers = field(default_factory=Parsers)
    program: Program = field(default_factory=Program)
    extra: list[str] = field(default_factory=list[str])
    """Arguments as they are."""


class Sglang(Launched):
    """One SGLang server."""

    Options = SglangOptions
    capabilities: ClassVar[Capabilities] = Capabilities(prompt_logprobs=True, top_logprobs=-1, chat=True)
    module = "sglang.launch_server"
    package = "sglang"
    troubles = SGLANG
    at_work = SGLANG_WORKS
    table: ClassVar[Sequence[tuple[str, str, str]]] = (
        ("weights_and_kv", "dtype", "--dtype"),
        ("weights_and_kv", "quantization", "--quantization"),
        ("weights_and_kv", "kv_cache_dtype", "--kv-cache-dtype"),
        ("weights_and_kv", "quantization_param_path", "--quantization-param-path"),
        ("parallel", "tp", "--tp-size"),
        ("parallel", "dp", "--dp-size"),
        ("parallel", "ep", "--ep-size"),
        ("parallel", "pp", "--pp-size"),
        ("memory", "mem_fraction_static", "--mem-fraction-static"),
        ("memory", "max_total_tokens", "--max-total-tokens"),
        ("memory", "context_length", "--context-length"),
        ("memory", "max_running_requests", "--max-running-requests"),
        ("memory", "chunked_prefill_size", "--chunked-prefill-size"),
        ("numerics", "attention_backend", "--attention-backend"),
        ("numerics", "deterministic", "--enable-deterministic-inference"),
        ("numerics", "fp32_lm_head", "--enable-fp32-lm-head"),
        ("numerics", "disable_radix_cache", "--disable-radix-cache"),
        ("numerics", "random_seed", "--random-seed"),
        ("parsers", "tool_call_parser", "--tool-call-parser"),
        ("parsers", "reasoning_parser", "--reasoning-parser"),
        ("parsers", "chat_template", "--chat-template"),
    )
    reserved = frozenset({"--model-path", "--host", "--port", "--enable-metrics", "--sampling-defaults"})

    def __init__(self, variant: Variant, options: SglangOptions, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self.options: SglangOptions = options
        self._client: Client | None = None
        self._chats: chat_wire.Client | None = None
        self._info: dict[str, Any] = {}

    @classmethod
    def able(cls, options: SglangOptions) -> Capabilities:
        """A seed holds in deterministic mode only; elsewhere it is ignored. Calls are parsed where a parser is named."""
        return Capabilities(
            prompt_logprobs=True,
            top_logprobs=-1,
            seed=options.numerics.deterministic,
            chat=True,
            tools=bool(options.parsers.tool_call_parser),
        )

    @classmethod
    def resolve(cls, variant: Variant, options: SglangOptions, where: str) -> None:
        """See `Launched.resolve`; and no `auto` where it hides what is compared."""
        super().resolve(variant, options, where)
        if options.weights_and_kv.kv_cache_dtype in ("", "auto"):
            at = f"{where}.args.weights_and_kv.kv_cache_dtype"
            raise UsageError(
                f"{at}: `auto` is FP8 for some models and cards; give bfloat16, or the dtype that is meant"
            )
        if options.numerics.scoring not in ("prefill", "cached_prefix"):
            at = f"{where}.args.numerics.scoring"
            raise UsageError(f"{at}: no way to score {options.numerics.scoring!r}; give prefill or cached_prefix")
        if options.numerics.scoring == "cached_prefix" and options.numerics.disable_radix_cache:
            at = f"{where}.args.numerics"
            raise UsageError(
                f"{at}: scoring over a cached prefix needs the radix cache; leave it on, or score by prefill"
            )

    def arguments(self, port: int) -> list[str]:
        """See `Launched.arguments`."""
        own = ["--model-path", self.folder, "--host", "127.0.0.1", "--port", str(port), "--enable-metrics"]
        own += ["--sampling-defaults", "openai"]  # not the checkpoint's: a repack may ship others
        return [*own, *flags(self.table, self.options), *self.options.extra]

    def environment(self) -> Mapping[str, str]:
        """No drain at the end (the stop is bounded), logprobs not scaled by the temperature, NaN said and not hidden."""
        return {
            "SGL_FORCE_SHUTDOWN": "1",
            "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",
            "SGLANG_ENABLE_NAN_LOGITS_CHECK": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def connect(self, url: str) -> Client:
        """See `Launched.connect`."""
        self._client = Client(self.variant.name, url, self.launch.request_seconds, self.launch.connections)
        self._chats = chat_wire.Client(self._client, chat_wire.SGLANG)
        return self._client

    def server(self) -> Client | None:
        """See `Launched.server`."""
        return self._client

    async def settle(self) -> None:
        """From `/server_info`: it is the server that was started, and how large its vocabulary is."""
        info = await self.client.info("/server_info")
        if not isinstance(info, dict) or str(info.get("model_path")) != self.folder:
            raise StartError(f"{self.variant.name}: address already in use: another server answers there", "port taken")
        self._info = info
        self.client.vocabulary = self.checkpoint.vocabulary if self.checkpoint else 0

    @property
    def client(self) -> Client:
        """The connection; there once started."""
        if self._client is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return self._client

    async def fingerprint(self) -> Fingerprint:
        """From `/server_info`, the log and the checkpoint's own headers."""
        found = self.checkpoint
        asked = shlex.split(str(self._info.get("launch_command", "")))
        return Fingerprint(
            engine="sglang",
            version=str(self._info.get("version", "")),
            weights=self._weights(),
            kv_cache=self._kv_cache(),
            weights_digest=found.digest if found else "",
            tokenizer_digest=found.tokenizer_digest if found else "",
            template_digest=self.template_digest(),
            flags={**self._numerics(), "launched": " ".join(_without_port(redacted(asked)))},
            device=str(self._info.get("device", "")),
        )

    async def inventory(self) -> Inventory:
        """From the checkpoint's headers, `/server_info` and the log."""
        found, log = self.checkpoint, self.log()
        given = "file" if self.options.weights_and_kv.quantization_param_path else "none"
        said = [match.group(0).strip() for line in WARNINGS if (match := re.search(line, log))]
        if any("An error occurred while reading" in line or "Defaulting to KV cache" in line for line in said):
            given = "none"  # a bad scales file is swallowed, and then said to be loaded
        return Inventory(
            checkpoint_bytes=found.total_bytes if found else 0,
            kv_scales="checkpoint" if found and found.kv_scales else given,
            sampling_defaults=found.sampling_defaults if found else "",
            numerics=self._numerics(),
            warnings=tuple(said),
        )

    async def capacity(self) -> Capacity:
        """From `/server_info`: of one rank."""
        states = self._info.get("internal_states") or [{}]
        memory = states[0].get("memory_usage") or {}
        tokens = int(memory.get("token_capacity") or self._info.get("max_total_num_tokens") or 0)
        held = float(memory.get("kvcache") or 0.0) * 2**30
        return Capacity(
            kv_tokens=tokens,
            kv_bytes_per_token=held / tokens if tokens else 0.0,
            weight_bytes=int(float(memory.get("weight") or 0.0) * 2**30),
        )

    async def tokenize(self, prompt: str | Sequence[Message]) -> tuple[int, ...]:
        """See `Engine.tokenize`."""
        return await self.guarded(self.client.tokenize(prompt))

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """See `Engine.generate`."""
        return await self.guarded(self.client.generate(ids, sampling))

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """See `Engine.score`; by the way that `numerics.scoring` names."""
        if self.options.numerics.scoring == "prefill":
            return await self.guarded(self.client.score(ids, start, top_k))
        return await self.guarded(self._over_cached_prefix(ids, start, top_k))

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        """See `Engine.chat`."""
        if self._chats is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return await self.guarded(self._chats.chat(chat, sampling))

    async def _over_cached_prefix(self, ids: Sequence[int], start: int, top_k: int) -> Scoring:
        """Fill the cache with what stands before, then score; what has too little before it is scored cold first."""
        page = int(self._info.get("page_size") or 1)
        half = max(start, min(2 * page, len(ids) // 2))
        if half > start:
            cold = await self.client.score(ids[:half], start, top_k)
        else:
            cold = None
            if start > 1:
                await self.client.prefill(ids[: start - 1])
        warm = await self.client.score(ids, half, top_k, cached=max(0, half - 1 - page))
        return warm if cold is None else _joined(cold, warm)

    def _weights(self) -> str:
        """The checkpoint's, or what it was quantised to while loading."""
        held = self.checkpoint.weights if self.checkpoint else ""
        asked = self.options.weights_and_kv.quantization
        return ONLINE.get(asked, held) if held in ("bf16", "fp16", "f32") else held

    def _kv_cache(self) -> str:
        """What the log says was allocated; a packed format is stored as bytes there, and named by the server."""
        said = KV_LINE.findall(self.log())
        resolved = str(self._info.get("kv_cache_dtype", ""))
        if not said or said[-1] == "uint8":
            return "" if resolved == "auto" else KV_NAMES.get(resolved, resolved)
        return KV_NAMES.get(said[-1], said[-1])

    def _numerics(self) -> dict[str, str]:
        told = {key: str(self._info[key]) for key in NUMERICS if self._info.get(key) is not None}
        return {**told, "scoring": self.options.numerics.scoring}


def _without_port(words: Sequence[str]) -> list[str]:
    """The command line as it is at every start."""
    return [word for before, word in zip(["", *words], words, strict=False) if "--port" not in (before, word)]


def _joined(first: Scoring, then: Scoring) -> Scoring:
    """Two scorings of one stream, end to end."""
    return Scoring(
        token_ids=np.concatenate([first.token_ids, then.token_ids]),
        logprobs=np.concatenate([first.logprobs, then.logprobs]),
        top_ids=np.concatenate([first.top_ids, then.top_ids]),
        top_logprobs=np.concatenate([first.top_logprobs, then.top_logprobs]),
        seconds=first.seconds + then.seconds,
        retries=first.retries + then.retries,
    )
