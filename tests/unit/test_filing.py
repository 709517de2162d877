"""Attempts filed together: each file is waited for once, tokens before their record, and a kill costs what was in flight."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from toys.nouns import record, samples, small_folder, small_plan

from evalrig.engine import Scoring
from evalrig.errors import RunError
from evalrig.filing import Files
from evalrig.progress import Plain
from evalrig.records import AUDIT, ROWS, RunFolder
from evalrig.resume import pending
from evalrig.runner import Answered, Ended, Paper
from evalrig.suite import Attempt
from evalrig.tokens import TokenFile, key_of
from evalrig.types import Provenance, Trace

NAMES = [sample.id for sample in samples(12)]


class Counted(Plain):
    """Counts what is said to have ended."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, suite: str) -> None:
        self.steps.append(suite)


class Killed(BaseException):
    """Stands for the end of the process: nobody catches it."""


def scoring(rows: int = 3) -> Scoring:
    ids = np.tile(np.arange(4, dtype=np.int32), (rows, 1))
    top = np.linspace(-0.5, -4, rows * 4, dtype=np.float32).reshape(rows, 4)
    return Scoring(token_ids=ids[:, 0], logprobs=top[:, 0], top_ids=ids, top_logprobs=top)


def ended(name: str, started: str = "first", audit: bool = False) -> Ended:
    row = record(name, provenance=Provenance(started=started))
    whole = scoring() if audit else None
    return Ended(record=row, attempt=Attempt(trajectory=row.trajectory, tokens=scoring(), audit=whole))


def answered(name: str) -> Answered:
    return Answered(suite="quiz", trace=Trace(sample=name, epoch=0, prompt_ids=(1,), token_ids=(2, 3)))


def files(folder: RunFolder) -> Files:
    return Files(folder, Counted())


@pytest.mark.parametrize("number", [1, 2, 12])
def test_a_batch_waits_once_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    desk = files(small_folder(tmp_path))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    desk.keep([paper for name in NAMES[:number] for paper in (answered(name), ended(name, audit=True))])
    assert len(synced) == len(set(synced)) == 4  # rows, audit, records, traces: not one for each attempt
    assert len(desk.folder.records("cheap", "quiz")) == len(desk.folder.traces("quiz")) == number
    assert len(desk.folder.tokens("cheap", "quiz").places) == number
    desk.folder.close()


def test_no_record_is_written_before_its_tokens_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, sizes = files(small_folder(tmp_path)), dict[int, int]()

    def fsync(file: int) -> None:
        there = os.fstat(file)
        sizes[there.st_ino] = there.st_size
        for row in desk.folder.records("cheap", "quiz"):
            for kind in (ROWS, AUDIT):
                tokens = desk.folder.tokens("cheap", "quiz", kind)
                assert tokens.places[key_of(row)][1] <= sizes[tokens.path.stat().st_ino]

    monkeypatch.setattr(os, "fsync", fsync)
    for at in range(0, 12, 4):
        desk.keep([ended(name, audit=True) for name in NAMES[at : at + 4]])
    assert len(desk.folder.records("cheap", "quiz")) == 12
    desk.folder.close()


def dies(when: int) -> Callable[..., None]:
    """A call that is the process's last the `when`-th time."""
    calls = itertools.count(1)

    def call(*_: object, **__: object) -> None:
        if next(calls) == when:
            raise Killed

    return call


def kept_until_killed(desk: Files, papers: list[Paper]) -> None:
    with pytest.raises(Killed):
        desk.keep(papers)


@pytest.mark.parametrize("lost", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("when", [1, 2, 3])
def test_a_crash_between_the_writes_leaves_a_folder_that_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: int, lost: bool
) -> None:
    """After the rows are written, after they are synced, after the records are written; a power cut takes what was not synced."""
    plan = small_plan()
    first = files(small_folder(tmp_path, plan))
    first.keep([ended(name, audit=True) for name in NAMES[:4]])
    paths = [first.folder.tokens_path("cheap", "quiz", kind) for kind in (ROWS, AUDIT)]
    paths.append(first.folder.records_path("cheap", "quiz"))
    durable = [path.stat().st_size for path in paths]
    monkeypatch.setattr(os, "fsync", dies(when))
    kept_until_killed(first, [ended(name, audit=True) for name in NAMES[4:8]])
    monkeypatch.undo()
    first.folder.close()  # nothing is buffered: what was written is what a kill leaves
    for at, path in enumerate(paths if lost else []):
        if at >= when - 1:
            os.truncate(path, (durable[at] + path.stat().st_size) // 2)

    second = files(RunFolder(first.folder.path))
    there = {row.sample for row in second.folder.records("cheap", "quiz")}
    assert set(NAMES[:4]) <= there <= set(NAMES[:8])
    assert there == set(NAMES[:4]) or when == 3, "no record was to be written yet"
    [left] = [rest for cell, rest in pending(second.folder, plan).items() if cell.variant == "cheap"]
    assert there.isdisjoint(left)
    second.keep([ended(name, "second", audit=True) for name in left])
    rows = second.folder.records("cheap", "quiz")
    assert sorted(row.sample for row in rows) == sorted(NAMES)
    for kind in (ROWS, AUDIT):
        tokens = second.folder.tokens("cheap", "quiz", kind)
        assert not tokens.torn
        assert all(len(tokens.read(key_of(row))["token"]) == 3 for row in rows)
    assert second.folder.torn() == []
    second.folder.close()


def test_a_disk_that_fails_in_a_batch_leaves_no_record_without_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = files(small_folder(tmp_path))
    desk.keep([ended(NAMES[0])])
    path = desk.folder.tokens_path("cheap", "quiz")
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="cannot write: No space left on device"):
        desk.keep([ended(name) for name in NAMES[1:5]])
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [row.sample for row in desk.folder.records("cheap", "quiz")] == NAMES[:1]
    assert isinstance(desk.progress, Counted)
    assert desk.progress.steps == ["quiz"]
    desk.keep([ended(name, "again") for name in NAMES[1:5]])  # space was made
    file = TokenFile(path)
    assert all(key_of(row) in file.places for row in desk.folder.records("cheap", "quiz"))
    desk.folder.close()
