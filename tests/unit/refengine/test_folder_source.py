"""Folders that cannot be computed as they are meant are refused with one clear line, before a weight is read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from toys.families import LLAMA3, WORDS, Toy, config, tokenizer, write_folder, write_gguf

from evalrig.engines.refengine import Refengine, RefengineOptions
from evalrig.errors import UsageError
from evalrig.refengine.formats import WEIGHT_FORMATS
from evalrig.refengine.model import load_model
from evalrig.refengine.source import open_source
from evalrig.types import Variant

TOY = Toy(family="qwen3")
F32 = WEIGHT_FORMATS["f32"]


def loaded(path: Path) -> Any:
    source = open_source(path)
    return load_model(source, F32), source.tokenizer(), source.template()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "toy", TOY, TOY.weights())


def told(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    return text.removeprefix(str(path))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"model_type": "glm4_moe"}, "/config.json: architecture 'glm4_moe' is not supported; refengine runs llama, qwen2, qwen3"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "/config.json: rotary scaling 'yarn' is not supported; refengine knows "
         "default, linear, llama3"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4}}, "/config.json: low_freq_factor is None, "
         "not a number above 0; fetch it again"),
        ({"use_sliding_window": True}, "/config.json: sliding-window attention: not supported by refengine"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "/config.json: sliding-window attention: not supported by refengine"),
        ({"hidden_act": "gelu"}, "/config.json: hidden_act 'gelu' (silu is): not supported by refengine"),
        ({"partial_rotary_factor": 0.5}, "/config.json: partial_rotary_factor: not supported by refengine"),
        ({"rms_norm_eps": None}, "/config.json: rms_norm_eps is None, not a number above 0; fetch it again"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "/config.json: factor is 0, not a number above 0; fetch it again"),
        ({"rope_scaling": "linear"}, "/config.json: its rotary settings are 'linear', no object; fetch it again"),
        ({"rope_theta": "1e6"}, "/config.json: rope_theta is '1e6', not a number above 0; fetch it again"),
        ({"num_hidden_layers": "2"}, "/config.json: num_hidden_layers is '2', not a whole number; fetch it again"),
        ({"num_hidden_layers": 3}, ": there is no tensor 'model.layers.2.input_layernorm.weight'; convert or fetch it again"),
        ({"num_hidden_layers": 1}, ": tensor 'model.layers.1.input_layernorm.weight' and 10 more is no part of a qwen3 decoder "
         "as refengine computes it; leaving it out would give other numbers, so the model is not supported"),
        ({"num_key_value_heads": 3}, "/config.json: 4 query heads do not share 3 key heads evenly; not supported"),
        ({"num_key_value_heads": 4}, ": tensor 'model.layers.0.self_attn.k_proj.weight' has the shape [32, 64], its config says [64, 64]; "
         "convert or fetch it again"),
        ({"head_dim": None}, ": tensor 'model.layers.0.self_attn.q_proj.weight' has the shape [64, 64], its config says [512, 64]; "
         "convert or fetch it again"),
    ],
)  # fmt: skip
def test_a_config_that_is_not_computed(tmp_path: Path, change: Any, line: str) -> None:
    assert told(write_folder(tmp_path / "toy", TOY, TOY.weights(), **change)) == line


def test_quantised_weights(tmp_path: Path) -> None:
    fp8 = write_folder(tmp_path / "fp8", TOY, TOY.weights(), "F8_E4M3")
    assert told(fp8).endswith(" is F8_E4M3; this engine reads BF16, F16, F32")
    claimed = write_folder(tmp_path / "claimed", TOY, TOY.weights(), quantization_config={"quant_method": "fp8"})
    assert "quantised weights (quantization_config) are not supported; give the BF16 checkpoint" in told(claimed)


@pytest.mark.parametrize(
    "name", ["model.layers.1.self_attn.o_proj.bias", "model.layers.0.mlp.gate.weight", "score.weight"]
)
def test_a_tensor_that_would_be_left_out(tmp_path: Path, name: str) -> None:
    """An output bias, a router: dropped without a word, the numbers would be another model's."""
    path = write_folder(tmp_path / "toy", TOY, TOY.weights())
    raw = (path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    size = len(raw) - 8 - length
    header[name] = {"dtype": "BF16", "shape": [2], "data_offsets": [size, size + 4]}
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :] + bytes(4))
    assert told(path).startswith(f": tensor {name!r} is no part of a qwen3 decoder")


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_gguf_file_without_its_familys_own_parts(tmp_path: Path, family: str) -> None:
    toy = Toy(family=family, bias=True)
    weights = {n: v for n, v in toy.weights().items() if not n.endswith(("bias", "attn_q_norm.weight"))}
    part = {"qwen2": "attn_q.bias", "qwen3": "attn_q_norm.weight"}[family]
    assert told(write_gguf(tmp_path / "m.gguf", toy, weights)) == (
        f": there is no tensor 'blk.0.{part}'; convert or fetch it again"
    )


def test_a_head_that_is_missing(tmp_path: Path) -> None:
    """Taking the embedding for it would give fluent nonsense."""
    weights = {name: values for name, values in TOY.weights().items() if name != "output.weight"}
    path = write_folder(tmp_path / "toy", TOY, weights)
    assert told(path) == ": there is no tensor 'lm_head.weight' although the config ties no embeddings; fetch it again"


def test_a_head_that_is_stored_though_tied_is_the_embedding(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "toy", TOY, TOY.weights(), tie_word_embeddings=True)
    model = loaded(path)[0]
    assert model.head is model.embedding


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _rewritten(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        whole = tokenizer(TOY)
        change(whole)
        (folder / "tokenizer.json").write_text(json.dumps(whole))

    return write


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (_without("config.json"), ": it has no config.json; give a folder with config.json and safetensors files"),
        (_without("model.safetensors"), ": it has no safetensors files; give a folder with config.json and safetensors files"),
        (_without("tokenizer.json"), "/tokenizer.json: no such file; refengine takes its tokens from it"),
        (_rewritten(lambda whole: whole.update(decoder={"type": "Metaspace"})), "/tokenizer.json: a BPE tokenizer with the decoder "
         "Metaspace is not supported; refengine reads byte-level BPE (model BPE, decoder ByteLevel)"),
        (_rewritten(lambda whole: whole["model"]["vocab"].update(more=len(WORDS))), f"/tokenizer.json: it has the id {len(WORDS)}, the "
         f"model only {len(WORDS)} tokens; fetch both again"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), ": tokenizer.json cannot be read: "),
        (_rewritten(lambda whole: whole["model"].update(vocab=7)), "/tokenizer.json: the tokenizers library cannot read it: "),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"version https://"), ": model.safetensors is no safetensors file, or "
         "was cut (a pointer that was not fetched?); give a folder"),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_whole_checkpoint(folder: Path, damage: Callable[[Path], Any], line: str) -> None:
    damage(folder)
    assert told(folder).startswith(line)


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    """Another copy of the weights beside them is not read; a shard that was not fetched is told."""
    path = write_folder(tmp_path / "toy", TOY, TOY.weights(), shards=3)
    shutil.copy(path / "model-00001-of-00003.safetensors", path / "consolidated.safetensors")
    loaded(path)
    (path / "model-00002-of-00003.safetensors").unlink()
    assert told(path).startswith(": model-00002-of-00003.safetensors, which its index names, is not there; ")
    (path / "model.safetensors.index.json").unlink()
    assert "is both in consolidated.safetensors and in model-00001-of-00003.safetensors" in told(path)


def test_another_weight_or_config_is_another_digest(tmp_path: Path) -> None:
    weights = TOY.weights()
    first = open_source(write_folder(tmp_path / "a", TOY, weights)).sha256
    weights["blk.1.ffn_up.weight"][5, 5] += 0.5
    second = open_source(write_folder(tmp_path / "b", TOY, weights)).sha256
    third = open_source(write_folder(tmp_path / "c", TOY, weights, rms_norm_eps=2e-5)).sha256
    assert len({first, second, third}) == 3
    assert open_source(write_folder(tmp_path / "d", TOY, weights)).sha256 == second


def test_the_config_of_transformers_5_says_the_same(tmp_path: Path) -> None:
    """Rotary settings moved into `rope_parameters`."""
    toy = Toy(family="llama")
    old = write_folder(tmp_path / "old", toy, toy.weights(), rope_theta=5e5, rope_scaling=LLAMA3)
    new = write_folder(tmp_path / "new", toy, toy.weights())
    moved = {**config(toy), "rope_parameters": {**LLAMA3, "rope_theta": 5e5}}
    moved = {key: value for key, value in moved.items() if key not in ("rope_theta", "rope_scaling")}
    (new / "config.json").write_text(json.dumps(moved))
    assert open_source(new).architecture() == open_source(old).architecture()
    assert open_source(new).architecture().rope.base == 5e5


def test_several_templates_and_a_bos_of_the_tokenizers_own(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ bos_token }}plain"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|im_start|>", "chat_template": named}))
    pieces = [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    adds = {
        "type": "TemplateProcessing",
        "single": pieces,
        "pair": [*pieces, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    _rewritten(lambda whole: whole.update(post_processor=adds))(folder)
    _, tokens, template = loaded(folder)
    assert template.render([]) == "<|im_start|>plain"
    assert tokens.encode("he") == [1, *tokens.encode("he", add_special=False)]


def test_a_vocabulary_padded_for_the_hardware(tmp_path: Path) -> None:
    """Rows of the embedding that no token has: scored like any other, and without text."""
    rng, weights = np.random.default_rng(0), TOY.weights()
    padded = {
        name: np.concatenate([v, rng.standard_normal((7, TOY.width)).astype(np.float32)])
        if name in ("token_embd.weight", "output.weight")
        else v
        for name, v in weights.items()
    }
    model, tokens, _ = loaded(write_folder(tmp_path / "toy", TOY, padded, vocab_size=len(WORDS) + 7))
    assert model.architecture.vocabulary == tokens.size == len(WORDS) + 7
    assert tokens.decode([len(WORDS) + 3]) == ""


def test_the_run_file_names_a_folder_that_is_looked_at_before_anything_starts(folder: Path, tmp_path: Path) -> None:
    def resolved(path: Path) -> None:
        variant = Variant(name="reference", role="reference", engine="refengine", weights=str(path))
        Refengine.resolve(variant, RefengineOptions(), "reference")

    resolved(folder)
    resolved(write_gguf(tmp_path / "toy.gguf", TOY, TOY.weights(), {"token_embd.weight": Kind.BF16}))
    wanted = "give a GGUF file, a safetensors folder, or one of: smollm2-135m-instruct"
    for path, line in {
        tmp_path / "none": f"reference.weights: no model '{tmp_path / 'none'}'; {wanted}",
        tmp_path: f"reference.weights: the folder '{tmp_path}' is no checkpoint: it has no config.json; {wanted}",
        folder
        / "model.safetensors": f"reference.weights: '{folder / 'model.safetensors'}' is one file of a checkpoint; "
        "give its folder",
        write_folder(
            tmp_path / "moe", TOY, TOY.weights(), model_type="qwen3_moe"
        ): f"reference.weights: {tmp_path / 'moe'}: "
        "architecture 'qwen3_moe' is not supported; refengine runs llama, qwen2, qwen3",
    }.items():
        with pytest.raises(UsageError) as caught:
            resolved(path)
        assert str(caught.value) == line
