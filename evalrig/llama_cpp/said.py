"""What llama.cpp's log says about itself: types, sizes, kernels, and why a start failed. `/props` tells none of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FAILURES: Mapping[str, str] = {
    r"No module named 'xllamacpp'": "the package `xllamacpp` is missing; run `pip install evalrig[llama_cpp]`",
    r"has no type '\w+' for the KV cache": "llama.cpp does not know this KV cache type; choose another",
    r"couldn't bind HTTP server socket": "its port was taken; start again",
    r"quantized V cache requires flash_attn": "a quantised V cache needs flash attention; set `flash_attn: true`",
    r"cache type \w+ with block size \d+ does not divide": "this KV cache type does not fit the model's head size; choose another",
    r"(?i)failed to allocate|out of memory|bad_alloc": "out of memory; lower `context_length` or `parallel`",
    r"failed to open GGUF file|failed to read (?:header|key-value)|not within the file bounds|invalid magic": (
        "the model file is missing, cut short or no GGUF file; restore it"
    ),
    r"unknown model architecture": "this llama.cpp does not know the model's architecture; upgrade `xllamacpp`",
    r"failed to load model": "the model could not be loaded; try the file elsewhere, or restore it",
}
"""What a failed start's log shows, and one line for it; the first that fits counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Read from one start's lines. Empty or zero: not said."""

    weights: str = ""
    """Type of most matrices; counted by the loader, not the file's own word for itself."""
    tensors: str = ""
    """Every type with its number of tensors."""
    kv_cache: str = ""
    """`q8_0`; `q8_0/f16` where keys and values differ."""
    kv_tokens: int = 0
    kv_bytes: float = 0.0
    """Of all of them; the log rounds to 0.01 MiB."""
    flash_attention: str = ""
    ends: frozenset[int] = frozenset()
    """Tokens that end an answer."""


def read(text: str) -> Said:
    """From the lines of one start."""
    tensors = {kind: int(count) for kind, count in re.findall(r"- type +(\w+): +(\d+) tensors", text)}
    matrices = {kind: count for kind, count in tensors.items() if kind != "f32"} or tensors
    cache = re.findall(
        r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells, +\d+ layers, +\d+/(\d+) seqs\), "
        r"K \((\w+)\): +[\d.]+ MiB, V \((\w+)\)",
        text,
    )
    mib, cells, streams, keys, values = cache[-1] if cache else ("0", "0", "0", "", "")
    flash = re.findall(r"flash_attn +?= (\w+)", text)
    return Said(
        weights=max(matrices, key=lambda kind: matrices[kind], default=""),
        tensors=", ".join(f"{kind} {count}" for kind, count in sorted(tensors.items())),
        kv_cache=keys if keys == values else f"{keys}/{values}",
        kv_tokens=int(cells) * int(streams),
        kv_bytes=float(mib) * 2**20,
        flash_attention=flash[-1] if flash else "",
        ends=frozenset(int(i) for i in re.findall(r"EOG token +?= (\d+)", text)),
    )


def why(text: str) -> str:
    """The reason of a failed start, with the remedy; empty where the log shows none that is known."""
    return next((words for sign, words in FAILURES.items() if re.search(sign, text)), "")


def since(log: Path, offset: int) -> str:
    """What was appended to the log from a byte on."""
    try:
        with log.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
