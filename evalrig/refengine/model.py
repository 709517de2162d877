"""A decoder's weights, as the step reads them: float32, each matrix once, as [in, out]."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evalrig.errors import UsageError
from evalrig.refengine.architecture import FIRST_BIAS, HEAD, Architecture
from evalrig.refengine.arrays import F32
from evalrig.refengine.formats import GROUP, WeightFormat, round_bf16
from evalrig.refengine.source import Source, check_parts

__all__ = ["Architecture", "Layer", "Model", "load_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer. Vectors are [width]; matrices [in, out]; parts that share an input stand side by side."""

    attention_norm: F32
    qkv: F32
    qkv_bias: F32 | None
    head_norms: F32 | None
    """[heads + kv_heads, head_dim]: each query and key head's own norm."""
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


def load_model(source: Source, weight_format: WeightFormat) -> Model:
    """Reads all weights, rounds them to `weight_format` and lays them out. Peak memory is one matrix above the
    result."""
    architecture = source.architecture()
    check_parts(source, architecture)
    rounded = round_bf16 if weight_format.rest_bytes == 2 else _copy
    embedding = np.ascontiguousarray(rounded(source.tensor("token_embd.weight")).T)
    tied = HEAD not in source.shapes
    head = embedding if tied else np.ascontiguousarray(rounded(source.tensor(HEAD)).T)
    layers = tuple(
        _load_layer(source, f"blk.{index}.", architecture, weight_format) for index in range(architecture.layers)
    )
    norm = rounded(source.tensor("output_norm.weight"))
    matrices = [m for layer in layers for m in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    rest = embedding.size + (0 if tied else head.size) + norm.size + sum(_vectors(layer) for layer in layers)
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


def _load_layer(source: Source, prefix: str, architecture: Architecture, weight_format: WeightFormat) -> Layer:
    rounded: Callable[[F32], F32] = round_bf16 if weight_format.rest_bytes == 2 else _copy

    def matrix(*names: str) -> F32:
        stored = [source.tensor(f"{prefix}{name}.weight") for name in names]
        for part in stored:
            if part.shape[1] % GROUP:
                raise UsageError(
                    f"{source.path}: {prefix}*: rows of {part.shape[1]} do not split into groups of {GROUP}"
                )
        return np.ascontiguousarray(np.concatenate([weight_format.round(rounded(part)) for part in stored]).T)

    def vectors(*names: str) -> F32:
        return np.concatenate([rounded(source.tensor(prefix + name)) for name in names])

    a, head_norms = architecture, None
    if f"{prefix}attn_q_norm.weight" in source.shapes:
        both = (vectors("attn_q_norm.weight"), a.heads), (vectors("attn_k_norm.weight"), a.kv_heads)
        head_norms = np.concatenate([np.tile(norm, (heads, 1)) for norm, heads in both])
    return Layer(
        attention_norm=vectors("attn_norm.weight"),
        qkv=matrix("attn_q", "attn_k", "attn_v"),
        qkv_bias=vectors("attn_q.bias", "attn_k.bias", "attn_v.bias") if FIRST_BIAS in source.shapes else None,
        head_norms=head_norms,
        output=matrix("attn_output"),
        mlp_norm=vectors("ffn_norm.weight"),
        gate_up=matrix("ffn_gate", "ffn_up"),
        down=matrix("ffn_down"),
    )


def _vectors(layer: Layer) -> int:
    """Elements of a layer's norms and biases, as stored."""
    own = 0 if layer.head_norms is None else 2 * layer.head_norms.shape[1]
    bias = 0 if layer.qkv_bias is None else layer.qkv_bias.size
    return layer.attention_norm.size + layer.mlp_norm.size + own + bias


def _copy(values: F32) -> F32:
    return values.copy()
