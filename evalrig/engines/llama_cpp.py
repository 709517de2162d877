"""llama.cpp's server from the `xllamacpp` wheel, in a child process: a third-party engine that runs on any CPU.

It scores no prompts: given tokens are forced one by one through its decode path, from a cold prefill
(`llama_cpp/forced.py`), so distances measured here are of decoding, and cost about what generating them would.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from evalrig import chat_wire, fetch
from evalrig.engine import Capabilities, Chat, Engine, Launch, Sampling, Scoring
from evalrig.errors import EngineError, UsageError
from evalrig.llama_cpp import requantize, said
from evalrig.llama_cpp.forced import Forcing
from evalrig.llama_cpp.wire import CHAT, LOADED, Client
from evalrig.loadgen.target import Gauges, Serving
from evalrig.process import Process
from evalrig.serving import address
from evalrig.troubles import LLAMA_CPP
from evalrig.types import SCORING, Capacity, Completion, Fingerprint, Message, Tool, Variant
from evalrig.wire import Wire

CACHES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
INSTALL = "run `pip install 'evalrig[llama_cpp]'`"


@dataclass(kw_only=True)
class LlamaCppOptions:
    """Keys of `engine.options` and of a variant's `args`."""

    requantize: str = ""
    """bf16, q8_0 or q4_0: serve the weights in that format, written to the cache once. Default: the file as it is."""
    cache_type_k: str = "f16"
    """Format of the keys in the KV cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl."""
    cache_type_v: str = "f16"
    """Format of the values."""
    context_length: int = 2048
    """Tokens a request: each of the parallel ones has its own."""
    parallel: int = 4
    """Requests decoded together."""
    threads: int = 1
    """More than one often collapses on a shared machine."""
    seed: int = 0
    """For requests that bring none."""
    flash_attn: bool = True
    """Set, never left to the server: it moves numbers by as much as a BF16 KV cache does."""
    tools: bool = False
    """The model's own chat template shows tools (without, llama.cpp drops them silently); proved at the start."""


class LlamaCpp(Engine):
    """One llama.cpp server process."""

    Options = LlamaCppOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        prompt_logprobs=True, top_logprobs=-1, seed=True, decode_logprobs=-1, chat=True, load=True
    )
    troubles = LLAMA_CPP

    def __init__(self, variant: Variant, options: LlamaCppOptions, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self.options: LlamaCppOptions = options
        self._process = Process(variant.name, launch.log)
        self._client: Client | None = None
        self._wire: Wire | None = None
        self._chats: chat_wire.Client | None = None
        self._forcing: Forcing | None = None
        self._fingerprint: Fingerprint | None = None
        self._capacity = Capacity()

    @classmethod
    def able(cls, options: LlamaCppOptions) -> Capabilities:
        """Tools as far as the model's template shows them."""
        return replace(cls.capabilities, tools=options.tools, tool_prompts=options.tools)

    @classmethod
    def content(cls, variant: Variant) -> tuple[str, ...]:
        """The model's card, where `weights` is the name of one."""
        return (variant.weights,) if variant.weights in fetch.cards() else ()

    @classmethod
    def resolve(cls, variant: Variant, options: LlamaCppOptions, where: str) -> None:
        """Weights are there, formats are known."""
        if not cls.content(variant) and not Path(variant.weights).expanduser().is_file():
            known = ", ".join(name for name, card in fetch.cards().items() if card.kind == "model")
            raise UsageError(
                f"{where}.weights: no model file {variant.weights!r}; give a GGUF file, or one of: {known}"
            )
        for key in ("cache_type_k", "cache_type_v"):
            if (kind := getattr(options, key)) not in CACHES:
                raise UsageError(f"{where}.args.{key}: no format {kind!r}; known: {', '.join(CACHES)}")
        if options.requantize not in ("", *requantize.TYPES):
            known = ", ".join(requantize.TYPES)
            raise UsageError(f"{where}.args.requantize: no format {options.requantize!r}; known: {known}")
        if min(options.context_length, options.parallel, options.threads) < 1:
            raise UsageError(f"{where}.args: context_length, parallel and threads are at least 1; correct them")
        if options.cache_type_v not in ("f32", "f16", "bf16") and not options.flash_attn:
            raise UsageError(f"{where}.args.cache_type_v: a quantised one needs flash attention; set flash_attn: true")

    @classmethod
    def reach(cls, variant: Variant, options: LlamaCppOptions, where: str) -> None:
        """The package is there."""
        if find_spec("xllamacpp") is None:
            raise UsageError(f"{where}: engine `llama_cpp` needs the package `xllamacpp`; {INSTALL}")

    async def start(self) -> None:
        """Write the weights where asked to, start the server on a port the system chooses, wait, and read it back."""
        model = await self._model()
        log = self.launch.log
        offset = log.stat().st_size if log.is_file() else 0
        port_file = log.with_name(f".port-{id(self)}")
        port_file.unlink(missing_ok=True)
        await self._process.start(self._argv(model, port_file))
        wheel = ""

        async def ready() -> bool:
            nonlocal wheel
            if self._client is None and port_file.is_file():
                told = json.loads(port_file.read_text())
                wheel = str(told["wheel"])
                self._connect(str(told["url"]))
            return self._client is not None and await self._client.ready()

        try:
            await self._process.wait_ready(ready, self.launch.start_seconds)
        except EngineError as error:
            if not (reason := said.why(said.since(log, offset))):
                raise
            raise EngineError(f"{self.variant.name}: did not start: {reason}; see {log}") from error
        finally:
            port_file.unlink(missing_ok=True)
        await self._read_back(model, wheel, said.read(said.since(log, offset)))

    def _connect(self, url: str) -> None:
        name, seconds, parallel = self.variant.name, self.launch.request_seconds, self.options.parallel
        self._client = Client(name, url, seconds, parallel)
        self._wire = Wire(name, url, seconds, parallel)
        self._chats = chat_wire.Client(self._wire, CHAT)

    async def _model(self) -> Path:
        """The GGUF file to serve."""
        named = self.variant.weights
        model = fetch.path_of(named) if self.content(self.variant) else Path(named).expanduser()
        if not (kind := self.options.requantize):
            return model
        target = await asyncio.to_thread(requantize.place, model, kind)
        if not target.is_file():
            self.launch.say(f"{self.variant.name}: writing {model.name} with {kind} weights to {target.parent}")
            argv = [sys.executable, "-m", "evalrig.llama_cpp.requantize", str(model), kind, str(target)]
            await self._process.start(argv)
            await self._process.wait_ready(lambda: asyncio.to_thread(target.is_file), self.launch.start_seconds)
            await self._process.stop()
        return target

    def _argv(self, model: Path, port_file: Path) -> list[str]:
        o = self.options
        argv = [sys.executable, "-m", "evalrig.llama_cpp.serve", "--model", str(model), "--port-file", str(port_file)]
        argv += ["--cache-type-k", o.cache_type_k, "--cache-type-v", o.cache_type_v, "--threads", str(o.threads)]
        argv += ["--context-length", str(o.context_length), "--parallel", str(o.parallel), "--seed", str(o.seed)]
        return [*argv, *([] if o.flash_attn else ["--no-flash-attn"])]

    async def _read_back(self, model: Path, wheel: str, log: said.Said) -> None:
        """What runs, in its own words. The build tells no version of itself: the wheel's last part is the build."""
        name, client = self.variant.name, self.client
        props, models = await client.info("/props"), await client.info("/v1/models")
        try:
            meta: dict[str, Any] = models["data"][0]["meta"]
            client.vocabulary, size = int(meta["n_vocab"]), int(meta["size"])
            client.context = int(props["default_generation_settings"]["n_ctx"])
            template, slots = str(props["chat_template"]), int(props["total_slots"])
            shown = bool(props["chat_template_caps"]["supports_tools"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"{name}: /props or /v1/models answered in an unknown shape: {error!r}") from error
        if not (log.weights and log.kv_cache and log.ends):
            text = (
                f"the log of xllamacpp {wheel} does not tell types and ending tokens; use the release in pyproject.toml"
            )
            raise EngineError(f"{name}: {text}")
        if self.options.tools and not shown:
            text = (
                "its chat template shows no tools, so they would be dropped; set `tools: false` or serve a model with"
            )
            raise EngineError(f"{name}: {text} such a template")
        self._forcing = Forcing(client, log.ends, (await client.tokenize("a"))[-1])
        flags = {"tensors": log.tensors, "flash_attention": log.flash_attention, "slots": slots}
        flags |= {
            "context_length": client.context,
            "threads": self.options.threads,
            SCORING: "forced decode, cold prefill",
        }
        self._fingerprint = Fingerprint(
            engine="llama.cpp",
            version=f"b{wheel.rpartition('.')[2]} (xllamacpp {wheel})",
            weights=log.weights,
            kv_cache=log.kv_cache,
            weights_digest=await asyncio.to_thread(requantize.sha256, model),
            tokenizer_digest=await asyncio.to_thread(requantize.tokenizer_sha256, model),
            template_digest=hashlib.sha256(template.encode()).hexdigest(),
            flags=flags,
            device="cpu",
        )
        per_token = log.kv_bytes / log.kv_tokens if log.kv_tokens else 0.0
        self._capacity = Capacity(
            kv_tokens=log.kv_tokens, kv_bytes_per_token=per_token, weight_bytes=size, max_requests=slots
        )

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
        if self._wire is not None:
            await self._wire.close()
            self._wire = None
        await self._process.stop()

    def alive(self) -> bool:
        """See `Engine.alive`."""
        return self._process.alive()

    async def fingerprint(self) -> Fingerprint:
        """From `/props`, the log, and the file served."""
        if self._fingerprint is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return self._fingerprint

    async def capacity(self) -> Capacity:
        """From the log: over all slots together."""
        return self._capacity

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        """See `Engine.tokenize`."""
        return await self.client.tokenize(prompt, tools, answer)

    async def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """See `Engine.pieces`: the server's route joins the tokens it is given, so each is asked for alone."""
        texts = {token: await self.client.detokenize([token]) for token in dict.fromkeys(ids)}
        return tuple(texts[token] for token in ids)

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """See `Engine.generate`."""
        return await self.client.generate(ids, sampling)

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """See `Engine.score`."""
        return await self._forced.score(ids, start, top_k)

    async def decode(self, ids: Sequence[int], sampling: Sampling, top_k: int) -> tuple[Completion, Scoring]:
        """See `Engine.decode`."""
        return await self._forced.decode(ids, sampling, top_k)

    @property
    def _forced(self) -> Forcing:
        if self._forcing is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        return self._forcing

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        """See `Engine.chat`; what is above `parallel` waits here, not in the server."""
        if self._chats is None:
            raise EngineError(f"{self.variant.name}: the engine was not started")
        async with self.client.slots:
            return await self._chats.chat(chat, sampling)

    async def serving(self) -> Serving:
        """See `Engine.serving`; on a CPU, one device. The prefix cache stays off: which slot answers decides what it holds."""
        return Serving(
            completions=address(self.client, "/v1/completions"),
            chat=address(self.client, "/v1/chat/completions"),
            body={**LOADED, "model": "evalrig"},
            fixed_length=True,
            usage="final",
            flushes=True,
        )

    async def flush(self) -> bool:
        """See `Engine.flush`: nothing is kept for other requests."""
        return True

    async def gauges(self) -> Gauges | None:
        """See `Engine.gauges`."""
        return await self.client.gauges()
