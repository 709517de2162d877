"""The embedded engine: `python -m evalrig.refengine` in its own process, spoken to in SGLang's dialect."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from evalrig import chat_wire, checkpoint, fetch
from evalrig.engine import Capabilities, Chat, Engine, Launch, Sampling, Scoring
from evalrig.errors import EngineError, UsageError
from evalrig.loadgen.target import Gauges, Serving
from evalrig.process import Process
from evalrig.refengine.architecture import family_of
from evalrig.serving import streamed
from evalrig.sglang_wire import Client
from evalrig.troubles import REFENGINE
from evalrig.types import EMULATED, FAULTS, Capacity, Completion, Fingerprint, Message, Tool, Variant

WEIGHTS = ("bf16", "fp8", "int4", "int4-asym", "f32")
KV_CACHES = ("bf16", "fp8_e4m3", "f32")
TOOL_CALL_PARSERS = ("hermes",)
REASONING_PARSERS = ("think",)


@dataclass(kw_only=True)
class RefengineOptions:
    """Keys of `engine.options` and of a variant's `args`."""

    quantize: str = "bf16"
    """Format the weights are held to: bf16, fp8 (e4m3, per output channel), int4 (symmetric, groups of 32), int4-asym, f32."""
    kv_cache: str = "bf16"
    """Format the KV cache is held to: bf16, fp8_e4m3, f32."""
    kv_scale: float = 1.0
    """FP8 scale of keys and values."""
    kv_pool_mb: int = 256
    """Bytes of the KV pool, in the format's own size."""
    context_length: int = 2048
    exact: bool = True
    """Pad and cut so that results do not depend on the batch, where the BLAS kernel allows it."""
    tool_call_parser: str | None = None
    """Take tool calls out of chat answers: hermes (`<tool_call>` around JSON); none: they stay text."""
    reasoning_parser: str | None = None
    """Keep thinking apart in chat answers: think (`<think>...</think>`); none: it stays text."""
    prefix_cache: bool = False
    """Keep prompts for requests that begin alike. Off for scoring: numbers are the same, work and `cached_tokens` are not."""
    fault: str = ""
    """For tests: be wrong on purpose, as `logit_noise=SIGMA:SEED`. Makes every run invalid."""


class Refengine(Engine):
    """One refengine server process."""

    Options = RefengineOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        prompt_logprobs=True, top_logprobs=-1, seed=True, decode_logprobs=-1, chat=True, tool_prompts=True, load=True
    )
    troubles = REFENGINE

    def __init__(self, variant: Variant, options: RefengineOptions, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self.options: RefengineOptions = options
        self._process = Process(variant.name, launch.log)
        self._client: Client | None = None
        self._chats: chat_wire.Client | None = None
        self._info: dict[str, Any] = {}

    @classmethod
    def able(cls, options: RefengineOptions) -> Capabilities:
        """Tool calls only where a parser takes them out; a prefix from the cache only where the server keeps one."""
        tools = options.tool_call_parser is not None
        return replace(cls.capabilities, tools=tools, cached_prefix=options.prefix_cache, primed=options.prefix_cache)

    @classmethod
    def content(cls, variant: Variant) -> tuple[str, ...]:
        """The model's card, where `weights` is the name of one."""
        return (variant.weights,) if variant.weights in fetch.cards() else ()

    @classmethod
    def resolve(cls, variant: Variant, options: RefengineOptions, where: str) -> None:
        """Weights are there and formats are known."""
        if options.quantize not in WEIGHTS:
            raise UsageError(f"{where}.args.quantize: no format {options.quantize!r}; known: {', '.join(WEIGHTS)}")
        if options.kv_cache not in KV_CACHES:
            raise UsageError(f"{where}.args.kv_cache: no format {options.kv_cache!r}; known: {', '.join(KV_CACHES)}")
        parsers = {
            "tool_call_parser": (options.tool_call_parser, TOOL_CALL_PARSERS),
            "reasoning_parser": (options.reasoning_parser, REASONING_PARSERS),
        }
        for key, (chosen, known) in parsers.items():
            if chosen is not None and chosen not in known:
                raise UsageError(f"{where}.args.{key}: no parser {chosen!r}; known: {', '.join(known)}")
        if options.fault:
            from evalrig.refengine.faults import fault_of

            fault_of(options.fault, f"{where}.args.fault")
        if not cls.content(variant):
            _look(Path(variant.weights).expanduser(), f"{where}.weights")

    async def start(self) -> None:
        """Start the server on a port the system chooses, and wait for it."""
        o = self.options
        model = (
            fetch.path_of(self.variant.weights)
            if self.content(self.variant)
            else Path(self.variant.weights).expanduser()
        )
        port_file = self.launch.log.with_name(f".port-{id(self)}")
        port_file.unlink(missing_ok=True)
        argv = [sys.executable, "-m", "evalrig.refengine", "--model", str(model), "--port", "0"]
        argv += ["--port-file", str(port_file), "--weights", o.quantize, "--kv-cache", o.kv_cache]
        argv += ["--kv-scale", str(o.kv_scale), "--kv-pool-bytes", str(o.kv_pool_mb << 20)]
        argv += ["--context-length", str(o.context_length), *([] if o.exact else ["--no-exact"])]
        argv += [] if o.tool_call_parser is None else ["--tool-call-parser", o.tool_call_parser]
        argv += [] if o.reasoning_parser is None else ["--reasoning-parser", o.reasoning_parser]
        argv += ["--prefix-cache"] if o.prefix_cache else []
        argv += ["--fault", o.fault] if o.fault else []
        await self._process.start(argv)

        async def ready() -> bool:
            if self._client is None and port_file.is_file() and (port := port_file.read_text().strip()):
                url = f"http://127.0.0.1:{port}"
                self._client = Client(self.variant.name, url, self.launch.request_seconds, self.launch.connections)
                self._chats = chat_wire.Client(self._client, chat_wire.SGLANG)
            return self._client is not None and await self._client.ready()

        try:
            await self._process.wait_ready(ready, self.launch.start_seconds)
        finally:
            port_file.unlink(missing_ok=True)
        self._info = await self.client.info("/server_info")
        self.client.vocabulary = int(self._info["vocab_size"])
        self.client.page = int(self._info.get("prefix_block_size") or self._info.get("page_size") or 1)
        self.client.keyed = not self.able(o).cached_prefix  # it keeps no prefixes of different keys apart

    @property
    def client(self) -> Client:
        """The connection; there once started."""
        if self._client is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return self._client

    async def stop(self) -> None:
        """See `Engine.stop`."""
        if self._client is not None:
            await self._client.close()
            self._client = self._chats = None
        await self._process.stop()

    def alive(self) -> bool:
        """See `Engine.alive`."""
        return self._process.alive()

    async def fingerprint(self) -> Fingerprint:
        """From `/server_info`."""
        info = self._info
        flags = ("kv_scale", "quantization_recipe", "context_length", "page_size", "exact", "blas", "numpy_version")
        flags += ("tool_call_parser", "reasoning_parser", "disable_radix_cache")
        told = {key: _words(info[key]) for key in flags if info.get(key) is not None}
        if info.get("faults"):
            told[FAULTS] = ", ".join(info["faults"])
        told[EMULATED] = str(info["emulated"])
        return Fingerprint(
            engine="refengine",
            version=str(info["version"]),
            weights=str(info["weights"]),
            kv_cache=str(info["kv_cache_dtype"]),
            weights_digest=str(info["model_sha256"]),
            tokenizer_digest=str(info["tokenizer_sha256"]),
            template_digest=str(info["chat_template_sha256"]),
            flags=told,
            device="cpu",
        )

    async def capacity(self) -> Capacity:
        """From `/server_info`."""
        return Capacity(
            kv_tokens=int(self._info["max_total_num_tokens"]),
            kv_bytes_per_token=float(self._info["kv_bytes_per_token"]),
            weight_bytes=int(self._info["weight_bytes"]),
            max_requests=int(self._info["max_running_requests"]),
        )

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        """See `Engine.tokenize`."""
        return await self.client.tokenize(prompt, tools, answer)

    async def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """See `Engine.pieces`."""
        return await self.client.pieces(ids)

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """See `Engine.generate`."""
        return await self.client.generate(ids, sampling)

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """See `Engine.score`."""
        return await self.client.score(ids, start, top_k)

    async def score_cached(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """See `Engine.score_cached`."""
        return await self.client.score_cached(ids, start, top_k)

    async def decode(self, ids: Sequence[int], sampling: Sampling, top_k: int) -> tuple[Completion, Scoring]:
        """See `Engine.decode`."""
        return await self.client.decode(ids, sampling, top_k)

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        """See `Engine.chat`."""
        if self._chats is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return await self._chats.chat(chat, sampling)

    async def serving(self) -> Serving:
        """See `Engine.serving`; of a machine without a GPU, one device."""
        return streamed(self.client, str(self._info["served_model_name"]), gpus=1, flushes=True)

    async def flush(self) -> bool:
        """See `Engine.flush`."""
        return await self.client.flush()

    async def gauges(self) -> Gauges | None:
        """See `Engine.gauges`."""
        return await self.client.gauges()


def _words(value: Any) -> Any:
    """A group of settings as one readable line."""
    return ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else value


def _look(path: Path, where: str) -> None:
    """UsageError, led by `where`: no GGUF file and no folder of safetensors whose family refengine runs."""
    wanted = f"give a GGUF file, a safetensors folder, or one of: {', '.join(_models())}"
    if path.is_dir():
        try:
            config = checkpoint.config_of(path)
            checkpoint.stored(path)
        except checkpoint.CheckpointError as error:
            raise UsageError(f"{where}: the folder {str(path)!r} is no checkpoint: {error}; {wanted}") from error
        family_of(str(config.get("model_type")), f"{where}: {path}")
    elif not path.is_file():
        raise UsageError(f"{where}: no model {str(path)!r}; {wanted}")
    elif path.suffix == ".safetensors":
        raise UsageError(f"{where}: {str(path)!r} is one file of a checkpoint; give its folder")


def _models() -> list[str]:
    return [name for name, card in fetch.cards().items() if card.kind == "model"]
