"""What scoring through llama.cpp costs: CPU milliseconds of the server a token. Prints the figures that docs/engines.md quotes."""

import asyncio
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import psutil

from evalrig.engine import Launch, Sampling
from evalrig.engines.llama_cpp import LlamaCpp, LlamaCppOptions
from evalrig.preflight import PROBES
from evalrig.types import Variant

TEXT = " ".join(PROBES[name] for name in ("prose", "digits")) * 5
TORN = "東京 Привет 🙂 " * 4


def spent() -> float:
    """CPU seconds of the server so far."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


async def cost(what: str, tokens: int, call: Awaitable[Any]) -> None:
    before = spent()
    await call
    print(f"{what}: {1000 * (spent() - before) / tokens:.0f} ms a token", flush=True)


async def main(log: Path) -> None:
    options = LlamaCppOptions(requantize="bf16", cache_type_k="bf16", cache_type_v="bf16")
    variant = Variant(name="bench", role="reference", engine="llama_cpp", weights="smollm2-135m-instruct")
    engine = LlamaCpp(variant, options, Launch(log=log, start_seconds=120, request_seconds=120))
    await engine.start()
    try:
        ids, torn = await engine.tokenize(TEXT), await engine.tokenize(TORN)
        await cost("prefill", 200, engine.score(ids[:201], 200))
        await cost("generate", 128, engine.generate(ids[:1], Sampling(max_tokens=128, temperature=1.0, seed=1)))
        await cost("score", 128, engine.score(ids[:129], 1))
        await cost("score, top 50", 128, engine.score(ids[:129], 1, 50))
        await cost("score, top 50, after 64 others", 32, engine.score(ids[:96], 64, 50))
        await cost("score, top 50, pieces of characters", len(torn) - 1, engine.score(torn, 1, 50))
        await cost("score, whole vocabulary", 4, engine.score(ids[:68], 64, -1))
        print((await engine.capacity()), (await engine.fingerprint()).version)
    finally:
        await engine.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "engine.log"))
