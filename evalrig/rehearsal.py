"""The same run file in small: every variant, suite and gate on the embedded engine, with few samples. Pure.

What a rehearsal proves is the run file and the way through it: data, graders, options, gates, report. It says nothing
about the engine or the checkpoints that it stands in for.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from evalrig.assemble import Rig
from evalrig.config.load import unfit
from evalrig.config.schema import EngineConfig, ExpectConfig, RunConfig, SuiteConfig, VariantConfig
from evalrig.engine import Engine
from evalrig.errors import UsageError
from evalrig.plugins import find
from evalrig.suite import Suite
from evalrig.types import REFERENCE, Variant

ENGINE: Final = "refengine"
ENGINES: Final = 2
"""Engine processes side by side, at most."""
EPOCHS: Final = 2
"""The second one shows that repetitions work."""
WEIGHTS: Final[Mapping[int, str]] = {4: "int4", 8: "fp8", 16: "bf16", 32: "f32"}
KV_CACHE: Final[Mapping[int, str]] = {8: "fp8_e4m3", 16: "bf16", 32: "f32"}
"""What refengine holds weights and KV cache in, by bits."""
SAME: Final[Mapping[str, str]] = {"": "bf16", "auto": "bf16", "bfloat16": "bf16", "float32": "f32"}
"""Other words for a format, or for none."""
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "weights": ("quantize", "quantization", "requantize"),
    "kv_cache": ("kv_cache", "kv_cache_dtype", "cache_type_k"),
}
"""Options of the engine kinds that name a format, where `expect` does not."""
OTHER: Final[Mapping[str, str]] = {
    **{"f32": "bf16", "bf16": "fp8", "fp8": "int4", "int4": "int4-asym", "int4-asym": "int4"},
}
"""Another format for the weights of a candidate whose difference refengine does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """What a stand-in's weights and KV cache are held in."""

    weights: str
    kv_cache: str


def rehearsed(config: RunConfig, rig: Rig, path: Path) -> RunConfig:
    """The run file of the rehearsal; `rig` is the run's own, as `show` finds it. What was replaced is listed in it.

    Raises:
        UsageError: it is a rehearsal already, its name has no room for the ending, or there is no such stand-in.
    """
    if config.rehearsal.replaced:
        raise UsageError(f"{path}: is the run file of a rehearsal; give the one that it was made from")
    name = f"{config.name}-rehearsal"
    if why := unfit(name):
        raise UsageError(f"{path}: name: no room for the ending `-rehearsal`; {why}")
    small, lines = _on_refengine(config, rig) if config.engine.kind != ENGINE else (config, list[str]())
    suites: dict[str, SuiteConfig] = {}
    for key, suite in rig.suites.items():
        suites[key], line = _cut(config, key, suite, len(rig.plan.suite(key).samples))
        lines.append(line)
    runner = replace(config.runner, kind="local", engines=min(config.runner.engines, ENGINES))
    if runner != config.runner:
        lines.append(f"runner: local, {runner.engines} engines side by side at most")
    return replace(small, name=name, suites=suites, runner=runner, rehearsal=replace(config.rehearsal, replaced=lines))


def _cut(config: RunConfig, name: str, suite: Suite, whole: int) -> tuple[SuiteConfig, str]:
    """A suite with few samples and short answers; every other option as it is."""
    own = config.suites[name]
    samples, drawn = min(config.rehearsal.samples, whole), max((metric.k for metric in suite.metrics), default=1)
    samples = 1 if suite.blocks else samples  # every round is a block of each variant
    epochs = min(own.epochs, max(EPOCHS, drawn))
    briefly = {key: _at_most(getattr(suite.options, key), most) for key, most in suite.brief.items()}
    shorter = {key: short for key, short in briefly.items() if short != getattr(suite.options, key)}
    words = [f"{samples} of {whole} samples", *(f"{key} {most}" for key, most in shorter.items())]
    if epochs < own.epochs:
        words.append(f"{epochs} of {own.epochs} epochs")
    cut = replace(own, samples=samples, epochs=epochs, options={**own.options, **shorter})
    return cut, f"suites.{name}: {', '.join(words)}"


def _at_most(value: Any, most: int) -> Any:
    """A number, or each in a list."""
    return sorted({min(each, most) for each in value}) if isinstance(value, list) else min(value, most)


def _on_refengine(config: RunConfig, rig: Rig) -> tuple[RunConfig, list[str]]:
    """All variants on the embedded engine, in the formats they claim or the nearest that it has."""
    groups = f"; not exercised: its options ({', '.join(config.engine.options)})" if config.engine.options else ""
    lines = [
        f"engine: {ENGINE} in place of {config.engine.kind}{groups}",
        f"weights: {config.rehearsal.weights} for every variant; no checkpoint of the run file is opened",
    ]
    kind = find("engines", ENGINE, Engine, "engine.kind")
    model = Variant(name=REFERENCE, role="reference", engine=ENGINE, weights=config.rehearsal.weights)
    kind.resolve(model, kind.Options(), "rehearsal")
    variants = {variant.name: variant for variant in rig.plan.variants}
    formats = {name: _formats(variant, lines) for name, variant in variants.items() if variant.role != "again"}
    for name in rig.plan.candidates:
        if formats[name] == formats[REFERENCE]:
            other = OTHER[formats[name].weights]
            formats[name] = replace(formats[name], weights=other)
            lines.append(
                f"candidates.{name}: the reference's formats in {ENGINE}; weights in {other}, to have a difference"
            )
    stand_ins = {name: _stand_in(variants[name], found, config) for name, found in formats.items()}
    cached = any(
        needs.cached_prefix or needs.primed for needs in (suite.needs() for suite in rig.suites.values())
    )  # off by default
    options = {"prefix_cache": True} if cached else dict[str, Any]()
    small = replace(
        config,
        engine=EngineConfig(kind=ENGINE, request_seconds=config.engine.request_seconds, options=options),
        reference=stand_ins[REFERENCE],
        candidates={name: stand_ins[name] for name in rig.plan.candidates},
    )
    return small, lines


def _stand_in(variant: Variant, formats: Formats, config: RunConfig) -> VariantConfig:
    """What was expected of the variant is expected of its stand-in, in the stand-in's own words."""
    expected = {key: getattr(formats, key) for key in variant.expect}
    return VariantConfig(
        weights=config.rehearsal.weights,
        expect=ExpectConfig(**expected),
        args={"quantize": formats.weights, "kv_cache": formats.kv_cache},
    )


def _formats(variant: Variant, lines: list[str]) -> Formats:
    """What the variant claims to be, translated; each claim that has no equal is said."""
    where = REFERENCE if variant.role == "reference" else f"candidates.{variant.name}"
    found: dict[str, str] = {}
    for key, held in (("weights", WEIGHTS), ("kv_cache", KV_CACHE)):
        said = variant.expect.get(key) or _named(variant.options, KEYS[key])
        found[key] = nearest(said, held)
        if found[key] != SAME.get(said, said):
            lines.append(f"{where}: {key} in {found[key]}, the nearest that {ENGINE} has to {said}")
    return Formats(**found)


def nearest(said: str, held: Mapping[int, str]) -> str:
    """The format with as many bits, or the next more: the first number in a format's name is its bits (`nvfp4`, `q8_0`)."""
    said = SAME.get(said, said)
    if said in held.values() or (said in OTHER and held is WEIGHTS):
        return said
    digits = re.search(r"\d+", said)
    bits = int(digits[0]) if digits else 16
    return held[min((width for width in held if width >= bits), default=max(held))]


def _named(options: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """The first of the keys that says something, in whichever group it stands."""
    for key in keys:
        if isinstance(said := options.get(key), str) and said:
            return said
    groups = (group for group in options.values() if isinstance(group, Mapping))
    return next(filter(None, (_named(group, keys) for group in groups)), "")
