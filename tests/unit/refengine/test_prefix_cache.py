"""Kept prompts: the numbers are those of a cold start, pages are counted and checked, and the oldest go first."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from threadpoolctl import threadpool_limits
from toys.gguf_model import tiny_model

from evalrig.refengine.cache import BLOCK, BLOCK_PAGES, NOBODY, CachedSequence, OutOfPages, PagedCache, pages_for
from evalrig.refengine.engine import Engine, Settings, Switches, start_engine
from evalrig.refengine.jobs import JobSpec, Update
from evalrig.refengine.prefix import Block
from evalrig.refengine.sampling import Sampling
from evalrig.refengine.scheduler import Load, Scheduler
from evalrig.refengine.server import create_app
from evalrig.refengine.step import Stepper
from tests.unit.refengine.test_cache import cache
from tests.unit.refengine.test_wire import RECORDED, differences, send

RNG = np.random.default_rng(11)
TEXT = RNG.integers(3, 260, 210).tolist()
OTHER = RNG.integers(3, 260, 210).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@contextmanager
def serving(model: Path, *, kept: bool, kv: str = "bf16") -> Generator[tuple[Engine, TestClient]]:
    with threadpool_limits(1):
        engine = start_engine(
            Settings(model=model, kv_cache=kv, pool_bytes=1 << 19, context=512, switches=Switches(prefix_cache=kept))
        )
        try:
            with TestClient(create_app(engine)) as client:
                yield engine, client
        finally:
            engine.scheduler.stop(10)


def score(client: TestClient, ids: list[int], start: int, new: int = 0) -> dict[str, Any]:
    body = {
        "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": new, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": 4,
    }
    answer = client.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["meta_info"]


def numbers(meta: dict[str, Any]) -> Any:
    lists = ("input_top_logprobs", "output_top_logprobs", "input_token_logprobs", "output_token_logprobs")
    return np.array(
        [entry[0] for key in lists for row in meta[key] if row for entry in flat(row) if entry[0] is not None]
    )


def flat(row: Any) -> list[Any]:
    return row if isinstance(row[0], list) else [row]


@pytest.mark.parametrize("kv", ["bf16", "fp8_e4m3"])
def test_scoring_over_a_kept_prefix_gives_the_cold_numbers(model: Path, kv: str) -> None:
    with serving(model, kept=False, kv=kv) as (_, client):
        cold = [score(client, TEXT, 150, new=3), score(client, TEXT[:130] + OTHER[:50], 140)]
    with serving(model, kept=True, kv=kv) as (engine, client):
        assert score(client, TEXT[:200], -1)["cached_tokens"] == 0
        assert engine.cache.idle_pages == 3 * BLOCK_PAGES
        before = engine.cache._pool.copy()
        warm = [score(client, TEXT, 150, new=3), score(client, TEXT[:130] + OTHER[:50], 140)]
        kept = np.concatenate([block.pages for block in engine.cache._prefixes.blocks])  # type: ignore[union-attr]
        assert np.array_equal(engine.cache._pool[:, :, kept[: 3 * BLOCK_PAGES]], before[:, :, kept[: 3 * BLOCK_PAGES]])
    assert [meta["cached_tokens"] for meta in warm] == [128, 128]
    assert warm[0]["cached_tokens_details"] == {"device": 128, "host": 0}
    for a, b in zip(cold, warm, strict=True):
        if engine.exact_holds:
            assert np.array_equal(numbers(a), numbers(b))
        # Keys and values are the same bits; where the library's kernel rounds by the number of rows, FP8 amplifies it.
        assert np.abs(numbers(a) - numbers(b)).max() <= (1e-4 if kv == "bf16" else 0.3)


EXACT = """
import json, sys
from pathlib import Path
from tests.unit.refengine.test_prefix_cache import TEXT, numbers, score, serving
model, found = Path(sys.argv[1]), {}
for kv in ("bf16", "fp8_e4m3"):
    with serving(model, kept=False, kv=kv) as (engine, client):
        cold = numbers(score(client, TEXT, 130, new=3))
    with serving(model, kept=True, kv=kv) as (engine, client):
        score(client, TEXT[:140], -1)
        meta = score(client, TEXT, 130, new=3)
    found[kv] = [engine.exact_holds, meta["cached_tokens"], bool((numbers(meta) == cold).all())]
print(json.dumps(found))
"""


def test_where_exact_holds_the_numbers_are_bit_equal(model: Path) -> None:
    root = Path(__file__).parents[3]
    environment = {
        **os.environ,
        "OPENBLAS_CORETYPE": "Sandybridge",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests' / 'support'}",
    }
    found = subprocess.run(
        [sys.executable, "-c", EXACT, str(model)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    for holds, cached, equal in json.loads(found.stdout).values():
        assert cached == 128
        assert equal or not holds


@pytest.fixture(scope="module")
def warm(model: Path) -> Iterator[tuple[Engine, TestClient]]:
    with serving(model, kept=True) as pair:
        yield pair


@pytest.fixture
def kept(warm: tuple[Engine, TestClient]) -> tuple[Engine, TestClient]:
    assert warm[1].post("/flush_cache").status_code == 200
    return warm


@pytest.mark.parametrize(
    ("start", "cached"), [(0, 0), (63, 0), (64, 64), (150, 128), (191, 128), (192, 192), (209, 192), (-1, 192)]
)
def test_what_is_asked_about_is_computed_anew(kept: tuple[Engine, TestClient], start: int, cached: int) -> None:
    _, client = kept
    score(client, TEXT, -1)
    assert score(client, TEXT, start)["cached_tokens"] == cached


def test_the_last_token_is_always_computed(kept: tuple[Engine, TestClient]) -> None:
    _, client = kept
    score(client, TEXT[:128], -1)
    assert score(client, TEXT[:128], -1)["cached_tokens"] == 64


def test_flushing_forgets(kept: tuple[Engine, TestClient]) -> None:
    engine, client = kept
    score(client, TEXT, -1)
    assert client.post("/flush_cache").status_code == 200
    assert (engine.cache.idle_pages, engine.cache.used_pages, engine.cache.reserved_pages) == (0, 0, 0)
    assert score(client, TEXT, -1)["cached_tokens"] == 0


def test_flushing_is_refused_while_a_request_runs(kept: tuple[Engine, TestClient]) -> None:
    engine, client = kept
    score(client, TEXT, -1)
    runs, ended = threading.Event(), threading.Event()

    def news(update: Update) -> None:
        runs.set()
        if update.finish is not None:
            ended.set()

    work = JobSpec(
        identity="long", prompt=tuple(OTHER), max_new_tokens=250, sampling=Sampling(temperature=0), stream=True
    )
    job = engine.scheduler.submit(work, news)
    assert runs.wait(30)
    refused = client.post("/flush_cache").status_code
    running = not ended.is_set()
    engine.scheduler.abort(job)
    while engine.scheduler.load() != Load(running=0, waiting=0):
        time.sleep(0.01)
    if running:  # or it was too quick to be caught
        assert refused == 400
        assert score(client, TEXT, -1)["cached_tokens"] == 192


def test_usage_and_metrics_tell_what_was_kept(kept: tuple[Engine, TestClient]) -> None:
    _, client = kept
    body = {"prompt": [TEXT, TEXT[:100]], "max_tokens": 2, "temperature": 0}
    client.post("/v1/completions", json=body)
    found = client.post("/v1/completions", json=body).json()["usage"]
    assert found["prompt_tokens_details"] == {"cached_tokens": 192 + 64}
    ask = {"messages": [{"role": "user", "content": "x" * 200}], "max_tokens": 1, "n": 2}
    client.post("/v1/chat/completions", json=ask)
    found = client.post("/v1/chat/completions", json=ask).json()["usage"]
    assert found["prompt_tokens_details"] == {"cached_tokens": 192}
    lines = client.get("/metrics").text.splitlines()
    values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[0] != "#"}
    assert values["sglang:cached_tokens_total"] >= 448
    assert 0 < values["sglang:cache_hit_rate"] < 1
    assert values["sglang:kv_used_tokens"] == 0
    assert client.get("/server_info").json()["disable_radix_cache"] is False


def swap_pages(block: Block) -> None:
    block.pages[[0, 1]] = block.pages[[1, 0]]


def swap_pages_and_tags_of_another(block: Block) -> None:
    block.tags[0] += 1


@pytest.mark.parametrize("fault", [swap_pages, swap_pages_and_tags_of_another])
def test_a_swapped_kept_page_fails_the_request_and_is_not_met_again(
    kept: tuple[Engine, TestClient], fault: Callable[[Block], None]
) -> None:
    engine, client = kept
    cold = numbers(score(client, TEXT, 150))
    fault(engine.cache._prefixes.blocks[0])  # type: ignore[union-attr]
    body = {"input_ids": TEXT, "sampling_params": {"max_new_tokens": 1}}
    answer = client.post("/generate", json=body)
    assert answer.status_code == 500
    assert "PageTagError" in answer.text
    assert engine.cache.used_pages == 0
    again = score(client, TEXT, 150)
    assert again["cached_tokens"] == 0
    assert np.abs(numbers(again) - cold).max() <= 1e-4


def test_more_prompts_than_the_pool_holds_are_all_served(kept: tuple[Engine, TestClient]) -> None:
    engine, client = kept
    prompts = [RNG.integers(3, 260, 200).tolist() for _ in range(engine.cache.pages // (3 * BLOCK_PAGES) + 4)]
    for prompt in prompts:
        assert score(client, prompt, -1)["cached_tokens"] == 0
    assert engine.cache.idle_pages <= engine.cache.pages
    assert score(client, prompts[-1], -1)["cached_tokens"] == 192
    assert score(client, prompts[0], -1)["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("names", "cached"),
    [(("5-score-prefix-cold", "5-score-prefix-warm", "5-score-prefix-warm-start0"), (0, 192, 0))],
)
def test_the_recorded_requests(engine: Engine, names: tuple[str, ...], cached: tuple[int, ...]) -> None:
    """Shapes as recorded; SGLang keeps single tokens (250 of 256), ours whole blocks."""
    pages = PagedCache(engine.model.architecture, engine.cache.format, pages=64, rows=2, context=512)
    pages.keep_prefixes()
    scheduler = Scheduler(Stepper(engine.model, pages, context=512, exact=True), pages, engine.tokenizer, chunk=256)
    scheduler.start()
    with TestClient(create_app(replace(engine, cache=pages, scheduler=scheduler))) as client:
        for name, count in zip(names, cached, strict=True):
            exchange = RECORDED[name]
            answer = send(client, exchange).json()
            assert differences(exchange["response"], answer) == []
            assert answer["meta_info"]["cached_tokens"] == count
            assert (exchange["response"]["meta_info"]["cached_tokens"] > 0) == (count > 0)
    scheduler.stop(10)


FAMILIES = [list(range(first, first + 300)) for first in (0, 1000, 2000)]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 230), st.integers(0, 3), st.booleans(), st.integers(0, 9)),
        min_size=1,
        max_size=25,
    )
)
@settings(max_examples=150, deadline=None)
def test_pages_are_in_one_place_each_whatever_happens(steps: list[tuple[int, int, int, bool, int]]) -> None:
    """Sequences open over kept prompts, grow, close, fail; prompts are dropped for room, or all at once."""
    pool = cache(pages=24, rows=4)
    pool.keep_prefixes()
    held: list[tuple[CachedSequence, list[int]]] = []
    for family, length, changed, sound, action in steps:
        prompt = [*FAMILIES[family][: length - min(changed, length)], *range(-min(changed, length), 0)]
        if action == 0 and not held:
            pool.forget_prefixes()
        if action < 5 and held:
            sequence, tokens = held.pop(action % len(held))
            if not sound:
                pool.distrust(sequence)
            pool.close(sequence, tokens if sound else ())
        try:
            sequence = pool.open(min(length, 256), prompt[: length - 1])
        except OutOfPages:
            continue
        assert sequence.length % BLOCK == 0
        assert sequence.length < length
        pool.grow(sequence, length)
        sequence.length = length
        held.append((sequence, prompt))
        pool.check([one for one, _ in held], [one.length for one, _ in held])
        check_pages(pool, [one for one, _ in held])
    for sequence, tokens in held:
        pool.close(sequence, tokens)
    check_pages(pool, [])
    pool.forget_prefixes()
    assert (pool.used_pages, pool.idle_pages, pool.reserved_pages, pool._kept) == (0, 0, 0, 0)
    assert (pool.owner_and_generation[:, 0] == NOBODY).all()


def check_pages(pool: PagedCache, held: list[CachedSequence]) -> None:
    index = pool._prefixes
    assert index is not None
    own = [page for one in held for page in pool._table[one.row, one.lent : pages_for(one.length)].tolist()]
    blocks = {*index.blocks, *(block for one in held for block in one.blocks)}
    places = [*pool._free, *own, *(page for block in blocks for page in block.pages.tolist())]
    assert sorted(places) == list(range(pool.pages))
    assert pool.used_pages + pool.idle_pages + len(pool._free) == pool.pages
    assert pool.reserved_pages + len(blocks) * BLOCK_PAGES <= pool.pages
    for block in blocks:
        assert block.users == sum(block in one.blocks for one in held)


def test_the_prompt_not_asked_for_the_longest_goes_first() -> None:
    pool = cache(pages=3 * BLOCK_PAGES)
    pool.keep_prefixes()
    for family in FAMILIES:
        sequence = pool.open(BLOCK, family[: BLOCK - 1])
        pool.grow(sequence, BLOCK)
        sequence.length = BLOCK
        pool.close(sequence, family[:BLOCK])
    first = pool.open(BLOCK, FAMILIES[0][:BLOCK])
    assert (first.length, first.reserved) == (BLOCK, 0)
    pool.close(first)
    pool.close(pool.open(BLOCK))
    lengths = [pool.open(BLOCK, family[:BLOCK]).length for family in FAMILIES[::2]]
    assert lengths == [BLOCK, BLOCK]
    assert pool._prefixes is not None
    assert pool._prefixes.match(FAMILIES[1][:BLOCK]) == ()
