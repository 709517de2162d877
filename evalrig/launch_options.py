"""Option groups that engines started as programs have in common; a kind adds its own keys to them."""

from collections.abc import Sequence
from dataclasses import dataclass

from evalrig.errors import UsageError


@dataclass(kw_only=True)
class WeightsAndKv:
    """Formats."""

    dtype: str = "bfloat16"
    quantization: str = ""
    """Empty: as the checkpoint's config says."""
    kv_cache_dtype: str = "bfloat16"
    """Never `auto`: that is FP8 for some models, checkpoints and cards."""


@dataclass(kw_only=True)
class Parallel:
    """Over how many GPUs, and how. Other reduction orders give other last digits: keep it equal where that can be."""

    tp: int = 1
    dp: int | None = None
    pp: int | None = None

    def gpus(self, shared: bool = False) -> int:
        """Of one server. `shared`: its replicas share them, as with SGLang's DP attention."""
        return self.tp * (self.pp or 1) * (1 if shared else self.dp or 1)


@dataclass(kw_only=True)
class Parsers:
    """Tool calls, reasoning, chat template."""

    tool_call_parser: str = ""
    reasoning_parser: str = ""
    chat_template: str = ""


FORMATS: Sequence[tuple[str, str, str]] = (
    ("weights_and_kv", "dtype", "--dtype"),
    ("weights_and_kv", "quantization", "--quantization"),
    ("weights_and_kv", "kv_cache_dtype", "--kv-cache-dtype"),
)
PARSERS: Sequence[tuple[str, str, str]] = (
    ("parsers", "tool_call_parser", "--tool-call-parser"),
    ("parsers", "reasoning_parser", "--reasoning-parser"),
    ("parsers", "chat_template", "--chat-template"),
)
"""Group, option and flag: the same words in SGLang and vLLM."""


def refuse_auto(formats: WeightsAndKv, where: str) -> None:
    """An automatic KV dtype hides what is compared."""
    if formats.kv_cache_dtype in ("", "auto"):
        at = f"{where}.args.weights_and_kv.kv_cache_dtype"
        raise UsageError(f"{at}: `auto` is FP8 for some models and cards; give bfloat16, or the dtype that is meant")
