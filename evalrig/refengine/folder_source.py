"""A model in a folder: config.json for its shape, safetensors files for its tensors, tokenizer.json for its tokens."""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from evalrig import checkpoint
from evalrig.checkpoint import WIDTHS, CheckpointError, Stored
from evalrig.errors import UsageError
from evalrig.refengine.architecture import HEAD, Architecture, Rope, Shape, check_numbers, family_of
from evalrig.refengine.arrays import F32
from evalrig.refengine.chat_template import ChatTemplate
from evalrig.refengine.folder_tokenizer import folder_template, folder_tokenizer
from evalrig.refengine.tokenizer import Tokenizer

_NUMPY: Mapping[str, Any] = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Parts of a layer: GGUF's word and the folder's."""
_WORDS = {theirs: ours for ours, theirs in _PARTS.items()}
_REST = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    HEAD: "lm_head.weight",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")
"""Computed from the config; old checkpoints store it all the same."""
_DEFAULT_HEAD = {"qwen3": 128}
"""Values a head where the config does not say and it is not width / heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSource:
    """See `Source`."""

    path: Path
    sha256: str
    """Of config.json and of every safetensors file, whole."""
    config: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    """By part."""
    layout: str = "safetensors"

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """See `Source.shapes`."""
        return {part: place.shape for part, place in self.tensors.items()}

    def called(self, part: str) -> str:
        """See `Source.called`."""
        words = part.split(".")
        if words[0] == "blk" and words[2] in _PARTS:
            return f"model.layers.{words[1]}.{_PARTS[words[2]]}.{words[3]}"
        return _REST.get(part, part)

    def architecture(self) -> Architecture:
        """See `Source.architecture`."""
        family = family_of(str(self.config.get("model_type")), self._where)
        self._refuse_variations()
        heads, width = self._count("num_attention_heads"), self._count("hidden_size")
        head_dim = self._count("head_dim", _DEFAULT_HEAD.get(family.name, width // max(heads, 1)))
        found = Architecture(
            family=family.name,
            layers=self._count("num_hidden_layers"),
            width=width,
            heads=heads,
            kv_heads=self._count("num_key_value_heads", heads),
            head_dim=head_dim,
            vocabulary=self._count("vocab_size"),
            context=self._count("max_position_embeddings"),
            rope=self._rope(head_dim),
            norm_epsilon=_single(self._number(self.config, "rms_norm_eps")),
        )
        check_numbers(found, self._where)
        return found

    def tensor(self, part: str) -> F32:
        """See `Source.tensor`: folders store heads in the order that is asked for."""
        place = self.tensors[part]
        mapped = np.memmap(place.file, np.uint8, mode="r", offset=place.start, shape=(place.size,))
        return np.asarray(mapped).view(_NUMPY[place.dtype]).reshape(place.shape).astype(np.float32)

    def tokenizer(self) -> Tokenizer:
        """See `Source.tokenizer`."""
        return folder_tokenizer(self.path, self.config, self._count("vocab_size"))

    def template(self) -> ChatTemplate:
        """See `Source.template`."""
        return folder_template(self.path)

    @property
    def _where(self) -> Path:
        return self.path / "config.json"

    def _count(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key)
        value = default if value is None else value
        if not isinstance(value, int):
            raise UsageError(f"{self._where}: {key} is {value!r}, not a whole number; fetch it again")
        return value

    def _number(self, group: Mapping[str, Any], key: str) -> float:
        value = group.get(key)
        if not isinstance(value, int | float) or value <= 0:
            raise UsageError(f"{self._where}: {key} is {value!r}, not a number above 0; fetch it again")
        return float(value)

    def _refuse_variations(self) -> None:
        c = self.config
        if c.get("quantization_config"):
            raise UsageError(
                f"{self._where}: quantised weights (quantization_config) are not supported; give the BF16 checkpoint "
                "and let refengine round it (`quantize`)"
            )
        sliding = c.get("use_sliding_window") or "sliding_attention" in (c.get("layer_types") or ())
        checks = {
            f"hidden_act {c.get('hidden_act')!r} (silu is)": c.get("hidden_act", "silu") != "silu",
            "sliding-window attention": bool(sliding),
            "partial_rotary_factor": (self._scaling().get("partial_rotary_factor") or 1) != 1
            or (c.get("partial_rotary_factor") or 1) != 1,
        }
        for what, present in checks.items():
            if present:
                raise UsageError(f"{self._where}: {what}: not supported by refengine")

    def _scaling(self) -> dict[str, Any]:
        """What the config says of rotary scaling, under its old name or its new one."""
        found: Any = self.config.get("rope_scaling") or self.config.get("rope_parameters") or {}
        if not isinstance(found, dict):
            raise UsageError(f"{self._where}: its rotary settings are {found!r}, no object; fetch it again")
        return found

    def _rope(self, head_dim: int) -> Rope:
        scaling = self._scaling()
        kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
        bases = {"rope_theta": 10000.0, **self.config}
        base = _single(self._number(scaling if "rope_theta" in scaling else bases, "rope_theta"))
        if kind == "default":
            return Rope(base=base)
        if kind == "linear":
            return Rope(base=base, divisors=(self._number(scaling, "factor"),) * (head_dim // 2))
        if kind != "llama3":
            raise UsageError(
                f"{self._where}: rotary scaling {kind!r} is not supported; refengine knows default, linear, llama3"
            )
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        factor, low, high, original = (self._number(scaling, name) for name in names)
        periods = [2 * math.pi * base ** (i / head_dim) for i in range(0, head_dim, 2)]
        divisors = [_llama3(factor, low, high, original / period) for period in periods]
        return Rope(base=base, divisors=tuple(np.array(divisors, np.float32).tolist()))


def _single(value: float) -> float:
    """As GGUF stores it and as other engines compute with it: float32."""
    return float(np.float32(value))


def _llama3(factor: float, low: float, high: float, turns: float) -> float:
    """What a frequency is divided by, from how often it turns within the original context: many turns stay, few are
    stretched by `factor`, between `low` and `high` the frequencies themselves are mixed."""
    if turns > high:
        return 1.0
    if turns < low:
        return factor
    kept = (turns - low) / (high - low)
    return 1 / ((1 - kept) / factor + kept)


def open_folder(path: Path) -> FolderSource:
    """Opens and checks the folder.

    Raises UsageError when it is no checkpoint, a file is missing or cut, or a tensor has a type this engine cannot read.
    """
    try:
        config, stored = checkpoint.config_of(path), checkpoint.stored(path)
    except CheckpointError as error:
        raise UsageError(f"{path}: {error}; give a folder with config.json and safetensors files") from error
    tensors = {_part(name): place for name, place in stored.items() if not _DERIVED.fullmatch(name)}
    if config.get("tie_word_embeddings"):
        tensors.pop(HEAD, None)  # a copy of the embedding, if it is there at all
    elif "tie_word_embeddings" in config and HEAD not in tensors:
        raise UsageError(
            f"{path}: there is no tensor 'lm_head.weight' although the config ties no embeddings; fetch it again"
        )
    source = FolderSource(path=path, sha256=_digest(path, stored), config=config, tensors=tensors)
    family_of(str(config.get("model_type")), path / "config.json")  # before its types: the more useful line
    for part, place in tensors.items():
        if place.dtype not in WIDTHS:
            raise UsageError(
                f"{path}: tensor {source.called(part)!r} is {place.dtype}; this engine reads {', '.join(WIDTHS)}"
            )
    return source


def _part(name: str) -> str:
    """GGUF's name; an unknown tensor keeps its own."""
    if (found := _LAYER.fullmatch(name)) and found[2] in _WORDS:
        return f"blk.{found[1]}.{_WORDS[found[2]]}.{found[3]}"
    return {theirs: ours for ours, theirs in _REST.items()}.get(name, name)


def _digest(path: Path, stored: Mapping[str, Stored]) -> str:
    digest = hashlib.sha256()
    for file in [path / "config.json", *sorted({place.file for place in stored.values()})]:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
