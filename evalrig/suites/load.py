"""Serving load: every variant runs the same schedule, one after the other; speed, latency and cost round by round."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal, cast
from weakref import WeakKeyDictionary

import msgspec

from evalrig.content import content_dir
from evalrig.conversations import read as read_conversations
from evalrig.dialect import Dialect
from evalrig.engine import Capabilities, Engine
from evalrig.errors import ClientError, UsageError
from evalrig.forced_steps import Stage, stages, walked
from evalrig.loaded import cached_share, expected, failed, loaded, told, void
from evalrig.loadgen.block import Block
from evalrig.loadgen.draw import Ids, framed
from evalrig.loadgen.schedule import Schedule
from evalrig.loadgen.served import Served
from evalrig.loadgen.target import Serving
from evalrig.loadgen.trace import Row
from evalrig.loadgen.trace import read as read_trace
from evalrig.loadgen.workloads import COLD, MAKERS, Stock, Wish, asks
from evalrig.plugins import find, kinds, make
from evalrig.suite import Attempt, LoadAttempt, Suite
from evalrig.types import Metric, Sample, State, Trace, Trajectory
from evalrig.world import World

HORIZON: Final = 10
"""Calls of the errands that conversations are made of, where the run file names none."""
ERRANDS: Final = 2
"""Of each world."""


PRESETS: Final[Mapping[str, tuple[float, float]]] = {
    "llama2-70b": (2.0, 0.2),
    "llama2-70b-interactive": (0.45, 0.04),
    "llama3.1-405b": (6.0, 0.175),
    "llama3.1-405b-interactive": (4.5, 0.08),
    "llama3.1-8b": (2.0, 0.1),
    "llama3.1-8b-interactive": (0.5, 0.03),
    "deepseek-r1": (2.0, 0.08),
    "deepseek-r1-interactive": (1.5, 0.015),
    "mixtral-8x7b": (2.0, 0.2),
}
"""MLPerf's limits of its server scenario by model, (TTFT, TPOT) in seconds; there they hold for the 99th percentile."""


def _ratio(name: str, units: str, less: bool = False) -> Metric:
    return Metric(name=name, kind="ratio", units=units, less=less)


THROUGHPUT = (
    _ratio("output_tokens_per_second", "tokens/s"),
    _ratio("total_tokens_per_second", "tokens/s"),
    _ratio("prompt_tokens_per_second", "tokens/s"),
    _ratio("requests_per_second", "requests/s"),
)
FIRST = tuple(_ratio(name, "s", less=True) for name in ("ttft_p50", "ttft_p99", "ttft_sent_p50", "e2e_p50", "e2e_p99"))
LATER = (
    *(_ratio(name, "s", less=True) for name in ("tpot_p50", "tpot_p99", "itl_p50", "itl_p99")),
    _ratio("tokens_per_user", "tokens/s"),
    _ratio("tokens_per_gpu", "tokens/s"),
)
GOODPUT = _ratio("goodput", "requests/s")
COST_OUT = _ratio("usd_per_million_output", "USD", less=True)
COST_IN = _ratio("usd_per_million_input", "USD", less=True)


@dataclass(kw_only=True)
class Shape:
    """What prompts are like."""

    spread: float = 0.8
    """Of `lengths`: standard deviation of the logarithm of both lengths."""
    shared: float = 0.75
    """Of `shared_prefix`: the share of a prompt that its group has in common."""
    groups: int = 4
    """Of `shared_prefix`: how many beginnings there are."""
    path: str = ""
    """Of `trace`: JSONL in Mooncake's form. Of `conversations`: JSONL of recorded ones; default: errands of the tool worlds."""
    salt: bool = True
    """Prompts that no round had before, and an emptied prefix cache; false: every round sends the same prompts."""


@dataclass(kw_only=True)
class Pace:
    """How fast requests come, and how often it is measured."""

    loop: str = "closed"
    """`closed`: lanes that ask again when they were answered; `open`: at `rate` a second, however late the answers are."""
    rate: float = 0.0
    """Of an open loop; of a trace, 0: its own pace."""
    arrivals: str = "poisson"
    """Or `constant`."""
    think_seconds: float = 0.0
    """Mean pause between the turns of a conversation."""
    rounds: int = 8
    """How often every variant runs a block."""
    warm_up: int = 1
    """Requests (closed loop: a lane) that are sent before a block and not counted."""


@dataclass(kw_only=True)
class Limits:
    """The SLO: what a request must keep, in seconds; 0: no limit."""

    preset: str = ""
    """A model of MLPerf's server scenario (docs/load.md); limits that are written beside it replace its own."""
    ttft: float = 0.0
    tpot: float = 0.0
    e2e: float = 0.0
    attainment: float = 0.99
    """Share of requests that must; the most load at which so many do is the SLO point."""

    def seconds(self) -> dict[str, float]:
        """The limits that there are."""
        named = {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}
        preset = PRESETS.get(self.preset, (0.0, 0.0))
        known = {"ttft": preset[0], "tpot": preset[1]} | {name: limit for name, limit in named.items() if limit}
        return {name: limit for name, limit in known.items() if limit}


@dataclass(kw_only=True)
class LoadOptions:
    """Keys of `suites.<name>.options`."""

    workload: str = "random"
    """`random`, `prefill`, `decode`, `lengths`, `shared_prefix`, `conversations` or `trace`."""
    requests: int = 8
    """Of a block in an open loop; of each lane in a closed one."""
    input_tokens: int = 512
    """Of a prompt; of `lengths` the mean; of conversations and traces the most: longer prompts are cut there."""
    output_tokens: int = 128
    """As `input_tokens`, of an answer."""
    concurrency: list[int] = field(default_factory=lambda: [8])
    """Lanes of a closed loop; of several, each is a block of its own in every round."""
    shape: Shape = field(default_factory=Shape)
    pace: Pace = field(default_factory=Pace)
    slo: Limits = field(default_factory=Limits)
    price_per_gpu_hour: float = 0.0
    """USD; 0: costs are not told."""


class Load(Suite):
    """Rounds of load."""

    Options = LoadOptions
    family = "serving load"
    metrics: tuple[Metric, ...] = (*THROUGHPUT, *FIRST, *LATER, GOODPUT, COST_OUT, COST_IN)
    blocks = True
    brief: ClassVar[Mapping[str, int]] = {"requests": 2, "input_tokens": 256, "output_tokens": 8, "concurrency": 2}

    def __init__(self, name: str, options: LoadOptions) -> None:
        super().__init__(name, options)
        self.options: LoadOptions = options
        _refuse_unfit(f"suites.{name}.options", options)
        prefill = options.workload == "prefill"
        cost = () if not options.price_per_gpu_hour else (COST_IN,) if prefill else (COST_OUT,)
        slo = (GOODPUT,) if options.slo.seconds() else ()
        self.metrics = (*THROUGHPUT, *FIRST, *(() if prefill else LATER), *slo, *cost)
        self.rows: tuple[Row, ...] = ()
        self.recorded: tuple[tuple[Stage, ...], ...] = ()
        self._stocks: WeakKeyDictionary[Engine, Stock] = WeakKeyDictionary()

    def needs(self) -> Capabilities:
        """An engine that the load client can reach, and that keeps the prompts where they are sent beforehand."""
        return Capabilities(load=True, primed=self.options.workload == "decode")

    def samples(self) -> list[Sample]:
        """A round is a sample; with several concurrencies, a round at each."""
        where, options = f"suites.{self.name}.options", self.options
        source = self._read(where) if options.workload in ("trace", "conversations") else ""
        lanes = options.concurrency if options.pace.loop == "closed" else [0]
        wish = msgspec.json.encode(asdict(options)).decode()
        return [
            Sample(
                id=f"c{count:02d}-round-{number:02d}" if len(lanes) > 1 else f"round-{number:02d}",
                prompt=wish,
                target=source,
                cluster=f"round-{number:02d}",
                tags=(options.workload, f"concurrency-{count}" if count else "open"),
            )
            for number in range(1, options.pace.rounds + 1)
            for count in lanes
        ]

    def _read(self, where: str) -> str:
        """Take in what prompts are made of, and return a digest of it."""
        options, path = self.options, Path(self.options.shape.path).expanduser()
        if options.workload == "trace":
            self.rows = read_trace(path, f"{where}.shape.path")
            if len(self.rows) < options.requests:
                few = f"{options.requests} asked, {path} has {len(self.rows)}"
                raise UsageError(f"{where}.requests: {few}; lower it")
            words: object = self.rows[: options.requests]
        elif options.shape.path:
            found = read_conversations(path, f"{where}.shape.path")
            self.recorded, words = tuple(one.stages for one in found), found
        else:
            self.recorded = _errands(f"{where}.workload")
            words = self.recorded
        return f"sha256 {hashlib.sha256(msgspec.json.encode(words)).hexdigest()}"

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """One block. A void one is missing in both arms; one in which the engine failed, in its own."""
        try:
            return await self._attempt(engine, sample)
        except ClientError as error:
            return Attempt(trajectory=Trajectory(error=str(error)), state=State.UNSCORED)

    async def _attempt(self, engine: Engine, sample: Sample) -> Attempt:
        serving, cold = await engine.serving(), self.options.shape.salt
        schedule = await self.schedule(engine, serving, sample)
        rate = expected(schedule)
        if self.options.pace.warm_up:
            short = await self.schedule(engine, serving, sample, self.options.pace.warm_up)
            first = await loaded(engine, serving, short, cold=False)
            warm = _parsed(first)
            if why := failed(first, warm):
                if first.health.void:
                    said = Trajectory(error=f"warm-up: {'; '.join(first.health.void)}")
                    return Attempt(trajectory=said, state=State.UNSCORED)
                return Attempt(
                    trajectory=Trajectory(error=f"warm-up: {why}"),
                    state=State.INFRA,
                    scores=self._counted(0, len(schedule.conversations())),  # the block's own requests: none was served
                )
            rate = expected(schedule, warm)
        block = await loaded(engine, serving, schedule, cold, rate)
        served = _parsed(block)
        why = "" if block.health.void else failed(block, served)  # a client in doubt is no witness against the engine
        reasons = void(block, served, schedule, serving, cold and self.options.workload in COLD)
        state = State.INFRA if why else State.UNSCORED if reasons else State.SCORED
        scores = self._scores(served, schedule, serving.gpus) | told(block) if state is State.SCORED else {}
        if state is State.INFRA:
            scores = self._kept(served)
        return LoadAttempt(
            trajectory=Trajectory(error=why or "; ".join(reasons)),
            scores={name: value for name, value in scores.items() if math.isfinite(value)},
            state=state,
            prompt_sha256=schedule.sha256,
            block=block,
            served=served,
        )

    async def schedule(self, engine: Engine, serving: Serving, sample: Sample, warm_up: int = 0) -> Schedule:
        """What a round sends; `warm_up`: so many requests (a lane) of the same kind, and others than the round's."""
        options, pace = self.options, self.options.pace
        open_ = pace.loop == "open"
        lanes = 0 if open_ else _lanes(sample)
        count = (warm_up or options.requests) * max(lanes, 1)
        wish = Wish(
            workload=options.workload,
            count=min(count, len(self.rows)) if self.rows else count,
            input_tokens=options.input_tokens,
            output_tokens=options.output_tokens,
            spread=options.shape.spread,
            shared=options.shape.shared,
            groups=options.shape.groups,
            rate=pace.rate if open_ else 0.0,
            pace=(cast(Literal["poisson", "constant"], pace.arrivals), pace.think_seconds),
        )
        if engine not in self._stocks:
            self._stocks[engine] = await self._stock(engine)
        where = f"{self.seed}/{self.name}/{sample.id}{'~warm-up' if warm_up else ''}"
        drawn = asks(wish, self._stocks[engine], where, options.shape.salt or bool(warm_up))
        return framed(drawn, serving.body, "open" if open_ else "closed", lanes)

    async def _stock(self, engine: Engine) -> Stock:
        """Made by every engine itself: that both arms' tokens are the same is proved by the digest of what was sent."""
        dialect = Dialect("text")
        histories = [
            tuple([await engine.tokenize(dialect.shown(stage.messages, stage.tools)) for stage in conversation])
            for conversation in self.recorded
        ]
        return Stock(pool=await _pool(engine), histories=tuple(histories), rows=self.rows)

    def _kept(self, served: Served) -> dict[str, float]:
        """How many requests kept the SLO: all that a failed block tells."""
        from evalrig.analysis import serving

        slo = self.options.slo.seconds()
        kept = serving.within(served, serving.Slo(**slo)) if slo else None
        return {} if kept is None else self._counted(int(kept.sum()), len(kept))

    def _counted(self, within: int, of: int) -> dict[str, float]:
        """Requests within the SLO; empty: there is none."""
        if not self.options.slo.seconds():
            return {}
        return {"slo_ok": float(within), "slo_n": float(of), "slo_asked": self.options.slo.attainment}

    def _scores(self, served: Served, schedule: Schedule, gpus: int) -> dict[str, float]:
        from evalrig.analysis import serving, windows

        slo = self.options.slo.seconds()
        window = None  # the concurrency rule
        if self.options.pace.loop == "open":
            window = windows.arriving(served.requests)
        elif self.options.workload == "decode" and self.options.requests == 1:
            window = windows.one_batch(served)
        elif self.options.pace.think_seconds:
            window = windows.conversing(served.requests, schedule.conversations())
        scores = serving.metrics_of(served, serving.Slo(**slo) if slo else None, gpus, window)
        if slo:
            scores["slo_asked"] = self.options.slo.attainment
        if (share := cached_share(served)) is not None:
            scores["cached_share"] = share
        costs = serving.dollars(scores, self.options.price_per_gpu_hour, gpus)
        return scores | {metric.name: costs[metric.name] for metric in self.metrics if metric.name in costs}


def _refuse_unfit(where: str, options: LoadOptions) -> None:
    """Bad options.

    Raises:
        UsageError: the first of them.
    """
    pace, shape, trace = options.pace, options.shape, options.workload == "trace"
    closed = pace.loop == "closed"
    for fits, key, words in (
        (options.workload in MAKERS, "workload", f"no {options.workload!r}; known: {', '.join(MAKERS)}"),
        (pace.loop in ("open", "closed"), "pace.loop", f"no {pace.loop!r}; known: open, closed"),
        (pace.arrivals in ("poisson", "constant"), "pace.arrivals", f"no {pace.arrivals!r}; known: poisson, constant"),
        (options.requests >= 1, "requests", "at least 1"),
        (options.input_tokens >= 2, "input_tokens", "at least 2"),
        (options.output_tokens >= 1, "output_tokens", "at least 1"),
        (pace.rounds >= 1, "pace.rounds", "at least 1"),
        (pace.warm_up >= 0 and pace.think_seconds >= 0, "pace", "warm_up and think_seconds are at least 0"),
        (not closed or min(options.concurrency, default=0) >= 1, "concurrency", "name at least one, none below 1"),
        (len(set(options.concurrency)) == len(options.concurrency), "concurrency", "one stands there twice"),
        (not closed or not pace.rate, "pace.rate", "a closed loop has no rate; leave it out, or take `loop: open`"),
        (closed or pace.rate > 0 or trace, "pace.rate", "an open loop needs requests a second; give a rate"),
        (not (trace and closed), "pace.loop", "a trace tells when its requests come; take `loop: open`"),
        (not trace or shape.path, "shape.path", "a trace is read from a file; give a JSONL file in Mooncake's form"),
        (
            not shape.path or options.workload in ("trace", "conversations"),
            "shape.path",
            "only traces and conversations are read",
        ),
        (0 <= shape.spread <= 2, "shape.spread", f"{shape.spread}; 0 to 2"),
        (0 < shape.shared < 1 and shape.groups >= 1, "shape", "shared is between 0 and 1, groups at least 1"),
        (min(options.slo.seconds().values(), default=0) >= 0, "slo", "limits are seconds, at least 0"),
        (options.slo.preset in ("", *PRESETS), "slo.preset", f"no {options.slo.preset!r}; known: {', '.join(PRESETS)}"),
        (0 < options.slo.attainment < 1, "slo.attainment", "a share of requests, above 0 and below 1: 0.99"),
        (options.price_per_gpu_hour >= 0, "price_per_gpu_hour", "at least 0"),
    ):
        if not fits:
            raise UsageError(f"{where}.{key}: {words}")


def _errands(where: str) -> tuple[tuple[Stage, ...], ...]:
    """The shortest ways of a few errands of every tool world, turn by turn."""
    found: list[tuple[Stage, ...]] = []
    for kind in kinds("worlds"):
        world = make(find("worlds", kind, World, where))
        found += [tuple(stages(walked(world, errand), errand.tools)) for errand in world.errands(HORIZON, ERRANDS, 0)]
    return tuple(found)


async def _pool(engine: Engine) -> Ids:
    """Token ids of this project's own prompts, without the mark that a tokenizer puts in front."""
    lines = (content_dir("suites") / "kl" / "prompts.jsonl").read_bytes().splitlines()
    words = "\n".join(msgspec.json.decode(line)["messages"][0]["content"] for line in lines)
    ids, one = await engine.tokenize(words), await engine.tokenize("lamp")
    return ids[1:] if len(one) > 1 and ids[0] == one[0] else ids


def _lanes(sample: Sample) -> int:
    return int(sample.tags[1].removeprefix("concurrency-"))


def _parsed(block: Block) -> Served:
    from evalrig.loadgen.events import parse

    return parse(block)
