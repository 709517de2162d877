"""A run file in small: the same variants, suites and gates on the embedded engine, and what was replaced is said."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toys.nouns import record, run_config, small_folder, small_plan

from evalrig.assemble import assemble
from evalrig.config.load import dump, load_run
from evalrig.config.schema import RunConfig, SuiteConfig
from evalrig.content import content_dir
from evalrig.errors import UsageError
from evalrig.rehearsal import KV_CACHE, WEIGHTS, nearest, rehearsed
from evalrig.types import AGAIN, REFERENCE, CheckOutcome, Finding, Level, Outcome, Record, State, Trajectory
from evalrig.validity import findings
from evalrig.verdict import exercised, judge


@pytest.mark.parametrize(
    ("said", "weights", "kv_cache"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp8", "fp8", "fp8_e4m3"),
        ("fp8_e4m3", "fp8", "fp8_e4m3"),
        ("int4", "int4", "fp8_e4m3"),
        ("int4-asym", "int4-asym", "fp8_e4m3"),
        ("nvfp4", "int4", "fp8_e4m3"),
        ("mxfp4", "int4", "fp8_e4m3"),
        ("q8_0", "fp8", "fp8_e4m3"),
        ("q4_0", "int4", "fp8_e4m3"),
        ("q6_k", "fp8", "fp8_e4m3"),
        ("q2_k", "int4", "fp8_e4m3"),
        ("fp16", "bf16", "bf16"),
        ("bfloat16", "bf16", "bf16"),
        ("auto", "bf16", "bf16"),
        ("", "bf16", "bf16"),
        ("f64", "f32", "f32"),
        ("something", "bf16", "bf16"),
    ],
)
def test_a_format_stands_in_with_as_many_bits_or_the_next_more(said: str, weights: str, kv_cache: str) -> None:
    assert (nearest(said, WEIGHTS), nearest(said, KV_CACHE)) == (weights, kv_cache)


def small(stem: str, overrides: Sequence[str] = (), **changes: Any) -> RunConfig:
    path = content_dir("conf") / f"{stem}.yaml"
    config = replace(load_run(path, overrides), **changes)
    return rehearsed(config, assemble(config, path, lambda _: None, here=False), path)


def formats(config: RunConfig) -> Mapping[str, tuple[str, str]]:
    variants = {REFERENCE: config.reference, **config.candidates}
    return {name: (one.args["quantize"], one.args["kv_cache"]) for name, one in variants.items()}


def test_claims_become_formats_of_the_embedded_engine_and_are_expected_of_it() -> None:
    config = small("glm-factorial")
    assert formats(config) == {
        "reference": ("fp8", "bf16"),
        "fp8kv": ("fp8", "fp8_e4m3"),
        "int4": ("int4", "bf16"),
        "int4-fp8kv": ("int4", "fp8_e4m3"),
    }
    assert config.engine.kind == "refengine"
    assert (config.candidates["int4-fp8kv"].expect.weights, config.candidates["fp8kv"].expect.kv_cache) == (
        "int4",
        "fp8_e4m3",
    )
    assert {one.weights for one in (config.reference, *config.candidates.values())} == {"smollm2-135m-instruct"}


def test_what_has_no_equal_is_said_in_one_line_each() -> None:
    config = small("nvfp4")
    assert formats(config)["nvfp4"] == ("int4", "bf16")
    assert config.candidates["nvfp4"].expect.weights == "int4"
    assert [line for line in config.rehearsal.replaced if "nearest" in line] == [
        "candidates.nvfp4: weights in int4, the nearest that refengine has to nvfp4",
        "candidates.nvfp4-fp8kv: weights in int4, the nearest that refengine has to nvfp4",
    ]


def test_options_name_the_formats_where_nothing_is_expected() -> None:
    quiet = ["candidates.q8-kv.expect.kv_cache=", "candidates.q4-weights.expect.weights="]
    config = small("llama-cpp", quiet)
    assert formats(config) == {
        "reference": ("bf16", "bf16"),
        "q8-kv": ("bf16", "fp8_e4m3"),
        "q4-weights": ("int4", "bf16"),
    }
    assert (config.candidates["q8-kv"].expect.kv_cache, config.candidates["q8-kv"].expect.weights) == ("", "bf16")


def test_a_candidate_without_a_difference_here_is_given_one() -> None:
    """Bit-identical to the reference it would be INVALID, for no fault of the run file."""
    config = small("kimi-fp8kv", ["candidates.fp8kv.expect.kv_cache=bf16"])
    assert formats(config) == {"reference": ("int4", "bf16"), "fp8kv": ("int4-asym", "bf16")}
    assert config.candidates["fp8kv"].expect.weights == "int4-asym"
    assert "candidates.fp8kv: the reference's formats in refengine; weights in int4-asym, to have a difference" in (
        config.rehearsal.replaced
    )


def test_a_run_file_of_the_embedded_engine_keeps_engine_and_variants() -> None:
    before, config = load_run(content_dir("conf") / "demo.yaml"), small("demo")
    assert (config.engine, config.reference, config.candidates) == (before.engine, before.reference, before.candidates)


def test_suites_are_cut_and_nothing_else_of_them_is_changed() -> None:
    before = load_run(content_dir("conf") / "glm-int4.yaml")
    config = small("glm-int4", ["suites.kl.epochs=5", "+suites.kl.options.top_k=20", "suites.piqa.again=0.5"])
    assert (config.suites["kl"].samples, config.suites["kl"].epochs, config.suites["piqa"].samples) == (4, 2, 4)
    assert config.suites["kl"].options == {
        "leg": "cached_prefix",
        "suites": ["piqa", "short_answers"],
        "top_k": 20,
        "tokens": 16,
    }
    assert config.suites["piqa"].again == 0.5
    assert config.gates == before.gates
    assert config.name == "glm-int4-rehearsal"
    assert "suites.kl: 4 of 648 samples, tokens 16, 2 of 5 epochs" in config.rehearsal.replaced


SHIPPED = ["endpoint", "glm-factorial", "glm-int4", "kimi-fp8kv", "llama-cpp", "nvfp4", "pd"]


@pytest.mark.parametrize("stem", SHIPPED)
def test_every_shipped_run_file_can_be_rehearsed(stem: str) -> None:
    """A suite that scores over a cached prefix was refused: the stand-in keeps none unless it is told to."""
    config = small(stem)
    rig = assemble(config, content_dir("conf") / f"{stem}.yaml", lambda _: None)
    assert [suite.name for suite in rig.plan.suites] == list(config.suites)


@pytest.mark.parametrize("stem", SHIPPED)
def test_answers_of_a_rehearsal_fit_into_the_stand_ins_context(stem: str) -> None:
    """8,192 tokens, room for a large model to think, were four times what the stand-in takes: every call failed."""
    before = load_run(content_dir("conf") / f"{stem}.yaml").suites["short_answers"].options
    config = small(stem)
    assert config.suites["short_answers"].options == {**before, "max_tokens": 64}
    if before["max_tokens"] > 64:
        assert "suites.short_answers: 4 of 300 samples, max_tokens 64" in config.rehearsal.replaced


def test_shorter_than_a_rehearsal_stays_as_it_is() -> None:
    config = small("glm-int4", ["+suites.kl.options.tokens=8", "suites.piqa.samples=2"])
    assert (config.suites["kl"].options["tokens"], config.suites["piqa"].samples) == (8, 2)


def test_a_source_with_fewer_samples_than_a_rehearsal_asks(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "kind": "x", "messages": [{"role": "user", "content": "Hello?"}]}\n')
    config = small("glm-int4", [f"+suites.kl.options.prompts={prompts}", "suites.kl.options.suites=[]"])
    assert config.suites["kl"].samples == 1
    assert config.suites["kl"].options["prompts"] == str(prompts)


def test_the_rehearsals_run_file_loads_to_itself_and_cannot_be_rehearsed_again(tmp_path: Path) -> None:
    config = small("nvfp4")
    path = tmp_path / "run.yaml"
    path.write_text(dump(config))
    assert load_run(path) == config
    with pytest.raises(
        UsageError, match=r"run\.yaml: is the run file of a rehearsal; give the one that it was made from"
    ):
        rehearsed(config, assemble(config, path, lambda _: None, here=False), path)


def test_a_name_without_room_for_the_ending_is_refused() -> None:
    with pytest.raises(UsageError, match="name: no room for the ending `-rehearsal`; use at most 200 bytes"):
        small("glm-int4", name="n" * 195)


def test_engines_side_by_side_are_few() -> None:
    config = small("glm-int4", ["runner.engines=8"])
    assert (config.runner.engines, config.runner.concurrency) == (2, 32)
    assert "runner: local, 2 engines side by side at most" in config.rehearsal.replaced


# ---- judged


def rehearsal_of(output: Path, *records: Record) -> list[Finding]:
    config = run_config(quiz=SuiteConfig(kind="quiz", samples=4, again=0.5))
    config.rehearsal.replaced = ["suites.quiz: 4 of 12 samples"]
    folder = small_folder(output, small_plan(config))
    for one in records:
        folder.append(one)
    folder.close()
    from evalrig.evidence import Gathered

    return [finding for finding in findings(Gathered(folder), []) if finding.rule == "rehearsal"]


@pytest.mark.parametrize(
    ("states", "level", "words"),
    [
        ("ssss", Level.OK, "cheap, quiz: all 4 attempts were made and scored"),
        ("sssi", Level.INVALID, "cheap, quiz: 1 of 4 attempts failed: HTTP 400"),
        ("sssu", Level.WARN, "cheap, quiz: 1 of 4 attempts could not be scored: HTTP 400"),
        ("uuuu", Level.INVALID, "cheap, quiz: 4 of 4 attempts could not be scored: HTTP 400"),
        ("tttr", Level.OK, "cheap, quiz: all 4 attempts were made and scored"),
    ],
)
def test_what_could_not_run_invalidates_a_rehearsal(tmp_path: Path, states: str, level: Level, words: str) -> None:
    of = {"s": State.SCORED, "i": State.INFRA, "u": State.UNSCORED, "t": State.TRUNCATED, "r": State.REFUSED}
    rows = [
        record(f"s-{n:03d}", state=of[letter], trajectory=Trajectory(error="HTTP 400"))
        for n, letter in enumerate(states)
    ]
    [found] = rehearsal_of(tmp_path, *rows)
    assert (found.level, found.text, found.candidate) == (level, words, "cheap")


def test_an_arm_of_the_reference_concerns_the_whole_run(tmp_path: Path) -> None:
    rows = [record(variant=arm, state=State.INFRA) for arm in (REFERENCE, AGAIN)]
    assert {(found.candidate, found.level) for found in rehearsal_of(tmp_path, *rows)} == {("", Level.INVALID)}


def test_a_check_is_exercised_whatever_it_found_and_invalid_stays() -> None:
    from toys.nouns import check

    from evalrig.types import CandidateVerdict

    checks = tuple(check(outcome, gate=outcome, needed=7, p_go=0.01) for outcome in CheckOutcome)
    one = CandidateVerdict(outcome=Outcome.NO_GO, scope="", reasons=("quiz: lost",), checks=checks)
    found = exercised(one)
    assert found.outcome is Outcome.REHEARSAL
    assert {c.outcome for c in found.checks if c.gate != "invalid"} == {CheckOutcome.EXERCISED}
    assert {(c.p_go, c.p_nogo, c.needed) for c in found.checks if c.gate != "invalid"} == {(1.0, 1.0, None)}
    assert exercised(replace(one, outcome=Outcome.INVALID)).outcome is Outcome.INVALID
    assert exercised(replace(one, outcome=Outcome.INVALID)).reasons == ("quiz: lost",)


def test_a_rehearsal_that_was_not_gone_through_is_invalid_and_says_what_it_is(tmp_path: Path) -> None:
    config = run_config()
    config.rehearsal.replaced = ["suites.quiz: 12 of 12 samples"]
    verdict = judge(small_folder(tmp_path, small_plan(config)))
    assert (verdict.outcome, verdict.exit_code) == (Outcome.INVALID, 3)
    assert verdict.rehearsal == ("suites.quiz: 12 of 12 samples",)
    assert verdict.candidates["cheap"].scope.startswith("REHEARSAL: speaks for no model")
