"""The suites of conversations with tools, through whole runs with a scripted model that slips at a known share of its steps."""

import asyncio
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toys.chain_world
from scipy.stats import binomtest
from toys.acting import Actor, ActorOptions
from toys.runs import carry_out, run_file
from toys.script import Script, acts

from evalrig.analysis.token_classes import TokenClass, classify
from evalrig.engine import Launch
from evalrig.errors import EngineError, UsageError
from evalrig.sources import with_tools
from evalrig.suite import Attempt
from evalrig.suites.kl import Kl, KlOptions
from evalrig.suites.tool_steps import ToolSteps, ToolStepsOptions
from evalrig.suites.tool_worlds import ToolWorlds, ToolWorldsOptions
from evalrig.types import FIXED, Record, Sample, State, Step, Variant

RATE = 0.1
CHAIN: dict[str, Any] = {"worlds": ["toys.chain_world"], "horizons": [5, 10], "per_horizon": 40}
SUITES: dict[str, Any] = {
    "free": {"kind": "tool_worlds", "options": CHAIN},
    "text": {"kind": "tool_worlds", "samples": 20, "options": {**CHAIN, "protocol": "text"}},
    "steps": {"kind": "tool_steps", "options": CHAIN},
    "after": {"kind": "tool_steps", "samples": 20, "options": {**CHAIN, "trajectories": "reference"}},
    "choice": {"kind": "tool_steps", "samples": 10, "options": {**CHAIN, "scoring": "choice", "steps": 3}},
}
METRICS = {"free": "success", "text": "success", "steps": "agreement", "after": "agreement", "choice": "accuracy"}
GATES = {
    name: {"kind": "noninferior", "suite": name, "metric": metric, "margin": 0.05} for name, metric in METRICS.items()
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Record]]:
    """(variant, suite) -> records of one run: a reference that is always right, a candidate that slips."""
    candidates = {"slips": {"error_rate": RATE, "noise": 1.5e-5}}
    path = run_file(
        tmp_path_factory.mktemp("tools"), candidates, suites=SUITES, gates=GATES, engine={"kind": "toys.acting"}
    )
    finished = carry_out(path)
    assert not finished.stopped
    return {
        (variant, suite): sorted(finished.folder.records(variant, suite), key=lambda record: record.sample)
        for variant in ("reference", "slips")
        for suite in SUITES
    }


def steps_of(records: list[Record]) -> list[tuple[Step, ...]]:
    return [record.trajectory.steps for record in records]


def covers(errors: int, steps: int) -> bool:
    return binomtest(errors, steps).proportion_ci(0.99).low <= RATE <= binomtest(errors, steps).proportion_ci(0.99).high


def test_all_is_scored_and_the_choice_of_protocol_is_recorded(records: Any) -> None:
    for (_, suite), rows in records.items():
        assert {row.state for row in rows} == {State.SCORED}
        wanted = "text" if suite in ("text", "choice") else "native"
        assert {row.trajectory.protocol for row in rows} == {wanted}
        assert all(row.provenance.prompt_sha256 for row in rows)
    assert all(row.scores["success"] == 1.0 for row in records["reference", "free"] + records["reference", "text"])


def test_the_known_step_error_rate_is_found_by_teacher_forcing(records: Any) -> None:
    """Every step by itself: errors over the steps at which a call was due."""
    due = [step for steps in steps_of(records["slips", "steps"]) for step in steps if step.due != "[]"]
    assert len(due) == 40 * 5 + 40 * 10
    assert {step.error for step in due} == {"", "wrong_id"}
    assert covers(sum(bool(step.error) for step in due), len(due))
    assert not any(step.error for steps in steps_of(records["reference", "steps"]) for step in steps)


def test_the_known_step_error_rate_is_found_at_the_first_wrong_step_of_free_runs(records: Any) -> None:
    """Up to its first error an attempt is at risk at every step with a call."""
    at_risk = wrong = 0
    for steps in steps_of(records["slips", "free"]):
        until = next((place for place, step in enumerate(steps) if step.error), None)
        at_risk += len([step for step in steps if not step.stopped]) if until is None else until + 1
        wrong += until is not None
    assert covers(wrong, at_risk)


def test_free_runs_say_how_they_came_out(records: Any) -> None:
    rows = records["slips", "free"]
    assert 0.2 < sum(row.scores["success"] for row in rows) / len(rows) < 0.8
    for row in rows:
        assert row.scores["steps"] == len(row.trajectory.steps)
        assert row.scores["errors"] == sum(bool(step.error) for step in row.trajectory.steps)
        assert bool(row.trajectory.failure) == (row.scores["success"] == 0.0)
        assert row.scores["success"] - 0.5 < row.scores["steps_ratio"] <= row.scores["success"]
        assert row.trajectory.failure in ("", *ToolWorlds.failures)
    assert {row.scores["steps_ratio"] for row in records["reference", "free"]} == {1.0}


def test_on_the_references_own_way_the_same_steps_are_seen(records: Any) -> None:
    """The reference takes the shortest way here: both suites follow the same trajectories."""
    solver = {row.sample: row.trajectory.steps for row in records["slips", "steps"]}
    for row in records["slips", "after"]:
        assert row.trajectory.steps == solver[row.sample]
        assert row.provenance.tokens_sha256


def test_choices_are_scored_for_models_that_cannot_act(records: Any) -> None:
    for row in records["reference", "choice"]:
        assert len(row.trajectory.steps) == 3
        assert len(row.trajectory.turns) == 12
        assert row.scores["accuracy"] == sum(not step.error for step in row.trajectory.steps) / 3
        for number, step in enumerate(row.trajectory.steps):
            likelihood = [sum(turn.logprobs) for turn in row.trajectory.turns[4 * number : 4 * number + 4]]
            assert (not step.error) == (likelihood[0] > max(likelihood[1:]))


# ---- single attempts


def actor(**options: Any) -> Actor:
    variant = Variant(name="reference", role="reference", engine="toys.acting", weights="toy")
    return Actor(variant, ActorOptions(**options), Launch(log=Path("nowhere"), start_seconds=1, request_seconds=1))


def attempted(suite: Any, engine: Actor) -> Attempt:
    async def go() -> Attempt:
        await engine.start()
        return await suite.attempt(engine, suite.samples()[0], 0, None)

    return asyncio.run(go())


def worlds(**options: Any) -> ToolWorlds:
    chosen: dict[str, Any] = {**CHAIN, "per_horizon": 1, **options}
    return ToolWorlds("tool_worlds", ToolWorldsOptions(**chosen))


def forced(**options: Any) -> ToolSteps:
    chosen: dict[str, Any] = {**CHAIN, "per_horizon": 1, **options}
    return ToolSteps("tool_steps", ToolStepsOptions(**chosen))


def test_a_conversation_that_outgrows_the_context_scores_nothing_and_stays_in_the_count() -> None:
    found = attempted(worlds(), actor(outgrown_after=120))
    assert found.state is State.TRUNCATED
    assert "success" not in found.scores
    assert found.trajectory.failure == "truncated"


@pytest.mark.parametrize("suite", [worlds(), forced()])
def test_an_engine_that_fails_in_the_middle_is_no_score(suite: Any) -> None:
    """Pitfall 7."""
    with pytest.raises(EngineError):
        attempted(suite, actor(dead_after=3))


def test_auto_speaks_natively_where_the_engine_has_tools_and_in_text_elsewhere() -> None:
    """Both see another prompt: between two such arms nothing is compared."""
    native, text = attempted(worlds(), actor()), attempted(worlds(), actor(tool_calls=False))
    assert (native.trajectory.protocol, text.trajectory.protocol) == ("native", "text")
    assert native.prompt_sha256 != text.prompt_sha256
    assert native.scores["success"] == text.scores["success"] == 1.0
    assert worlds(protocol="native").needs().tools
    assert not worlds().needs().tools


def test_an_attempt_does_not_change_the_next() -> None:
    """Nothing is shared: one suite, one errand, again and again."""
    suite, engine = worlds(), actor()
    found = [attempted(suite, engine) for _ in range(3)]
    assert [one.scores for one in found] == [{"success": 1.0, "errors": 0.0, "steps": 6.0, "steps_ratio": 1.0}] * 3


def test_a_sampled_attempt_draws_by_its_own_seed() -> None:
    """Pitfall 2."""
    suite = worlds(temperature=0.7)
    seeds = {suite.sampling("a", epoch).seed for epoch in range(5)} | {suite.sampling("b", 0).seed}
    assert len(seeds) == 6
    assert worlds().sampling("a", 0).seed is None


def test_what_an_errand_starts_from_is_part_of_the_registered_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 3: a world that was changed must show in the digest of the samples."""
    before = worlds().samples()
    assert worlds().samples() == before
    made = toys.chain_world.Chain._errand

    def other(self: Any, *given: Any) -> Any:
        errand = made(self, *given)
        return replace(errand, start={**errand.start, "locked": ["x"]})

    monkeypatch.setattr(toys.chain_world.Chain, "_errand", other)
    assert [sample.id for sample in worlds().samples()] == [sample.id for sample in before]
    assert all(a != b for a, b in zip(worlds().samples(), before, strict=True))


def test_a_world_may_be_a_file_of_the_users() -> None:
    path = toys.chain_world.__file__
    assert [sample.id for sample in worlds(worlds=[path]).samples()] == [s.id for s in worlds().samples()]
    with pytest.raises(UsageError, match=r"suites\.tool_worlds\.options\.worlds: no file 'nowhere\.py'"):
        worlds(worlds=["nowhere.py"]).samples()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"protocol": "hermes"}, r"protocol: no protocol 'hermes'; known: auto, native, text"),
        ({"max_tokens": 0}, "max_tokens is at least 1"),
        ({"temperature": -1.0}, r"temperature is in 0\.\.2"),
        ({"horizons": []}, "name at least one"),
        ({"horizons": [5, 5]}, "one stands there twice"),
        ({"per_horizon": 0}, "per_horizon is at least 1"),
    ],
)
def test_options_out_of_range_are_one_line(options: dict[str, Any], why: str) -> None:
    for suite in (worlds, forced):
        with pytest.raises(UsageError, match=why):
            suite(**options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"trajectories": "gold"}, "no 'gold'; known: solver, reference"),
        ({"scoring": "rank"}, "no 'rank'; known: generate, choice"),
        ({"scoring": "choice", "trajectories": "reference"}, "choice follows the solver's way"),
        ({"scoring": "choice", "protocol": "native"}, "is told in text"),
        ({"steps": -1}, "0 is all"),
    ],
)
def test_ways_that_do_not_go_together_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        forced(**options)


def test_the_steps_followed_are_drawn_once_for_all_variants() -> None:
    suite = forced(steps=2)
    found = [attempted(suite, actor(seed=seed)).trajectory.steps for seed in (0, 1)]
    assert [step.due for step in found[0]] == [step.due for step in found[1]]
    assert len(found[0]) == 2


def test_steps_where_words_are_due_count_for_the_trigger() -> None:
    found = attempted(forced(), actor())
    assert found.scores == {"agreement": 1.0, "schema_valid": 1.0, "trigger": 1.0, "errors": 0.0, "steps": 6.0}
    assert json.loads(found.trajectory.steps[-1].due) == []


def test_a_turn_that_was_cut_is_right_about_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as calls where calls are due: a candidate that thinks to its limit kept a full `trigger`."""
    engine, chat = actor(), Actor.chat

    async def cut(self: Actor, *asked: Any) -> Any:
        return replace(await chat(self, *asked), finish="length")

    monkeypatch.setattr(Actor, "chat", cut)
    found = attempted(forced(), engine)
    assert {step.error for step in found.trajectory.steps} == {"truncated"}
    assert (found.scores["agreement"], found.scores["trigger"]) == (0.0, 0.0)


def test_many_attempts_in_flight_share_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark in small: its world changes the arguments it is given and all else it can reach."""
    path = Path(__file__).parents[2] / "benchmarks" / "arena.py"
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location("arena_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark: Any = importlib.util.module_from_spec(spec)
    sys.modules["arena_benchmark"] = benchmark
    spec.loader.exec_module(benchmark)
    engine, success, _ = benchmark.measured(attempts=200, slots=64, service=0.01, horizon=3)
    assert success == [1.0] * 200
    assert len(engine.calls) == 800


def test_recorded_conversations_are_followed_step_by_step(tmp_path: Path) -> None:
    tool: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"id": "9f31c0a4"}'}}
    said = [
        {"role": "system", "content": "You follow chains."},
        {"role": "user", "content": "Begin at 9f31c0a4."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": '{"done": true}', "tool_call_id": "a"},
        {"role": "assistant", "content": "All done."},
    ]
    path = tmp_path / "conversations.jsonl"
    path.write_text(json.dumps({"id": "one", "messages": said, "tools": [tool]}) + "\n")
    found = attempted(forced(path=str(path)), actor())
    assert [(step.error, step.stopped) for step in found.trajectory.steps] == [("", False), ("", True)]
    assert found.scores["agreement"] == 1.0
    with pytest.raises(UsageError, match="recorded conversations are followed as they are"):
        forced(path=str(path), trajectories="reference")
    with pytest.raises(UsageError, match=r"suites\.tool_steps\.options\.path: cannot read"):
        forced(path="nowhere.jsonl").samples()
    tool["function"]["parameters"] = {"type": "dict"}
    path.write_text(json.dumps({"id": "one", "messages": said, "tools": [tool]}) + "\n")
    with pytest.raises(UsageError, match="one: the parameters of tool 'look' are no JSON schema"):
        forced(path=str(path)).samples()


@pytest.mark.parametrize("lack", ["missing_tool", "missing_parameter"])
def test_an_errand_that_cannot_be_done_may_take_as_many_turns_as_its_kin(lack: str) -> None:
    suite = ToolWorlds("w", ToolWorldsOptions(worlds=["files"], horizons=[10], per_horizon=10))
    rows = suite.samples()
    assert {suite.limits(row, 5).steps for row in rows if "missing" not in " ".join(row.tags)} == {25}
    [sample] = [row for row in rows if lack in row.tags]
    words = acts(content="CANNOT: tool" if lack == "missing_tool" else "CANNOT: detail")

    async def go() -> Attempt:
        engine = Script(*(acts(("sought", {"at": number})) for number in range(8)), words)
        await engine.start()
        return await suite.attempt(engine, sample, 0, None)

    found = asyncio.run(go())
    assert (found.state, found.scores["success"]) == (State.SCORED, 1.0)


# ---- what the distance of call tokens is measured on


def borrowed_by(leg: str, **options: Any) -> list[Sample]:
    lender = forced(horizons=[10], **options)
    kl = Kl("kl", KlOptions(prompts="none", suites=["steps"], leg=leg))
    return kl.draw({"steps": lender.lend(lender.samples())}, {})


def test_each_step_followed_is_lent_as_a_finished_turn_that_knows_its_number() -> None:
    rows = borrowed_by("prefill")
    assert [row.id.rsplit(".", 1)[1] for row in rows] == [str(number) for number in range(1, 11)], "no answer in words"
    assert [row.tags[-1] for row in rows] == [f"step:{number}" for number in range(1, 11)]
    assert len({row.cluster for row in rows}) == 1
    for number, row in enumerate(rows, 1):
        assert FIXED in row.tags
        assert row.tools
        assert sum(len(message.tool_calls) for message in row.messages) == number
        assert [call.name for call in row.messages[-1].tool_calls] == ["stamp" if number == 10 else "look"]
    assert rows[3].messages[-1] == rows[4].messages[len(rows[3].messages) - 1], "as it stands in the next one's history"


def test_in_the_text_protocol_steps_are_lent_as_text_that_every_template_shows() -> None:
    rows = borrowed_by("prefill", protocol="text", steps=3)
    assert len(rows) in (2, 3), "the answer in words may be among those drawn"
    for row in rows:
        assert not with_tools(row)
        assert classify([row.messages[-1].content]).tolist() == [TokenClass.STRUCTURE]
        assert '"look"' in row.messages[0].content


def test_steps_that_were_given_are_no_answers_of_a_variants_own() -> None:
    with pytest.raises(UsageError, match=r"^suites\.kl\.options\.leg: `decode` scores what variants answer"):
        borrowed_by("decode")


def test_what_the_reference_will_do_is_not_known_before_the_run() -> None:
    [row] = borrowed_by("prefill", trajectories="reference")
    assert FIXED not in row.tags
    assert [message.role for message in row.messages] == ["system", "user"]
