"""A Llama-family decoder's shape and weights, as the step reads them: float32, each matrix once, as [in, out]."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evalrig.errors import UsageError
from evalrig.refengine.arrays import F32
from evalrig.refengine.formats import GROUP, WeightFormat, round_bf16
from evalrig.refengine.gguf_file import GgufFile, undo_rotary_permutation

FAMILIES = ("llama",)
"""Architectures (`general.architecture`) whose weights `load_model` knows how to lay out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The numbers that fix the computation."""

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    """Longest sequence the model was trained for, in tokens."""
    rope_base: float
    norm_epsilon: float

    @property
    def kv_values(self) -> int:
        """Values that one token leaves in the cache: keys and values of every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer. Vectors are [width]; matrices [in, out]; parts that share an input stand side by side."""

    attention_norm: F32
    qkv: F32
    output: F32
    mlp_norm: F32
    gate_up: F32
    down: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Everything that stays the same from step to step."""

    architecture: Architecture
    embedding: F32
    """[width, vocabulary]: token t's vector is column t. The same array as `head` when the checkpoint ties them."""
    layers: tuple[Layer, ...]
    norm: F32
    head: F32
    """[width, vocabulary]"""
    weight_format: WeightFormat
    weight_bytes: int
    """Bytes of all weights in the stated format (a tied embedding counts once)."""


def read_architecture(file: GgufFile) -> Architecture:
    """The model's shape from the metadata. UsageError for a family or a variation this engine does not compute."""
    family = str(file.require("general.architecture"))
    if family not in FAMILIES:
        raise UsageError(f"{file.path}: architecture {family!r} is not supported; refengine runs {', '.join(FAMILIES)}")
    heads, width = int(file.require(f"{family}.attention.head_count")), int(file.require(f"{family}.embedding_length"))
    found = Architecture(
        family=family,
        layers=int(file.require(f"{family}.block_count")),
        width=width,
        heads=heads,
        kv_heads=int(file.metadata.get(f"{family}.attention.head_count_kv", heads)),
        head_dim=int(file.metadata.get(f"{family}.attention.key_length", width // heads)),
        vocabulary=len(file.require("tokenizer.ggml.tokens")),
        context=int(file.require(f"{family}.context_length")),
        rope_base=float(file.metadata.get(f"{family}.rope.freq_base", 10000.0)),
        norm_epsilon=float(file.require(f"{family}.attention.layer_norm_rms_epsilon")),
    )
    _refuse_variations(file, found)
    return found


def _refuse_variations(file: GgufFile, found: Architecture) -> None:
    scaling = str(file.metadata.get(f"{found.family}.rope.scaling.type", "none"))
    checks = {
        "rotary scaling": scaling != "none" or "rope_freqs.weight" in file.tensors,
        "partial rotary embedding": int(file.metadata.get(f"{found.family}.rope.dimension_count", found.head_dim))
        != found.head_dim,
        "experts": int(file.metadata.get(f"{found.family}.expert_count", 0)) > 0,
        "biases in attention": "blk.0.attn_q.bias" in file.tensors,
        "query heads that the key heads do not divide": found.heads % found.kv_heads != 0,
    }
    for what, present in checks.items():
        if present:
            raise UsageError(f"{file.path}: {what}: not supported by refengine yet")


def load_model(file: GgufFile, weight_format: WeightFormat) -> Model:
    """Reads all weights, rounds them to `weight_format` and lays them out. Peak memory is one matrix above the
    result."""
    architecture = read_architecture(file)
    rounded = round_bf16 if weight_format.rest_bytes == 2 else _copy
    embedding = np.ascontiguousarray(rounded(file.tensor("token_embd.weight")).T)
    tied = "output.weight" not in file.tensors
    head = embedding if tied else np.ascontiguousarray(rounded(file.tensor("output.weight")).T)
    layers = tuple(
        _load_layer(file, f"blk.{index}.", architecture, weight_format) for index in range(architecture.layers)
    )
    norm = rounded(file.tensor("output_norm.weight"))
    matrices = [m for layer in layers for m in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    rest = embedding.size + (0 if tied else head.size) + norm.size + 2 * architecture.layers * architecture.width
    quantised = sum(weight_format.matrix_bytes((m.shape[1], m.shape[0])) for m in matrices)
    return Model(
        architecture=architecture,
        embedding=embedding,
        layers=layers,
        norm=norm,
        head=head,
        weight_format=weight_format,
        weight_bytes=quantised + rest * weight_format.rest_bytes,
    )


def _load_layer(file: GgufFile, prefix: str, architecture: Architecture, weight_format: WeightFormat) -> Layer:
    rounded: Callable[[F32], F32] = round_bf16 if weight_format.rest_bytes == 2 else _copy

    def matrix(*parts: F32) -> F32:
        for part in parts:
            if part.shape[1] % GROUP:
                raise UsageError(f"{file.path}: {prefix}*: rows of {part.shape[1]} do not split into groups of {GROUP}")
        return np.ascontiguousarray(np.concatenate([weight_format.round(rounded(part)) for part in parts]).T)

    def stored(name: str) -> F32:
        return file.tensor(f"{prefix}{name}.weight")

    return Layer(
        attention_norm=rounded(stored("attn_norm")),
        qkv=matrix(
            undo_rotary_permutation(stored("attn_q"), architecture.heads),
            undo_rotary_permutation(stored("attn_k"), architecture.kv_heads),
            stored("attn_v"),
        ),
        output=matrix(stored("attn_output")),
        mlp_norm=rounded(stored("ffn_norm")),
        gate_up=matrix(stored("ffn_gate"), stored("ffn_up")),
        down=matrix(stored("ffn_down")),
    )


def _copy(values: F32) -> F32:
    return values.copy()
