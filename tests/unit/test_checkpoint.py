"""A checkpoint folder read by its headers: formats, sizes, scales, digests, and folders that are none."""

import json
from pathlib import Path
from typing import Any

import pytest
from toys.checkpoints import INT4, TOKENIZER, checkpoint, safetensors

from evalrig.checkpoint import CheckpointError, read


def rewrite(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def test_sizes_and_dtypes_come_from_the_headers_alone(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", {"a.weight": ("BF16", 10), "b.weight": ("F32", 3)})
    safetensors(folder / "more.safetensors", {"c.weight": ("BF16", 5)})
    found = read(folder)
    assert (found.total_bytes, found.dtypes, found.weights) == (42, {"BF16": 30, "F32": 12}, "bf16")
    assert (found.vocabulary, found.kv_scales, found.quantization) == (49152, 0, "")


PACKED = {"a.weight_packed": ("I32", 8), "a.weight_scale": ("BF16", 4), "norm": ("BF16", 100)}
NVFP4 = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float"}}}}
MIXED = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "a": {"weights": {"num_bits": 8, "type": "float"}},
        "b": {"weights": {"num_bits": 4, "type": "int"}},
    },
}


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        ({"quantization_config": INT4}, "int4"),
        ({"text_config": {"quantization_config": INT4}}, "int4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "awq", "w_bit": 8}}, "int8"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, "fp8"),
        ({"quantization_config": NVFP4}, "nvfp4"),
        ({"quantization_config": MIXED}, "fp8+int4"),
        ({"quantization_config": {"quant_method": "unheard_of"}}, "unheard_of"),
        ({}, "bf16"),
    ],
)
def test_the_claimed_format_is_named_in_one_word(tmp_path: Path, config: Any, weights: str) -> None:
    assert read(checkpoint(tmp_path / "m", PACKED, **config)).weights == weights


def test_modelopt_keeps_its_claim_in_a_file_of_its_own(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", {"a": ("U8", 8)})
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert read(folder).weights == "nvfp4"


def test_a_claim_that_no_tensor_bears_out_does_not_count(tmp_path: Path) -> None:
    found = read(checkpoint(tmp_path / "m", {"a": ("BF16", 8)}, quantization_config=INT4))
    assert (found.quantization, found.weights) == ("int4", "bf16")


def test_scales_of_a_kv_cache_are_counted(tmp_path: Path) -> None:
    names = ("l.0.self_attn.k_scale", "l.0.self_attn.v_scale", "l.1.kv_scale", "l.0.weight_scale", "k_scale.other")
    assert read(checkpoint(tmp_path / "m", {name: ("F32", 1) for name in names})).kv_scales == 3


def test_the_digest_tells_contents_and_config_apart(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")
    assert read(one) == read(two)
    safetensors(two / "model.safetensors", {"model.layers.0.weight": ("BF16", 64)}, fill=b"\x02")
    assert read(one).digest != read(two).digest
    assert read(checkpoint(tmp_path / "c", rope_theta=1)).digest != read(one).digest


def test_what_only_another_tool_wrote_differently_is_the_same_tokenizer(tmp_path: Path) -> None:
    one, two, three = (checkpoint(tmp_path / name) for name in "abc")
    (two / "tokenizer.json").write_text(
        json.dumps({**TOKENIZER, "version": "2", "truncation": {"max_length": 5}, "model": {**TOKENIZER["model"], "merges": [["a", "b"]]}})  # type: ignore[dict-item]
    )  # fmt: skip
    (three / "tokenizer.json").write_text(json.dumps({**TOKENIZER, "model": {"type": "BPE", "vocab": {"b": 0}}}))
    rewrite(two / "tokenizer_config.json", extra=1)
    assert read(one).tokenizer_digest == read(two).tokenizer_digest
    assert read(one).tokenizer_digest != read(three).tokenizer_digest
    (one / "tokenizer.json").unlink()
    (one / "tiktoken.model").write_bytes(b"abc")
    assert read(one).tokenizer_digest not in ("", read(two).tokenizer_digest)


def test_a_template_counts_wherever_it_is_kept(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")
    (two / "tokenizer_config.json").write_text("{}")
    (two / "chat_template.jinja").write_text("{{ messages }}")
    assert read(one).template_digest == read(two).template_digest
    (two / "chat_template.jinja").write_text("{{ messages }} ")
    assert read(one).template_digest != read(two).template_digest


def test_sampling_defaults_have_a_digest_without_the_tool_s_version(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")
    rewrite(two / "generation_config.json", transformers_version="6")
    assert read(one).sampling_defaults == read(two).sampling_defaults
    rewrite(two / "generation_config.json", top_p=0.9)
    assert read(one).sampling_defaults != read(two).sampling_defaults
    (two / "generation_config.json").unlink()
    assert read(two).sampling_defaults == ""


def broken(folder: Path, how: str) -> Path:
    file = folder / "model.safetensors"
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-5])
    elif how == "pointer":
        file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    elif how == "no header":
        file.write_bytes((20).to_bytes(8, "little") + b"x" * 20)
    elif how == "no tensor":
        raw = b'{"a": 5}'
        file.write_bytes(len(raw).to_bytes(8, "little") + raw)
    elif how == "bad config":
        (folder / "config.json").write_text("{")
    else:
        (folder / how).unlink()
    return folder


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("config.json", "it has no config.json"),
        ("model.safetensors", "it has no safetensors files"),
        ("cut", "model.safetensors was cut or has bytes too many"),
        ("pointer", "model.safetensors is no safetensors file, or was cut"),
        ("no header", "model.safetensors is no safetensors file"),
        ("no tensor", "model.safetensors: its header does not describe `a`"),
        ("bad config", "config.json cannot be read"),
    ],
)
def test_a_folder_that_is_no_whole_checkpoint_is_told(tmp_path: Path, how: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read(broken(checkpoint(tmp_path / "m"), how))
    with pytest.raises(CheckpointError, match="no such folder"):
        read(tmp_path / "absent")
