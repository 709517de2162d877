"""What every plugin keeps: a new file on a shelf is tested without a new test."""

import asyncio
import json
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import load_client
from toys.booth import booth
from toys.engine import Toy, ToyOptions
from toys.nouns import ACCURACY, KL, LEAD, distances, evidence, pairs

from evalrig import fetch
from evalrig.config.load import options
from evalrig.engine import Capabilities, Engine, Launch
from evalrig.errors import UsageError
from evalrig.gate import Distances, Evidence, Gate
from evalrig.plan import GatePlan
from evalrig.plugins import find, kinds
from evalrig.runner import Runner
from evalrig.suite import Attempt, LoadAttempt, Suite
from evalrig.types import CheckOutcome, Metric, State, Variant
from evalrig.world import World

SHELVES: dict[str, type] = {"engines": Engine, "suites": Suite, "gates": Gate, "runners": Runner, "worlds": World}
EVERY = [(shelf, kind) for shelf in SHELVES for kind in kinds(shelf)]
HEAVY = {"hydra", "omegaconf", "yaml", "matplotlib", "pyarrow", "pandas", "tokenizers", "gguf", "uvicorn", "starlette"}

ENDLESS = {"tool_worlds", "bfcl", "agentdojo", "tau2"}
"""Suites whose attempts run until the model is done: the toy's greedy words never end, and a limit cuts them."""


def kind_of(shelf: str, kind: str) -> Any:
    return find(shelf, kind, SHELVES[shelf], "test")


@pytest.mark.parametrize(("shelf", "kind"), EVERY)
def test_a_file_on_a_shelf_defines_exactly_one_class_and_says_what_it_is(shelf: str, kind: str) -> None:
    found = kind_of(shelf, kind)
    assert found.__doc__
    assert sys.modules[found.__module__].__doc__
    assert not getattr(found, "__abstractmethods__", None)


@pytest.mark.parametrize(
    ("shelf", "kind"), [(shelf, kind) for shelf, kind in EVERY if shelf not in ("runners", "worlds")]
)
def test_options_are_a_dataclass_with_defaults_that_the_run_file_can_check(shelf: str, kind: str) -> None:
    owner: Any = kind_of(shelf, kind).Options
    assert is_dataclass(owner), "not a dataclass"
    owner = kind_of(shelf, kind).Options
    assert options({}, owner, "here") == owner()
    with pytest.raises(UsageError, match=r"here\.surely_not_a_key: no such key"):
        options({"surely_not_a_key": 1}, owner, "here")
    assert all(field.kw_only for field in fields(owner))


def test_importing_a_shelf_is_cheap() -> None:
    names = [f"evalrig.{shelf}.{kind}" for shelf, kind in EVERY]
    code = f"import importlib, json, sys; [importlib.import_module(n) for n in {names}]; print(json.dumps(sorted(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not HEAVY & set(json.loads(said.stdout))


# ---- engines


@pytest.mark.parametrize("kind", kinds("engines"))
@pytest.mark.parametrize("weights", ["no-such-model", "/nowhere/model.gguf", ""])
def test_an_engine_refuses_unknown_weights_before_anything_starts(kind: str, weights: str) -> None:
    engine = kind_of("engines", kind)
    variant = Variant(name="cheap", role="candidate", engine=kind, weights=weights)

    def look_up() -> None:
        engine.resolve(variant, engine.Options(), "candidates.cheap")
        engine.reach(variant, engine.Options(), "candidates.cheap")

    with pytest.raises(UsageError) as caught:
        look_up()
    assert str(caught.value).startswith("candidates.cheap.weights: ")
    assert repr(weights) in str(caught.value) or not weights
    assert "; give " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", kinds("engines"))
def test_an_engine_that_was_not_started_is_not_alive_and_can_be_stopped(kind: str, tmp_path: Path) -> None:
    engine = kind_of("engines", kind)
    assert isinstance(engine.capabilities, Capabilities)
    variant = Variant(name="cheap", role="candidate", engine=kind, weights="none")
    made = engine(variant, engine.Options(), Launch(log=tmp_path / "log", start_seconds=1, request_seconds=1))
    assert not made.alive()
    asyncio.run(made.stop())
    asyncio.run(made.stop())


# ---- suites


def suite_of(kind: str) -> Suite:
    owner = kind_of("suites", kind)
    given = {"path": str(fetch.path_of("humaneval"))} if kind == "code_jsonl" else {}
    suite = owner("mine", owner.Options(**given))
    absent = fetch.missing(sorted(suite.content))
    assert not absent, f"{', '.join(absent)} not in the cache; run `evalrig fetch {' '.join(absent)}` before the tests"
    return suite


@pytest.mark.parametrize("kind", kinds("suites"))
def test_samples_are_deterministic_and_have_ids_of_their_own(kind: str) -> None:
    samples = suite_of(kind).samples()
    assert samples
    assert len({sample.id for sample in samples}) == len(samples)
    assert suite_of(kind).samples() == samples
    assert all(sample.target in sample.choices for sample in samples if sample.choices)


@pytest.mark.parametrize("kind", kinds("suites"))
def test_a_suite_has_metrics_and_can_be_attempted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = suite_of(kind)
    load_client.installed(monkeypatch)
    assert len({metric.name for metric in suite.metrics}) == len(suite.metrics) > 0
    sample = suite.samples()[0]
    variant = Variant(name="reference", role="reference", engine="toys.engine", weights="toy")

    async def attempt() -> Attempt:
        toy = Toy(variant, ToyOptions(), Launch(log=Path(), start_seconds=1, request_seconds=1))
        await toy.start()
        trace = await suite.trace(toy, sample, 0, 1) if suite.traced else None
        if not suite.runs_code:
            return await suite.attempt(toy, sample, 0, trace)
        with booth() as held:
            suite.equip(held)
            return await suite.attempt(toy, sample, 0, trace)

    found = asyncio.run(attempt())
    assert found.state is (State.TRUNCATED if kind in ENDLESS else State.SCORED)
    wanted = {metric.score for metric in suite.metrics if metric.kind not in ("distance", "ratio")}
    if suite.blocks:  # percentiles of few requests are left out
        assert {"output_tokens_per_second", "ttft_p50", "tokens_per_gpu"} <= set(found.scores)
        assert isinstance(found, LoadAttempt)
    assert kind in ENDLESS or wanted <= set(found.scores)
    assert all(np.isfinite(value) for value in found.scores.values())
    assert found.prompt_sha256, "without it nobody can tell that both arms saw the same tokens"
    assert suite.blocks or found.trajectory.turns
    if any(metric.kind == "distance" for metric in suite.metrics):
        assert found.tokens is not None


# ---- gates


def gate_of(kind: str) -> tuple[Gate, Any]:
    owner = kind_of("gates", kind)
    metric = next((metric for metric in (ACCURACY, LEAD, KL) if owner.accepts(metric)), None)
    plan = GatePlan(name="g", kind=kind, suite="quiz", metric=metric.name if metric else "", margin=0.05, gating=True)
    return owner(plan, owner.Options()), metric or ACCURACY


def measured(metric: Metric, reference: list[float], candidate: list[float], tokens: Distances) -> Evidence:
    """The same numbers as scores, as failures and as distances: a gate takes what it judges."""
    one = pairs(reference, candidate, metric)
    return replace(evidence({metric.name: one}, tokens, tokens), failures={("quiz", "timeout"): one})


@pytest.mark.parametrize("kind", kinds("gates"))
def test_a_gate_of_no_evidence_is_undecided_with_a_reason(kind: str) -> None:
    gate, metric = gate_of(kind)
    empty = distances(np.zeros(0))
    for nothing in (evidence(), measured(metric, [], [], empty)):
        found = gate.check(nothing)
        assert found.outcome is CheckOutcome.UNDECIDED
        assert (found.gate, found.suite, found.gating) == ("g", "quiz", True)
        assert found.reason
        assert (found.p_go, found.p_nogo) == (1.0, 1.0)


@pytest.mark.parametrize("kind", kinds("gates"))
def test_a_gate_does_not_judge_from_one_pair(kind: str) -> None:
    gate, metric = gate_of(kind)
    one = distances(np.array([0.5]), prompts=1)
    found = gate.check(measured(metric, [1.0], [1.0], one))
    assert found.outcome is CheckOutcome.UNDECIDED
