"""A real llama.cpp server from the `xllamacpp` wheel against refengine's exact numbers on the same file."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from toys.gguf_model import tiny_model

from evalrig import fetch
from evalrig.engine import Engine, Launch, Sampling, Scoring
from evalrig.engines.llama_cpp import LlamaCpp, LlamaCppOptions
from evalrig.engines.refengine import Refengine, RefengineOptions
from evalrig.errors import EngineError, UsageError
from evalrig.preflight import CONVERSATIONS, PROBES, prove
from evalrig.types import Variant

EXACT = LlamaCppOptions(cache_type_k="f32", cache_type_v="f32", flash_attn=False, parallel=2)
TRUTH = RefengineOptions(quantize="f32", kv_cache="f32", kv_pool_mb=64)
TEXT = "the keeper wrote\n" + PROBES["scripts"] + "<|im_start|>user\nhe said<|im_end|>\nand then 東京"
END = 2
DECODED = ((20, 0.0), (9, 0.0), (33, 0.0), (12, 1.0))
"""Tokens of the prompt, and the temperature."""


@pytest.fixture(scope="module", autouse=True)
def wheel() -> None:
    assert find_spec("xllamacpp"), "the package xllamacpp is not installed; run `pip install 'evalrig[llama_cpp]'`"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def made(kind: Any, options: Any, weights: Path | str, log: Path, **launch: Any) -> Any:
    variant = Variant(name="arm", role="reference", engine=kind.__name__, weights=str(weights))
    return kind(variant, options, Launch(log=log, start_seconds=60, request_seconds=60, **launch))


def within(engine: Engine, call: Callable[[Any], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        try:
            await engine.start()
            return await call(engine)
        finally:
            await engine.stop()

    return asyncio.run(asyncio.wait_for(go(), 120))


async def asked(engine: Engine) -> dict[str, Any]:
    """The same questions of every engine."""
    ids = list(await engine.tokenize(TEXT))
    greedy = await engine.generate(ids[:20], Sampling(max_tokens=8))
    hot = [await engine.generate(ids[:20], Sampling(max_tokens=12, temperature=1.0, seed=seed)) for seed in (7, 7, 8)]
    decoded = [await engine.decode(ids[:n], Sampling(max_tokens=8, temperature=t, seed=3), -1) for n, t in DECODED]
    return {
        "decoded": decoded,
        "rescored": [
            await engine.score([*ids[:n], *answer.token_ids], n, -1)
            for (n, _), (answer, _) in zip(DECODED, decoded, strict=True)
        ],
        "ids": ids,
        "prompts": {name: await engine.tokenize(messages) for name, messages in CONVERSATIONS.items()},
        "texts": {name: await engine.tokenize(text) for name, text in PROBES.items()},
        "full": await engine.score(ids, 1, -1),
        "top": await engine.score(ids, 9, 5),
        "bare": await engine.score(ids, len(ids) - 1, 0),
        "greedy": greedy,
        "hot": hot,
        "fingerprint": await engine.fingerprint(),
        "capacity": await engine.capacity(),
    }


@pytest.fixture(scope="module")
def ours(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return within(made(LlamaCpp, EXACT, tiny, tmp_path_factory.mktemp("llama") / "engine.log"), asked)


@pytest.fixture(scope="module")
def truth(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return within(made(Refengine, TRUTH, tiny, tmp_path_factory.mktemp("ref") / "engine.log"), asked)


def by_id(scoring: Scoring) -> Any:
    """[n, V] in the order of ids."""
    rows = np.full(scoring.top_logprobs.shape, np.nan)
    np.put_along_axis(rows, scoring.top_ids.astype(np.int64), scoring.top_logprobs.astype(np.float64), 1)
    return rows


# ---- the same tokens, the same numbers


def test_texts_and_conversations_become_the_same_tokens(ours: Any, truth: Any) -> None:
    """A dropped or doubled BOS, a template applied otherwise, special tokens left as text."""
    assert ours["ids"] == truth["ids"]
    assert ours["texts"] == truth["texts"]
    assert ours["prompts"] == truth["prompts"]


def test_a_bos_that_the_tokenizer_adds_is_there_once(ours: Any, tmp_path: Path) -> None:
    """The server takes it off the template's text, so that it has to be added again; a bare text gets none."""

    async def both(engine: Engine) -> Any:
        return await engine.tokenize(CONVERSATIONS["chat"]), await engine.tokenize("he said")

    adding = tiny_model(tmp_path / "adding.gguf", add_bos=True)
    chat, text = within(made(LlamaCpp, EXACT, adding, tmp_path / "log"), both)
    assert chat == ours["prompts"]["chat"]
    assert chat.count(1) == 2, "one a turn: the template opens each with it"
    assert text[0] != 1


def test_every_position_is_scored_and_none_is_shifted(ours: Any, truth: Any) -> None:
    """Pitfall 31, on a text with ended turns, special tokens, and characters torn into bytes."""
    full, exact = ours["full"], truth["full"]
    assert END in full.token_ids
    assert full.token_ids.tolist() == ours["ids"][1:] == exact.token_ids.tolist()
    p, q = by_id(exact), by_id(full)
    assert np.isfinite(q).all(), "every id is named once"
    assert (np.exp(p) * (p - q)).sum(1) == pytest.approx(0, abs=1e-5)
    assert full.logprobs == pytest.approx(exact.logprobs, abs=1e-3)
    shifted = np.abs(q[:-1] - p[1:]).max(1)
    assert shifted.min() > 0.1, "a shift by one would show at every position"


def test_the_given_token_has_the_number_that_the_whole_vocabulary_gives_it(ours: Any) -> None:
    full = ours["full"]
    assert full.logprobs == pytest.approx(by_id(full)[np.arange(len(full.logprobs)), full.token_ids], abs=1e-6)


def test_short_lists_are_the_head_of_the_long_ones(ours: Any) -> None:
    full, top, bare = ours["full"], ours["top"], ours["bare"]
    assert top.token_ids.tolist() == ours["ids"][9:]
    assert top.top_ids.shape == (len(ours["ids"]) - 9, 5)
    assert top.top_logprobs == pytest.approx(full.top_logprobs[8:, :5], abs=1e-3)
    assert (np.diff(top.top_logprobs) <= 0).all()
    outside = ~(top.top_ids == top.token_ids[:, None]).any(1)
    assert outside.any(), "a given token outside its list has a number all the same"
    assert top.logprobs == pytest.approx(full.logprobs[8:], abs=1e-3)
    assert (bare.top_ids.shape, bare.logprobs) == ((1, 0), pytest.approx(full.logprobs[-1:], abs=1e-3))


def test_greedy_answers_are_the_same_and_seeds_hold(ours: Any, truth: Any) -> None:
    assert ours["greedy"].token_ids == truth["greedy"].token_ids
    assert ours["greedy"].finish == truth["greedy"].finish == "length"
    first, again, other = ours["hot"]
    assert first.token_ids == again.token_ids != other.token_ids
    assert all(answer.finish in ("stop", "length") for answer in ours["hot"])
    assert all(len(answer.logprobs) in (0, len(answer.token_ids)) for answer in ours["hot"])


@pytest.mark.parametrize("which", range(len(DECODED)))
def test_rows_that_come_with_generated_tokens_are_the_rows_of_scoring_them(ours: Any, truth: Any, which: int) -> None:
    """Pitfall 31, of the decode leg: row i is the distribution that the generated token i was drawn from, in both engines."""
    for side in (ours, truth):
        (answer, lists), rescored = side["decoded"][which], side["rescored"][which]
        assert lists.token_ids.tolist() == list(answer.token_ids) == rescored.token_ids.tolist()
        p, q = by_id(rescored), by_id(lists)
        assert (np.exp(p) * (p - q)).sum(1) == pytest.approx(0, abs=1e-5), "position by position"
        assert lists.logprobs == pytest.approx(rescored.logprobs, abs=1e-3)
        assert lists.logprobs == pytest.approx(q[np.arange(len(q)), lists.token_ids], abs=1e-5)
        assert np.abs(q[:-1] - p[1:]).max(1).min() > 0.1, "a shift by one would show at every position"
    if DECODED[which][1] == 0:  # greedy: the same tokens in both, until one of them holds a token for an end
        (mine, rows), (exact, truly) = ours["decoded"][which], truth["decoded"][which]
        n = min(len(mine.token_ids), len(exact.token_ids))
        assert n >= 4
        assert mine.token_ids[:n] == exact.token_ids[:n]
        p, q = by_id(truly)[:n], by_id(rows)[:n]
        assert (np.exp(p) * (p - q)).sum(1) == pytest.approx(0, abs=1e-5)


def test_short_lists_of_generated_tokens_come_with_the_answer_or_by_forcing_it(tiny: Path, tmp_path: Path) -> None:
    """The server keeps back the row of a token that is a piece of a character: then the answer is forced again."""

    async def many(engine: Any) -> Any:
        ids = list(await engine.tokenize(TEXT))
        found = []
        for seed in range(12):
            sampling = Sampling(max_tokens=1 + seed // 6, temperature=1.0, seed=seed)
            answer, lists = await engine.decode(ids[:15], sampling, 4)
            found.append((answer, lists, await engine.score([*ids[:15], *answer.token_ids], 15, 4)))
        return found

    found = within(made(LlamaCpp, EXACT, tiny, tmp_path / "log"), many)
    for answer, lists, rescored in found:
        assert lists.token_ids.tolist() == list(answer.token_ids)
        assert lists.top_logprobs.shape == (len(answer.token_ids), 4)
        assert lists.logprobs == pytest.approx(rescored.logprobs, abs=1e-3)
        assert lists.top_logprobs == pytest.approx(rescored.top_logprobs, abs=1e-3)
    torn = [not answer.logprobs for answer, _, _ in found]
    assert any(torn)
    assert not all(torn), "both ways were taken"


def test_it_says_what_it_is(ours: Any, truth: Any) -> None:
    said = ours["fingerprint"]
    assert (said.engine, said.weights, said.kv_cache, said.device) == ("llama.cpp", "f32", "f32", "cpu")
    assert said.version.startswith("b")
    assert "(xllamacpp " in said.version
    assert said.weights_digest == truth["fingerprint"].weights_digest
    assert said.template_digest == truth["fingerprint"].template_digest
    assert len(said.tokenizer_digest) == 64
    assert said.flags["flash_attention"] == "disabled"
    assert said.flags["tensors"] == "f32 20"
    assert said.flags["context_length"] == 2048
    held = ours["capacity"]
    assert (held.kv_tokens, held.kv_bytes_per_token) == (2 * 2048, 2 * 2 * 2 * 16 * 4)
    assert held.weight_bytes == pytest.approx(78400 * 4, rel=0.01)


# ---- variants, from one file


def test_weights_and_cache_engage_and_are_proved(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines: list[str] = []

    def proved(**options: Any) -> Any:
        log = tmp_path / f"{len(lines)}{options['cache_type_k']}.log"
        return within(made(LlamaCpp, LlamaCppOptions(parallel=2, **options), tiny, log, say=lines.append), prove)

    plain = proved(requantize="bf16", cache_type_k="bf16", cache_type_v="bf16")
    cache = proved(requantize="bf16", cache_type_k="f16", cache_type_v="f32")
    weights = proved(requantize="q4_0", cache_type_k="bf16", cache_type_v="bf16")
    assert [found.faults for found in (plain, cache, weights)] == [(), (), ()]
    said = [(found.fingerprint.weights, found.fingerprint.kv_cache) for found in (plain, cache, weights)]
    assert said == [("bf16", "bf16"), ("bf16", "f16/f32"), ("q4_0", "bf16")]
    assert plain.probes.prompt_digests == cache.probes.prompt_digests == weights.probes.prompt_digests
    assert not set(plain.probes.logprob_digests.values()) & {
        *cache.probes.logprob_digests.values(),
        *weights.probes.logprob_digests.values(),
    }
    assert cache.capacity.kv_bytes_per_token == 1.5 * plain.capacity.kv_bytes_per_token
    assert plain.capacity.weight_bytes > weights.capacity.weight_bytes
    assert len({found.fingerprint.tokenizer_digest for found in (plain, cache, weights)}) == 1
    folder = tmp_path / "cache" / "evalrig" / "requantized"
    assert lines == [f"arm: writing tiny.gguf with {kind} weights to {folder}" for kind in ("bf16", "q4_0")]


def test_smollm2_in_bf16_lies_where_refengine_has_it(tmp_path: Path) -> None:
    """Real weights, BF16 in both engines: what remains is the kernels' rounding (KL 1e-4 seen), no offset."""
    name = "smollm2-135m-instruct"
    assert not fetch.missing([name]), f"{name} not in the cache; run `evalrig fetch` before the tests"

    async def two(engine: Engine) -> Any:
        ids = await engine.tokenize(PROBES["prose"])
        return ids, await engine.score(ids, 1, 50), await engine.score(ids, len(ids) - 1, -1)

    def options(kind: str) -> LlamaCppOptions:
        return LlamaCppOptions(requantize="bf16", cache_type_k=kind, cache_type_v=kind, parallel=1)

    ids, mine, whole = within(made(LlamaCpp, options("bf16"), name, tmp_path / "llama.log"), two)
    exact_ids, exact, exact_whole = within(made(Refengine, RefengineOptions(), name, tmp_path / "ref.log"), two)
    assert ids == exact_ids
    assert np.abs(mine.logprobs - exact.logprobs).mean() < 0.03
    assert (mine.top_ids[:, 0] == exact.top_ids[:, 0]).mean() > 0.9
    p, q = by_id(exact_whole), by_id(whole)
    assert 0 <= (np.exp(p) * (p - q)).sum() + 2e-4 < 2e-3
    assert np.exp(q).sum() == pytest.approx(1, abs=5e-4)

    async def cheaper(engine: Engine) -> Any:
        return await engine.score(ids, 1, 50), await engine.fingerprint(), await engine.capacity()

    scored, said, held = within(made(LlamaCpp, options("q8_0"), name, tmp_path / "q8.log"), cheaper)
    assert (said.weights, said.kv_cache, said.flags["flash_attention"]) == ("bf16", "q8_0", "enabled")
    assert held.kv_bytes_per_token == pytest.approx(30 * 2 * 192 * 34 / 32, rel=1e-3)
    assert 0 < np.abs(scored.logprobs - mine.logprobs).mean() < 0.05


# ---- what goes wrong


def test_what_would_be_refused_leaves_a_server_that_goes_on(tiny: Path, tmp_path: Path) -> None:
    async def tried(engine: Engine) -> None:
        for call in (
            engine.score([1, 260], 1, 5),
            engine.score([-1, 5], 1, 5),
            engine.score([1, 5], 1, 261),
            engine.generate([1, 260], Sampling(max_tokens=2)),
            engine.score([5] * 600, 1, 1),
            engine.generate([5] * 254, Sampling(max_tokens=8)),
        ):
            with pytest.raises(EngineError):
                await call
        assert engine.alive()
        many = [engine.score([1, 5, 6, at], 1, 3) for at in range(3, 40)]
        assert len(await asyncio.gather(*many)) == 37, "more calls than slots wait"

    within(made(LlamaCpp, LlamaCppOptions(context_length=256, parallel=2), tiny, tmp_path / "log"), tried)


def test_a_server_that_dies_is_an_error_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    engine = made(LlamaCpp, EXACT, tiny, tmp_path / "log")

    async def killed(engine: Any) -> None:
        [server] = [p for p in psutil.Process().children(recursive=True) if str(tiny) in p.cmdline()]
        call = asyncio.create_task(engine.score([5, 6] * 500, 1, 250))
        await asyncio.sleep(0.3)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"^arm: /completion failed: "):
            await call
        assert not engine.alive()

    within(engine, killed)
    assert not [p for p in psutil.Process().children(recursive=True) if str(tiny) in p.cmdline()]


def test_a_stop_is_quick_and_another_process_can_follow(tiny: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the log is appended to: the second start reads its own lines
        engine = made(LlamaCpp, EXACT, tiny, tmp_path / "log")
        within(engine, lambda started: started.fingerprint())
        began = time.monotonic()
        asyncio.run(engine.stop())
        assert time.monotonic() - began < 9
        assert not engine.alive()


def test_a_file_that_is_no_model_is_told_by_its_cause(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(EngineError) as caught:
        within(made(LlamaCpp, EXACT, broken, tmp_path / "log"), lambda engine: engine.fingerprint())
    assert str(caught.value) == (
        f"arm: did not start: the model file is missing, cut short or no GGUF file; restore it; see {tmp_path / 'log'}"
    )


def test_weights_that_cannot_be_written_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    options = LlamaCppOptions(requantize="q8_0")
    with pytest.raises(
        EngineError, match=r"^arm: .*broken\.gguf: cannot be written as q8_0 .*; restore the file; see "
    ):
        within(made(LlamaCpp, options, tmp_path / "broken.gguf", tmp_path / "log"), lambda engine: engine.fingerprint())


def test_a_cache_type_that_does_not_fit_the_heads_is_told_by_its_cause(tiny: Path, tmp_path: Path) -> None:
    options = LlamaCppOptions(cache_type_k="q8_0")
    with pytest.raises(
        EngineError, match=r"^arm: did not start: this KV cache type does not fit the model's head size"
    ):
        within(made(LlamaCpp, options, tiny, tmp_path / "log"), lambda engine: engine.fingerprint())


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalrig.engines.llama_cpp.find_spec", lambda _: None)


@pytest.mark.usefixtures("no_wheel")
def test_a_missing_package_is_one_line_before_anything_starts(tiny: Path) -> None:
    variant = Variant(name="reference", role="reference", engine="llama_cpp", weights=str(tiny))
    with pytest.raises(UsageError) as caught:
        LlamaCpp.reach(variant, LlamaCppOptions(), "reference")
    assert str(caught.value) == (
        "reference: engine `llama_cpp` needs the package `xllamacpp`; run `pip install 'evalrig[llama_cpp]'`"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"requantize": "int4"}, "requantize: no format 'int4'; known: bf16, q8_0, q4_0"),
        ({"cache_type_k": "fp8"}, "cache_type_k: no format 'fp8'; known: f32, f16, bf16, q8_0"),
        ({"cache_type_v": "q8_0", "flash_attn": False}, "cache_type_v: a quantised one needs flash attention"),
    ],
)
def test_options_are_checked_before_anything_starts(tiny: Path, options: Any, said: str) -> None:
    variant = Variant(name="reference", role="reference", engine="llama_cpp", weights=str(tiny))
    with pytest.raises(UsageError) as caught:
        LlamaCpp.resolve(variant, LlamaCppOptions(**options), "reference")
    assert str(caught.value).startswith(f"reference.args.{said}")
    with pytest.raises(UsageError, match="context_length, parallel and threads are at least 1"):
        LlamaCpp.resolve(variant, LlamaCppOptions(threads=0), "reference")
