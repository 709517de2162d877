"""Files that cannot be served are refused with one clear line; the permutation of query and key rows is undone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quants

from evalrig.errors import UsageError
from evalrig.refengine.gguf_file import open_gguf, undo_rotary_permutation
from evalrig.refengine.gguf_source import GgufSource
from evalrig.refengine.gguf_tokenizer import gguf_tokenizer


def write(path: Path, change: Callable[[GGUFWriter], None] | None = None, *, arch: str = "llama") -> Path:
    writer = GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["a", "b"])
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such model file"):
        open_gguf(tmp_path / "none.gguf")


@pytest.mark.parametrize("body", [b"", b"PK\x03\x04 something else"])
def test_another_kind_of_file(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(body)
    with pytest.raises(UsageError, match="not a GGUF file"):
        open_gguf(path)


@pytest.mark.parametrize("share", [0.00001, 0.0001, 0.005, 0.02, 0.5, 0.99])
def test_a_cut_file(tmp_path: Path, model_path: Path, share: float) -> None:
    path = tmp_path / "cut.gguf"
    whole = model_path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UsageError, match="cut short or damaged"):
        open_gguf(path)


def test_another_architecture(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'mamba' is not supported"):
        GgufSource(file=open_gguf(write(tmp_path / "m.gguf", arch="mamba"))).architecture()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda writer: writer.add_expert_count(8), r"llama\.expert_count is 8: not supported"),
        (lambda writer: writer.add_rope_dimension_count(16), "partial rotary"),
        (lambda writer: writer.add_string("llama.rope.scaling.type", "yarn"), "rotary scaling 'yarn' .* linear"),
        (lambda writer: writer.add_sliding_window(64), r"llama\.attention\.sliding_window is 64"),
        (lambda writer: writer.add_head_count_kv([1, 2]), "head_count_kv is not one whole number"),
        (lambda writer: writer.add_head_count_kv(3), "2 query heads do not share 3 key heads"),
        (lambda writer: writer.add_float32("llama.attention.scale", 0.5), r"llama\.attention\.scale is 0\.5"),
    ],
)
def test_a_variation_that_is_not_computed(tmp_path: Path, change: Callable[[GGUFWriter], None], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        GgufSource(file=open_gguf(write(tmp_path / "m.gguf", change))).architecture()


def test_a_missing_key_and_tensor_are_named(tmp_path: Path) -> None:
    file = open_gguf(write(tmp_path / "m.gguf"))
    with pytest.raises(UsageError, match=r"tokenizer\.ggml\.model"):
        gguf_tokenizer(file)
    with pytest.raises(UsageError, match=r"token_embd\.weight"):
        file.tensor("token_embd.weight")


def test_another_tensor_type(tmp_path: Path) -> None:
    def add(writer: GGUFWriter) -> None:
        raw = np.zeros((1, 54), np.uint8)
        writer.add_tensor("t", raw, raw_dtype=GGMLQuantizationType.TQ1_0)

    with pytest.raises(UsageError, match=r"tensor t is TQ1_0; this engine reads F32, .*Q2_K, "):
        open_gguf(write(tmp_path / "m.gguf", add))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_readable_type_comes_back(tmp_path: Path, kind: str) -> None:
    weight = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    stored = quants.quantize(weight, GGMLQuantizationType[kind])

    def add(writer: GGUFWriter) -> None:
        writer.add_tensor("t", stored, raw_dtype=GGMLQuantizationType[kind])

    found = open_gguf(write(tmp_path / "m.gguf", add)).tensor("t")
    assert found.dtype == np.float32
    assert np.abs(found - weight).max() < {"F32": 1e-9, "F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2}.get(kind, 0.4)


def test_the_permutation_is_the_converters_inverse() -> None:
    heads, weight = 3, np.arange(3 * 8 * 2, dtype=np.float32).reshape(24, 2)
    permuted = weight.reshape(heads, 2, 4, 2).swapaxes(1, 2).reshape(24, 2)
    assert np.array_equal(undo_rotary_permutation(permuted, heads), weight)
