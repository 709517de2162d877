"""Per-token logprobs on disk come back bit for bit, or the file is not there."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from evalrig.errors import RunError, UsageError
from evalrig.tokens import read_tokens, write_tokens

COLUMNS = {
    "token": np.array([5, 1, 4], np.int32),
    "logprob": np.array([-0.1, np.nan, -np.inf], np.float32),
    "top_ids": np.arange(6, dtype=np.int32).reshape(3, 2),
    "top_logprobs": np.array([[-0.1, -3], [np.nan, -np.inf], [-1e-30, -1e30]], np.float32),
}


@pytest.mark.parametrize("rows", [3, 1, 0])
def test_columns_come_back_bit_for_bit(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "deep" / "x.parquet"
    write_tokens(path, {name: values[:rows] for name, values in COLUMNS.items()})
    found = read_tokens(path)
    assert set(found) == set(COLUMNS)
    for name, values in COLUMNS.items():
        assert (found[name].dtype, found[name].shape) == (values.dtype, values[:rows].shape)
        assert found[name].tobytes() == values[:rows].tobytes()
    assert [file.name for file in path.parent.iterdir()] == ["x.parquet"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="cannot write: No space left on device; free space, then resume"):
        write_tokens(tmp_path / "x.parquet", COLUMNS)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write: Not a directory; free space, then resume"):
        write_tokens(tmp_path / "file" / "deep" / "x.parquet", COLUMNS)


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and nothing"])
def test_a_record_without_its_tokens_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"token logprobs of a record cannot be read .* restore the run folder"):
        read_tokens(path)
