"""Speed and memory of distances: a run folder with top-K lists of two arms, read and analysed in one pass.

    python benchmarks/kl.py                       1,000,000 positions x top-50: seconds, CPU-seconds, peak resident
    python benchmarks/kl.py --positions 4000000   the peak must stay where it was
    python benchmarks/kl.py --folder DIR          keep the run folder there (about 0.8 KB a position)

The folder is made once, by a child process, through the code that files attempts, so that the peak measured is that of
reading and analysis alone. Lists are synthetic: a mixture of peaked and broad distributions, the candidate's logits
moved by noise, ids in new order accordingly. CPU-seconds are the process's; on a busy machine they still grow, because
caches and memory are shared.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalrig.evidence import Gathered
from evalrig.plan import Header, Plan, SuitePlan, sample_digest
from evalrig.records import ROWS, RunFolder
from evalrig.types import REFERENCE, Metric, Record, Sample, State, Variant

TOKENS = 512
"""Per attempt."""

VOCABULARY = 151_936
NOISE = 0.08
ARMS = (REFERENCE, "candidate")


def lists(rng: np.random.Generator, n: int, k: int) -> dict[str, NDArray[Any]]:
    """Reference and candidate lists [n, k] of a common pool of 1.3 k ids a position."""
    pool = k + max(8, k * 3 // 10)
    spread = rng.exponential(0.25, (n, 1)).astype(np.float32) + 0.02
    logits = -np.cumsum(rng.standard_exponential((n, pool), dtype=np.float32) * spread, axis=1)
    ids = rng.integers(0, VOCABULARY // pool, (n, pool), dtype=np.int32) * pool
    ids += rng.permuted(np.tile(np.arange(pool, dtype=np.int32), (n, 1)), axis=1)
    found: dict[str, NDArray[Any]] = {}
    for arm in ("reference", "candidate"):
        if arm == "candidate":
            logits = logits + NOISE * rng.standard_normal(logits.shape, dtype=np.float32)
        mass = np.log(np.exp(logits).sum(axis=1, keepdims=True)) + 0.02
        order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        found[f"{arm}_ids"] = np.take_along_axis(ids, order, axis=1)
        found[f"{arm}_logprobs"] = np.take_along_axis(logits - mass, order, axis=1)
        found[f"{arm}_logprob"] = (logits - mass)[:, 0]
    return found


def plan(samples: list[Sample]) -> Plan:
    """One suite, one candidate."""
    names = tuple(sample.id for sample in samples)
    suite = SuitePlan(
        name="kl",
        kind="kl",
        family="token distribution",
        epochs=1,
        metrics=(Metric(name="kl", kind="distance", units="nats/token"),),
        traced=True,
        samples=names,
        again=(),
        sha256=sample_digest(samples),
    )
    return Plan(
        header=Header(run="kl", question="?", seed=0, alpha=0.05, model="synthetic", max_context=TOKENS, note=""),
        config={},
        config_sha256="",
        variants=tuple(
            Variant(name=arm, role="reference" if arm == REFERENCE else "candidate", engine="none", weights="none")
            for arm in ARMS
        ),
        suites=(suite,),
        gates=(),
        unused_gates=(),
        cells=(),
    )


def write(output: Path, positions: int, k: int) -> None:
    """A run folder as `evalrig.filing` fills it: every attempt durable before its record."""
    rng = np.random.default_rng(0)
    samples = [Sample(id=f"p-{number:06d}") for number in range(-(-positions // TOKENS))]
    folder = RunFolder.create(output, plan(samples), "", {}, {"kl": samples})
    for number, sample in enumerate(samples):
        n = min(TOKENS, positions - number * TOKENS)
        columns = lists(rng, n, k)
        token = columns["reference_ids"][:, 0]
        for arm, side in zip(ARMS, ("reference", "candidate"), strict=True):
            rows = {"token": token, "logprob": columns[f"{side}_logprob"]}
            rows |= {"top_ids": columns[f"{side}_ids"], "top_logprobs": columns[f"{side}_logprobs"]}
            record = Record(variant=arm, suite="kl", sample=sample.id, epoch=0, state=State.SCORED)
            folder.append_tokens(record, ROWS, rows)
            folder.append(record)
    folder.close()


def run(path: Path) -> None:
    """Time reading alone, then reading and analysing, each from opening the folder on."""
    began, cpu = time.perf_counter(), time.process_time()
    gathered = Gathered(RunFolder.open(path))
    for _ in gathered.joined(gathered.plan.suite("kl"), "candidate"):
        pass
    print(f"reading alone:        {time.perf_counter() - began:5.2f} s, {time.process_time() - cpu:5.2f} CPU-s")
    began, cpu = time.perf_counter(), time.process_time()
    gathered = Gathered(RunFolder.open(path))
    distances = gathered.distances(gathered.plan.suite("kl"), "candidate")
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"reading and analysis: {wall:5.2f} s, {used:5.2f} CPU-s, peak resident {peak:.0f} MB")
    assert distances is not None
    assert distances.found is not None
    found, means = distances.found.summary, {row.name: row.mean for row in distances.found.means}
    print(
        f"{found.tokens:,} positions, mean KL {found.mean:.3e} [{found.low:.3e}, {found.high:.3e}], "
        f"p99.9 {found.tail.p999:.2e}, TV {means['tv_low']:.4f} to {means['tv_high']:.4f}, "
        f"same top {means['top1_same']:.4f}, broken {distances.broken}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=1_000_000)
    parser.add_argument("--top-k", type=int, default=50)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", action="store_true", help="only make the run folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        output = (options.folder or Path(scratch)) / f"{options.positions}-{options.top_k}"
        if options.write:
            write(output, options.positions, options.top_k)
            return
        if not output.exists():
            sizes = ["--positions", str(options.positions), "--top-k", str(options.top_k)]
            subprocess.run([sys.executable, __file__, "--write", "--folder", str(output.parent), *sizes], check=True)
        [path] = output.glob("kl/*")
        size = sum(file.stat().st_size for file in path.glob("variants/*/tokens/*/*"))
        print(f"{size / 2**20:.0f} MB of token logprobs, {options.positions:,} positions, top {options.top_k}")
        run(path)


if __name__ == "__main__":
    main()
