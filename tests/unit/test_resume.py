"""Going on with a stopped run: what is owed, each once, and only if it is still the same run."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toys.nouns import record, run_config, small_folder, small_plan
from toys.runs import Silent, carry_out, run_file

from evalrig.errors import UsageError
from evalrig.records import RunFolder
from evalrig.resume import pending, refuse_if_changed
from evalrig.run import resume
from evalrig.types import Outcome


def test_what_is_owed_is_what_has_no_record(tmp_path: Path) -> None:
    folder, plan = small_folder(tmp_path), small_plan()
    assert pending(folder, plan) == {cell: cell.samples for cell in plan.cells}
    [cell] = [cell for cell in plan.cells if cell.variant == "cheap"]
    for sample in cell.samples[:5]:
        folder.append(record(sample))
    folder.close()
    assert pending(folder, plan)[cell] == cell.samples[5:]
    for sample in cell.samples[5:]:
        folder.append(record(sample))
    folder.close()
    assert cell not in pending(folder, plan)


def test_epochs_are_owed_one_by_one(tmp_path: Path) -> None:
    config = run_config()
    config.suites["quiz"].epochs = 2
    plan = small_plan(config)
    folder = small_folder(tmp_path, plan)
    first, second = (cell for cell in plan.cells if cell.variant == "cheap")
    for sample in first.samples:
        folder.append(record(sample, epoch=0))
    folder.close()
    left = pending(folder, plan)
    assert first not in left
    assert left[second] == second.samples


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"config_sha256": "other"}, "`config_sha256`"),
        ({"header": replace(small_plan().header, seed=9)}, "`header.seed`"),
        ({"gates": (replace(small_plan().gates[0], margin=0.5),)}, "`gates[0].margin`"),
        ({"variants": (*small_plan().variants[:1], replace(small_plan().variants[1], weights="w"), small_plan().variants[2])},
         "`variants[1].weights`"),
    ],
)  # fmt: skip
def test_a_changed_plan_is_refused_and_the_key_named(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    folder = small_folder(tmp_path)
    refuse_if_changed(folder, small_plan())
    with pytest.raises(UsageError) as caught:
        refuse_if_changed(folder, replace(small_plan(), **change))
    line = f"{folder.path}: cannot go on: {key} changed since the start; start a new run"
    assert str(caught.value) == line


# ---- whole runs


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return carry_out(run_file(tmp_path_factory.mktemp("run"), {"cheap": {"noise": 0.02}})).folder.path


def keys(folder: RunFolder) -> list[tuple[str, str, str, int]]:
    plan = folder.plan()
    return sorted(
        (r.variant, r.suite, r.sample, r.epoch)
        for variant in plan.variants
        for suite in plan.suites
        for r in folder.records(variant.name, suite.name)
    )


def again(path: Path) -> Any:
    return asyncio.run(resume(path, Silent()))


def cut(source: Path, target: Path) -> Path:
    """A copy as a kill leaves it: half the records, one of them torn."""
    copy = Path(shutil.copytree(source, target))
    for file in copy.glob("variants/*/records/*.jsonl"):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
    for name in ("verdict.json", "junit.xml", "summary.md", "report.html"):
        (copy / name).unlink()
    RunFolder(copy).set_stopped("killed")
    return copy


def test_a_resumed_run_has_the_same_records_each_once_and_the_same_verdict(ran: Path, tmp_path: Path) -> None:
    copy = cut(ran, tmp_path / "copy")
    finished = again(copy)
    assert keys(finished.folder) == keys(RunFolder(ran))
    assert finished.verdict.outcome is Outcome.GO
    assert finished.folder.stopped() == ""
    assert (copy / "verdict.json").read_bytes() == (ran / "verdict.json").read_bytes()


def test_a_complete_run_starts_no_engine_and_is_judged_again(
    ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(ran, tmp_path / "copy"))
    monkeypatch.setattr("toys.engine.Toy.start", lambda _: pytest.fail("an engine was started"))
    again(copy)
    assert (copy / "verdict.json").read_bytes() == (ran / "verdict.json").read_bytes()


def test_a_changed_run_file_is_refused(ran: Path, tmp_path: Path) -> None:
    copy = cut(ran, tmp_path / "copy")
    text = (copy / "run.yaml").read_text()
    (copy / "run.yaml").write_text(text.replace("margin: 0.05", "margin: 0.5"))
    with pytest.raises(UsageError) as caught:
        again(copy)
    line = f"{copy}: cannot go on: `config.gates.kl_veto.margin`, `config_sha256`, `gates[0].margin` changed since the start"
    assert str(caught.value) == f"{line}; start a new run"
    assert RunFolder(copy).stopped() == "killed"


def test_changed_data_is_refused(ran: Path, tmp_path: Path) -> None:
    copy = cut(ran, tmp_path / "copy")
    data = Path(RunFolder(copy).plan().config["suites"]["piqa"]["options"]["path"])
    before = data.read_text()
    try:
        data.write_text(before.replace('"question": "', '"question": "x', 1))
        with pytest.raises(
            UsageError, match=r"cannot go on: `suites\[1\]\.sha256` changed since the start; start a new run"
        ):
            again(copy)
    finally:
        data.write_text(before)


@pytest.mark.parametrize("key", ["weights_digest", "version", "kv_cache", "flags"])
def test_an_engine_that_became_another_is_refused(ran: Path, tmp_path: Path, key: str) -> None:
    """Pitfall 1: what was measured with one model must not be continued with another."""
    copy = cut(ran, tmp_path / "copy")
    folder = RunFolder(copy)
    found = folder.preflight("reference")
    assert found is not None
    other: Any = {"numpy": "1"} if key == "flags" else "other"
    folder.write_preflight(replace(found, fingerprint=replace(found.fingerprint, **{key: other})))
    with pytest.raises(UsageError) as caught:
        again(copy)
    assert str(caught.value) == (
        f"reference: cannot go on: the engine's `{key}` changed since the start; start a new run"
    )
    assert folder.stopped() == "killed"
