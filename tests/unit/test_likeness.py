"""Rules on what was read back of two arms: each fires on its fault, is quiet without evidence, and says what it looked at."""

from dataclasses import replace
from typing import Any

import pytest

from evalrig.likeness import GARBAGE_NATS, alone, asked, beside
from evalrig.proof import Inventory, Preflight, Probes
from evalrig.types import Capacity, Finding, Fingerprint, Level, Variant
from evalrig.validity import compare, expected

FP8 = "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0."


def preflight(variant: str = "cheap", weights: str = "bf16", kv_cache: str = "bf16", **more: Any) -> Preflight:
    inventory: dict[str, Any] = {
        "checkpoint_bytes": 100,
        "kv_scales": "none",
        "sampling_defaults": "aa",
        "numerics": {"tp_size": "8"},
    }
    return Preflight(
        variant=variant,
        expect={},
        fingerprint=Fingerprint(engine="x", version="1", weights=weights, kv_cache=kv_cache, weights_digest=variant),
        capacity=Capacity(kv_tokens=10, kv_bytes_per_token=more.pop("held", 4.0)),
        probes=Probes(nats=more.pop("nats", 3.0)),
        inventory=Inventory(**{**inventory, **more}),
    )


REFERENCE = preflight("reference")


def of(rule: str, found: Any) -> list[Finding]:
    return [finding for finding in found if finding.rule == rule]


def one(rule: str, reference: Preflight, candidate: Preflight) -> Finding:
    [found] = of(rule, beside(reference, candidate))
    assert found.text.startswith("cheap: ")
    assert found.candidate == "cheap"
    return found


# ---- scales


def test_an_fp8_kv_cache_without_scales_is_said_with_the_engine_s_own_words() -> None:
    [found] = alone(preflight(kv_cache="fp8_e4m3", warnings=(FP8,)))
    assert (found.rule, found.level) == ("KV scales", Level.WARN)
    assert found.text == f"cheap: FP8 KV cache without scales, so all are 1.0; the engine says `{FP8}`"
    [found] = alone(replace(preflight(kv_cache="fp8_e4m3"), variant="reference"))
    assert found.candidate == "", "a fault of the reference concerns every candidate"


@pytest.mark.parametrize("source", ["checkpoint", "file"])
def test_scales_that_are_there_are_said(source: str) -> None:
    [found] = alone(preflight(kv_cache="fp8_e4m3", kv_scales=source, warnings=(FP8,)))
    assert found.level is Level.OK
    assert source in found.text


@pytest.mark.parametrize(("kv_cache", "scales"), [("bf16", "none"), ("fp8_e4m3", ""), ("", "none")])
def test_of_scales_nothing_is_said_where_none_are_due_or_nothing_is_told(kv_cache: str, scales: str) -> None:
    assert not list(alone(preflight(kv_cache=kv_cache, kv_scales=scales)))


# ---- capacity


@pytest.mark.parametrize(
    ("kv_cache", "held", "level", "said"),
    [
        (
            "fp8_e4m3",
            2.0,
            Level.OK,
            "2.00 times the reference's tokens in equal bytes of KV cache; 2.00 expected of fp8_e4m3",
        ),
        ("fp8_e4m3", 2.03, Level.OK, "1.97 times"),
        ("fp8_e4m3", 2.23, Level.WARN, "1.79 times"),
        ("fp8_e4m3", 4.0, Level.WARN, "1.00 times"),
        (
            "nvfp4",
            2.0,
            Level.WARN,
            "2.00 times the reference's tokens in equal bytes of KV cache; 3.56 expected of nvfp4",
        ),
        ("bf16", 4.0, Level.OK, "1.00 times"),
        ("bf16", 2.0, Level.WARN, "2.00 times"),
    ],
)
def test_the_capacity_ratio_is_that_of_the_formats(kv_cache: str, held: float, level: Level, said: str) -> None:
    """FP8 KV gave GLM-5.3-Flash 1.795 times (sglang #36830); vLLM on a CPU gave NVFP4 twice, and garbage."""
    found = one("KV capacity", REFERENCE, preflight(kv_cache=kv_cache, held=held))
    assert (found.level, found.text.removeprefix("cheap: ")[: len(said)]) == (level, said)
    assert ("scope.note" in found.text) == (level is Level.WARN)


def test_capacities_of_other_layouts_are_not_compared() -> None:
    found = one("KV capacity", REFERENCE, preflight(kv_cache="fp8_e4m3", numerics={"tp_size": "4"}))
    assert found.text == "cheap: tokens per byte of KV cache cannot be compared: tp_size differ"
    assert found.level is Level.WARN


@pytest.mark.parametrize("change", [{"kv_cache": ""}, {"kv_cache": "unheard_of"}, {"held": 0.0}, {"numerics": {}}])
def test_a_capacity_that_is_not_told_is_not_judged(change: Any) -> None:
    assert not of("KV capacity", beside(REFERENCE, preflight(**change)))


# ---- size


@pytest.mark.parametrize(
    ("weights", "size", "level"), [("int4", 60, Level.OK), ("int4", 100, Level.WARN), ("int4", 130, Level.WARN)]
)
def test_int4_is_smaller(weights: str, size: int, level: Level) -> None:
    found = one(
        "checkpoint size", preflight("reference", weights="fp8"), preflight(weights=weights, checkpoint_bytes=size)
    )
    assert found.level is level
    assert f"{size / 100:.2f} times the reference's size, int4 against fp8" in found.text


def test_weights_quantised_while_loading_have_the_reference_s_checkpoint() -> None:
    candidate = preflight(weights="fp8")
    same = replace(candidate, fingerprint=replace(candidate.fingerprint, weights_digest="reference"))
    assert one("checkpoint size", REFERENCE, same).level is Level.OK


@pytest.mark.parametrize("change", [{"weights": "bf16"}, {"weights": ""}, {"weights": "int4", "checkpoint_bytes": 0}])
def test_a_size_that_says_nothing_is_not_judged(change: Any) -> None:
    assert not of("checkpoint size", beside(REFERENCE, preflight(**change)))


# ---- flags, sampling defaults


def test_each_flag_that_moves_the_digits_and_differs_is_named() -> None:
    theirs = {"tp_size": "4", "quantization": "fp8", "attention_backend": "triton"}
    found = of("flags", beside(REFERENCE, preflight(numerics=theirs)))
    assert [finding.level for finding in found] == [Level.WARN, Level.WARN]
    assert [finding.text for finding in found] == [
        "cheap: attention_backend is triton, the reference's not set: it moves the digits too",
        "cheap: tp_size is 4, the reference's 8: it moves the digits too",
    ]


def test_equal_flags_are_said_once_and_untold_ones_not_at_all() -> None:
    assert one("flags", REFERENCE, preflight(numerics={"tp_size": "8", "dtype": "x"})).level is Level.OK
    assert not of("flags", beside(REFERENCE, preflight(numerics={})))


def test_another_generation_config_is_said() -> None:
    assert one("sampling defaults", REFERENCE, preflight(sampling_defaults="bb")).level is Level.WARN
    assert one("sampling defaults", REFERENCE, preflight(sampling_defaults="")).level is Level.WARN
    assert one("sampling defaults", REFERENCE, preflight()).level is Level.OK
    assert not of("sampling defaults", beside(REFERENCE, preflight(checkpoint_bytes=0)))


def test_an_engine_that_speaks_garbage_is_said() -> None:
    found = one("probes", REFERENCE, preflight(nats=3.0 + GARBAGE_NATS + 1))
    assert found.level is Level.WARN
    assert found.text.startswith("cheap: plain text is 4.0 nats per token less likely than to the reference")
    for nats in (3.0 + GARBAGE_NATS, 1.0, None):
        assert not of("probes", beside(REFERENCE, preflight(nats=nats)))


def test_the_rules_are_part_of_validity() -> None:
    names = {finding.rule for finding in compare(REFERENCE, preflight(kv_cache="fp8_e4m3"))}
    assert {"KV capacity", "flags", "sampling defaults"} <= names
    assert "KV scales" in {finding.rule for finding in expected(preflight(kv_cache="fp8_e4m3"))}


def test_an_engine_that_tells_nothing_adds_no_finding() -> None:
    bare = Preflight(
        variant="cheap",
        expect={},
        fingerprint=Fingerprint(engine="x", version="1", weights="bf16", kv_cache="fp8_e4m3"),
        capacity=Capacity(kv_tokens=1, kv_bytes_per_token=1.0),
    )
    assert not list(alone(bare))
    assert not list(beside(bare, bare))


# ---- what the run file itself says


def variant(name: str, **groups: Any) -> Variant:
    role = "reference" if name == "reference" else "candidate"
    return Variant(name=name, role=role, engine="x", weights="w", options=groups)


def test_options_that_differ_are_findings_one_each_and_formats_are_not() -> None:
    ours = variant("reference", numerics={"seed": 0, "eager": False}, parallel={"tp": 8}, weights_and_kv={"kv": "a"})
    theirs = variant("cheap", numerics={"seed": 0, "eager": True}, parallel={"tp": 4}, weights_and_kv={"kv": "b"})
    found = asked(ours, theirs)
    assert {(finding.rule, finding.level, finding.candidate) for finding in found} == {("options", Level.WARN, "cheap")}
    assert [finding.text for finding in found] == [
        "cheap: numerics.eager is True, the reference's False: it moves the digits too",
        "cheap: parallel.tp is 4, the reference's 8: it moves the digits too",
    ]


def test_options_without_such_groups_say_nothing() -> None:
    assert asked(variant("reference", threads=1), variant("cheap", threads=2)) == []
    assert asked(variant("reference", numerics={"a": 1}), variant("cheap")) == []


# ---- engaged


def test_probes_that_no_two_arms_share_prove_nothing() -> None:
    """A candidate is no other variant because nothing of it could be compared."""
    scored = replace(REFERENCE, probes=Probes(logprob_digests={"prose": "a"}, nats=3.0))
    [found] = of("engaged", compare(scored, preflight()))
    assert (found.level, found.candidate) == (Level.WARN, "cheap")
    assert found.text == "cheap: not provable that it is another variant: no probe was scored in both arms"
