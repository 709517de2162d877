"""Every shipped run file loads, plans, and has a gate for each suite."""

import asyncio
from pathlib import Path

import pytest
from toys.gguf_model import tiny_model
from toys.runs import Silent

from evalrig import fetch
from evalrig.analysis.binary import exact_pvalue
from evalrig.assemble import assemble
from evalrig.config.load import dump, load_run
from evalrig.content import content_dir
from evalrig.errors import UsageError
from evalrig.run import rehearse
from evalrig.types import AGAIN

FILES = sorted(content_dir("conf").glob("*.yaml"))


def test_there_are_run_files() -> None:
    assert {"demo.yaml", "nightly.yaml", "int4-asym.yaml", "glm-int4.yaml", "kimi-fp8kv.yaml", "llama-cpp.yaml"} <= {
        path.name for path in FILES
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_shipped_run_file_loads_plans_and_gates_every_suite(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = fetch.missing([name for name, card in fetch.cards().items() if card.package is not None])
    assert not absent, f"{', '.join(absent)} not in the cache; run `evalrig fetch` before the tests"
    monkeypatch.setattr("evalrig.fetch.fetch", lambda *_: pytest.fail("a plan must not fetch what is there"))
    run = load_run(path)
    plan = assemble(run, path, lambda _: None, here=False).plan
    assert run.name == path.stem
    assert run.question.endswith("?")
    assert {gate.suite for gate in plan.gates} == {suite.name for suite in plan.suites}
    assert any(gate.gating for gate in plan.gates)
    assert plan.candidates
    assert all(variant.expect.keys() == {"weights", "kv_cache"} for variant in plan.variants), "prove what is compared"
    assert assemble(load_run(path), path, lambda _: None, here=False).plan == plan
    assert len({suite.sha256 for suite in plan.suites}) == len(plan.suites)


def test_the_demo_shows_a_part_of_the_coding_suite_that_cannot_decide_and_does_not_gate_on_it() -> None:
    path = content_dir("conf") / "demo.yaml"
    plan = assemble(load_run(path), path, lambda _: None, here=False).plan
    n = len(plan.suite("coding_basics").samples)
    gates = {gate.name: gate for gate in plan.gates}
    assert n == 64
    assert exact_pvalue(1, 1, n, -gates["coding_basics_pass"].margin, "greater") > plan.header.alpha
    assert {gate.suite for gate in plan.gates if gate.gating} == {"kl", "piqa"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_shipped_run_file_resolves_to_itself(path: Path, tmp_path: Path) -> None:
    run = load_run(path)
    (tmp_path / "again.yaml").write_text(dump(run))
    assert load_run(tmp_path / "again.yaml") == run


PRODUCTION = ("glm-int4", "kimi-fp8kv", "glm-factorial", "nvfp4", "pd")


@pytest.mark.parametrize("name", PRODUCTION)
def test_a_run_file_for_gpus_is_refused_here_in_one_line_before_anything_starts(name: str) -> None:
    path = content_dir("conf") / f"{name}.yaml"
    with pytest.raises(UsageError) as caught:
        assemble(load_run(path), path, lambda _: None)
    assert str(caught.value).startswith(f"{path}: reference.weights: '/models/")
    assert str(caught.value).endswith(": no such folder; give the folder of a checkpoint on this machine")


@pytest.mark.parametrize("name", ["glm-int4", "kimi-fp8kv", "glm-factorial", "nvfp4"])
def test_an_fp8_cache_is_scored_where_it_is_read(name: str) -> None:
    """A cold prefill of many back ends never reads a quantised KV cache: scored so, the candidate would look perfect."""
    suite = load_run(content_dir("conf") / f"{name}.yaml").suites["kl"]
    assert suite.options["leg"] == "cached_prefix"


def test_the_split_is_measured_by_decoding_because_it_scores_no_prompts() -> None:
    path = content_dir("conf") / "pd.yaml"
    plan = assemble(load_run(path), path, lambda _: None, here=False).plan
    kl = plan.suite("kl")
    assert (kl.rescored, kl.traced, len(kl.samples)) == (True, False, 348)
    assert {cell.of for cell in plan.cells if cell.stage == "rescore"} == {"split", AGAIN}
    assert {gate.name for gate in plan.gates if gate.suite == "kl" and gate.gating} == {"kl_veto"}
    assert "kl_logprob" in plan.unused_gates
    with pytest.raises(UsageError, match=r"suites\.kl: engine `sglang` cannot give logprobs of given tokens"):
        assemble(load_run(path, ["suites.kl.options.leg=prefill"]), path, lambda _: None, here=False)


@pytest.mark.parametrize("name", PRODUCTION)
def test_the_arms_of_a_run_file_for_gpus_differ_in_formats_alone(name: str) -> None:
    path = content_dir("conf") / f"{name}.yaml"
    plan = assemble(load_run(path), path, lambda _: None, here=False).plan
    reference = next(variant for variant in plan.variants if variant.role == "reference")
    for variant in plan.variants:
        unlike = {key for key in variant.options if variant.options[key] != reference.options[key]}
        assert unlike <= ({"pd"} if name == "pd" else {"weights_and_kv"})
        wanted = {"bf16": "bfloat16"}.get(variant.expect["kv_cache"], variant.expect["kv_cache"])
        assert variant.options["weights_and_kv"]["kv_cache_dtype"] == wanted
    assert plan.header.model in ("GLM-5.2", "GLM-4.7", "Kimi K2.6")


QUICK = ("glm-int4.yaml",)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.name in QUICK else pytest.mark.slow, id=path.name) for path in FILES],
)
def test_a_shipped_run_file_can_be_rehearsed(path: Path, tmp_path: Path) -> None:
    """On a random model: every variant, suite, gate and report of it is gone through."""
    long = path.stem == "tools"  # to the random model every byte is a token
    tiny = tiny_model(tmp_path / "tiny.gguf", context=32768 if long else 2048)
    own = load_run(path).engine.kind == "refengine"
    overrides = [f"{'reference' if own else 'rehearsal'}.weights={tiny}", f"output={tmp_path}"]
    overrides += ["engine.options.context_length=32768"] if long else []
    finished = asyncio.run(rehearse(path, overrides, Silent()))
    verdict = finished.verdict
    assert verdict.exit_code == 5, [finding.text for finding in verdict.validity if finding.level == "invalid"]
    plan = finished.folder.plan()
    assert {row.variant for row in verdict.accounting} == {variant.name for variant in plan.variants}
    assert all(not row.absent for row in verdict.accounting)
    for one in verdict.candidates.values():
        assert {check.gate for check in one.checks} == {gate.name for gate in plan.gates}


def test_a_part_of_the_repairs_is_repeated_often_enough_for_a_floor() -> None:
    path = content_dir("conf") / "coding.yaml"
    plan = assemble(load_run(path), path, lambda _: None, here=False).plan
    suite = plan.suite("code_repair")
    assert len(suite.samples) == 24
    assert len(suite.again) >= 10, "A/A needs ten pairs"


def test_the_wrong_programs_of_one_problem_count_once() -> None:
    path = content_dir("conf") / "coding.yaml"
    plan = assemble(load_run(path, ["suites.code_repair.samples=null"]), path, lambda _: None, here=False).plan
    suite = plan.suite("code_repair")
    assert (len(suite.samples), suite.clusters) == (532, 266)
