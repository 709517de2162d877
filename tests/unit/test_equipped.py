"""A run whose suites run programs: the sandbox is named, proved, recorded, and judged. Nothing starts without it."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from toys.nouns import record, run_config, small_folder, small_plan
from toys.runs import Silent, carry_out, run_file

from evalrig.assemble import assemble
from evalrig.cli import main
from evalrig.config.load import load_run
from evalrig.confinement import of_programs
from evalrig.errors import UsageError
from evalrig.evidence import Gathered
from evalrig.run import rehearse, resume
from evalrig.types import Finding, Level, Outcome, Provenance


def code_file(folder: Path, **changes: Any) -> Path:
    return run_file(
        folder,
        {"cheap": {"noise": 0.02}},
        suites={"programs": {"kind": "toys.programs", "options": {"count": 4}, "again": 1.0}},
        gates={"solved": {"kind": "noninferior", "suite": "programs", "metric": "solved", "margin": 0.3}},
        **changes,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    finished = carry_out(code_file(tmp_path_factory.mktemp("run")))
    assert finished.verdict.outcome is Outcome.INCONCLUSIVE, "four samples decide nothing"
    return finished.folder.path


def test_the_sandbox_stands_in_every_record_and_in_the_environment(ran: Path) -> None:
    label = json.loads((ran / "environment.json").read_bytes())["sandbox"]
    assert label.startswith("bwrap 0.")
    assert ", python 3." in label
    lines = [line for path in ran.glob("variants/*/records/programs.jsonl") for line in path.read_text().splitlines()]
    assert {json.loads(line)["provenance"]["sandbox"] for line in lines} == {label}
    validity = json.loads((ran / "verdict.json").read_bytes())["validity"]
    [found] = [one for one in validity if one["rule"] == "sandbox"]
    assert found["level"] == "ok"
    assert found["text"] == f"programs: the model's programs ran in {label}"


def test_without_the_sandbox_no_engine_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toys.engine.Toy.start", lambda _: pytest.fail("an engine was started"))
    monkeypatch.setenv("PATH", str(tmp_path))
    path = code_file(tmp_path / "run")
    line = (
        f"{path}: sandbox: bwrap not found; install the Debian package bubblewrap, or set `sandbox: landlock` (weaker)"
    )
    for verb in (carry_out, lambda one: asyncio.run(rehearse(one, (), Silent()))):
        with pytest.raises(UsageError) as caught:
            verb(path)
        assert str(caught.value) == line
    assert main(["run", str(path)]) == 2
    assert not (tmp_path / "run" / "runs").exists()


def test_a_suite_that_runs_no_programs_asks_for_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = run_file(tmp_path / "run", {"cheap": {}})
    rig = assemble(load_run(path), path, lambda _: None)
    assert (rig.booth, rig.sandbox) == (None, "")


def test_showing_a_plan_needs_no_sandbox_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = code_file(tmp_path / "run")
    assert main(["show", str(path), "sandbox=landlock"]) == 0
    assert "programs of the model (programs) run in: landlock; see evalrig doctor\n" in capsys.readouterr().out
    assert main(["show", str(path), "sandbox=landlok"]) == 2
    assert "sandbox: no sandbox `landlok`; did you mean `landlock`?" in capsys.readouterr().err


def test_no_sandbox_is_refused_with_one_key_and_said_with_two(tmp_path: Path) -> None:
    path = code_file(tmp_path / "one", sandbox="none")
    with pytest.raises(UsageError, match=r"set `unsandboxed: true` as well"):
        carry_out(path)
    verdict = carry_out(code_file(tmp_path / "two", sandbox="none", unsandboxed=True)).verdict
    [found] = [one for one in verdict.validity if one.rule == "sandbox"]
    assert found.level is Level.WARN
    assert "ran in none, python 3." in found.text
    assert "with all that the user may do: a program could have changed what is measured" in found.text


def test_a_weaker_sandbox_is_said(tmp_path: Path) -> None:
    verdict = carry_out(code_file(tmp_path, sandbox="landlock")).verdict
    [found] = [one for one in verdict.validity if one.rule == "sandbox"]
    assert (found.level, verdict.outcome) == (Level.WARN, Outcome.INCONCLUSIVE)
    assert "in a weaker sandbox than bwrap" in found.text


@pytest.mark.parametrize("other", ["bwrap 0.9.0, python 3.11.2", ""])
def test_a_run_is_not_continued_in_another_sandbox(ran: Path, tmp_path: Path, other: str) -> None:
    copy = Path(shutil.copytree(ran, tmp_path / "copy"))
    environment = json.loads((copy / "environment.json").read_bytes())
    now = environment["sandbox"]
    (copy / "environment.json").write_text(json.dumps(environment | {"sandbox": other}))
    with pytest.raises(UsageError) as caught:
        asyncio.run(resume(copy, Silent()))
    said = f"programs ran in `{other or 'none'}`, and now would in `{now}`; start a new run"
    assert str(caught.value) == f"{copy}: cannot go on: {said}"


# ---- judged from records alone


def judged(tmp_path: Path, labels: dict[str, list[str]]) -> list[Finding]:
    plan = small_plan(run_config())
    folder = small_folder(tmp_path, plan)
    for variant, used in labels.items():
        for n, label in enumerate(used):
            folder.append(record(f"s-{n:03d}", variant=variant, provenance=Provenance(sandbox=label)))
    folder.close()
    return list(of_programs(Gathered(folder)))


def test_where_no_program_ran_nothing_is_said(tmp_path: Path) -> None:
    assert judged(tmp_path, {"reference": ["", ""], "cheap": [""]}) == []


def test_arms_marked_in_different_sandboxes_are_not_compared(tmp_path: Path) -> None:
    found = judged(tmp_path, {"reference": ["bwrap 0.8.0", ""], "cheap": ["bwrap 0.8.0", "bwrap 0.11.0"]})
    assert [(one.level, one.candidate) for one in found] == [(Level.OK, ""), (Level.INVALID, "cheap")]
    assert found[1].text == (
        "cheap, quiz: programs ran in bwrap 0.11.0 and in bwrap 0.8.0: not marked alike in both arms"
    )


def test_a_reference_marked_in_two_sandboxes_compares_with_nothing(tmp_path: Path) -> None:
    found = judged(tmp_path, {"reference": ["none", "landlock ABI 7"], "cheap": ["none"]})
    assert [(one.level, one.candidate) for one in found] == [
        (Level.WARN, ""), (Level.INVALID, ""), (Level.INVALID, "cheap"),
    ]  # fmt: skip
