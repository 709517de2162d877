"""Small checkpoint folders: real safetensors headers over a few bytes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I32": 4, "I64": 8}
TOKENIZER = {"version": "1.0", "truncation": None, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}
INT4 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
}


def safetensors(path: Path, tensors: Mapping[str, tuple[str, int]], fill: bytes = b"\x01") -> None:
    """Tensors by name: dtype and number of elements."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, count) in tensors.items():
        size = SIZES[dtype] * count
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + fill * at)


def checkpoint(folder: Path, tensors: Mapping[str, tuple[str, int]] | None = None, **config: Any) -> Path:
    """A folder as engines take it; BF16 where nothing else is said."""
    folder.mkdir(parents=True, exist_ok=True)
    safetensors(folder / "model.safetensors", tensors or {"model.layers.0.weight": ("BF16", 64)})
    whole = {"model_type": "llama", "vocab_size": 49152, **config}
    (folder / "config.json").write_text(json.dumps(whole))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "transformers_version": "5"}))
    return folder
