"""What a running engine's log can tell of trouble that its answers hide: requests still end with HTTP 200.

The wordings are those of SGLang 0.5.23 and vLLM 0.32.0 sources and reports, of llama.cpp's server, and of numpy.
A line tells one trouble, the first of the tuple that it matches: parsers come first, because they quote the model.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One kind of trouble."""

    kind: str
    pattern: str
    """Regular expression, searched in each line."""


NOT_A_NUMBER: Final = "NaN"
CHECKSUM: Final = "KV checksum mismatch"
CANARY: Final = "KV canary violation"
RUINOUS: Final[Set[str]] = frozenset({NOT_A_NUMBER, CHECKSUM, CANARY})
"""Kinds after which nothing measured on that arm can be trusted. Any other is said, with its count in each arm."""

SGLANG_WORKS: Final = r"\b(Decode|Prefill) batch\b"
VLLM_WORKS: Final = r"throughput: (?!0\.0 )[\d.]+ tokens/s"
"""Lines of an engine that computes tokens: a long call is then no hang."""

_QUOTES = Trouble(kind="", pattern=r"Receive: obj=|Finish: obj=|Received request |Generated response ")
"""Lines that quote what was asked or answered, if such logging was switched on: nothing in them is trouble."""
_PARSER = "tool parser error"
_SHORT = "retraction for want of KV cache"
_DEVICE = "GPU error"
_GPU = Trouble(
    kind=_DEVICE,
    pattern=r"CUDA error: |CUDA_ERROR_[A-Z]|cudaError[A-Z]\w+|HIP error: |NCCL error|uncorrectable ECC error|NVRM: Xid",
)
_NUMBERS = Trouble(
    kind=NOT_A_NUMBER,
    pattern=r"\bNaNs? in the (logits|probability)|\b(?i:(detected|found|contains?) (any )?(nan|inf)s?)\b",
)

SGLANG: tuple[Trouble, ...] = (
    _QUOTES,
    Trouble(
        kind=_PARSER, pattern=r"Tool call parsing error: |Error in detect_and_parse|Error in parse_streaming_increment"
    ),
    Trouble(kind=CHECKSUM, pattern=r"KV checksum mismatch"),
    Trouble(kind=CANARY, pattern=r"kv_canary violation: launch_tag=|\[canary\].*\bviolations=[1-9]"),
    Trouble(
        kind="KV check skipped",
        pattern=r"kv-canary: per-forward verify skipped|KV checksum skipped|admitted unverified",
    ),
    _NUMBERS,
    Trouble(kind=_SHORT, pattern=r"Retract requests\.|#retracted_reqs: [1-9]"),
    _GPU,
)
VLLM: tuple[Trouble, ...] = (
    _QUOTES,
    Trouble(
        kind=_PARSER, pattern=r"Error in extracting tool call from response|Error trying to handle streaming tool call"
    ),
    _NUMBERS,
    Trouble(kind=_SHORT, pattern=r"\bis preempted\b"),
    _GPU,
)
LLAMA_CPP: tuple[Trouble, ...] = (
    Trouble(kind=_PARSER, pattern=r"(?i)failed to parse (the )?(tool calls?|messages?|input at pos)"),
    _NUMBERS,
    Trouble(kind=_SHORT, pattern=r"failed to find free space in the KV cache"),
    _GPU,
)
REFENGINE: tuple[Trouble, ...] = (Trouble(kind=NOT_A_NUMBER, pattern=r"RuntimeWarning: invalid value encountered"),)
