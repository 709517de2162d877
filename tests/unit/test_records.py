"""The run folder: what is on disk is whole, once, and survives a kill."""

import errno
import json
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.nouns import record, small_folder, small_plan

from evalrig import records
from evalrig.errors import RunError, UsageError
from evalrig.proof import Preflight, Probes
from evalrig.records import RunFolder, encode, rounded
from evalrig.types import Capacity, Estimate, Fingerprint, State, Trace


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return small_folder(tmp_path)


def test_a_folder_holds_what_was_decided(folder: RunFolder) -> None:
    assert folder.plan() == small_plan()
    assert {path.name for path in folder.path.iterdir()} == {"run.yaml", "plan.json", "environment.json", "samples"}
    assert folder.environment()["plan_sha256"] == folder.plan_sha256()
    assert len(folder.samples("quiz")) == 12


def test_records_come_back_in_the_order_they_ended(folder: RunFolder) -> None:
    rows = [record("s-002"), record("s-000", state=State.INFRA, scores={}), record("s-001", epoch=1)]
    for row in rows:
        folder.append(row)
    assert folder.records("cheap", "quiz") == rows
    assert folder.records("reference", "quiz") == []
    folder.close()


def test_a_record_is_on_the_disk_before_append_returns(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    folder.append(record())
    assert synced == [folder.records_path("cheap", "quiz").stat().st_size]
    folder.close()


def test_a_torn_last_line_is_dropped_said_and_cut_off(folder: RunFolder) -> None:
    folder.append(record("s-000"))
    folder.close()
    path = folder.records_path("cheap", "quiz")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert folder.torn() == [path]
    assert folder.records("cheap", "quiz") == [record("s-000")]
    assert path.read_bytes() != whole, "reading must not write"
    folder.append(record("s-001"))
    folder.close()
    assert folder.torn() == []
    assert folder.records("cheap", "quiz") == [record("s-000"), record("s-001")]


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.data())
def test_a_cut_anywhere_loses_at_most_the_last_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("cut"))
    rows = [record(f"s-{n:03d}") for n in range(4)]
    for row in rows:
        folder.append(row)
    folder.close()
    path = folder.records_path("cheap", "quiz")
    content = path.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    kept = content[:cut].count(b"\n")
    assert folder.records("cheap", "quiz") == rows[:kept]
    assert bool(folder.torn()) == (not content[:cut].endswith(b"\n") and cut > 0)


def test_a_damaged_line_inside_is_an_error_that_names_the_file(folder: RunFolder) -> None:
    path = folder.records_path("cheap", "quiz")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{nonsense}\n")
    with pytest.raises(RunError, match=re.escape(f"{path}: a line inside the file is damaged")):
        folder.records("cheap", "quiz")


def test_traces_come_back_whole(folder: RunFolder) -> None:
    trace = Trace(sample="s-000", epoch=0, prompt_ids=(1, 2), token_ids=(3,), text="ü\n", finish="stop")
    folder.append_trace("kl", trace)
    folder.close()
    assert folder.traces("kl") == [trace]


def test_two_runs_cannot_write_one_folder(folder: RunFolder) -> None:
    folder.lock()
    other = RunFolder(folder.path)
    with pytest.raises(UsageError) as caught:
        other.lock()
    assert str(caught.value) == f"{folder.path}: another evalrig is writing this run; wait for it or stop it"
    folder.close()
    other.lock()
    other.close()


def test_the_lock_ends_with_its_process(folder: RunFolder) -> None:
    code = "import sys, pathlib, os; from evalrig.records import RunFolder as F; F(pathlib.Path(sys.argv[1])).lock(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, folder.path], timeout=60, check=False).returncode == 9
    folder.lock()
    folder.close()


def test_a_whole_file_is_the_old_one_or_the_new_one(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("verdict.json", b"old")

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError) as caught:
        folder.write("verdict.json", b"new")
    assert str(caught.value) == (
        f"{folder.path / 'verdict.json'}: cannot write: No space left on device; "
        f"free space, then `evalrig resume {folder.path}`"
    )
    assert (folder.path / "verdict.json").read_bytes() == b"old"
    assert not list(folder.path.glob(".verdict*"))
    with pytest.raises(RunError, match="No space left on device; free space, then"):
        folder.append(record())
    monkeypatch.undo()
    folder.close()


@pytest.mark.parametrize("after", range(4))
def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    count = 0
    write = RunFolder.write

    def failing(self: RunFolder, name: str, content: bytes) -> None:
        nonlocal count
        if count == after:
            raise RunError("disk full")
        count += 1
        write(self, name, content)

    monkeypatch.setattr(RunFolder, "write", failing)
    with pytest.raises(RunError, match="disk full"):
        small_folder(tmp_path)
    assert list((tmp_path / "small").iterdir()) == []


def test_runs_that_start_in_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_unused", lambda path: path.with_name(path.name + "x"), raising=True)
    first, second = small_folder(tmp_path), small_folder(tmp_path)
    assert first.path.parent == second.path.parent
    assert first.path != second.path
    monkeypatch.undo()
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(small_folder, tmp_path).result()
    assert len({first.path, second.path, third.path}) == 3


def test_an_output_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        small_folder(tmp_path / "file")
    assert str(caught.value) == (
        f"{tmp_path / 'file'}: cannot make a run folder: Not a directory; set `output=` to a writable folder"
    )


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        RunFolder.open(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: not a run folder (no plan.json); give the folder that `evalrig run` printed"
    )


def test_what_a_run_of_schema_1_proved_is_read(folder: RunFolder) -> None:
    """Else its digests would be missing, and a candidate that is the reference pass for a variant."""
    probes = Probes(prompt_digests={"prose": "a"}, logprob_digests={"prose": "b"}, nats=2.5)
    proved = Preflight(
        variant="reference",
        expect={"weights": "bf16"},
        fingerprint=Fingerprint(engine="toy", version="1", weights="bf16", kv_cache="bf16"),
        capacity=Capacity(kv_tokens=64),
        probes=probes,
    )
    folder.write_preflight(proved)
    path = folder.path / "variants" / "reference" / "preflight.json"
    tree = json.loads(path.read_text())
    old = {f"probe_{key}" if key == "nats" else key: value for key, value in tree.pop("probes").items()}
    path.write_text(json.dumps({**tree, **old}))
    assert folder.preflight("reference") == proved


def test_a_folder_of_another_schema_is_refused(folder: RunFolder) -> None:
    tree = json.loads((folder.path / "plan.json").read_text())
    (folder.path / "plan.json").write_text(json.dumps({**tree, "schema": 3}))
    with pytest.raises(UsageError, match="a run of schema 3, this evalrig reads 1 and 2; use the one that wrote it"):
        RunFolder.open(folder.path)
    (folder.path / "plan.json").write_text("{")
    with pytest.raises(UsageError, match="damaged or of another version"):
        RunFolder.open(folder.path)


def test_why_a_run_stopped_and_a_variant_failed_is_kept_and_taken_back(folder: RunFolder) -> None:
    assert folder.stopped() == folder.failed("cheap") == ""
    folder.set_stopped("killed")
    folder.set_failed("cheap", "gone")
    assert (folder.stopped(), folder.failed("cheap"), folder.failed("reference")) == ("killed", "gone", "")
    folder.set_stopped("")
    folder.set_failed("cheap", "")
    assert folder.stopped() == folder.failed("cheap") == ""


def test_a_folder_that_cannot_be_made_is_one_line(folder: RunFolder) -> None:
    (folder.path / "variants").write_text("")
    with pytest.raises(RunError, match=r"variants/cheap/failed\.json: cannot write: Not a directory; free space"):
        folder.set_failed("cheap", "gone")


def test_floats_are_rounded_and_what_is_no_number_is_null() -> None:
    estimate = Estimate(value=0.1 + 0.2, low=-math.inf, high=math.nan, n=3, method="m", units="u")
    assert json.loads(encode(estimate)) == {
        "value": 0.3, "low": None, "high": None, "n": 3, "method": "m", "units": "u"
    }  # fmt: skip


TREES: Any = st.recursive(
    st.floats() | st.integers() | st.text() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, derandomize=True)
@given(TREES)
def test_rounding_once_is_enough_and_gives_strict_json(tree: Any) -> None:
    once = rounded(tree)
    assert rounded(once) == once
    json.dumps(once, allow_nan=False)
