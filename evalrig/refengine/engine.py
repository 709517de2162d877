"""The engine put together: model, tokenizer, cache, scheduler, and what it says about itself."""

import importlib.metadata
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from evalrig.errors import UsageError
from evalrig.refengine.architecture import FAMILIES
from evalrig.refengine.cache import BLOCK, PAGE, PagedCache
from evalrig.refengine.chat_template import ChatTemplate
from evalrig.refengine.exactness import batch_invariant
from evalrig.refengine.faults import LogitNoise
from evalrig.refengine.formats import KV_FORMATS, WEIGHT_FORMATS, KvFormat
from evalrig.refengine.kv_scales import PER_HEAD, per_head_scales
from evalrig.refengine.messages import ChatFormat
from evalrig.refengine.model import Architecture, Model, load_model
from evalrig.refengine.requests import Limits
from evalrig.refengine.scheduler import Scheduler
from evalrig.refengine.source import Source, open_source
from evalrig.refengine.step import Stepper
from evalrig.refengine.tokenizer import Tokenizer

DEFAULT_POOL_BYTES = 180 << 20
"""8192 tokens of a 135M model's BF16 cache; its FP8 cache holds 16384 tokens in it."""

EMULATED = "every format is computed in float32"
"""Every format is computed in float32 on values rounded to it: its bytes are real, its kernels are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Ways of the engine that are on or off."""

    exact: bool = True
    """Results do not depend on the batch, where the BLAS kernel allows it."""
    prefix_cache: bool = False
    """Prompts are kept for later requests that begin alike."""
    tool_call_parser: str | None = None
    """One of `tool_calls.PARSERS`; None: calls stay text."""
    reasoning_parser: str | None = None
    """One of `reasoning.PARSERS`; None: thinking stays text."""
    fault: LogitNoise | None = None
    """Makes the engine wrong on purpose, for tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the engine is started with."""

    model: Path
    weights: str = "bf16"
    kv_cache: str = "bf16"
    kv_scale: float | None = 1.0
    """What keys and values are divided by before they are rounded to the cache's format; None: measured a head."""
    pool_bytes: int = DEFAULT_POOL_BYTES
    """Size of the KV pool, in bytes of the cache's format."""
    context: int | None = None
    """Longest sequence in tokens; None: the model's, or what the pool holds."""
    max_running: int = 48
    """Most requests in a step."""
    chunk: int = 256
    """Most tokens in a step."""
    switches: Switches = field(default_factory=Switches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A loaded, running engine."""

    settings: Settings
    source: Source
    model: Model
    tokenizer: Tokenizer
    template: ChatTemplate
    cache: PagedCache
    scheduler: Scheduler
    limits: Limits
    exact_holds: bool
    """The self-check at start found results independent of the batch, bit by bit."""
    load_seconds: float

    @property
    def name(self) -> str:
        """The served model's name: the folder's, or the file's without its ending."""
        path = self.settings.model.absolute()
        return path.name if path.is_dir() else path.stem

    @property
    def chat_format(self) -> ChatFormat:
        """How conversations become prompts, and answers messages."""
        switches = self.settings.switches
        return ChatFormat(
            template=self.template,
            tool_calls=switches.tool_call_parser is not None,
            reasoning=switches.reasoning_parser is not None,
        )

    def gauges(self) -> dict[str, float]:
        """The engine's present state, under SGLang's metric names."""
        load, counters = self.scheduler.load(), self.scheduler.counters
        capacity, used = self.cache.pages * PAGE, self.cache.used_pages * PAGE
        return {
            "num_running_reqs": load.running,
            "num_queue_reqs": load.waiting,
            "num_retracted_reqs": 0,  # a request is let in once all the pages that it may need are free
            "num_used_tokens": used,
            "kv_used_tokens": used,
            "kv_available_tokens": capacity - used,
            "token_usage": used / capacity,
            "max_total_num_tokens": capacity,
            "cache_hit_rate": counters.cached_tokens / max(1, counters.prompt_tokens),
            "gen_throughput": counters.generation_rate if load.running else 0.0,
            "weight_memory_usage_gb": self.model.weight_bytes / 1e9,
            "kv_cache_memory_usage_gb": capacity * self.kv_bytes_per_token / 1e9,
        }

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that a token takes in the cache, in its format."""
        return _bytes_per_token(self.model.architecture, self.cache.format)

    def server_info(self) -> dict[str, Any]:
        """What the engine is: the body of `/server_info`. Bytes are those of the stated formats."""
        shape, settings, capacity = self.model.architecture, self.settings, self.cache.pages * PAGE
        return {
            "engine": "refengine",
            "version": _version(),
            "status": "ready",
            "model_path": str(settings.model),
            "served_model_name": self.name,
            "tokenizer_path": str(settings.model),
            "model_sha256": self.source.sha256,
            "architecture": shape.family,
            "weights": settings.weights,
            "quantization_recipe": WEIGHT_FORMATS[settings.weights].recipe,
            "weight_bytes": self.model.weight_bytes,
            "kv_cache_dtype": settings.kv_cache,
            "kv_cache_recipe": self.cache.format.recipe,
            "kv_scale": PER_HEAD if settings.kv_scale is None else settings.kv_scale,
            "kv_scale_range": [float(self.cache.scales.min()), float(self.cache.scales.max())],
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_pool_bytes": capacity * self.kv_bytes_per_token,
            "max_total_num_tokens": capacity,
            "page_size": PAGE,
            "context_length": self.limits.context,
            "max_req_input_len": min(self.limits.context, capacity),
            "max_running_requests": settings.max_running,
            "chunked_prefill_size": settings.chunk,
            "disable_radix_cache": not settings.switches.prefix_cache,
            "prefix_block_size": BLOCK,
            "tool_call_parser": settings.switches.tool_call_parser,
            "reasoning_parser": settings.switches.reasoning_parser,
            "vocab_size": shape.vocabulary,
            "tokenizer_sha256": self.tokenizer.sha256,
            "chat_template_sha256": self.template.sha256,
            "eos_token_ids": list(self.tokenizer.end_ids),
            "faults": [] if settings.switches.fault is None else [str(settings.switches.fault)],
            "emulated": EMULATED,
            "output_logprobs": "of temperature 1, whatever the temperature",
            "exact": {"requested": settings.switches.exact, "holds": self.exact_holds},
            **_environment(),
            "startup_time": {"load_weight": self.load_seconds},
            "internal_states": [self._state(capacity)],
        }

    def _state(self, capacity: int) -> dict[str, Any]:
        return {
            "kv_cache_dtype": self.settings.kv_cache,
            "effective_max_running_requests_per_dp": self.settings.max_running,
            "last_gen_throughput": self.scheduler.counters.generation_rate,
            "memory_usage": {
                "weight": self.model.weight_bytes / 1e9,
                "kvcache": capacity * self.kv_bytes_per_token / 1e9,
                "token_capacity": capacity,
                "token_capacity_swa": None,
            },
        }

    def model_info(self) -> dict[str, Any]:
        """The body of `/model_info`."""
        return {
            "model_path": str(self.settings.model),
            "served_model_name": self.name,
            "tokenizer_path": str(self.settings.model),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "load_format": self.source.layout,
            "reasoning_parser": self.settings.switches.reasoning_parser,
            "tool_call_parser": self.settings.switches.tool_call_parser,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": self.model.architecture.family,
            "architectures": [FAMILIES[self.model.architecture.family].model_class],
        }


def start_engine(settings: Settings) -> Engine:
    """Loads the model, checks exactness and starts the compute thread. UsageError says what in `settings` cannot be
    had."""
    began = time.perf_counter()
    source = open_source(settings.model)
    shape, kv_format = source.architecture(), KV_FORMATS[settings.kv_cache]
    pages = settings.pool_bytes // (PAGE * _bytes_per_token(shape, kv_format))
    if pages < 1:
        raise UsageError(
            f"--kv-pool-bytes {settings.pool_bytes}: less than a page of {PAGE} tokens; give at least 16 MB"
        )
    if settings.chunk < BLOCK or settings.max_running < 1:
        raise UsageError(f"--chunk must be at least {BLOCK} and --max-running at least 1")
    context = _context(settings, shape, pages)
    model, tokenizer = load_model(source, WEIGHT_FORMATS[settings.weights]), source.tokenizer()
    cache = PagedCache(shape, kv_format, pages=pages, rows=settings.max_running, context=context)
    cache.scales[:] = per_head_scales(model, tokenizer) if settings.kv_scale is None else settings.kv_scale
    holds = _self_check(cache, model, exact=settings.switches.exact)
    if settings.switches.prefix_cache:
        cache.keep_prefixes()
    # Where padding does not make results independent of the batch, it would only cost time.
    stepper = Stepper(model, cache, context=context, exact=settings.switches.exact and holds)
    scheduler = Scheduler(stepper, cache, tokenizer, chunk=settings.chunk, fault=settings.switches.fault)
    scheduler.start()
    return Engine(
        settings=settings,
        source=source,
        model=model,
        tokenizer=tokenizer,
        template=source.template(),
        cache=cache,
        scheduler=scheduler,
        limits=Limits(tokenizer=tokenizer, context=context, pages=pages),
        exact_holds=holds,
        load_seconds=time.perf_counter() - began,
    )


def _self_check(served: PagedCache, model: Model, *, exact: bool) -> bool:
    """Runs the check on a small cache of its own: it needs no room in the real one and leaves no trace there."""
    shape = model.architecture
    cache = PagedCache(shape, served.format, pages=32, rows=8, context=4 * BLOCK)
    cache.scales[:] = served.scales
    return batch_invariant(Stepper(model, cache, context=4 * BLOCK, exact=exact), cache, shape.vocabulary)


def _context(settings: Settings, shape: Architecture, pages: int) -> int:
    if settings.context is None:
        return min(shape.context, pages * PAGE)
    if not 1 <= settings.context <= shape.context:
        raise UsageError(f"--context-length {settings.context}: the model was trained for 1 to {shape.context} tokens")
    return settings.context


def _bytes_per_token(shape: Architecture, kv_format: KvFormat) -> int:
    return shape.kv_values * kv_format.value_bytes


def _version() -> str:
    try:
        return importlib.metadata.version("evalrig")
    except importlib.metadata.PackageNotFoundError:
        return "checkout"  # run from a source tree that was never installed


def _environment() -> dict[str, Any]:
    """What the arithmetic runs on: the last bits of every number depend on it."""
    blas = next((found for found in threadpool_info() if found["user_api"] == "blas"), {})
    return {
        "numpy_version": np.__version__,
        "blas": {
            "library": blas.get("internal_api"),
            "version": blas.get("version"),
            "kernel": blas.get("architecture"),
            "threads": blas.get("num_threads"),
        },
        "threads": threading.active_count(),
    }
