"""Engines under load: every kind that says it can be loaded streams given token ids at the length asked for, and can be read meanwhile."""

import asyncio
import json
import math
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from toys.gguf_model import tiny_model
from toys.launched import COMMAND, READY, WIRE, carry, engine_of
from toys.program import Exchanges

from evalrig.engine import Engine, Launch
from evalrig.engines.endpoint import Endpoint, EndpointOptions
from evalrig.engines.llama_cpp import LlamaCpp, LlamaCppOptions
from evalrig.engines.refengine import Refengine, RefengineOptions
from evalrig.errors import EngineError
from evalrig.llama_cpp import said
from evalrig.llama_cpp.wire import Client as LlamaClient
from evalrig.loadgen.target import Gauges, Serving
from evalrig.plugins import find, kinds
from evalrig.serving import address
from evalrig.sglang_wire import Client as SglangClient
from evalrig.types import EMULATED, Capacity, Variant
from evalrig.vllm_wire import Client as VllmClient
from evalrig.wire import Wire

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process groups as on Linux")
LOAD = WIRE / "load"
ASKED = {"sglang": [504, 3575, 282, 4649, 314], "vllm": [504, 3575, 282, 4649, 314]}
"""Prompts of the recorded streams, of 4 tokens each."""
KEY = "sk-very-secret"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one engine did."""

    serving: Serving
    before: Gauges | None
    streams: tuple[list[dict[str, Any]], ...]
    after: Gauges | None
    flushed: bool
    capacity: Capacity
    flags: dict[str, Any]


async def streamed(serving: Serving, ids: list[int], most: int, **more: Any) -> list[dict[str, Any]]:
    """The events of one completion, as a plain client sees them."""
    to = serving.completions
    body = {"prompt": ids, "max_tokens": most, "temperature": 0.0, **more, **serving.body}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        url = f"{'https' if to.tls else 'http'}://{to.host}:{to.port}{to.path}"
        reply = await client.post(url, json=body, headers=dict(to.headers))
    assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def look(engine: Engine, ids: list[int], most: int, **more: Any) -> Seen:
    serving = await engine.serving()
    before = await engine.gauges()
    streams = [await streamed(serving, ids, most, **more) for _ in range(2)]
    return Seen(
        serving=serving,
        before=before,
        streams=tuple(streams),
        after=await engine.gauges(),
        flushed=await engine.flush(),
        capacity=await engine.capacity(),
        flags=dict((await engine.fingerprint()).flags),
    )


@contextmanager
def exchanges(folder: Path) -> Generator[Exchanges]:
    with Exchanges(folder) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join(10)


def recorded_folder(kind: str, folder: Path) -> Path:
    """What the fake program serves: how the engine starts, and how it is loaded."""
    target = folder / "wire"
    target.mkdir(parents=True, exist_ok=True)
    for path in (WIRE if kind == "sglang" else WIRE / kind).glob("*.json"):
        shutil.copy(path, target)
    for path in (LOAD / kind).glob("*.json"):
        if path.stem != "1-flush_cache-busy":
            shutil.copy(path, target / f"0-{path.name}")  # the first that fits is answered
    return target


def live(owner: Any, options: Any, folder: Path) -> Engine:
    folder.mkdir(parents=True, exist_ok=True)
    variant = Variant(name="arm", role="reference", engine="x", weights=str(tiny_model(folder / "tiny.gguf")))
    return owner(variant, options, Launch(log=folder / "engine.log", start_seconds=60, request_seconds=30))  # type: ignore[no-any-return]


def seen_refengine(folder: Path) -> Seen:
    options = RefengineOptions(kv_pool_mb=16, prefix_cache=True)
    return carry(live(Refengine, options, folder), lambda engine: look(engine, list(range(3, 83)), 6))  # type: ignore[no-any-return]


def seen_llama_cpp(folder: Path) -> Seen:
    options = LlamaCppOptions(parallel=2)
    return carry(live(LlamaCpp, options, folder), lambda engine: look(engine, list(range(3, 83)), 6))  # type: ignore[no-any-return]


def seen_launched(kind: str, folder: Path) -> Seen:
    env = {"FAKE_WIRE": str(recorded_folder(kind, folder)), **READY[kind]}
    engine = engine_of(kind, folder, env, parallel={"tp": 2, "pp": 2})
    return carry(engine, lambda engine: look(engine, ASKED[kind], 4, return_token_ids=True))  # type: ignore[no-any-return]


def seen_endpoint(folder: Path) -> Seen:
    with exchanges(recorded_folder("vllm", folder)) as server:
        variant = Variant(name="arm", role="reference", engine="x", weights=f"http://127.0.0.1:{server.server_port}/v1")
        engine = Endpoint(variant, EndpointOptions(gpus=4), Launch(log=folder, start_seconds=1, request_seconds=10))
        return carry(engine, lambda engine: look(engine, ASKED["vllm"], 4, return_token_ids=True))  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[Path], Seen]] = {
    "refengine": seen_refengine,
    "llama_cpp": seen_llama_cpp,
    "sglang": lambda folder: seen_launched("sglang", folder),
    "vllm": lambda folder: seen_launched("vllm", folder),
    "endpoint": seen_endpoint,
}
"""A new kind that can be loaded needs a way to be loaded here."""
LOADABLE = [kind for kind in kinds("engines") if find("engines", kind, Engine, "test").capabilities.load]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seen]:
    kept: dict[str, Seen] = {}

    def of(kind: str) -> Seen:
        if kind not in kept:
            kept[kind] = WAYS[kind](tmp_path_factory.mktemp(kind))
        return kept[kind]

    return of


def usage(events: list[dict[str, Any]]) -> dict[str, Any]:
    return [event["usage"] for event in events if event.get("usage")][-1]  # type: ignore[no-any-return]


# ---- the shelf


def test_which_kinds_can_be_loaded() -> None:
    """A file of answers has no speed."""
    assert set(LOADABLE) == set(WAYS)
    assert "replay" not in LOADABLE


@pytest.mark.parametrize("kind", LOADABLE)
def test_given_ids_are_streamed_at_exactly_the_length_asked_for(kind: str, seen: Any) -> None:
    """Pitfall: an end token, a default of 16, or a text that was tokenised anew makes the arms do unequal work."""
    found: Seen = seen(kind)
    ids, most = (len(ASKED["vllm"]), 4) if kind in ("sglang", "vllm", "endpoint") else (80, 6)
    assert found.serving.fixed_length
    for events in found.streams:
        assert (usage(events)["prompt_tokens"], usage(events)["completion_tokens"]) == (ids, most)
        assert [event["choices"][0]["finish_reason"] for event in events if event["choices"]][-1] == "length"
        assert "cached_tokens" in usage(events)["prompt_tokens_details"], "a cold load is seen to be cold"


@pytest.mark.parametrize("kind", LOADABLE)
def test_every_request_asks_for_a_stream_with_usage_and_without_an_early_end(kind: str, seen: Any) -> None:
    serving: Serving = seen(kind).serving
    body = serving.body
    assert (body["stream"], body["ignore_eos"], body["stream_options"]["include_usage"]) == (True, True, True)
    assert serving.usage == ("continuous" if body["stream_options"].get("continuous_usage_stats") else "final")
    assert body["model"], "vLLM answers 404 without"
    assert serving.chat is not None
    assert (serving.completions.path, serving.chat.path) == ("/v1/completions", "/v1/chat/completions")


@pytest.mark.parametrize("kind", LOADABLE)
def test_gauges_are_numbers_where_the_engine_tells_and_never_go_back(kind: str, seen: Any) -> None:
    before, after = seen(kind).before, seen(kind).after
    assert before.at < after.at
    for name in ("running", "waiting", "kv_usage", "preemptions", "prompt_tokens", "generated_tokens"):
        assert math.isfinite(getattr(after, name)), name
    assert 0 <= after.kv_usage <= 1, "vLLM's `perc` is a fraction"
    assert after.prompt_tokens >= before.prompt_tokens
    assert after.generated_tokens >= before.generated_tokens
    assert set(after.phases) >= ({"prefill", "decode"} if kind in ("refengine", "llama_cpp") else {"queue", "request"})


@pytest.mark.parametrize(
    ("kind", "gpus", "flushes"),
    [("refengine", 1, True), ("llama_cpp", 1, True), ("sglang", 4, True), ("vllm", 4, False), ("endpoint", 4, False)],
)
def test_gpus_are_counted_and_a_flush_is_only_claimed_where_it_works(
    kind: str, gpus: int, flushes: bool, seen: Any
) -> None:
    found: Seen = seen(kind)
    assert (found.serving.gpus, found.serving.flushes) == (gpus, flushes)
    assert found.flushed or not flushes


def test_tokens_of_our_own_engines_are_counted_once(seen: Any) -> None:
    """Two streams of 80 and 6: what the engine counts is what the streams say."""
    for kind in ("refengine", "llama_cpp"):
        before, after = seen(kind).before, seen(kind).after
        assert after.generated_tokens - before.generated_tokens == 12
        assert (after.running, after.waiting, after.kv_usage, after.preemptions) == (0, 0, 0, 0)
        assert after.phases["prefill"][0] > before.phases["prefill"][0]
    assert seen("refengine").after.prompt_tokens - seen("refengine").before.prompt_tokens == 160


def test_a_prefix_cache_is_read_by_the_second_stream_only_where_there_is_one(seen: Any) -> None:
    """llama.cpp would keep prompts by slot: then the order of requests decides the work."""
    cached = {
        kind: [usage(events)["prompt_tokens_details"]["cached_tokens"] for events in seen(kind).streams]
        for kind in ("refengine", "llama_cpp")
    }
    assert cached["llama_cpp"] == [0, 0]
    assert cached["refengine"][0] == 0 < cached["refengine"][1]


def test_only_refengine_says_that_its_speed_is_no_evidence(seen: Any) -> None:
    said_so = {kind: seen(kind).flags.get(EMULATED) for kind in LOADABLE}
    assert said_so.pop("refengine") == "every format is computed in float32"
    assert set(said_so.values()) == {None}


# ---- capacity


def test_half_the_bytes_a_token_are_twice_the_tokens_of_the_same_pool(tmp_path: Path) -> None:
    """The self-test of an FP8 cache: 1.77 and not 2.00 would be scales, or a flag that did not take effect."""

    def capacity(kv_cache: str) -> Capacity:
        engine = live(Refengine, RefengineOptions(kv_cache=kv_cache, kv_pool_mb=16), tmp_path / kv_cache)
        return carry(engine, lambda engine: engine.capacity())  # type: ignore[no-any-return]

    bf16, fp8 = capacity("bf16"), capacity("fp8_e4m3")
    assert fp8.kv_tokens / bf16.kv_tokens == 2.00
    assert bf16.kv_bytes_per_token / fp8.kv_bytes_per_token == 2.00
    assert fp8.kv_tokens * fp8.kv_bytes_per_token == bf16.kv_tokens * bf16.kv_bytes_per_token == 16 << 20


def test_q8_0_holds_less_than_twice_as_much_for_its_scales() -> None:
    """Blocks of 32 values are 32 bytes and a scale of 2: 64 bytes of F16 become 34."""
    f16, q8_0 = (said.read((WIRE / "llamacpp" / f"kv_{kind}_capacity.txt").read_text()) for kind in ("f16", "q8_0"))
    assert f16.kv_tokens == q8_0.kv_tokens
    assert f16.kv_bytes / q8_0.kv_bytes == pytest.approx(64 / 34, rel=1e-4)


# ---- what was recorded


def ask(kind: str, call: Callable[[Any], Awaitable[Any]], *names: str, **change: Any) -> Any:
    """Against these recorded exchanges alone."""
    clients: dict[str, Callable[[str], Wire]] = {
        "sglang": lambda url: SglangClient("arm", url, 10),
        "vllm": lambda url: VllmClient("arm", url, 10),
        "llamacpp": lambda url: LlamaClient("arm", url, 10, 4),
    }

    async def go(url: str) -> Any:
        client = clients[kind](url)
        try:
            return await call(client)
        finally:
            await client.close()

    with exchanges(LOAD / kind) as server:
        server.exchanges = [{**json.loads((LOAD / kind / f"{name}.json").read_text()), **change} for name in names]
        return asyncio.run(asyncio.wait_for(go(f"http://127.0.0.1:{server.server_port}"), 30))


def test_sglang_s_numbers_of_now_come_from_its_loads_since_its_gauges_stand_still() -> None:
    """Recorded in one moment: 460 tokens by the gauge of the last step that set it, 468 in truth."""
    found: Gauges = ask("sglang", lambda client: client.gauges(), "1-metrics-busy", "1-loads-busy")
    assert (found.running, found.waiting, found.kv_usage) == (4, 2, 0.0571)
    assert (found.prompt_tokens, found.generated_tokens) == (119, 19)
    assert found.phases["queue"] == (0.006689634999474947, 13)
    assert found.phases["request"] == (pytest.approx(0.3964923519988588 + 0.4227715699998953), 8)
    assert set(found.phases) == {"queue", "first_token", "request"}, "what it does not tell is left out"
    older: Gauges = ask("sglang", lambda client: client.gauges(), "1-metrics-busy")
    assert (older.running, older.waiting, older.kv_usage) == (4, 2, 0.06)


def test_retractions_are_none_before_the_first_and_counted_then() -> None:
    """The counter is absent at first: not told would hide that there were none."""
    assert ask("sglang", lambda client: client.gauges(), "1-metrics-busy").preemptions == 0
    assert ask("sglang", lambda client: client.gauges(), "8-pressure-metrics").preemptions == 3
    assert ask("vllm", lambda client: client.gauges(), "1-metrics-busy").preemptions == 0
    assert ask("vllm", lambda client: client.gauges(), "8-pressure-metrics").preemptions == 1


def test_vllm_s_numbers() -> None:
    found: Gauges = ask("vllm", lambda client: client.gauges(), "1-metrics-busy")
    assert (found.running, found.waiting) == (4, 2)
    assert found.kv_usage == pytest.approx(0.0220, abs=1e-4), "a fraction although its name says percent"
    assert (found.prompt_tokens, found.generated_tokens) == (7871, 914)
    assert found.phases["queue"] == (0.05603581300147198, 74)
    lines = [
        f'vllm:request_{phase}_time_seconds_{part}{{engine="0"}} {value}'
        for phase, value in (("prefill", 3), ("decode", 5))
        for part in ("sum", "count")
    ]
    phases = ask("vllm", lambda client: client.gauges(), "1-metrics-busy", response=lines).phases
    assert phases == {"prefill": (3, 3), "decode": (5, 5)}


def test_llama_cpp_s_numbers_with_the_slots_that_work() -> None:
    found: Gauges = ask("llamacpp", lambda client: client.gauges(), "1-metrics-busy", "1-slots-busy")
    assert (found.running, found.waiting, found.preemptions) == (4, 2, 0)
    assert found.kv_usage == (86 + 105 + 125 + 145) / (4 * 2048)
    assert (found.prompt_tokens, found.generated_tokens) == (2293, 806)
    assert found.phases["prefill"][0] == 10.1181
    assert math.isnan(found.phases["prefill"][1]), "of how many requests it does not tell"
    without: Gauges = ask("llamacpp", lambda client: client.gauges(), "1-metrics-busy")
    assert math.isnan(without.kv_usage)


@pytest.mark.parametrize("kind", ["sglang", "vllm", "llamacpp"])
def test_a_server_without_metrics_has_no_gauges_and_is_not_at_zero(kind: str) -> None:
    assert ask(kind, lambda client: client.gauges()) is None


@pytest.mark.parametrize(
    ("kind", "name", "flushed"),
    [
        ("sglang", "1-flush_cache", True),
        ("sglang", "1-flush_cache-busy", False),
        ("vllm", "1-reset_prefix_cache-dev-mode", True),
        ("vllm", "1-reset_prefix_cache", False),
    ],
)
def test_a_cache_that_was_not_emptied_is_said_to_be_so(kind: str, name: str, flushed: bool) -> None:
    """SGLang refuses while requests run: a stale prefix would make the second block the faster one."""
    assert ask(kind, lambda client: client.flush(), name) is flushed


def test_vllm_that_says_it_did_not_reset_has_not() -> None:
    said_no = ask("vllm", lambda client: client.flush(), "1-reset_prefix_cache-dev-mode", response={"success": False})
    assert said_no is False


def test_vllm_flushes_where_its_development_routes_are_open(tmp_path: Path) -> None:
    env = {"FAKE_WIRE": str(recorded_folder("vllm", tmp_path)), **READY["vllm"], "VLLM_SERVER_DEV_MODE": "1"}
    (tmp_path / "wire" / "0-1-reset_prefix_cache.json").unlink()

    async def both(engine: Engine) -> Any:
        return (await engine.serving()).flushes, await engine.flush()

    assert carry(engine_of("vllm", tmp_path, env), both) == (True, True)


# ---- an endpoint


def endpoint(url: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Endpoint:
    monkeypatch.setenv("SOME_KEY", KEY)
    variant = Variant(name="arm", role="reference", engine="endpoint", weights=url)
    made = EndpointOptions(api_key_env="SOME_KEY", **options)
    return Endpoint(variant, made, Launch(log=Path(), start_seconds=1, request_seconds=10))


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_the_key_of_an_endpoint_is_in_the_header_and_in_no_word_of_what_is_told(
    dialect: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with exchanges(recorded_folder(dialect, tmp_path)) as server:
        engine = endpoint(f"http://127.0.0.1:{server.server_port}", monkeypatch, dialect=dialect)
        serving: Serving = carry(engine, lambda engine: engine.serving())
    assert dict(serving.completions.headers) == {"Authorization": f"Bearer {KEY}"}
    assert KEY not in f"{serving!r} {serving.body}"


def test_an_endpoint_behind_tls_and_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = {url: Wire("arm", url, 1) for url in ("https://[::1]/models/m", "http://host:8000")}
    tls, plain = (address(wire, "/v1/completions") for wire in wires.values())
    assert (tls.host, tls.port, tls.tls, tls.path) == ("::1", 443, True, "/models/m/v1/completions")
    assert (plain.host, plain.port, plain.tls, plain.path) == ("host", 8000, False, "/v1/completions")
    assert plain.headers == ()


def test_somebody_else_s_cache_is_emptied_only_where_that_was_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def both(engine: Engine) -> Any:
        return (await engine.serving()).flushes, await engine.flush()

    with exchanges(recorded_folder("sglang", tmp_path)) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        assert carry(endpoint(url, monkeypatch, dialect="sglang"), both) == (False, False)
        assert "/flush_cache" not in [path for _, path, _ in server.asked]
        assert carry(endpoint(url, monkeypatch, dialect="sglang", may_flush=True), both) == (True, True)


def test_openai_s_own_dialect_takes_no_token_ids_so_it_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = endpoint("http://127.0.0.1:9", monkeypatch, dialect="openai")
    assert not Endpoint.able(engine.options).load
    assert Endpoint.able(EndpointOptions(dialect="sglang")).load
    with pytest.raises(EngineError, match="cannot be loaded"):
        asyncio.run(engine.serving())


# ---- a prefill/decode split


def split(folder: Path, extra: dict[str, Any] | None = None) -> Any:
    wire = recorded_folder("sglang", folder)
    if extra:
        (wire / "0-extra.json").write_text(json.dumps(extra))
    env = {"FAKE_WIRE": str(wire), **READY["sglang"]}
    pd = {"prefill": 2, "decode": 1, "router_command": COMMAND}
    return engine_of("sglang", folder, env, pd=pd, parallel={"tp": 4})


def test_a_split_is_loaded_through_its_router_and_read_at_its_servers(tmp_path: Path) -> None:
    request = {"prompt": [1], "max_tokens": 1}
    taken = {"method": "POST", "path": "/v1/completions", "request": request, "status": 200, "response": {}}
    engine = split(tmp_path, taken)

    async def all_of(engine: Any) -> Any:
        return await engine.serving(), await engine.gauges(), await engine.flush(), engine._split

    serving, gauges, flushed, parts = carry(engine, all_of)
    assert serving.gpus == 3 * 4
    assert serving.completions.port == httpx.URL(str(parts.router.http.base_url)).port
    assert (gauges.running, gauges.waiting, gauges.kv_usage) == (3 * 4, 3 * 2, 0.0571)
    assert (gauges.prompt_tokens, gauges.generated_tokens) == (2 * 119, 19), "each counted where it is made"
    assert gauges.phases["queue"][1] == 2 * 13
    assert gauges.phases["request"][1] == 8
    assert flushed


def test_a_router_that_takes_texts_only_is_named_before_the_load(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        carry(split(tmp_path), lambda engine: engine.serving())
    assert str(caught.value).startswith("arm: the router takes no token ids at /v1/completions: HTTP 418")
    assert str(caught.value).endswith("try `router_args: [--mini-lb]`")
