"""From the names in a run file to objects. Nothing is started: a wrong name costs a second here, not an hour of GPU."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from evalrig import fetch
from evalrig.config.load import dump, options, tree, unfit
from evalrig.config.schema import RunConfig, VariantConfig
from evalrig.engine import Capabilities, Engine, Launch
from evalrig.errors import UsageError
from evalrig.gate import Gate
from evalrig.likeness import asked
from evalrig.plan import GatePlan, Plan, SuiteFacts, SuitePlan, choose, make_plan
from evalrig.plugins import find, make
from evalrig.runner import Runner
from evalrig.sandbox import Booth, Sandbox, probe
from evalrig.suite import Suite
from evalrig.types import AGAIN, REFERENCE, Sample, Variant

Role = Literal["reference", "candidate", "again"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """Everything a run needs, found and checked."""

    plan: Plan
    text: str
    """The resolved run file as it will be stored."""
    suites: Mapping[str, Suite]
    samples: Mapping[str, tuple[Sample, ...]]
    runner: Runner
    engine: Callable[[Variant, Path], Engine]
    """A fresh engine of a variant, with its log; not started."""
    output: Path
    booth: Booth | None = None
    """Where programs that the model wrote run; None: no suite has any, or nothing runs here. Close it."""

    @property
    def sandbox(self) -> str:
        """Back end and version that they run under; empty: none does."""
        return self.booth.label if self.booth else ""


def assemble(config: RunConfig, path: Path, say: Callable[[str], None], here: bool = True) -> Rig:
    """Find every kind, fetch what is missing, choose the samples, plan. `path` is the run file, for errors.

    `here`: the engines will be started on this machine, so their programs and checkpoints must be here.

    Raises:
        UsageError: something named in the run file is not there or cannot do what is asked.
    """
    try:
        return _assemble(config, say, here)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _assemble(config: RunConfig, say: Callable[[str], None], here: bool) -> Rig:
    kind = find("engines", config.engine.kind, Engine, "engine.kind")
    variants = _variants(config, kind)
    suites = {name: _suite(name, config) for name in config.suites}
    _gates_fit(config, suites)
    runner = find("runners", config.runner.kind, Runner, "runner.kind")
    for variant in variants:
        _variant_fits(variant, kind, suites, here)
        if variant.role == "candidate":
            for finding in asked(variants[0], variant):
                say(f"warning: {finding.text}")
    wanted = {card for suite in suites.values() for card in suite.content}
    wanted |= {card for variant in variants for card in kind.content(variant)}
    if absent := fetch.missing(sorted(wanted)):
        fetch.fetch(absent, None, say)
    samples = _chosen(suites, config)
    for variant in variants:
        _able(variant, kind, suites)  # again: what a suite needs can depend on its samples
    text = dump(config)
    facts = {name: _facts(config.suites[name].kind, suite, samples[name]) for name, suite in suites.items()}
    plan = make_plan(config, text, tree(config), variants, facts)
    plan = replace(plan, gates=tuple(_gate(gate, config, plan.suite(gate.suite)) for gate in plan.gates))

    def engine(variant: Variant, log: Path) -> Engine:
        launch = Launch(
            log=log,
            start_seconds=config.engine.start_seconds,
            request_seconds=config.engine.request_seconds,
            hang_seconds=config.engine.hang_seconds,
            restarts=config.engine.restarts,
            connections=4 * config.runner.concurrency,
            say=say,
        )
        return make(kind, variant, options(variant.options, kind.Options, _where(variant)), launch)

    return Rig(
        plan=plan,
        text=text,
        suites=suites,
        samples=samples,
        runner=make(runner, config.runner.engines, config.runner.concurrency),
        engine=engine,
        output=Path(config.output).expanduser(),
        booth=_equipped(config, suites, here),
    )


def _equipped(config: RunConfig, suites: Mapping[str, Suite], here: bool) -> Booth | None:
    """The sandbox that the run file names, proved by a program, for the suites that run programs. Never another one."""
    needing = [suite for suite in suites.values() if suite.runs_code]
    if not needing:
        return None
    kind = find("sandboxes", config.sandbox, Sandbox, "sandbox")
    if not here:
        return None
    sandbox = make(kind, config.unsandboxed)
    booth = Booth(sandbox, python=probe(sandbox))
    for suite in needing:
        suite.equip(booth)
    return booth


def _variants(config: RunConfig, kind: type[Engine]) -> list[Variant]:
    candidates = [_variant(name, "candidate", candidate, config, kind) for name, candidate in config.candidates.items()]
    reference = _variant(REFERENCE, "reference", config.reference, config, kind)
    return [reference, *candidates, _variant(AGAIN, "again", config.reference, config, kind)]


def _variant(name: str, role: Role, config: VariantConfig, run: RunConfig, kind: type[Engine]) -> Variant:
    where = _where_of(name, role)
    checked = options(_laid_over(run.engine.options, config.args), kind.Options, f"{where}.args")
    expect = {key: value for key, value in asdict(config.expect).items() if value}
    return Variant(
        name=name,
        role=role,
        engine=run.engine.kind,
        weights=config.weights or run.reference.weights,
        expect=expect,
        options=asdict(checked),
    )


def _variant_fits(variant: Variant, kind: type[Engine], suites: Mapping[str, Suite], here: bool) -> None:
    """What the variant names is there, and its engine can do what the suites need."""
    own = options(variant.options, kind.Options, _where(variant))
    kind.resolve(variant, own, _where(variant))  # first: a wrong option may be why the engine cannot
    _able(variant, kind, suites)
    if here:
        kind.reach(variant, own, _where(variant))


def _able(variant: Variant, kind: type[Engine], suites: Mapping[str, Suite]) -> None:
    """Its engine can do what the suites need."""
    able = kind.able(options(variant.options, kind.Options, _where(variant)))
    for name, suite in suites.items():
        _refuse_beyond(name, suite.needs(), able, variant.engine)
        if variant.role == "reference":
            _refuse_beyond(name, suite.rescoring(), able, variant.engine)


def _laid_over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A variant's `args` over the engine's options, group by group."""
    both = {key: _laid_over(base[key], own[key]) for key in base.keys() & own.keys() if _groups(base[key], own[key])}
    return {**base, **own, **both}


def _groups(*values: Any) -> bool:
    return all(isinstance(value, dict) for value in values)


def _where(variant: Variant) -> str:
    return _where_of(variant.name, variant.role)


def _where_of(name: str, role: Role) -> str:
    return f"candidates.{name}" if role == "candidate" else REFERENCE


def _suite(name: str, config: RunConfig) -> Suite:
    chosen = config.suites[name]
    kind = find("suites", chosen.kind, Suite, f"suites.{name}.kind")
    suite = make(kind, name, options(chosen.options, kind.Options, f"suites.{name}.options"))
    suite.seed = config.seed
    if suite.blocks and chosen.epochs != 1:
        raise UsageError(f"suites.{name}.epochs: {chosen.epochs}; load is repeated by rounds, set epochs to 1")
    most = max((metric.k for metric in suite.metrics), default=1)
    if most > chosen.epochs:
        raise UsageError(
            f"suites.{name}.options.pass_at: {most} needs epochs >= {most}; raise suites.{name}.epochs or lower pass_at"
        )
    return suite


def _gates_fit(config: RunConfig, suites: Mapping[str, Suite]) -> None:
    """Every gate finds the metric it judges."""
    for name, gate in config.gates.items():
        kind = find("gates", gate.kind, Gate, f"gates.{name}.kind")
        if gate.suite not in suites:
            continue
        metrics = {metric.name: metric for metric in suites[gate.suite].metrics}
        if not gate.metric and kind.accepts(None):
            continue
        if (
            gate.metric in {metric.name for metric in type(suites[gate.suite]).metrics} - metrics.keys()
            and not gate.gating
        ):
            continue  # with its options the suite has not this metric; the plan names the gate as unused
        fitting = [m for m, metric in metrics.items() if kind.accepts(metric)]
        if gate.metric not in fitting:
            known = (
                f"of {gate.suite}: {', '.join(fitting)}" if fitting else f"no metric of {gate.suite} fits `{gate.kind}`"
            )
            raise UsageError(f"gates.{name}.metric: no metric {gate.metric!r}; {known}")
        if metrics[gate.metric].kind == "binary" and gate.margin >= 1:
            raise UsageError(f"gates.{name}.margin: {gate.margin} of a share is everything; 0.05 means five points")


def _gate(plan: GatePlan, config: RunConfig, suite: SuitePlan) -> GatePlan:
    """With its options filled in. Made once here: options out of range must not wait for the verdict."""
    kind = find("gates", plan.kind, Gate, f"gates.{plan.name}.kind")
    checked = options(config.gates[plan.name].options, kind.Options, f"gates.{plan.name}.options")
    if why := kind.unfit(checked, suite):
        raise UsageError(f"gates.{plan.name}: {why}")
    plan = replace(plan, margin=kind.margin_of(plan, checked))
    make(kind, plan, checked)
    return replace(plan, options=asdict(checked))


def _refuse_beyond(name: str, needs: Capabilities, has: Capabilities, engine: str) -> None:
    """A suite that needs more than the engine can do is refused before anything starts."""
    lacks = [
        words
        for short, words in (
            (needs.prompt_logprobs and not has.prompt_logprobs, "logprobs of given tokens"),
            (
                has.top_logprobs != -1 and not 0 <= needs.top_logprobs <= has.top_logprobs,
                f"top-{needs.top_logprobs} lists",
            ),
            (needs.seed and not has.seed, "seeded sampling"),
            (needs.chat and not has.chat, "chat"),
            (needs.tools and not has.tools, "tool calls"),
            (needs.cached_prefix and not has.cached_prefix, "scoring over a cached prefix"),
            (needs.tool_prompts and not has.tool_prompts, "token ids of conversations with tools"),
            (needs.load and not has.load, "a route for load"),
            (needs.primed and not has.primed, "prompts from its prefix cache (workload: decode)"),
            (
                has.decode_logprobs != -1 and not 0 <= needs.decode_logprobs <= has.decode_logprobs,
                f"top-{needs.decode_logprobs} lists of generated tokens",
            ),
        )
        if short
    ]
    if lacks:
        raise UsageError(
            f"suites.{name}: engine `{engine}` cannot give {', '.join(lacks)}; leave the suite out or change the engine"
        )


def _chosen(suites: Mapping[str, Suite], config: RunConfig) -> dict[str, tuple[Sample, ...]]:
    """The samples of each suite; suites that borrow come after those that lend."""
    chosen = {name: _samples(name, suite.samples(), config) for name, suite in suites.items() if not suite.sources}
    lenders = dict(chosen)
    for name, suite in suites.items():
        if strange := [source for source in suite.sources if source not in lenders]:
            known = ", ".join(lenders) or "none"
            raise UsageError(f"suites.{name}.options.suites: no suite {strange[0]!r} here that lends; known: {known}")
        if suite.sources:
            lent = {source: suites[source].lend(lenders[source]) for source in suite.sources}
            graders = {source: grader for source in lent if (grader := suites[source].grader())}
            chosen[name] = _samples(name, suite.draw(lent, graders), config)
    for name, suite in suites.items():
        suite.settle(chosen[name])
    return {name: chosen[name] for name in suites}


def _samples(name: str, samples: list[Sample], config: RunConfig) -> tuple[Sample, ...]:
    limit = config.suites[name].samples
    if not samples:
        raise UsageError(f"suites.{name}: no samples; nothing measured is not a pass")
    if limit is not None and limit > len(samples):
        raise UsageError(f"suites.{name}.samples: {limit} asked, {len(samples)} are there; lower it")
    if len({sample.id for sample in samples}) < len(samples):
        raise UsageError(f"suites.{name}: sample ids repeat; each sample needs its own")
    for sample in samples:
        if why := unfit(sample.id):
            raise UsageError(f"suites.{name}: sample id {sample.id!r}; {why}")
    return tuple(choose(samples, limit, config.seed, name))


def _facts(kind: str, suite: Suite, samples: tuple[Sample, ...]) -> SuiteFacts:
    return SuiteFacts(
        kind=kind,
        family=suite.family,
        metrics=suite.metrics,
        traced=suite.traced,
        samples=samples,
        chat=suite.needs().chat,
        rescored=suite.rescored,
        failures=suite.failures,
    )
