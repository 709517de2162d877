"""The legs of scoring on a live engine: what comes with generated tokens against the whole vocabulary of a prefill."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.gguf_model import tiny_model

from evalrig.engine import Launch, Sampling
from evalrig.engines.refengine import Refengine, RefengineOptions
from evalrig.errors import EngineError
from evalrig.types import Variant

PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [40, 3], [100] * 40)
OPTIONS = RefengineOptions(quantize="f32", kv_cache="f32", kv_pool_mb=64)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Per prompt and temperature: the answer, its lists over the whole vocabulary and over five, and the prefill's rows."""
    folder = tmp_path_factory.mktemp("legs")
    variant = Variant(name="arm", role="reference", engine="refengine", weights=str(tiny_model(folder / "tiny.gguf")))
    engine = Refengine(variant, OPTIONS, Launch(log=folder / "log", start_seconds=60, request_seconds=60))

    async def go() -> list[Any]:
        rows: list[Any] = []
        try:
            await engine.start()
            for ids in PROMPTS:
                for temperature in (0.0, 1.0):
                    sampling = Sampling(max_tokens=12, temperature=temperature, seed=5)
                    answer, whole = await engine.decode(ids, sampling, -1)
                    _, short = await engine.decode(ids, sampling, 5)
                    _, bare = await engine.decode(ids, sampling, 0)
                    plain = await engine.generate(ids, sampling)
                    prefill = await engine.score([*ids, *answer.token_ids], len(ids), -1)
                    rows.append((answer, plain, whole, short, bare, prefill))
            with pytest.raises(EngineError, match="top-K 261 is above the vocabulary of 260"):
                await engine.decode([5], Sampling(max_tokens=1), 261)
            with pytest.raises(EngineError, match="lies outside the vocabulary"):
                await engine.decode([260], Sampling(max_tokens=1), 1)
        finally:
            await engine.stop()
        return rows

    return asyncio.run(asyncio.wait_for(go(), 120))


def by_id(scoring: Any) -> Any:
    rows = np.full(scoring.top_logprobs.shape, np.nan)
    np.put_along_axis(rows, scoring.top_ids.astype(np.int64), scoring.top_logprobs.astype(np.float64), 1)
    return rows


def test_the_row_of_each_generated_token_is_the_prefill_s_row_of_it(found: list[Any]) -> None:
    """Pitfall 31: in F32 they agree to 1e-4 nats at every position and every id; a shift by one would be seen at each."""
    for answer, _, whole, _, _, prefill in found:
        assert whole.token_ids.tolist() == list(answer.token_ids) == prefill.token_ids.tolist()
        p, q = by_id(prefill), by_id(whole)
        assert np.exp(q).sum(1) == pytest.approx(1, abs=1e-5)
        assert np.abs(p - q).max() < 1e-4
        assert whole.logprobs == pytest.approx(p[np.arange(len(p)), list(answer.token_ids)], abs=1e-4)
        assert len(q) > 1
        assert np.abs(q[:-1] - p[1:]).max(1).min() > 0.1 or len(set(answer.token_ids)) == 1


def test_short_lists_are_the_head_of_the_long_ones_and_do_not_change_the_answer(found: list[Any]) -> None:
    for answer, plain, whole, short, bare, _ in found:
        assert (plain.token_ids, plain.finish) == (answer.token_ids, answer.finish)
        assert short.top_ids.tolist() == whole.top_ids[:, :5].tolist()
        assert short.top_logprobs == pytest.approx(whole.top_logprobs[:, :5])
        assert bare.top_ids.shape == (len(answer.token_ids), 0)
        assert bare.logprobs == pytest.approx(whole.logprobs)


@pytest.mark.parametrize("kv_cache", ["f32", "fp8_e4m3"])
def test_a_prefix_is_read_from_the_cache_and_a_cold_scoring_never_is(kv_cache: str, tmp_path: Path) -> None:
    """Whatever was asked before, the cold leg has the same bits; the cached one has its numbers, or is refused."""
    options = RefengineOptions(quantize="f32", kv_cache=kv_cache, kv_pool_mb=64, prefix_cache=True)
    variant = Variant(name="arm", role="reference", engine="refengine", weights=str(tiny_model(tmp_path / "tiny.gguf")))
    engine = Refengine(variant, options, Launch(log=tmp_path / "log", start_seconds=60, request_seconds=60))
    ids = [5 + i * 7 % 200 for i in range(300)]

    async def go() -> list[Any]:
        try:
            await engine.start()
            assert engine.able(options).cached_prefix
            first = await engine.score(ids, 250, 20)
            warm = await engine.score_cached(ids, 250, 20)
            early = await engine.score_cached(ids, 5, 20)
            return [first, await engine.score(ids, 250, 20), warm, early, await engine.score(ids, 5, 20)]
        finally:
            await engine.stop()

    first, again, warm, early, late = asyncio.run(asyncio.wait_for(go(), 120))
    assert first.logprobs.tobytes() == again.logprobs.tobytes()
    assert warm.token_ids.tolist() == ids[250:]
    assert warm.logprobs == pytest.approx(first.logprobs, abs=1e-3)
    assert early.token_ids.tolist() == ids[5:]
    assert early.logprobs == pytest.approx(late.logprobs, abs=1e-3)


def test_an_engine_that_keeps_no_prefix_is_not_said_to_read_one() -> None:
    assert not Refengine.able(OPTIONS).cached_prefix
    assert Refengine.able(OPTIONS).decode_logprobs == -1
