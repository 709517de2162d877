"""Speed of the embedded engine, in tokens per CPU-second with one BLAS thread.

    python benchmarks/refengine.py                     the library's own kernel
    python benchmarks/refengine.py --kernel Haswell    another OpenBLAS kernel, in a child process
    python benchmarks/refengine.py --http              also through a server: what HTTP and JSON cost

CPU-seconds are the process's, not the clock's; on a busy machine they still grow, because caches and memory are shared.
So the rate of the bare matrix products is measured beside each figure: "of the products" says how much of the time they
alone take.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import httpx
import numpy as np

from evalrig.content import cache_dir
from evalrig.refengine.cache import CachedSequence, PagedCache
from evalrig.refengine.engine import Engine, Settings, start_engine
from evalrig.refengine.jobs import JobSpec, Update
from evalrig.refengine.logprobs import LogprobWish
from evalrig.refengine.sampling import Sampling
from evalrig.refengine.step import Slice, Stepper

MODEL = cache_dir() / "models" / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.Q4_1.gguf"
RNG = np.random.default_rng(0)


def prompts(count: int, length: int) -> list[list[int]]:
    """Random prompts, of `length` tokens give or take a quarter."""
    lengths = RNG.integers(length * 3 // 4, length * 5 // 4 + 1, count)
    return [RNG.integers(0, 49152, size).tolist() for size in lengths]


def cpu_seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def products_seconds(engine: Engine, rows: int, head_rows: int) -> float:
    """CPU-seconds of the bare matrix products of a step of `rows` rows, `head_rows` of them through the head."""
    model = engine.model
    x = RNG.standard_normal((rows, model.architecture.width)).astype(np.float32)
    wide = RNG.standard_normal((rows, model.layers[0].down.shape[0])).astype(np.float32)

    def products() -> None:
        for layer in model.layers:
            for matrix in (layer.qkv, layer.output, layer.gate_up):
                np.matmul(x, matrix)
            np.matmul(wide, layer.down)
        for begin in range(0, head_rows, 96):
            np.matmul(x[: min(96, head_rows - begin)], model.head)

    products()
    return cpu_seconds(products)


def run_jobs(engine: Engine, specs: list[JobSpec]) -> None:
    """Runs all jobs through the scheduler, to their end."""
    import threading

    done = threading.Semaphore(0)

    def notify(update: Update) -> None:
        assert update.error is None, update.error
        if update.finish is not None:
            done.release()

    for spec in specs:
        engine.scheduler.submit(spec, notify)
    for _ in specs:
        done.acquire()


def job(prompt: list[int], new: int, wish: LogprobWish | None) -> JobSpec:
    return JobSpec(
        identity="benchmark",
        prompt=tuple(prompt),
        max_new_tokens=new,
        sampling=Sampling(temperature=1.0, seed=1),
        wish=wish,
    )


def report(name: str, tokens: int, seconds: float, products: float) -> None:
    print(f"{name:58} {tokens / seconds:7.1f} tok/CPU-s   {products / seconds:4.0%} of the products", flush=True)


def scoring(engine: Engine) -> None:
    chunk = engine.settings.chunk
    cases = {
        "score 120 x 40 tokens, chosen token, second half": (prompts(120, 40), 0.5, 0),
        "score 120 x 40 tokens, chosen token, all": (prompts(120, 40), 0.0, 0),
        "score 40 x 130 tokens, top 50, all": (prompts(40, 130), 0.0, 50),
    }
    for name, (texts, share, top) in cases.items():
        specs = [job(text, 0, LogprobWish(start=int(len(text) * share), top=top)) for text in texts]
        run_jobs(engine, specs[:8])
        tokens = sum(map(len, texts))
        seconds = cpu_seconds(lambda specs=specs: run_jobs(engine, specs))
        products = products_seconds(engine, chunk, int(chunk * (1 - share))) * tokens / chunk
        report(name, tokens, seconds, products)


def decoding(engine: Engine) -> None:
    for streams in (1, 8, 32):
        specs = [job(text, 48, None) for text in prompts(streams, 64)]
        shorter = [job(list(spec.prompt), 1, None) for spec in specs]
        run_jobs(engine, shorter)
        prefill = cpu_seconds(lambda shorter=shorter: run_jobs(engine, shorter))
        seconds = cpu_seconds(lambda specs=specs: run_jobs(engine, specs)) - prefill
        products = products_seconds(engine, streams, streams) * 47
        report(f"decode, {streams} streams", streams * 47, seconds, products)


def tag_check(engine: Engine) -> None:
    for streams in (1, 32):
        cache = PagedCache(engine.model.architecture, engine.cache.format, pages=400, rows=32, context=512)
        stepper = Stepper(engine.model, cache, context=512, exact=False)
        sequences = [cache.open(160) for _ in range(streams)]
        for sequence in sequences:
            stepper.run([Slice(sequence=sequence, tokens=[1] * 100)])
        step = cpu_seconds(lambda s=stepper, q=sequences: _steps(s, [Slice(sequence=one, tokens=[1]) for one in q])) / 5
        ends = [sequence.length for sequence in sequences]
        check = cpu_seconds(lambda c=cache, q=sequences, e=ends: _checks(c, q, e)) / 1000
        print(
            f"tag check, {streams} streams: {check * 1e6:.0f} us, {check / step:.3%} of a step of {step * 1e3:.0f} ms"
        )


def _checks(cache: PagedCache, sequences: list[CachedSequence], ends: list[int]) -> None:
    for _ in range(1000):
        cache.check(sequences, ends)


def _steps(stepper: Stepper, work: list[Slice]) -> None:
    for _ in range(5):
        stepper.logits(stepper.run(work))


async def _post_all(address: str, bodies: list[dict[str, Any]]) -> None:
    limits = asyncio.Semaphore(16)

    async with httpx.AsyncClient(base_url=address, timeout=600) as http:

        async def post(body: dict[str, Any]) -> None:
            async with limits:
                (await http.post("/generate", json=body)).raise_for_status()

        await asyncio.gather(*map(post, bodies))


def through_http() -> None:
    """Scoring through a server process; CPU-seconds are the server's."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        command = [sys.executable, "-m", "evalrig.refengine", "--model", str(MODEL), "--port", "0"]
        process = subprocess.Popen([*command, "--port-file", str(port_file)], stderr=subprocess.DEVNULL)
        try:
            while not port_file.exists():
                assert process.poll() is None, "the server did not start"
                time.sleep(0.1)
            address = f"http://127.0.0.1:{port_file.read_text().strip()}"
            print(f"CPU-seconds to start: {_cpu_of(process.pid):.1f}, resident {_resident(process.pid):.0f} MB")
            cases = [
                ("300 x 40 tokens, second half", prompts(300, 40), 0.5, 0),
                ("50 x 130, top 50", prompts(50, 130), 0.0, 50),
            ]
            for name, texts, share, top in cases:
                began = _cpu_of(process.pid)
                asyncio.run(_post_all(address, [_score_body(text, int(len(text) * share), top) for text in texts]))
                seconds = _cpu_of(process.pid) - began
                print(f"HTTP, score {name:46} {sum(map(len, texts)) / seconds:7.1f} tok/CPU-s")
            print(f"resident after it: {_resident(process.pid):.0f} MB")
        finally:
            process.terminate()
            process.wait(10)


def _score_body(text: list[int], start: int, top: int) -> dict[str, Any]:
    return {
        "input_ids": text,
        "sampling_params": {"temperature": 0, "max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": top,
    }


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", help="force an OpenBLAS kernel (for example Haswell), in a child process")
    parser.add_argument("--http", action="store_true", help="also measure through a server")
    parser.add_argument("--kv-cache", default="bf16")
    options = parser.parse_args()
    if options.kernel:
        rest = [*(["--http"] if options.http else []), "--kv-cache", options.kv_cache]
        environment = {**os.environ, "OPENBLAS_CORETYPE": options.kernel}
        sys.exit(subprocess.run([sys.executable, __file__, *rest], env=environment, check=False).returncode)
    engine = start_engine(Settings(model=MODEL, kv_cache=options.kv_cache))
    info = engine.server_info()
    print(
        f"kernel {info['blas']['kernel']}, {info['blas']['threads']} thread, KV {options.kv_cache}, exact {info['exact']}"
    )
    scoring(engine)
    decoding(engine)
    tag_check(engine)
    print(f"peak resident: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    engine.scheduler.stop(10)
    if options.http:
        through_http()


if __name__ == "__main__":
    main()
