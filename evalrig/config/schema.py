"""The keys a run file may hold. Closed: a key that is not here is an error.

Mutable because Hydra composes into them (frozen nodes are read-only while composing); nothing changes one afterwards.
"""

from dataclasses import dataclass, field
from typing import Any

REQUIRED: Any = "???"  # OmegaConf's MISSING, spelled out so that this module imports nothing


@dataclass(kw_only=True)
class EngineConfig:
    """What all variants have in common: the engine."""

    kind: str = REQUIRED
    """A file on the shelf `evalrig/engines/`, or a dotted module of your own."""
    start_seconds: float = 600.0
    """Deadline for readiness."""
    request_seconds: float = 600.0
    """Deadline for one call."""
    hang_seconds: float | None = None
    """An engine with calls in flight that neither answers one nor is seen at work for so long is ended as hung.
    Default: 1.5 `request_seconds` where its log shows it at work (SGLang, vLLM), else 3.5: longer than all tries of a call."""
    restarts: int = 1
    """How often a variant's engine is started again after a crash or a hang; the next one ends that variant."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """The engine kind's own options; a variant's `args` are laid over them."""


@dataclass(kw_only=True)
class ExpectConfig:
    """What the engine must say it is, or the variant is INVALID. Empty: not asked."""

    weights: str = ""
    kv_cache: str = ""


@dataclass(kw_only=True)
class VariantConfig:
    """The reference, or a candidate."""

    weights: str = ""
    """A path, or the name of a fetched model (`evalrig list`). A candidate's default: the reference's."""
    expect: ExpectConfig = field(default_factory=ExpectConfig)
    args: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(kw_only=True)
class SuiteConfig:
    """One suite of the run."""

    kind: str = REQUIRED
    samples: int | None = None
    """How many, drawn with the run's seed; default: all."""
    epochs: int = 1
    again: float = 1 / 3
    """Share of the samples that `reference_again` repeats, for A/A."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(kw_only=True)
class GateConfig:
    """One rule of the policy."""

    kind: str = REQUIRED
    suite: str = REQUIRED
    metric: str = ""
    margin: float = REQUIRED
    """Largest tolerated loss, in the metric's units."""
    gating: bool = True
    """False: shown, never changes a verdict."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(kw_only=True)
class ScopeConfig:
    """What the verdict speaks for; printed with it."""

    model: str = ""
    """The model family."""
    max_context: int = 0
    """The product's longest context, in tokens: what was not measured up to there is said."""
    note: str = ""


@dataclass(kw_only=True)
class RunnerConfig:
    """Where and how the work is done."""

    kind: str = "local"
    engines: int = 1
    """Engine processes that fit side by side."""
    concurrency: int = 8
    """Attempts in flight per engine process."""


@dataclass(kw_only=True)
class RehearsalConfig:
    """What `evalrig rehearse` makes of this file; a run does not look at it."""

    weights: str = "smollm2-135m-instruct"
    """What every variant stands on, where another engine than refengine is replaced by it."""
    samples: int = 4
    """Of each suite, at most."""
    replaced: list[str] = field(default_factory=list[str])
    """Written by `evalrig rehearse`. Not empty: this is a rehearsal, and ends without a verdict."""


@dataclass(kw_only=True)
class RunConfig:
    """A run file. Wider than other classes: it is the table of contents of everything else."""

    name: str = REQUIRED
    question: str = REQUIRED
    """What the reviewer is asked to sign."""
    seed: int = 0
    alpha: float = 0.05
    """One-sided."""
    output: str = "runs"
    sandbox: str = "bwrap"
    """What keeps the model's programs in: `bwrap`, `landlock` (weaker), or `none` together with `unsandboxed`."""
    unsandboxed: bool = False
    """The second key without which `sandbox: none` is refused: the model's programs then run as you, with all you may do."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    reference: VariantConfig = field(default_factory=VariantConfig)
    candidates: dict[str, VariantConfig] = field(default_factory=dict[str, VariantConfig])
    suites: dict[str, SuiteConfig] = field(default_factory=dict[str, SuiteConfig])
    gates: dict[str, GateConfig] = field(default_factory=dict[str, GateConfig])
    scope: ScopeConfig = field(default_factory=ScopeConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    rehearsal: RehearsalConfig = field(default_factory=RehearsalConfig)
