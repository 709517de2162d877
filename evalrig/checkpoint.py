"""A checkpoint folder, read without loading a tensor: the headers of its safetensors files, its config, its tokenizer, its templates."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKED = frozenset({"I8", "U8", "I32", "U32", "I64", "F8_E4M3", "F8_E5M2", "F4", "F8_E8M0"})
"""Dtypes in which quantised weights are stored: without any of them nothing is quantised."""
NAMES: Mapping[str, str] = {"BF16": "bf16", "F16": "fp16", "F32": "f32", "F8_E4M3": "fp8", "F8_E5M2": "fp8_e5m2"}
METHODS: Mapping[str, str] = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "modelopt_fp8": "fp8",
    "w8a8_fp8": "fp8",
    "w8a8_int8": "int8",
    "w4afp8": "w4afp8",
    "mxfp4": "mxfp4",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
    "nvfp4_online": "nvfp4",
    "modelopt_fp4": "nvfp4",
    "fp8_pb_wo": "fp8",
    "w4a8_awq": "w4afp8",
    "fp8_block_scaling": "fp8",
}
"""Names of a quantisation method or algorithm that need no second look -> dtype of the weights."""
SCALES = ("k_scale", "v_scale", "kv_scale")
TOKENIZERS = ("tokenizer.model", "tiktoken.model", "vocab.json", "merges.txt", "vocab.txt")
TOKENIZING = ("normalizer", "pre_tokenizer", "model", "post_processor", "added_tokens")
"""Parts of a tokenizer.json that decide about ids."""
LARGEST_HEADER = 256 * 2**20
WIDTHS: Mapping[str, int] = {"BF16": 2, "F16": 2, "F32": 4}
"""Bytes an element, of the dtypes that hold plain numbers."""


class CheckpointError(Exception):
    """The folder is no checkpoint: what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a folder says it holds."""

    total_bytes: int
    """Of all tensors."""
    dtypes: Mapping[str, int]
    """Safetensors dtype -> bytes of tensors so stored."""
    kv_scales: int
    """Tensors that are scales of a KV cache."""
    quantization: str
    """Dtype that its quantization_config claims for the weights; empty: none."""
    vocabulary: int
    digest: str
    """Of the headers and a few bytes of each file: another checkpoint has another."""
    tokenizer_digest: str
    template_digest: str
    sampling_defaults: str
    """Digest of generation_config.json; empty: none."""

    @property
    def weights(self) -> str:
        """Dtype of the weights: what the config claims, where the tensors bear it out; else what most bytes are."""
        if self.quantization and PACKED & self.dtypes.keys():
            return self.quantization
        most = max(self.dtypes, key=lambda name: self.dtypes[name], default="")
        return NAMES.get(most, most.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where one tensor lies."""

    file: Path
    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte in the file."""
    size: int
    """In bytes."""


def read(folder: Path) -> Checkpoint:
    """Read the headers.

    Raises:
        CheckpointError: no folder, no config.json, no safetensors files, or a file that is none.
    """
    config = config_of(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError("it has no safetensors files")
    digest, dtypes, scales = hashlib.sha256(json.dumps(config, sort_keys=True).encode()), Counter[str](), 0
    for path in files:
        header, size = _header(path, digest)
        digest.update(f"{path.name} {size}".encode())
        for name, tensor in _tensors(header, path):
            start, end = tensor["data_offsets"]
            dtypes[str(tensor["dtype"])] += end - start
            scales += name.rsplit(".", 1)[-1] in SCALES
    return Checkpoint(
        total_bytes=dtypes.total(),
        dtypes=dict(dtypes),
        kv_scales=scales,
        quantization=_quantization(folder, config),
        vocabulary=int(config.get("vocab_size") or _text(config).get("vocab_size") or 0),
        digest=digest.hexdigest()[:16],
        tokenizer_digest=tokenizer(folder),
        template_digest=template(folder),
        sampling_defaults=digest_of(json_object(folder / "generation_config.json", drop=("transformers_version",))),
    )


def config_of(folder: Path) -> dict[str, Any]:
    """Its config.json. Raises CheckpointError: no folder, or none in it."""
    if not folder.is_dir():
        raise CheckpointError("no such folder")
    config = json_object(folder / "config.json")
    if not config:
        raise CheckpointError("it has no config.json")
    return config


def stored(folder: Path) -> dict[str, Stored]:
    """Every tensor that the model is made of, by name.

    An index says which files belong to it; without one it is model.safetensors, or else all there are.

    Raises:
        CheckpointError: no safetensors files, one that the index names is missing or cut, or a tensor is there twice.
    """
    found: dict[str, Stored] = {}
    for path in _shards(folder):
        header, size = _header(path, hashlib.sha256())
        ends = max((tensor["data_offsets"][1] for _, tensor in _tensors(header, path)), default=0)
        for name, tensor in _tensors(header, path):
            if name in found:
                raise CheckpointError(f"`{name}` is both in {found[name].file.name} and in {path.name}")
            found[name] = _stored(tensor, path, size - ends, name)
    return found


def _shards(folder: Path) -> list[Path]:
    index = json_object(folder / "model.safetensors.index.json").get("weight_map")
    if isinstance(index, dict):
        names = sorted({Path(str(name)).name for name in index.values()})
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise CheckpointError(f"{missing[0]}, which its index names, is not there")
        return [folder / name for name in names]
    whole = folder / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError("it has no safetensors files")
    return files


def _stored(tensor: Mapping[str, Any], path: Path, data: int, name: str) -> Stored:
    """`data`: where in the file the tensors begin."""
    dtype, (start, end) = str(tensor["dtype"]), tensor["data_offsets"]
    shape = tuple(int(side) for side in tensor.get("shape") or ())
    if dtype in WIDTHS and math.prod(shape) * WIDTHS[dtype] != end - start:
        raise CheckpointError(f"{path.name}: `{name}` takes {end - start} bytes, which is not its shape {shape}")
    return Stored(file=path, dtype=dtype, shape=shape, start=data + start, size=end - start)


def template(folder: Path) -> str:
    """Digest of the chat template, wherever the checkpoint keeps it; empty: it has none."""
    return digest_of(template_of(folder))


def template_of(folder: Path) -> Any:
    """The chat template, wherever the checkpoint keeps it: a text, or a list of named ones; None: it has none."""
    path = folder / "chat_template.jinja"
    text = path.read_text("utf-8") if path.is_file() else None
    if text is None:
        text = json_object(folder / "chat_template.json").get("chat_template")
    if text is None:
        text = json_object(folder / "tokenizer_config.json").get("chat_template")
    return text


def _header(path: Path, digest: Any) -> tuple[dict[str, Any], int]:
    """The header and the file's size; the header and samples of the data go into the digest."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, LARGEST_HEADER):
            raise CheckpointError(f"{path.name} is no safetensors file, or was cut (a pointer that was not fetched?)")
        raw = file.read(length)
        digest.update(raw)
        for place in (8 + length, size // 2, max(8 + length, size - 4096)):
            file.seek(place)
            digest.update(file.read(4096))
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise CheckpointError(f"{path.name} is no safetensors file") from error
    ends = [tensor["data_offsets"][1] for _, tensor in _tensors(header, path)]
    if max(ends, default=0) != size - 8 - length:
        raise CheckpointError(f"{path.name} was cut or has bytes too many: {size} bytes for what its header lists")
    return header, size


def _tensors(header: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Any]]:
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(tensor, dict) or {"dtype", "data_offsets"} - tensor.keys():
            raise CheckpointError(f"{path.name}: its header does not describe `{name}`")
        yield name, tensor


def _quantization(folder: Path, config: Mapping[str, Any]) -> str:
    """Dtype that the quantization_config claims, in one word."""
    found = config.get("quantization_config") or _text(config).get("quantization_config")
    found = found or json_object(folder / "hf_quant_config.json").get("quantization")
    if not isinstance(found, dict):
        return ""
    method = str(found.get("quant_algo") or found.get("quant_method") or "").lower()
    if groups := found.get("config_groups"):
        return "+".join(sorted({_scheme(group.get("weights") or {}) for group in groups.values()} - {""}))
    if bits := found.get("bits") or found.get("w_bit"):
        return f"int{bits}"
    return METHODS.get(method, method)


def _scheme(weights: Mapping[str, Any]) -> str:
    """One group of compressed-tensors."""
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "int":
        return f"int{bits}"
    return {8: "fp8", 4: "nvfp4"}.get(bits or 0, "") if kind == "float" else ""


def tokenizer(folder: Path) -> str:
    """Digest of what turns text into ids; not of tokenizer_config.json, which every tool writes anew."""
    whole = json_object(folder / "tokenizer.json")
    if found := {key: whole[key] for key in TOKENIZING if key in whole}:
        model = found.get("model") or {}
        if merges := model.get("merges"):  # two spellings of one thing
            model["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
        return digest_of(found)
    parts = [path for name in TOKENIZERS if (path := folder / name).is_file()]
    return digest_of([hashlib.sha256(path.read_bytes()).hexdigest() for path in parts])


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language part of a multimodal config."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else {}


def json_object(path: Path, drop: tuple[str, ...] = ()) -> dict[str, Any]:
    """An object from a file; empty where there is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path.name} holds no JSON object")
    return {key: value for key, value in found.items() if key not in drop}


def digest_of(value: Any) -> str:
    """Empty for nothing."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16] if value else ""
