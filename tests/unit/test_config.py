"""Run files: what loads, and the one line a user reads when it does not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from toys.runs import run_file

from evalrig.assemble import assemble
from evalrig.config.load import dump, load_run
from evalrig.config.schema import (
    EngineConfig,
    ExpectConfig,
    GateConfig,
    RunConfig,
    ScopeConfig,
    SuiteConfig,
    VariantConfig,
)
from evalrig.content import content_dir
from evalrig.errors import UsageError
from evalrig.plugins import kinds

SUITES = ", ".join(sorted(path.stem for path in (content_dir("conf") / "suite").glob("*.yaml")))
ENGINES = " ".join(sorted(path.stem for path in (content_dir("conf") / "engine").glob("*.yaml")))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_file(tmp_path_factory.mktemp("toy"), {"cheap": {"noise": 0.5}})


@pytest.fixture
def toy(tmp_path: Path, written: Path) -> Path:
    """A run file of its own for each test, beside shared data."""
    return Path(shutil.copy(written, tmp_path))


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_run(path, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


def changed(path: Path, keys: str, value: Any) -> Path:
    """The run file with one key, given by its path, set to `value`."""
    tree = yaml.safe_load(path.read_text())
    inner = tree
    *parents, last = keys.split("/")
    for key in parents:
        inner = inner[key]
    inner[last] = value
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def test_a_run_file_loads_with_types_and_defaults(toy: Path) -> None:
    run = load_run(toy, ["seed=3", "suites.piqa.samples=7"])
    assert (run.seed, run.alpha, run.suites["piqa"].samples, run.suites["kl"].samples) == (3, 0.05, 7, None)
    assert isinstance(run.candidates["cheap"], VariantConfig)
    assert run.candidates["cheap"].args == {"noise": 0.5}


OVERRIDES = {
    "suites.piqa.epoch=2": "suites.piqa.epoch: no such key; did you mean `epochs`?",
    "sed=1": "sed: no such key; did you mean `seed`?",
    "suites.piqa.epochs=two": "suites.piqa.epochs: Value 'two' of type 'str' could not be converted to Integer",
    "seed=3.7": "seed: Value '3.7' of type 'float' could not be converted to Integer",
    "seed=true": "seed: Value 'True' of type 'bool' could not be converted to Integer",
    "seed=": "seed: Value '' of type 'str' could not be converted to Integer",
    "seed=1,2": "a list of values is not an override; repeat with `epochs`, or write one run file a value",
    "suites.piqa.epochs=0": "suites.piqa.epochs is 0; 1 is the least",
    "suites.piqa.samples=0": "suites.piqa.samples is 0; 1 is the least",
    "suites.piqa.again=0": "suites.piqa.again is 0.0; above 0 (A/A is part of every run), at most 1",
    "suites.piqa.again=1.5": "suites.piqa.again is 1.5; above 0 (A/A is part of every run), at most 1",
    "alpha=0": "alpha is 0.0; one-sided, between 0 and 0.25",
    "alpha=0.5": "alpha is 0.5; one-sided, between 0 and 0.25",
    "alpha=nan": "alpha is nan; one-sided, between 0 and 0.25",
    "gates.lead.margin=0": "gates.lead.margin is 0.0; a margin is above 0, and finite",
    "gates.lead.margin=-1": "gates.lead.margin is -1.0; a margin is above 0, and finite",
    "gates.lead.margin=inf": "gates.lead.margin is inf; a margin is above 0, and finite",
    "gates.lead.gatng=true": "gates.lead.gatng: no such key; did you mean `gating`?",
    "gates.leed.margin=1": "gates.leed: no such key; did you mean `lead`?",
    "gates.lead.suite=piqaa": "gates.lead.suite: no suite `piqaa`; did you mean `piqa`?",
    "gates.lead.suite=zzz": f"gates.lead.suite: no suite `zzz`; known: {SUITES}",
    "candidates.xyz.args.noise=1": "candidates.xyz: no such key; known: cheap",
    "suites.kl.options.leg=cached_prefix": "suites.kl.options.leg: not in the run file, which has prompts, tokens, top_k "
    "there; write `+suites.kl.options.leg=...` to add it",
    "candidates.cheap.expect.wights=fp8": "candidates.cheap.expect.wights: no such key; did you mean `weights`?",
    "runner.engines=0": "runner.engines is 0; 1 is the least",
    "runner.concurrency=0": "runner.concurrency is 0; 1 is the least",
    "engine.start_seconds=0": "engine.start_seconds is 0.0; it must be above 0",
    "engine.request_seconds=0": "engine.request_seconds is 0.0; it must be above 0",
    "engine.restarts=11": "engine.restarts is 11; 0 to 10",
    "engine.restarts=-1": "engine.restarts is -1; 0 to 10",
    "engine.hang_seconds=600": "engine.hang_seconds is 600.0; above request_seconds, or a slow call counts as a hang",
    "reference.weights=''": "reference.weights is empty; give a path or the name of a fetched model",
    "name='a/b'": "name is 'a/b'; use letters, digits, `.`, `_`, `-`",
    "name=???": "no value for `name`; give it in the file",
    "+engine@engine=refengin": f"In 'toy': Could not find 'engine/refengin' Available options in 'engine': {ENGINES}",
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_an_override_that_cannot_be_is_one_line(toy: Path, override: str) -> None:
    assert refusal(toy, override) == OVERRIDES[override]


def test_an_override_without_a_key_is_refused(toy: Path) -> None:
    assert refusal(toy, "seed") == "'seed': not an override; write key=value, for example seed=3"
    assert refusal(toy, "=3") == "'=3': not an override; write key=value, for example seed=3"


def test_several_faults_are_named_at_once(toy: Path) -> None:
    text = refusal(toy, "alpha=0", "suites.kl.epochs=0")
    assert text == "alpha is 0.0; one-sided, between 0 and 0.25; suites.kl.epochs is 0; 1 is the least"


@pytest.mark.parametrize(
    ("keys", "value", "line"),
    [
        ("suites/piqa/epoch", 2, "in toy.yaml: suites.piqa.epoch: no such key; did you mean `epochs`?"),
        ("nme", "x", "in toy.yaml: nme: no such key; did you mean `name`?"),
        ("zzz", "x", "in toy.yaml: zzz: no such key; known: name, question, seed, alpha, output, sandbox, "
         "unsandboxed, engine, reference, candidates, suites, gates, scope, runner, rehearsal"),
        ("seed", "two", "in toy.yaml: seed: Value 'two' of type 'str' could not be converted to Integer"),
        ("candidates", 3, "in toy.yaml: candidates: Cannot assign int to Dict[str, VariantConfig]"),
        ("candidates", {}, "candidates is empty; name at least one"),
        ("candidates", {"reference_2": {}}, "candidates.reference_2: not a name for a candidate; the reference has it"),
        ("candidates", {"ü" * 101: {}}, f"candidates.{'ü' * 101}: not a name for a candidate; use at most 200 bytes"),
        ("candidates", {"a b": {}}, "candidates.a b: not a name for a candidate; use letters, digits, `.`, `_`, `-`"),
    ],
)  # fmt: skip
def test_a_fault_in_the_file_names_file_key_and_remedy(toy: Path, keys: str, value: Any, line: str) -> None:
    assert refusal(changed(toy, keys, value)) == line


def test_a_suite_without_a_gate_is_refused(toy: Path) -> None:
    tree = yaml.safe_load(toy.read_text())
    del tree["gates"]["kl_veto"]
    toy.write_text(yaml.safe_dump(tree, sort_keys=False))
    assert refusal(toy) == "suites.kl: no gate judges it; add one under `gates:`"


def test_no_gating_gate_is_no_pass(toy: Path) -> None:
    text = refusal(toy, "gates.accuracy.gating=false", "gates.kl_veto.gating=false")
    assert text == "gates: none is gating; no checks is not a pass"


def test_a_gate_of_a_shipped_suite_that_is_not_run_is_kept_and_named(toy: Path) -> None:
    tree = yaml.safe_load(toy.read_text())
    del tree["suites"]["kl"]
    toy.write_text(yaml.safe_dump(tree, sort_keys=False))
    plan = assemble(load_run(toy), toy, lambda _: None).plan
    assert plan.unused_gates == ("kl_veto",)
    assert [gate.name for gate in plan.gates] == ["accuracy", "lead"]


FILES = {
    "name: x\nquestion: y\n": "unchecked keys; put `- schema` first under `defaults:`",
    "": "unchecked keys; put `- schema` first under `defaults:`",
    "defaults: [_self_, schema]\nname: x\nquestion: y\nseed: 5\n": "unchecked keys; put `- schema` first under `defaults:`",
    "defaults: [schema, _self_]\nquestion: y\n": "no value for `engine.kind`, `name`; give it in the file",
    "- a\n": "primary config 'run' must be a DictConfig, got ListConfig",
    "defaults: [schema, engine@engine: refengin, _self_]\n": "In 'run': Could not find 'engine/refengin' "
    f"Available options in 'engine': {ENGINES}",
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_that_is_no_run_file_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    assert refusal(tmp_path / "run.yaml") == FILES[text]


def test_a_python_object_tag_is_refused_and_not_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    text = f"defaults: [schema, _self_]\nname: !!python/object/apply:os.mkdir ['{touched}']\nquestion: y\n"
    (tmp_path / "run.yaml").write_text(text)
    assert "could not determine a constructor for the tag" in refusal(tmp_path / "run.yaml")
    assert not touched.exists()


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\x00x")
    assert refusal(tmp_path / "run.yaml") == "not UTF-8 text (invalid start byte); save it as UTF-8"


def test_a_missing_file_names_the_nearest(toy: Path) -> None:
    assert refusal(toy.with_name("toi.yaml")) == f"no such run file; did you mean `{toy}`?"
    assert refusal(toy.parent / "none" / "far.yaml") == "no such run file"


def test_a_file_of_another_suffix_is_refused(toy: Path) -> None:
    other = toy.rename(toy.with_suffix(".yml"))
    assert refusal(other) == "a run file ends in `.yaml`; rename it"


def test_names_with_dots_and_folders_with_spaces_load(tmp_path: Path) -> None:
    path = run_file(tmp_path / "my runs (old) [2]", {"cheap": {}})
    assert load_run(path.rename(path.with_name("glm-4.5-int4.yaml"))).name == "toy"


def test_groups_beside_the_file_mix_with_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "mine.yaml").write_text("# @package suites.mine\nkind: piqa\nsamples: 9\n")
    text = """
defaults: [schema, engine@engine: refengine, suite: [kl, mine], gate: release, _self_]
name: mixed
question: y
reference: {weights: w}
candidates: {c: {}}
gates: {mine: {kind: noninferior, suite: mine, metric: accuracy, margin: 0.1}}
"""
    (tmp_path / "run.yaml").write_text(text)
    run = load_run(tmp_path / "run.yaml")
    assert (set(run.suites), run.suites["mine"].samples, run.engine.kind) == ({"kl", "mine"}, 9, "refengine")


# ---- from names to objects

ASSEMBLED = {
    "engine.kind=toys.engin": f"engine.kind: no engine `toys.engin`; known: {', '.join(kinds('engines'))}",
    "engine.kind=refengin": "engine.kind: no engine `refengin`; did you mean `refengine`?",
    "suites.piqa.kind=piqua": "suites.piqa.kind: no suite `piqua`; did you mean `piqa`?",
    "gates.lead.kind=noninferor": "gates.lead.kind: no gate `noninferor`; did you mean `noninferior`?",
    "runner.kind=locl": "runner.kind: no runner `locl`; did you mean `local`?",
    "+candidates.cheap.args.nois=1": "candidates.cheap.args.nois: no such key; did you mean `noise`?",
    "candidates.cheap.args.noise=much": "candidates.cheap.args.noise: Value 'much' of type 'str' could not be converted "
    "to Float",
    "+suites.piqa.options.pth=x": "suites.piqa.options.pth: no such key; did you mean `path`?",
    "suites.piqa.options.path=/nowhere.jsonl": "suites.piqa.options.path: cannot read '/nowhere.jsonl': No such file or "
    "directory; give a JSONL file",
    "suites.kl.options.prompts=/nowhere.jsonl": "suites.kl.options.prompts: cannot read '/nowhere.jsonl': No such file or "
    "directory; give a JSONL file",
    "suites.kl.options.top_k=0": "suites.kl.options: tokens, top_k and audit_tokens are at least 1, audit_share is in "
    "(0, 1]; correct it",
    "suites.piqa.samples=1000": "suites.piqa.samples: 1000 asked, 120 are there; lower it",
    "gates.lead.metric=led": "gates.lead.metric: no metric 'led'; of piqa: accuracy, lead",
    "gates.kl_veto.metric=logprob": "gates.kl_veto.metric: no metric 'logprob'; of kl: kl",
    "gates.accuracy.margin=1": "gates.accuracy.margin: 1.0 of a share is everything; 0.05 means five points",
    "+gates.accuracy.options.max_missing=2": "gates.accuracy.options.max_missing is 2.0; a share below 1, or -1 for half "
    "the margin",
}


@pytest.mark.parametrize("override", ASSEMBLED)
def test_a_name_that_leads_nowhere_costs_a_second_not_a_night(toy: Path, override: str) -> None:
    with pytest.raises(UsageError) as caught:
        assemble(load_run(toy, [override]), toy, lambda _: None)
    assert str(caught.value) == f"{toy}: {ASSEMBLED[override]}"


def test_a_sample_id_longer_than_a_file_name_is_found_before_the_night(toy: Path, tmp_path: Path) -> None:
    row = {"id": "p" * 201, "kind": "k", "messages": [{"role": "user", "content": "x"}]}
    (tmp_path / "long.jsonl").write_text(json.dumps(row) + "\n")
    run = load_run(toy, [f"suites.kl.options.prompts={tmp_path / 'long.jsonl'}"])
    with pytest.raises(UsageError, match=rf"suites\.kl: sample id '{'p' * 201}'; use at most 200 bytes"):
        assemble(run, toy, lambda _: None)


def test_own_data_needs_no_fetching(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.setattr("evalrig.fetch.fetch", lambda *_: pytest.fail("fetched although nothing shipped is read"))
    assert assemble(load_run(toy), toy, lambda _: None).plan.suites


# ---- the resolved file

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20).filter(
    lambda text: text != "???" and "\\" not in text
)
CONFIGS = st.builds(
    RunConfig,
    name=NAMES,
    question=TEXTS,
    seed=st.integers(-9, 2**31),
    alpha=st.floats(0.001, 0.25),
    engine=st.builds(EngineConfig, kind=NAMES, options=st.dictionaries(NAMES, st.integers() | TEXTS, max_size=2)),
    reference=st.builds(VariantConfig, weights=NAMES, expect=st.builds(ExpectConfig, weights=TEXTS)),
    candidates=st.dictionaries(
        NAMES.filter(lambda name: not name.startswith("reference")), st.builds(VariantConfig, weights=TEXTS),
        min_size=1, max_size=3,
    ),
    suites=st.just({"s": SuiteConfig(kind="piqa", samples=3)}),
    gates=st.builds(lambda margin: {"g": GateConfig(kind="x", suite="s", margin=margin)}, st.floats(1e-9, 1e9)),
    scope=st.builds(ScopeConfig, note=TEXTS),
)  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=15, phases=[Phase.explicit, Phase.generate])
@given(CONFIGS)
def test_the_resolved_file_loads_to_the_same_run(tmp_path_factory: pytest.TempPathFactory, run: RunConfig) -> None:
    path = tmp_path_factory.mktemp("dump") / "run.yaml"
    path.write_text(dump(run), encoding="utf-8")
    again = load_run(path)
    assert again == run
    assert dump(again) == dump(run)


def test_text_that_looks_like_an_interpolation_survives_the_resolved_file(toy: Path, tmp_path: Path) -> None:
    run = load_run(toy, [r"question='what of \${HOME}?'"])
    assert run.question == "what of ${HOME}?"
    (tmp_path / "again.yaml").write_text(dump(run))
    assert load_run(tmp_path / "again.yaml") == run
