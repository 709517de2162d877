"""Speed and memory of the distance analysis: positions with two top-K lists, from Parquet, in one streaming pass.

    python benchmarks/kl.py                       1,000,000 positions x top-50: seconds, CPU-seconds, peak resident
    python benchmarks/kl.py --positions 4000000   the peak must stay where it was
    python benchmarks/kl.py --folder DIR          keep the files there (about 0.8 KB a position)

The files are made once, by a child process, so that the peak measured is the analysis's own. Lists are synthetic: a
mixture of peaked and broad distributions, the candidate's logits moved by noise, ids in new order accordingly.
CPU-seconds are the process's; on a busy machine they still grow, because caches and memory are shared.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from evalrig.analysis.aligned import TopK
from evalrig.analysis.kl_stream import Chunk, analyse
from evalrig.analysis.token_classes import NAMES

GROUP = 32_768
"""Positions per row group, which is a chunk."""

TOKENS = 512
"""Per prompt."""

VOCABULARY = 151_936
NOISE = 0.08


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


def write(path: Path, positions: int, k: int) -> None:
    """One file for both arms, fixed-size lists, zstd, one row group a chunk: the layout of `evalrig.tokens`."""
    rng, writer = np.random.default_rng(0), None
    for start in range(0, positions, GROUP):
        n = min(GROUP, positions - start)
        row = np.arange(start, start + n)
        columns = lists(rng, n, k)
        columns["prompt"], columns["position"] = (row // TOKENS).astype(np.int32), (row % TOKENS + 1).astype(np.int32)
        columns["token_class"] = rng.integers(0, len(NAMES), n, dtype=np.int8)
        table = pa.table({name: _column(values) for name, values in columns.items()})
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=n)
    assert writer is not None
    writer.close()


def _column(values: NDArray[Any]) -> Any:
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def read(path: Path) -> Iterator[Chunk]:
    """Row group by row group."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False)
            columns = {name: _array(table.column(name).combine_chunks()) for name in table.column_names}
            yield Chunk(
                reference=TopK(ids=columns["reference_ids"], logprobs=columns["reference_logprobs"]),
                candidate=TopK(ids=columns["candidate_ids"], logprobs=columns["candidate_logprobs"]),
                prompt=columns["prompt"],
                position=columns["position"],
                token_class=columns["token_class"],
                reference_logprob=columns["reference_logprob"],
                candidate_logprob=columns["candidate_logprob"],
            )


def _array(column: Any) -> NDArray[Any]:
    if pa.types.is_fixed_size_list(column.type):
        return column.values.to_numpy().reshape(len(column), column.type.list_size)
    return column.to_numpy()


def run(path: Path, positions: int, workers: int) -> None:
    """Time reading alone, then reading and analysing."""
    began, cpu = time.perf_counter(), time.process_time()
    for _ in read(path):
        pass
    print(f"reading alone:        {time.perf_counter() - began:5.2f} s, {time.process_time() - cpu:5.2f} CPU-s")
    began, cpu = time.perf_counter(), time.process_time()
    found = analyse(read(path), positions // TOKENS + 1, NAMES, workers=workers)
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"reading and analysis: {wall:5.2f} s, {used:5.2f} CPU-s, {workers} workers, peak resident {peak:.0f} MB")
    means = {row.name: row.mean for row in found.means}
    print(
        f"{found.summary.tokens:,} positions, mean KL {found.summary.mean:.3e} "
        f"[{found.summary.low:.3e}, {found.summary.high:.3e}], p99.9 {found.summary.tail.p999:.2e}, "
        f"TV {means['tv_low']:.4f} to {means['tv_high']:.4f}, same top {means['top1_same']:.4f}, broken {found.broken}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=1_000_000)
    parser.add_argument("--top-k", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", action="store_true", help="only make the file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = options.folder or Path(scratch)
        path = folder / f"kl-{options.positions}-{options.top_k}.parquet"
        if options.write:
            write(path, options.positions, options.top_k)
            return
        if not path.exists():
            sizes = ["--positions", str(options.positions), "--top-k", str(options.top_k)]
            subprocess.run([sys.executable, __file__, "--write", "--folder", str(folder), *sizes], check=True)
        print(f"{path.stat().st_size / 2**20:.0f} MB of Parquet, {options.positions:,} positions, top {options.top_k}")
        run(path, options.positions, options.workers)


if __name__ == "__main__":
    main()
