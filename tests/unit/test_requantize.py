"""Another weight format of the same model: made once, whole, named by its source, and the same model otherwise."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from toys.gguf_model import tiny_model

from evalrig.errors import EngineError
from evalrig.llama_cpp.requantize import TYPES, make, place, sha256, tokenizer_sha256

# relative error of a matrix: BF16 keeps 8 bits, Q8_0 a scale for 32, Q4_0 four bits
ERRORS = {"bf16": (1e-3, 3e-3), "q8_0": (1e-3, 1e-2), "q4_0": (5e-2, 2e-1)}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tiny_model(tmp_path / "tiny.gguf")


def tensors(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def values(tensor: Any) -> Any:
    return gguf.dequantize(tensor.data, tensor.tensor_type)


def requantized(source: Path, kind: str) -> Path:
    make(source, kind, target := place(source, kind))
    return target


@pytest.mark.parametrize("kind", TYPES)
def test_matrices_are_rounded_to_the_format_and_everything_else_stays(source: Path, kind: str) -> None:
    ours, theirs = tensors(source), tensors(made := requantized(source, kind))
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        before, after = values(ours[name]), values(tensor)
        assert before.shape == after.shape
        if before.ndim == 1:
            assert np.array_equal(before, after), "norms stay as they are"
            continue
        edge = kind == "q4_0" and name == "token_embd.weight"
        assert tensor.tensor_type.name.lower() == ("q8_0" if edge else kind)
        low, high = ERRORS["q8_0" if edge else kind]
        assert low < np.linalg.norm(after - before) / np.linalg.norm(before) < high
    assert tokenizer_sha256(made) == tokenizer_sha256(source)
    fields = gguf.GGUFReader(made).fields
    assert fields["general.file_type"].contents() == int(getattr(gguf.LlamaFileType, f"MOSTLY_{kind.upper()}"))
    for name, field in gguf.GGUFReader(source).fields.items():
        if not name.startswith("GGUF."):
            assert (fields[name].contents(), fields[name].types) == (field.contents(), field.types)


def test_a_rounded_file_rounds_again_to_itself(source: Path) -> None:
    once = requantized(source, "bf16")
    twice = requantized(once, "bf16")
    assert once != twice, "named by what it was made from"
    assert all(
        np.array_equal(values(a), values(b))
        for a, b in zip(tensors(once).values(), tensors(twice).values(), strict=True)
    )


def test_it_is_named_by_its_source(source: Path, tmp_path: Path) -> None:
    made = requantized(source, "q8_0")
    assert made == tmp_path / "cache" / "evalrig" / "requantized" / f"{sha256(source)}-q8_0.gguf"
    assert place(tiny_model(tmp_path / "other.gguf", seed=1), "q8_0") != made
    assert list(made.parent.iterdir()) == [made], "no draft is left"


def test_what_a_killed_one_left_is_swept(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "evalrig" / "requantized"
    folder.mkdir(parents=True)
    old, young = (folder / f".{sha256(source)}-bf16.gguf.{name}" for name in ("old", "young"))
    for draft in (old, young):
        draft.write_bytes(b"half")
    os.utime(old, (1, 1))
    made = requantized(source, "bf16")
    assert sorted(folder.iterdir()) == sorted([made, young])


SPOILT: dict[str, Callable[[Path], object]] = {
    "no GGUF": lambda path: path.write_bytes(b"GIF89a" + bytes(200)),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-4000]),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_source_that_is_no_model_is_one_line_and_leaves_nothing(source: Path, tmp_path: Path, how: str) -> None:
    SPOILT[how](source)
    with pytest.raises(EngineError, match=r"tiny\.gguf: cannot be written as q4_0 .*; restore the file$"):
        requantized(source, "q4_0")
    folder = tmp_path / "cache" / "evalrig" / "requantized"
    assert list(folder.iterdir()) == []
    if how != "cut short":
        with pytest.raises(EngineError, match="cut short or no GGUF file"):
            tokenizer_sha256(source)


def test_no_room_is_one_line(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(EngineError, match=r"cannot write .*; give the cache room, or set XDG_CACHE_HOME"):
        requantized(source, "bf16")
