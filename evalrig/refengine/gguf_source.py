"""A model in a GGUF file: its shape from the metadata, its matrices in the order of the original checkpoint."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evalrig.errors import UsageError
from evalrig.refengine.architecture import Architecture, Family, Rope, Shape, check_numbers, family_of
from evalrig.refengine.arrays import F32
from evalrig.refengine.chat_template import NO_TEMPLATE, ChatTemplate
from evalrig.refengine.gguf_file import GgufFile, open_gguf, undo_rotary_permutation
from evalrig.refengine.gguf_tokenizer import gguf_tokenizer
from evalrig.refengine.tokenizer import Tokenizer

__all__ = ["GgufSource", "open_gguf"]

FACTORS = "rope_freqs.weight"
"""What each rotary frequency is divided by: how GGUF stores Llama 3's scaling."""
_TURNED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")
_HARMLESS: Mapping[str, Any] = {
    "expert_count": 0,
    "attention.sliding_window": 0,
    "attention.scale": 0,
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attention.causal": True,
    "attn_logit_softcapping": 0,
    "final_logit_softcapping": 0,
    "logit_scale": 0,
    "embedding_scale": 0,
    "residual_scale": 0,
    "use_parallel_residual": False,
    "rope.scaling.attn_factor": 1,
}
"""Keys that would change the computation, and the value that does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufSource:
    """See `Source`."""

    file: GgufFile
    layout: str = "gguf"

    @property
    def path(self) -> Path:
        """See `Source.path`."""
        return self.file.path

    @property
    def sha256(self) -> str:
        """Of the whole file."""
        return self.file.sha256

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """See `Source.shapes`; the rotary factors belong to the architecture."""
        return {name: place.shape for name, place in self.file.tensors.items() if name != FACTORS}

    def called(self, part: str) -> str:
        """Parts have GGUF's names."""
        return part

    def architecture(self) -> Architecture:
        """See `Source.architecture`."""
        file = self.file
        family = self._family()
        heads, width = self._count("attention.head_count"), self._count("embedding_length")
        head_dim = self._count("attention.key_length", width // max(heads, 1))
        found = Architecture(
            family=family.name,
            layers=self._count("block_count"),
            width=width,
            heads=heads,
            kv_heads=self._count("attention.head_count_kv", heads),
            head_dim=head_dim,
            vocabulary=len(file.require("tokenizer.ggml.tokens")),
            context=self._count("context_length"),
            rope=self._rope(head_dim),
            norm_epsilon=float(file.require(f"{family.name}.attention.layer_norm_rms_epsilon")),
        )
        self._refuse_variations(found)
        check_numbers(found, file.path)
        return found

    def tensor(self, part: str) -> F32:
        """See `Source.tensor`."""
        stored, turned = self.file.tensor(part), _TURNED.fullmatch(part)
        if turned is None or not self._family().neighbours:
            return stored
        heads = self._count("attention.head_count")
        if turned[1] == "k":
            heads = self._count("attention.head_count_kv", heads)
        return undo_rotary_permutation(stored.reshape(len(stored), -1), heads).reshape(stored.shape)

    def tokenizer(self) -> Tokenizer:
        """See `Source.tokenizer`."""
        return gguf_tokenizer(self.file)

    def template(self) -> ChatTemplate:
        """See `Source.template`."""
        metadata, tokens = self.file.metadata, self.file.require("tokenizer.ggml.tokens")
        ids = {kind: int(metadata.get(f"tokenizer.ggml.{kind}_token_id", -1)) for kind in ("bos", "eos")}
        special = {f"{kind}_token": str(tokens[index]) for kind, index in ids.items() if 0 <= index < len(tokens)}
        return ChatTemplate(str(metadata.get("tokenizer.chat_template", NO_TEMPLATE)), special_tokens=special)

    def _family(self) -> Family:
        return family_of(str(self.file.require("general.architecture")), self.path)

    def _own(self, key: str, default: Any = None) -> Any:
        """The value of the architecture's key; UsageError where there is none and no default."""
        name = f"{self._family().name}.{key}"
        return self.file.require(name) if default is None else self.file.metadata.get(name, default)

    def _count(self, key: str, default: int | None = None) -> int:
        value = self._own(key, default)
        if not isinstance(value, int):
            name = f"{self._family().name}.{key}"
            raise UsageError(f"{self.path}: {name} is not one whole number: layers that differ are not supported")
        return value

    def _rope(self, head_dim: int) -> Rope:
        """A missing type means linear, as llama.cpp reads it."""
        kind, base = str(self._own("rope.scaling.type", "linear")), float(self._own("rope.freq_base", 10000.0))
        if kind not in ("none", "linear"):
            raise UsageError(
                f"{self.path}: rotary scaling {kind!r} is not supported; refengine knows none, linear, and llama3's "
                f"as the tensor {FACTORS}"
            )
        legacy = float(self._own("rope.scale_linear", 0.0))
        linear = float(self._own("rope.scaling.factor", 0.0)) or legacy if kind == "linear" else 0.0
        divisors: F32 = np.full(head_dim // 2, linear or 1.0, np.float32)
        if FACTORS in self.file.tensors:
            factors = self.file.tensor(FACTORS)
            divisors = divisors * factors if factors.shape == divisors.shape else factors
        return Rope(base=base, divisors=tuple(divisors.tolist()) if (divisors != 1).any() else ())

    def _refuse_variations(self, found: Architecture) -> None:
        for key, harmless in _HARMLESS.items():
            value = self._own(key, harmless)
            endless = key == "attention.sliding_window" and isinstance(value, int) and value >= found.context
            if value != harmless and not endless:
                raise UsageError(f"{self.path}: {found.family}.{key} is {value}: not supported by refengine")
        for key in ("rope.dimension_count", "attention.value_length"):
            if (value := self._own(key, found.head_dim)) != found.head_dim:
                raise UsageError(
                    f"{self.path}: {found.family}.{key} is {value} where a head has {found.head_dim} values: partial "
                    "rotary embeddings and values of another size are not supported by refengine"
                )
