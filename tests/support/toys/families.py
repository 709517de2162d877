"""Random decoders of every family that refengine runs, written as GGUF and as a safetensors folder from one set of weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from toys.gguf_model import TEMPLATE, byte_letters

F32 = NDArray[np.float32]
MERGES = ("h e", "1 2", "12 3", "123 4", "Ġ Ġ", "Ċ Ċ", "Ġ h", "Ġh e", "! !", "!! Ċ", "' s", "L L", "Ġ 1", "s ,")
"""Each shows in the ids where text is cut otherwise: runs of digits, spaces and line ends, endings, signs."""
WORDS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *byte_letters(),
    *(merge.replace(" ", "") for merge in MERGES),
    "the",  # no merges lead to it
]
LAYERS, CONTEXT, BASE, EPSILON = 2, 2048, 10000.0, 1e-5
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODEL_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """A shape. Four query heads over two key heads, two layers."""

    family: str
    width: int = 64
    head_dim: int = 16
    hidden: int = 96
    tied: bool = False
    bias: bool = False
    factors: tuple[float, ...] = ()
    """What GGUF's tensor `rope_freqs` holds."""
    linear: float = 0
    """What all rotary frequencies are divided by; 0: no scaling."""
    pre: str = ""
    """`tokenizer.ggml.pre`; empty: the family's."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensors in GGUF's names; [out, in]."""
        queries, keys = 4 * self.head_dim, 2 * self.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (self.width,),
            "attn_q.weight": (queries, self.width),
            "attn_k.weight": (keys, self.width),
            "attn_v.weight": (keys, self.width),
            "attn_output.weight": (self.width, queries),
            "ffn_norm.weight": (self.width,),
            "ffn_gate.weight": (self.hidden, self.width),
            "ffn_up.weight": (self.hidden, self.width),
            "ffn_down.weight": (self.width, self.hidden),
        }
        if self.bias:
            layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
        if self.family == "qwen3":
            layer |= {"attn_q_norm.weight": (self.head_dim,), "attn_k_norm.weight": (self.head_dim,)}
        found: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(WORDS), self.width)}
        if not self.tied:
            found["output.weight"] = (len(WORDS), self.width)
        return found | {
            "output_norm.weight": (self.width,),
            **{f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()},
        }

    def weights(self, seed: int = 0) -> dict[str, F32]:
        """BF16 values, so that every file type holds them alike; heads in the order of a safetensors folder."""
        rng = np.random.default_rng(seed)

        def values(name: str, shape: tuple[int, ...]) -> F32:
            drawn = rng.standard_normal(shape)
            if name.endswith("norm.weight"):
                drawn = 1 + 0.3 * drawn
            elif len(shape) == 2:
                drawn *= 2 / np.sqrt(shape[1])
            return drawn.astype(ml_dtypes.bfloat16).astype(np.float32)

        return {name: values(name, shape) for name, shape in self.shapes().items()}


def interleaved(toy: Toy, name: str, values: F32) -> F32:
    """As llama.cpp's converter stores a Llama's query and key rows: row j and row j + half of a head side by side."""
    if toy.family != "llama" or (".attn_q." not in name and ".attn_k." not in name):
        return values
    half = toy.head_dim // 2
    order = [
        head + part * half + j for head in range(0, len(values), toy.head_dim) for j in range(half) for part in (0, 1)
    ]
    return values[order]


def write_gguf(path: Path, toy: Toy, weights: Mapping[str, F32], kinds: Mapping[str, Any] | None = None) -> Path:
    """Tensors as F32, or as the type that `kinds` names, or as the blocks (type, bytes) that it holds."""
    writer = gguf.GGUFWriter(path, toy.family)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(toy.width)
    writer.add_feed_forward_length(toy.hidden)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(toy.head_dim)
    writer.add_value_length(toy.head_dim)
    writer.add_rope_dimension_count(toy.head_dim)
    writer.add_rope_freq_base(BASE)
    if toy.linear:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(toy.linear)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(toy.pre or ("llama-bpe" if toy.family == "llama" else "qwen2"))
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3] + [1] * (len(WORDS) - 3))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, values in weights.items():
        kind = (kinds or {}).get(name, Kind.F32)
        if isinstance(kind, tuple):
            writer.add_tensor(name, kind[1], raw_dtype=kind[0])
        else:
            writer.add_tensor(name, gguf.quantize(interleaved(toy, name, values), kind), raw_dtype=kind)
    if toy.factors:
        writer.add_tensor("rope_freqs.weight", np.array(toy.factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def hf_name(name: str) -> str:
    """What a folder calls a tensor."""
    *layer, part, kind = name.split(".")
    return ".".join(["model.layers", layer[1], NAMES[part], kind] if layer else [NAMES[part], kind])


def config(toy: Toy, **change: Any) -> dict[str, Any]:
    """config.json of the shape."""
    return {
        "architectures": [MODEL_CLASSES[toy.family]],
        "model_type": toy.family,
        "hidden_act": "silu",
        "hidden_size": toy.width,
        "intermediate_size": toy.hidden,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": toy.head_dim,
        "vocab_size": len(WORDS),
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_theta": BASE,
        "rope_scaling": {"type": "linear", "factor": toy.linear} if toy.linear else None,
        "tie_word_embeddings": toy.tied,
        "eos_token_id": 2,
        **change,
    }


def write_folder(
    folder: Path, toy: Toy, weights: Mapping[str, F32], dtype: str = "BF16", shards: int = 1, **change: Any
) -> Path:
    """A folder as transformers writes it; with an index where there are several shards. `change`: keys of the config."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(toy, **change)))
    tensors = [(hf_name(name), values) for name, values in weights.items()]
    files = (
        ["model.safetensors"]
        if shards == 1
        else [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    )
    for i, file in enumerate(files):
        _safetensors(folder / file, dict(tensors[i::shards]), dtype)
    if shards > 1:
        places = {name: files[i % shards] for i, (name, _) in enumerate(tensors)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(toy)))
    named = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "temperature": 0.6}))
    return folder


def _safetensors(path: Path, tensors: Mapping[str, F32], dtype: str) -> None:
    kind: Any = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F8_E4M3": ml_dtypes.float8_e4m3fn}[
        dtype
    ]
    header, blobs, at = dict[str, Any](), list[bytes](), 0
    for name, values in tensors.items():
        blobs.append(values.astype(kind).tobytes())
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + len(blobs[-1])]}
        at += len(blobs[-1])
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"".join(blobs))


def tokenizer(toy: Toy) -> dict[str, Any]:
    """tokenizer.json, with a truncation left over from training."""
    digits = r"\p{N}{1,3}" if toy.family == "llama" else r"\p{N}"
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [{"id": i, "content": word, **special} for i, word in enumerate(WORDS[:3])],
        "normalizer": None if toy.family == "llama" else {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {word: i for i, word in enumerate(WORDS)},
            "merges": [merge.split() for merge in MERGES],
            "ignore_merges": toy.family == "llama",
        },
    }
