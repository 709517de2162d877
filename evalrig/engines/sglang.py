"""SGLang as a program of the user's own, spoken to in its native dialect (`evalrig/sglang_wire.py`).

Facts behind the choices: docs/engines.md.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from evalrig import chat_wire
from evalrig.engine import Capabilities, Chat, Launch, Sampling, Scoring
from evalrig.errors import EngineError
from evalrig.launch_options import FORMATS, PARSERS, Parallel, Parsers, WeightsAndKv, refuse_auto
from evalrig.launcher import Launched, Loaded, flags, redacted
from evalrig.loadgen.target import Serving
from evalrig.programs import Program
from evalrig.proof import Inventory
from evalrig.serving import streamed
from evalrig.sglang_pd import (
    LONGEST_LIST,
    SERVER_FLAGS,
    Pd,
    Split,
    flags_of,
    reach_router,
    resolve_pd,
    roles,
    without_ports,
)
from evalrig.sglang_wire import KV_NAMES, Client
from evalrig.started import Command, StartError, log_of
from evalrig.troubles import SGLANG, SGLANG_WORKS
from evalrig.types import SPLIT, Capacity, Completion, Fingerprint, Message, Tool, Variant

KV_LINE = re.compile(r"KV [Cc]ache (?:is )?allocated\. dtype: (?:torch\.)?(\w+)")
"""The last one counts: with sizing after capture the first is an upper bound."""
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
class SglangFormats(WeightsAndKv):
    """See `WeightsAndKv`."""

    quantization_param_path: str = ""
    """JSON of KV scales."""


@dataclass(kw_only=True)
class SglangParallel(Parallel):
    """See `Parallel`."""

    ep: int | None = None


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


@dataclass(kw_only=True)
class SglangOptions:
    """Keys of `engine.options` and of a variant's `args`."""

    weights_and_kv: SglangFormats = field(default_factory=SglangFormats)
    parallel: SglangParallel = field(default_factory=SglangParallel)
    memory: Memory = field(default_factory=Memory)
    numerics: Numerics = field(default_factory=Numerics)
    parsers: Parsers = field(default_factory=Parsers)
    pd: Pd = field(default_factory=Pd)
    program: Program = field(default_factory=Program)
    extra: list[str] = field(default_factory=list[str])
    """Arguments as they are."""


class Sglang(Launched):
    """One SGLang server."""

    Options = SglangOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        prompt_logprobs=True,
        top_logprobs=-1,
        cached_prefix=True,
        decode_logprobs=-1,
        chat=True,
        tool_prompts=True,
        load=True,
        primed=True,
    )
    module = "sglang.launch_server"
    package = "sglang"
    troubles = SGLANG
    online = ONLINE
    at_work = SGLANG_WORKS
    table: ClassVar[Sequence[tuple[str, str, str]]] = (
        *FORMATS,
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
        *PARSERS,
    )
    reserved = frozenset(
        {"--model-path", "--host", "--port", "--enable-metrics", "--enable-cache-report", "--sampling-defaults"}
    )
    grouped = SERVER_FLAGS

    def __init__(self, variant: Variant, options: SglangOptions, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self.options: SglangOptions = options
        self._client: Client | None = None
        self._chats: chat_wire.Client | None = None
        self._info: dict[str, Any] = {}
        self._split: Split | None = None

    @classmethod
    def able(cls, options: SglangOptions) -> Capabilities:
        """A seed holds in deterministic mode only. Through a split no prompt is scored: the router merges no lists of it.

        Of several replicas each has a prefix cache of its own, and no request says which one answers.
        """
        tools = bool(options.parsers.tool_call_parser)
        seed = options.numerics.deterministic
        if options.pd.prefill:
            split = Capabilities(load=True, primed=True, chat=True, decode_logprobs=LONGEST_LIST, tool_prompts=True)
            return replace(split, seed=seed, tools=tools)
        kept, alone = not options.numerics.disable_radix_cache, (options.parallel.dp or 1) == 1
        return replace(cls.capabilities, seed=seed, tools=tools, cached_prefix=kept and alone, primed=kept)

    @classmethod
    def resolve(cls, variant: Variant, options: SglangOptions, where: str) -> None:
        """See `Launched.resolve`; no `auto` where it hides what is compared, and a split that goes together."""
        super().resolve(variant, options, where)
        refuse_auto(options.weights_and_kv, where)
        resolve_pd(options.pd, options.program, where)

    @classmethod
    def reach(cls, variant: Variant, options: SglangOptions, where: str) -> None:
        """See `Launched.reach`; and the router, where there is one."""
        super().reach(variant, options, where)
        if options.pd.prefill:
            reach_router(options.pd, options.program, where)

    @classmethod
    def wanted(cls, options: SglangOptions) -> list[str]:
        """See `Launched.wanted`."""
        return [*super().wanted(options), *flags_of(options.pd)]

    def commands(self) -> Iterator[Command]:
        """See `Launched.commands`: one server, or a split."""
        if not self.options.pd.prefill:
            yield from super().commands()
            return
        self._split = split = Split(self, self.options.pd, self._gpus, self._allocated)
        yield from split.commands()
        self._client, self._info = split.router, split.info
        self._chats = chat_wire.Client(split.router, chat_wire.SGLANG)
        split.router.vocabulary = self.checkpoint.vocabulary if self.checkpoint else 0

    @property
    def logs(self) -> tuple[Path, ...]:
        """See `Engine.logs`; of a split, one a role."""
        return tuple(log_of(self.launch.log, role) for role in roles(self.options.pd)) or super().logs

    def arguments(self, port: int) -> list[str]:
        """See `Launched.arguments`."""
        own = ["--model-path", self.folder, "--host", "127.0.0.1", "--port", str(port), "--enable-metrics"]
        own += ["--enable-cache-report"]  # a load from a cold cache is seen to be one
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

    def server(self) -> Loaded | None:
        """See `Launched.server`; of a split, every server of it."""
        return self._split or self._client

    async def settle(self) -> None:
        """From `/server_info`: it is the server that was started, and how large its vocabulary is."""
        info = await self.client.info("/server_info")
        if not isinstance(info, dict) or str(info.get("model_path")) != self.folder:
            raise StartError(f"{self.variant.name}: address already in use: another server answers there", "port taken")
        self._info = info
        self.client.vocabulary = self.checkpoint.vocabulary if self.checkpoint else 0
        self.client.page = int(info.get("page_size") or 1)

    @property
    def client(self) -> Client:
        """The connection; there once started."""
        if self._client is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return self._client

    async def fingerprint(self) -> Fingerprint:
        """From `/server_info`, the log and the checkpoint's own headers."""
        found = self.checkpoint
        return Fingerprint(
            engine="sglang",
            version=str(self._info.get("version", "")),
            weights=self.weights_dtype(),
            kv_cache=self._kv_cache(),
            weights_digest=found.digest if found else "",
            tokenizer_digest=found.tokenizer_digest if found else "",
            template_digest=self.template_digest(),
            flags={**self._numerics(), **self._launched()},
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
            max_requests=int(states[0].get("effective_max_running_requests_per_dp") or 0),
        )

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        """See `Engine.tokenize`."""
        front = self._split.front if self._split else self.client
        return await self.guarded(front.tokenize(prompt, tools, answer))

    async def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """See `Engine.pieces`."""
        front = self._split.front if self._split else self.client
        return await self.guarded(front.pieces(ids))

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """See `Engine.generate`."""
        return await self.guarded(self.client.generate(ids, sampling))

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """See `Engine.score`."""
        self._scores_prompts()
        return await self.guarded(self.client.score(ids, start, top_k))

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        """See `Engine.chat`."""
        if self._chats is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return await self.guarded(self._chats.chat(chat, sampling))

    async def score_cached(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """See `Engine.score_cached`."""
        self._scores_prompts()
        return await self.guarded(self.client.score_cached(ids, start, top_k))

    async def decode(self, ids: Sequence[int], sampling: Sampling, top_k: int) -> tuple[Completion, Scoring]:
        """See `Engine.decode`."""
        return await self.guarded(self.client.decode(ids, sampling, top_k))

    async def serving(self) -> Serving:
        """See `Engine.serving`; of a split, its router."""
        model = str(self._info.get("served_model_name") or "default")
        if self._split:
            await self._split.check_load(model)
        servers = len(self._split.halves) if self._split else 1
        return streamed(self.client, model, self._gpus * servers, flushes=True)

    @property
    def _gpus(self) -> int:
        return self.options.parallel.gpus("--enable-dp-attention" in self.options.extra)

    def _scores_prompts(self) -> None:
        if self._split:
            raise EngineError(
                f"{self.variant.name}: a prefill/decode split gives no lists of given tokens; decode them"
            )

    def _kv_cache(self) -> str:
        """What the log says was allocated; a packed format is stored as bytes there, and named by the server."""
        resolved = str(self._info.get("kv_cache_dtype", ""))
        said = _said(self.log())
        if said in ("", "uint8"):
            return "" if resolved == "auto" else KV_NAMES.get(resolved, resolved)
        return said

    def _allocated(self, role: str) -> str:
        """The same of one server of a split."""
        return next((_said(part.log()) for part in self._parts if part.command.role == role), "")

    def _numerics(self) -> dict[str, str]:
        return {key: str(self._info[key]) for key in NUMERICS if self._info.get(key) is not None}

    def _launched(self) -> dict[str, str]:
        """The command lines, as they are at every start."""
        infos = {half.role: half.info for half in self._split.halves} if self._split else {"": self._info}
        lines = {
            role: " ".join(without_ports(redacted(shlex.split(str(info.get("launch_command", ""))))))
            for role, info in infos.items()
        }
        if not self._split:
            return {"launched": lines[""]}
        return {SPLIT: self._split.words, "launched": "; ".join(f"{role}: {line}" for role, line in lines.items())}


def _said(log: str) -> str:
    """The KV cache's dtype in a log, by our names; the last word counts."""
    found = KV_LINE.findall(log)
    return KV_NAMES.get(found[-1], found[-1]) if found else ""
