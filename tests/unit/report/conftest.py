"""Fabricated runs: a whole run folder from numbers drawn here, so that the report is tested without an engine."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from evalrig.plan import Cell, GatePlan, Header, Plan, SuitePlan, sample_digest
from evalrig.proof import Preflight, Probes
from evalrig.records import AUDIT, ROWS, RunFolder
from evalrig.types import (
    AGAIN,
    REFERENCE,
    Capacity,
    Completion,
    Fingerprint,
    Message,
    Metric,
    Provenance,
    Record,
    Sample,
    State,
    Trace,
    Trajectory,
    Variant,
)

TEXT = "name: made-up\nquestion: May it be released?\n"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """How a made-up candidate differs from the reference."""

    noise: float = 0.05
    """Standard deviation added to every logit: about its square halved is the KL."""
    losses: int = 2
    gains: int = 3
    lead: float = 0.0
    weights: str = "bf16"
    kv_cache: str = "bf16"
    capacity: Capacity = field(
        default_factory=lambda: Capacity(kv_tokens=14560, kv_bytes_per_token=23040.0, weight_bytes=269_000_000)
    )


EFFECTS: Mapping[str, Effect] = {
    "fp8kv": Effect(
        noise=0.11,
        kv_cache="fp8_e4m3",
        capacity=Capacity(kv_tokens=29120, kv_bytes_per_token=11520.0, weight_bytes=269_000_000),
    ),
    "int4": Effect(
        noise=0.9,
        losses=14,
        gains=16,
        lead=-0.69,
        weights="int4",
        capacity=Capacity(kv_tokens=14560, kv_bytes_per_token=23040.0, weight_bytes=84_000_000),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a made-up run holds."""

    effects: Mapping[str, Effect] = field(default_factory=lambda: EFFECTS)
    items: int = 120
    prompts: int = 24
    tokens: int = 16
    vocabulary: int = 64
    kl: bool = True
    piqa: bool = True
    preflight: bool = True
    gating: bool = True
    answer: str = ""
    """Written by the candidates in place of a choice."""
    question: str = "How do you keep a door open?"
    floor_noise: float = 0.02
    piece: str = ""
    """Text of every third token; the others have their number, or, with one in three, a digit."""
    traces: bool = True
    finish: str = "stop"
    run: str = "made-up"
    note: str = "the weights were already 4-bit, so weight variants are a second quantisation"


def make_run(output: Path, made: Made = Made()) -> RunFolder:
    """Write the folder; the same arguments give the same bytes, but for the time in its name."""
    random = np.random.default_rng(7)
    samples = _samples(made)
    plan = _plan(made, samples)
    folder = RunFolder.create(output, plan, TEXT, {"python": "3.11", "packages": {"numpy": "2"}}, samples)
    fixed = folder.path.with_name("2026-11-29T12-00-00Z")
    folder.path.rename(fixed)
    folder = RunFolder(fixed)
    if made.preflight:
        for variant in plan.variants:
            folder.write_preflight(_preflight(variant, made))
    if made.piqa:
        _answers(folder, plan, samples["piqa"], made, random)
    if made.kl:
        _distances(folder, plan, made, random)
    folder.close()
    return folder


def _samples(made: Made) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    if made.kl:
        message = Message(role="user", content="Tell me about rivers.")
        found["kl"] = [
            Sample(id=f"p{i:02d}", messages=(message,), tags=(("chat", "code")[i % 2],)) for i in range(made.prompts)
        ]
    if made.piqa:
        found["piqa"] = [
            Sample(
                id=f"piqa-{i:04d}",
                prompt=f"Question: {made.question}\nAnswer:",
                choices=("with a wedge", "with a cloud"),
                target="with a wedge",
            )
            for i in range(made.items)
        ]
    return found


def _plan(made: Made, samples: Mapping[str, list[Sample]]) -> Plan:
    kinds = {
        "kl": ("token distribution", (Metric(name="kl", kind="distance", units="nats/token"),)),
        "piqa": (
            "knowledge",
            (
                Metric(name="accuracy", kind="binary", units="points", scale=100.0, chance=0.5),
                Metric(name="lead", kind="continuous", units="nats"),
            ),
        ),
    }
    suites = tuple(
        SuitePlan(
            name=name,
            kind=name,
            family=kinds[name][0],
            epochs=1,
            metrics=kinds[name][1],
            traced=name == "kl",
            samples=tuple(sample.id for sample in rows),
            again=tuple(sample.id for sample in rows[: -(-len(rows) // 3)])
            if name == "piqa"
            else tuple(sample.id for sample in rows),
            sha256=sample_digest(rows),
        )
        for name, rows in samples.items()
    )
    gates = [
        GatePlan(name="kl_veto", kind="kl_veto", suite="kl", metric="kl", margin=0.05, gating=made.gating),
        GatePlan(
            name="piqa_accuracy", kind="noninferior", suite="piqa", metric="accuracy", margin=0.05, gating=made.gating
        ),
        GatePlan(name="piqa_lead", kind="noninferior", suite="piqa", metric="lead", margin=0.5, gating=False),
    ]
    here = tuple(gate for gate in gates if gate.suite in samples)
    variants = (
        Variant(name=REFERENCE, role="reference", engine="refengine", weights="smollm2-135m-instruct"),
        *(
            Variant(
                name=name,
                role="candidate",
                engine="refengine",
                weights="smollm2-135m-instruct",
                expect={"weights": effect.weights, "kv_cache": effect.kv_cache},
            )
            for name, effect in made.effects.items()
        ),
        Variant(name=AGAIN, role="again", engine="refengine", weights="smollm2-135m-instruct"),
    )
    return Plan(
        header=Header(
            run=made.run,
            question="May an FP8 KV cache or INT4 weights replace BF16?",
            seed=1,
            alpha=0.05,
            model="SmolLM2-135M-Instruct",
            max_context=2048,
            note=made.note,
        ),
        config={"output": "runs"},
        config_sha256=hashlib.sha256(TEXT.encode()).hexdigest(),
        variants=variants,
        suites=suites,
        gates=here,
        unused_gates=tuple(gate.name for gate in gates if gate not in here),
        cells=tuple(
            Cell(variant=variant.name, suite=suite.name, epoch=0, stage="attempt", samples=suite.samples)
            for variant in variants
            for suite in suites
        ),
    )


def _preflight(variant: Variant, made: Made) -> Preflight:
    effect = made.effects.get(variant.name, Effect())
    return Preflight(
        variant=variant.name,
        expect=variant.expect,
        fingerprint=Fingerprint(
            engine="refengine",
            version="0.1.0",
            weights=effect.weights,
            kv_cache=effect.kv_cache,
            weights_digest=hashlib.sha256(effect.weights.encode()).hexdigest(),
            flags={"page_size": 16, "exact": False},
            device="cpu",
        ),
        capacity=effect.capacity,
        probes=Probes(
            prompt_digests={"prose": "aa", "code": "bb"},
            logprob_digests={"prose": variant.name if variant.role == "candidate" else "reference"},
        ),
    )


def _record(variant: str, suite: str, sample: str, scores: dict[str, float], trajectory: Trajectory) -> Record:
    same = Provenance(prompt_sha256="same", tokens_sha256="same")
    return Record(
        variant=variant,
        suite=suite,
        sample=sample,
        epoch=0,
        state=State.SCORED,
        scores=scores,
        trajectory=trajectory,
        provenance=same,
    )


def _answers(folder: RunFolder, plan: Plan, samples: list[Sample], made: Made, random: np.random.Generator) -> None:
    n = len(samples)
    right = np.arange(n) % 5 < 3
    lead = np.where(right, 1.0, -1.0) * random.gamma(2.0, 2.0, n)
    again = set(plan.suite("piqa").again)
    for variant in plan.variants:
        effect = made.effects.get(variant.name, Effect(losses=0, gains=1))
        moved = lead + effect.lead + random.normal(0, 0.5, n)
        moved = np.where(right, np.maximum(moved, 0.1), np.minimum(moved, -0.1))
        if variant.role != "reference":
            moved[np.flatnonzero(right)[: effect.losses]] = -0.4
            moved[np.flatnonzero(~right)[: effect.gains]] = 0.4
        for sample, value in zip(samples, moved, strict=True):
            if variant.role == "again" and sample.id not in again:
                continue
            turns = (
                Completion(text=sample.choices[0], token_ids=(1, 2), logprobs=(-3.0, -4.0 + float(value))),
                Completion(text=made.answer or sample.choices[1], token_ids=(1, 3), logprobs=(-3.0, -4.0)),
            )
            answer = turns[0 if value > 0 else 1].text
            scores = {"accuracy": float(value > 0), "lead": float(value)}
            folder.append(_record(variant.name, "piqa", sample.id, scores, Trajectory(turns=turns, answer=answer)))


def _distances(folder: RunFolder, plan: Plan, made: Made, random: np.random.Generator) -> None:
    for at, sample in enumerate(plan.suite("kl").samples):
        logits = random.normal(0, 2.5, (made.tokens, made.vocabulary))
        chosen = np.array([random.choice(made.vocabulary, p=row) for row in np.exp(_normal(logits))])
        spread = np.exp(random.normal(0, 0.35))
        if made.traces:
            folder.append_trace("kl", _trace(sample, chosen, made))
        for variant in plan.variants:
            effect = made.effects.get(variant.name, Effect(noise=made.floor_noise))
            noise = 0.0 if variant.role == "reference" else effect.noise * spread
            rows = _normal(logits + noise * random.normal(0, 1, logits.shape)).astype(np.float32)
            turn = Completion(text="a river", prompt_tokens=70, completion_tokens=made.tokens)
            record = _record(variant.name, "kl", sample, {"logprob": -2.0}, Trajectory(turns=(turn,)))
            _write_rows(folder, record, rows, chosen, audited=at % 3 == 0)
            folder.append(record)


def _trace(sample: str, chosen: np.ndarray, made: Made) -> Trace:
    pieces = tuple((made.piece or " river", "7", f" w{token}")[at % 3] for at, token in enumerate(chosen))
    ids = tuple(int(token) for token in chosen)
    return Trace(
        sample=sample,
        epoch=0,
        prompt_ids=(1, 2),
        token_ids=ids,
        text="".join(pieces),
        finish=made.finish,
        pieces=pieces,
    )


def _write_rows(folder: RunFolder, record: Record, rows: np.ndarray, chosen: np.ndarray, audited: bool) -> None:
    order = np.argsort(-rows, axis=1, kind="stable")[:, :50]
    top = np.take_along_axis(rows, order, axis=1)
    given = rows[np.arange(len(rows)), chosen]
    columns = {"token": chosen, "logprob": given, "top_ids": order.astype(np.int32), "top_logprobs": top}
    folder.append_tokens(record, ROWS, columns)
    if audited:
        folder.append_tokens(record, AUDIT, {"token": chosen[:4], "vocabulary": rows[:4]})


def _normal(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunFolder]:
    """A run folder with some of `Made` changed; the same one for the same changes, so only to be read."""
    known: dict[str, RunFolder] = {}

    def build(**changes: object) -> RunFolder:
        key = repr(sorted(changes.items()))
        if key not in known:
            only = changes.pop("only", tuple(EFFECTS))
            effects = {name: effect for name, effect in EFFECTS.items() if name in only}  # type: ignore[operator]
            made = replace(Made(effects=effects), **changes)  # type: ignore[arg-type]
            with mock.patch("os.fsync"):  # nothing here has to survive a power cut
                known[key] = make_run(tmp_path_factory.mktemp("made") / "runs", made)
        return known[key]

    return build


@pytest.fixture
def make_own(make: Callable[..., RunFolder], tmp_path: Path) -> Callable[..., RunFolder]:
    """As `make`, a copy to write into."""

    def build(**changes: object) -> RunFolder:
        path = make(**changes).path
        return RunFolder(shutil.copytree(path, tmp_path / "runs" / path.parent.name / path.name))

    return build
