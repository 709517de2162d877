"""Per-token logprobs on disk come back bit for bit, and a kill costs at most the attempt that was being written."""

import errno
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from toys.nouns import record, samples, small_folder, small_plan

from evalrig.errors import RunError, UsageError
from evalrig.records import AUDIT, ROWS
from evalrig.resume import pending
from evalrig.tokens import Key, TokenFile, TokenWriter
from evalrig.types import Provenance

COLUMNS = {
    "token": np.array([5, 1, 4], np.int32),
    "logprob": np.array([-0.1, np.nan, -np.inf], np.float32),
    "top_ids": np.arange(6, dtype=np.int32).reshape(3, 2),
    "top_logprobs": np.array([[-0.1, -3], [np.nan, -np.inf], [-1e-30, -1e30]], np.float32),
}
KEYS = [Key(f"s-{number:03d}", 0, f"2026-01-01T00:00:0{number}.000+00:00") for number in range(3)]


def same(found: dict[str, np.ndarray], written: dict[str, np.ndarray]) -> None:
    assert set(found) == set(written)
    for name, values in written.items():
        assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape)
        assert found[name].tobytes() == values.tobytes()


def filled(path: Path, keys: list[Key] = KEYS) -> Path:
    writer = TokenWriter(path)
    for number, key in enumerate(keys):
        writer.append(key, {**COLUMNS, "token": COLUMNS["token"] + number})
    writer.close()
    return path


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@st.composite
def attempts(draw: st.DrawFn) -> list[dict[str, np.ndarray]]:
    """Any numbers, and a number of rows and a width that differ from attempt to attempt."""
    found: list[dict[str, np.ndarray]] = []
    for _ in range(draw(st.integers(1, 4))):
        rows, width = draw(st.integers(1, 5)), draw(st.integers(0, 4))
        ids = st.integers(-(2**31), 2**31 - 1)
        found.append(
            {
                "token": draw(arrays(np.int32, rows, elements=ids)),
                "logprob": draw(arrays(np.float32, rows, elements=FLOATS)),
                "top_ids": draw(arrays(np.int32, (rows, width), elements=ids)),
                "top_logprobs": draw(arrays(np.float32, (rows, width), elements=FLOATS)),
            }
        )
    return found


@settings(deadline=None, derandomize=True, max_examples=60)
@given(attempts(), st.text(st.characters(exclude_categories=("Cs",)), max_size=9))
def test_columns_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, written: list[dict[str, np.ndarray]], name: str
) -> None:
    path = tmp_path_factory.mktemp("x") / "deep" / "rows.arrows"
    for epoch, columns in enumerate(written):  # every attempt by a process of its own, as after a kill
        writer = TokenWriter(path)
        writer.append(Key(name, epoch, "t"), columns)
        writer.close()
    file = TokenFile(path)
    assert not file.torn
    assert [key.epoch for key in file.places] == list(range(len(written)))
    for epoch, columns in enumerate(written):
        same(file.read(Key(name, epoch, "t")), columns)
    assert [at.name for at in path.parent.iterdir()] == ["rows.arrows"]


def test_numbers_are_stored_as_32_bits(tmp_path: Path) -> None:
    """Pitfall: 16 bit logprobs clip and give a KL below zero."""
    writer = TokenWriter(tmp_path / "rows.arrows")
    writer.append(KEYS[0], {"token": np.array([7]), "logprob": np.array([-0.1])})
    writer.close()
    schema = pa.ipc.open_stream((tmp_path / "rows.arrows").read_bytes()).schema
    assert [str(schema.field(name).type) for name in schema.names] == ["int32", "float"]


def test_anybody_reads_the_file_with_arrow(tmp_path: Path) -> None:
    stream = pa.ipc.open_stream(filled(tmp_path / "rows.arrows").read_bytes())
    named = [dict(stream.read_next_batch_with_custom_metadata().custom_metadata) for _ in KEYS]
    assert [(row[b"sample"].decode(), int(row[b"epoch"]), row[b"started"].decode()) for row in named] == KEYS
    table = pa.ipc.open_stream((tmp_path / "rows.arrows").read_bytes()).read_all()
    assert table.column("top_ids").to_pylist()[:3] == COLUMNS["top_ids"].tolist()


def test_headers_are_read_as_arrow_reads_them(tmp_path: Path) -> None:
    """The index is made from headers alone, by a reader of our own."""
    path = filled(tmp_path / "rows.arrows")
    source, ends = pa.memory_map(str(path)), []
    while (message := pa.ipc.read_message(source)).type != "record batch" or len(ends) < len(KEYS):
        ends += [source.tell()] if message.type == "record batch" else []
        if len(ends) == len(KEYS):
            break
    assert [stop for _, stop in TokenFile(path).places.values()] == ends


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return filled(tmp_path_factory.mktemp("whole") / "rows.arrows").read_bytes()


def test_a_cut_anywhere_in_the_last_batch_loses_that_attempt_alone(tmp_path: Path, content: bytes) -> None:
    """Every byte at which a kill can end the last batch; its record was not written, so it is made again."""
    path = tmp_path / "rows.arrows"
    path.write_bytes(content)
    start, stop = TokenFile(path).places[KEYS[2]]
    assert stop == len(content)
    for length in range(start, stop):
        path.write_bytes(content[:length])
        file = TokenFile(path)
        assert (list(file.places), file.torn, file.whole) == (KEYS[:2], length > start, start)
        same(file.read(KEYS[1]), {**COLUMNS, "token": COLUMNS["token"] + 1})
        assert path.stat().st_size == length, "reading must not write"
        filled(path, KEYS[2:])
        again = TokenFile(path)
        assert (list(again.places), again.torn) == (KEYS, False)
        same(again.read(KEYS[2]), COLUMNS)


def test_a_cut_anywhere_in_the_beginning_leaves_an_empty_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.arrows"
    path.write_bytes(content)
    first = TokenFile(path).places[KEYS[0]][0]
    for length in range(first):
        path.write_bytes(content[:length])
        assert (TokenFile(path).places, TokenFile(path).torn) == ({}, length > 0)
        filled(path)
        assert list(TokenFile(path).places) == KEYS


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\xff" * 64, b"\xff\xff\xff\xff\0\0\0\0", bytes(range(256))])
def test_what_a_crashed_machine_leaves_after_the_last_batch_is_cut_off(
    tmp_path: Path, content: bytes, tail: bytes
) -> None:
    path = tmp_path / "rows.arrows"
    path.write_bytes(content + tail)
    assert (list(TokenFile(path).places), TokenFile(path).torn) == (KEYS, True)
    filled(path, [Key("s-009", 0, "t")])
    assert (len(TokenFile(path).places), TokenFile(path).torn) == (4, False)


def test_a_resumed_run_makes_exactly_what_has_no_record(tmp_path: Path) -> None:
    plan = small_plan()
    folder = small_folder(tmp_path, plan)
    names = [sample.id for sample in samples(12)]
    keys = [Key(name, 0, "first") for name in names]
    for key in keys[:5]:
        folder.append_tokens(filed(key), ROWS, COLUMNS)
        folder.append(filed(key))
    folder.append_tokens(filed(keys[5]), ROWS, COLUMNS)  # killed before its record
    folder.close()
    path = folder.tokens_path("cheap", "quiz")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[-100:])
    assert folder.torn() == [path]
    [left] = [rest for cell, rest in pending(folder, plan).items() if cell.variant == "cheap"]
    assert set(left) == set(names[5:])
    for name in left:
        folder.append_tokens(filed(Key(name, 0, "again")), ROWS, {**COLUMNS, "token": COLUMNS["token"] + 9})
        folder.append(filed(Key(name, 0, "again")))
    folder.close()
    assert folder.torn() == []
    file = folder.tokens("cheap", "quiz")
    for row in folder.records("cheap", "quiz"):
        found = file.read(Key(row.sample, 0, row.provenance.started))
        assert found["token"][0] == (5 if row.sample in names[:5] else 14)


def filed(key: Key) -> Any:
    return record(key.sample, provenance=Provenance(started=key.started))


def test_a_record_says_which_of_two_attempts_counts(tmp_path: Path) -> None:
    """An attempt was made again after its record was torn: the batch that stayed behind is not taken for it."""
    path = filled(tmp_path / "rows.arrows", [Key("s", 0, "first"), Key("s", 0, "again")])
    file = TokenFile(path)
    assert file.read(Key("s", 0, "first"))["token"][0] == 5
    assert file.read(Key("s", 0, "again"))["token"][0] == 6
    with pytest.raises(UsageError, match=r"token logprobs of a record \(s, epoch 0\) cannot be read \(no such batch\)"):
        file.read(Key("s", 0, "never"))


def test_a_file_that_ends_before_what_is_recorded_is_not_cut_off(tmp_path: Path) -> None:
    """Damage in the middle hides every batch after it: they are not thrown away for one new attempt."""
    folder = small_folder(tmp_path)
    for name in ("s-000", "s-001", "s-002"):
        folder.append_tokens(record(name), ROWS, COLUMNS)
        folder.append(record(name))
    folder.close()
    path = folder.tokens_path("cheap", "quiz")
    damaged = bytearray(path.read_bytes())
    damaged[list(TokenFile(path).places.values())[1][0]] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(RunError, match=r"rows\.arrows: damaged: it ends before what is recorded; restore it"):
        folder.append_tokens(record("s-003"), ROWS, COLUMNS)
    assert path.read_bytes() == damaged


def test_two_processes_of_a_variant_share_one_file(tmp_path: Path) -> None:
    folder = small_folder(tmp_path)
    for number in range(6):
        folder.append_tokens(record(f"s-{number:03d}"), (ROWS, AUDIT)[number % 2], COLUMNS)
    folder.close()
    assert [key.sample for key in folder.tokens("cheap", "quiz").places] == ["s-000", "s-002", "s-004"]
    assert [key.sample for key in folder.tokens("cheap", "quiz", AUDIT).places] == ["s-001", "s-003", "s-005"]


def test_it_is_on_the_disk_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    path = tmp_path / "rows.arrows"
    monkeypatch.setattr(os, "fsync", lambda _: sizes.append(path.stat().st_size))
    filled(path)
    assert sizes == [stop for _, stop in TokenFile(path).places.values()]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "rows.arrows")
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = TokenWriter(path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="cannot write: No space left on device; free space, then resume"):
        writer.append(Key("s-003", 0, "t"), COLUMNS)
    writer.close()
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write: Not a directory; free space, then resume"):
        TokenWriter(tmp_path / "file" / "deep" / "rows.arrows")


def test_other_columns_than_before_are_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "rows.arrows")
    before = path.read_bytes()
    writer = TokenWriter(path)
    with pytest.raises(RunError, match="holds other columns than token; start a new run"):
        writer.append(Key("s-003", 0, "t"), {"token": COLUMNS["token"]})
    writer.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("body", [None, b"", b"PAR1 and nothing"])
def test_a_record_without_its_tokens_is_one_line(tmp_path: Path, body: bytes | None) -> None:
    path = tmp_path / "rows.arrows"
    if body is not None:
        path.write_bytes(body)
    with pytest.raises(UsageError, match=r"token logprobs of a record .* cannot be read .* restore the run folder"):
        TokenFile(path).read(KEYS[0])


def test_a_damaged_batch_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.arrows"
    path.write_bytes(content)
    start, stop = TokenFile(path).places[KEYS[1]]
    body = content.index(b"\x28\xb5\x2f\xfd", start)  # where a compressed column begins
    path.write_bytes(content[:body] + bytes(stop - body) + content[stop:])
    with pytest.raises(UsageError, match="restore the run folder"):
        TokenFile(path).read(KEYS[1])
    same(TokenFile(path).read(KEYS[0]), COLUMNS)


def test_files_of_an_older_evalrig_are_one_line(tmp_path: Path) -> None:
    folder = small_folder(tmp_path)
    path = folder.tokens_path("cheap", "quiz").with_name("s-000-0.parquet")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PAR1")
    with pytest.raises(UsageError, match="one Parquet file an attempt, as an older evalrig filed them; use the one"):
        folder.tokens("cheap", "quiz")


def test_reading_one_attempt_reads_its_bytes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory and time of reading do not grow with what else is in the file."""
    path = filled(tmp_path / "rows.arrows", [Key("s", epoch, "t") for epoch in range(50)])
    file, taken = TokenFile(path), [0]
    plain, filling = io.FileIO.read, io.FileIO.readinto

    class Counted(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            found = plain(self, size)
            taken[0] += len(found)
            return found

        def readinto(self, into: Any, /) -> int:
            found = filling(self, into)
            taken[0] += found
            return found

    monkeypatch.setattr(Path, "open", lambda self, *_args, **_more: Counted(self))
    file.read(Key("s", 30, "t"))
    start, stop = file.places[Key("s", 30, "t")]
    assert taken[0] == stop - start
    taken[0] = 0
    assert len(TokenFile(path).places) == 50
    assert taken[0] < path.stat().st_size, "the index reads headers, not bodies"
