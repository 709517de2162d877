"""Made-up rounds of load: records with known ratios, for gates, the report and the golden verdict."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evalrig.config.load import dump
from evalrig.config.load import tree as as_tree
from evalrig.config.schema import EngineConfig, GateConfig, RunConfig, SuiteConfig, VariantConfig
from evalrig.plan import SuiteFacts, make_plan
from evalrig.proof import Preflight, Probes
from evalrig.records import RunFolder
from evalrig.types import (
    AGAIN,
    EMULATED,
    REFERENCE,
    Capacity,
    Fingerprint,
    Metric,
    Provenance,
    Record,
    Sample,
    State,
    Trajectory,
    Variant,
)

RATE = Metric(name="output_tokens_per_second", kind="ratio", units="tokens/s")
USER = Metric(name="tokens_per_user", kind="ratio", units="tokens/s")
GPU = Metric(name="tokens_per_gpu", kind="ratio", units="tokens/s")
TPOT = Metric(name="tpot_p50", kind="ratio", units="s", less=True)
P99 = Metric(name="ttft_p99", kind="ratio", units="s", less=True)
"""Never given: the rounds are too short for it."""
COST = Metric(name="usd_per_million_output", kind="ratio", units="USD", less=True)
METRICS = (RATE, USER, GPU, TPOT, P99, COST)
CAPACITIES = {
    REFERENCE: Capacity(kv_tokens=10_000, kv_bytes_per_token=2048.0),
    "cheap": Capacity(kv_tokens=20_000, kv_bytes_per_token=1024.0),
}


def scores(speed: float, noise: float, lanes: int = 8) -> dict[str, float]:
    """A block that ran `speed` times as fast as the reference, with this much noise."""
    rate = 1000.0 * speed * float(np.exp(noise)) * lanes / 8
    return {
        RATE.name: rate,
        GPU.name: rate,
        USER.name: rate / lanes,
        TPOT.name: lanes / rate,
        COST.name: 2e6 / (3600 * rate),
        "slo_ok": 100.0,
        "slo_n": 100.0,
        "concurrency": float(lanes),
        "exact": 0.99,
        "kernel": 1.0,
        "waiting_most": 0.0,
        "waiting_usual": 0.0,
    }


def blocks(
    speeds: Mapping[str, float], rounds: int = 12, sd: float = 0.003, void: Mapping[tuple[str, int], str] | None = None
) -> dict[str, list[Record]]:
    """Rounds of every arm: noise of the round is shared, noise of the block is not. `void`: (arm, round) -> why."""
    random = np.random.default_rng(11)
    lost = void or {}
    found: dict[str, list[Record]] = {arm: [] for arm in speeds}
    for number in range(rounds):
        drift = random.normal(0, 0.05)
        for arm, speed in speeds.items():
            own = drift + random.normal(0, sd)
            why = lost.get((arm, number), "")
            found[arm].append(
                Record(
                    variant=arm,
                    suite="load",
                    sample=f"round-{number:02d}",
                    epoch=0,
                    state=State.UNSCORED if why else State.SCORED,
                    scores={} if why else scores(speed, own),
                    trajectory=Trajectory(error=why),
                    provenance=Provenance(started=f"2026-11-30T00:{number:02d}:00Z", prompt_sha256=f"r{number}"),
                )
            )
    return found


def _gate(told: Mapping[str, Any]) -> GateConfig:
    filled: dict[str, Any] = {"suite": "load", **told}
    return GateConfig(**filled)


def load_folder(
    output: Path, gates: Mapping[str, Mapping[str, Any]], emulation: str = "", rounds: int = 12, **more: Any
) -> RunFolder:
    """A run folder that holds nothing but a suite of load; `more` is given to `blocks`."""
    speeds = {REFERENCE: 1.0, "cheap": more.pop("speed", 1.25), AGAIN: 1.0}
    config = RunConfig(
        name="loaded",
        question="Is it as fast?",
        engine=EngineConfig(kind="toys.engine"),
        reference=VariantConfig(weights="toy"),
        candidates={"cheap": VariantConfig()},
        suites={"load": SuiteConfig(kind="load", again=1.0)},
        gates={name: _gate(gate) for name, gate in gates.items()},
    )
    asked = tuple(Sample(id=f"round-{number:02d}") for number in range(rounds))
    facts = {"load": SuiteFacts(kind="load", family="serving load", metrics=METRICS, traced=False, samples=asked)}
    variants = [
        Variant(name=REFERENCE, role="reference", engine="toys.engine", weights="toy"),
        Variant(name="cheap", role="candidate", engine="toys.engine", weights="toy"),
        Variant(name=AGAIN, role="again", engine="toys.engine", weights="toy"),
    ]
    plan = make_plan(config, dump(config), as_tree(config), variants, facts)
    folder = RunFolder.create(output, plan, dump(config), {}, {"load": asked})
    flags = {EMULATED: emulation} if emulation else {}
    for arm in speeds:
        kv_cache = "fp8_e4m3" if arm == "cheap" else "bf16"
        folder.write_preflight(
            Preflight(
                variant=arm,
                expect={"weights": "bf16", "kv_cache": kv_cache},
                fingerprint=Fingerprint(engine="toy", version="1", weights="bf16", kv_cache=kv_cache, flags=flags),
                capacity=CAPACITIES.get(arm, CAPACITIES[REFERENCE]),
                probes=Probes(prompt_digests={"p": "same"}, logprob_digests={"p": kv_cache}),
            )
        )
    for records in blocks(speeds, rounds, **more).values():
        folder.append(*records)
    folder.close()
    return folder
