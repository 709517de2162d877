"""Every shipped run file loads, plans, and has a gate for each suite."""

from pathlib import Path

import pytest

from evalrig import fetch
from evalrig.assemble import assemble
from evalrig.config.load import dump, load_run
from evalrig.content import content_dir

FILES = sorted(content_dir("conf").glob("*.yaml"))


def test_there_are_run_files() -> None:
    assert {"demo.yaml", "nightly.yaml", "int4-asym.yaml", "llama-cpp.yaml"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_shipped_run_file_loads_plans_and_gates_every_suite(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = fetch.missing([name for name, card in fetch.cards().items() if card.package is not None])
    assert not absent, f"{', '.join(absent)} not in the cache; run `evalrig fetch` before the tests"
    monkeypatch.setattr("evalrig.fetch.fetch", lambda *_: pytest.fail("a plan must not fetch what is there"))
    run = load_run(path)
    plan = assemble(run, path, lambda _: None).plan
    assert run.name == path.stem
    assert run.question.endswith("?")
    assert {gate.suite for gate in plan.gates} == {suite.name for suite in plan.suites}
    assert any(gate.gating for gate in plan.gates)
    assert plan.candidates
    assert all(variant.expect.keys() == {"weights", "kv_cache"} for variant in plan.variants), "prove what is compared"
    assert assemble(load_run(path), path, lambda _: None).plan == plan
    assert len({suite.sha256 for suite in plan.suites}) == len(plan.suites)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_shipped_run_file_resolves_to_itself(path: Path, tmp_path: Path) -> None:
    run = load_run(path)
    (tmp_path / "again.yaml").write_text(dump(run))
    assert load_run(tmp_path / "again.yaml") == run
