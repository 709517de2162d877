"""An endpoint: attached to, never started; what it does not tell stays untold, and its key is nowhere written."""

import asyncio
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from toys.launched import IDS, WIRE
from toys.program import Exchanges
from toys.runs import run_file

from evalrig.assemble import assemble
from evalrig.config.load import load_run
from evalrig.engine import Capabilities, Launch, Sampling
from evalrig.engines.endpoint import ABLE, LOST, Endpoint, EndpointOptions
from evalrig.errors import EngineError, UsageError
from evalrig.types import Capacity, Variant
from evalrig.wire import Wire

LAUNCH = Launch(log=Path(), start_seconds=1, request_seconds=10)
FOLDERS = {"vllm": WIRE / "vllm", "sglang": WIRE}


def variant(weights: str) -> Variant:
    return Variant(name="arm", role="candidate", engine="endpoint", weights=weights)


@pytest.fixture(params=FOLDERS)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[Exchanges]:
    monkeypatch.setattr("evalrig.wire.PAUSES", (0.0, 0.0))
    with Exchanges(FOLDERS[request.param]) as running:
        running.model_path = request.param
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join(10)


def test_it_attaches_and_says_only_what_it_was_told(server: Exchanges) -> None:
    dialect = server.model_path

    async def go() -> Any:
        engine = Endpoint(
            variant(f"http://127.0.0.1:{server.server_port}/v1"), EndpointOptions(dialect=dialect), LAUNCH
        )
        await engine.start()
        found = (
            await engine.fingerprint(),
            await engine.capacity(),
            await engine.tokenize("The capital of France is Paris."),
            await engine.score(IDS, 1, 5),
            await engine.generate(IDS[:5], Sampling(max_tokens=4)),
        )
        assert engine.alive()
        await engine.stop()
        assert not engine.alive()
        return found

    fingerprint, capacity, ids, scoring, answer = asyncio.run(go())
    assert (fingerprint.engine, fingerprint.version) == (
        f"endpoint ({dialect})",
        {"vllm": "0.32.0", "sglang": "0.5.23"}[dialect],
    )
    assert (fingerprint.weights, fingerprint.kv_cache, fingerprint.weights_digest) == ("", "", "")
    assert fingerprint.flags == {"model": "smollm2-135m"}
    kept = {"vllm": (46592, 0), "sglang": (8192, 4)}[dialect]
    assert capacity == Capacity(kv_tokens=kept[0], max_requests=kept[1])
    assert (list(ids), scoring.token_ids.tolist(), answer.token_ids) == (IDS, IDS[1:], (7042, 30, 198, 198))


def test_lists_come_with_generated_tokens_and_never_scaled_by_a_temperature(server: Exchanges) -> None:
    dialect = server.model_path
    url = f"http://127.0.0.1:{server.server_port}"

    async def go() -> Any:
        engine = Endpoint(variant(url), EndpointOptions(dialect=dialect, vocabulary=49152), LAUNCH)
        await engine.start()
        try:
            if dialect == "sglang":
                with pytest.raises(EngineError, match=r"lists at temperature 0\.5 may be scaled by it; give 0 or 1"):
                    await engine.decode(IDS[:5], Sampling(max_tokens=4, temperature=0.5), 2)
            else:
                with pytest.raises(EngineError, match="cannot score over a cached prefix"):
                    await engine.score_cached(IDS, 3, 2)
            return await engine.decode(IDS[:5], Sampling(max_tokens=4), 2)
        finally:
            await engine.stop()

    answer, lists = asyncio.run(go())
    assert answer.token_ids == tuple(lists.token_ids.tolist()) == (7042, 30, 198, 198)
    assert lists.top_ids[:, 0].tolist() == [7042, 30, 198, 198]
    assert lists.top_logprobs.shape == (4, 2)


def test_a_server_that_is_not_there_is_one_line() -> None:
    engine = Endpoint(variant("http://127.0.0.1:9"), EndpointOptions(), LAUNCH)

    async def go() -> None:
        try:
            await engine.start()
        finally:
            await engine.stop()

    with pytest.raises(
        EngineError, match=r"^arm: no server answers at http://127\.0\.0\.1:9; start it, or correct the URL$"
    ):
        asyncio.run(go())


def test_an_endpoint_that_is_lost_for_several_calls_counts_as_gone(server: Exchanges) -> None:
    engine = Endpoint(
        variant(f"http://127.0.0.1:{server.server_port}"), EndpointOptions(dialect=server.model_path), LAUNCH
    )

    async def go() -> None:
        await engine.start()
        engine.client.lost = LOST - 1
        assert engine.alive()
        engine.client.lost = LOST
        assert not engine.alive()
        await engine.stop()

    asyncio.run(go())


def test_the_key_comes_from_the_environment_and_is_sent_and_never_kept(
    server: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    url = f"http://127.0.0.1:{server.server_port}"
    engine = Endpoint(variant(url), EndpointOptions(dialect=server.model_path, api_key_env="MY_KEY"), LAUNCH)

    async def go() -> Any:
        await engine.start()
        assert engine.client.http.headers["authorization"] == "Bearer s3cret"
        found = await engine.fingerprint()
        await engine.stop()
        return found

    assert "s3cret" not in repr(asyncio.run(go())) + repr(engine.options) + repr(engine.variant)


def test_half_of_a_key_that_a_refusal_quotes_is_not_kept_either() -> None:
    """The refusal was cut at 200 characters before the key was taken out of it."""
    key = "canary-" + "k" * 40
    wire = Wire("arm", "http://127.0.0.1:9", 1, key=key)
    reply = httpx.Response(401, text="x" * 170 + f" no such key: {key}")
    assert "canary" not in wire.complaint(reply)
    asyncio.run(wire.close())


@pytest.mark.parametrize(
    ("weights", "options", "said"),
    [
        ("host:80", {}, "arm.weights: 'host:80' is no URL; give http://host:port of a running engine"),
        (
            "m",
            {"base_url": "ftp://x"},
            "arm.args.base_url: 'ftp://x' is no URL; give http://host:port of a running engine",
        ),
        ("http://u:p@h", {}, "arm: a URL with a password or a key would be written down; give `api_key_env` instead"),
        ("http://h?key=1", {}, "arm: a URL with a password or a key would be written down; give `api_key_env` instead"),
        (
            "http://h",
            {"top_logprobs": -1},
            "arm.args.top_logprobs: -1; 0 to 1000: the whole vocabulary is not asked of",
        ),
        ("http://h", {"dialect": "grpc"}, "arm.args.dialect: no dialect 'grpc'; give sglang, vllm, openai"),
        (
            "http://h",
            {"api_key_env": "NO_SUCH_KEY"},
            "arm.args.api_key_env: no environment variable 'NO_SUCH_KEY'; set it",
        ),
    ],
)
def test_what_cannot_be_attached_to_is_refused_before_anything_starts(weights: str, options: Any, said: str) -> None:
    made = EndpointOptions(**options)

    def look() -> None:
        Endpoint.resolve(variant(weights), made, "arm")
        Endpoint.reach(variant(weights), made, "arm")

    with pytest.raises(UsageError) as caught:
        look()
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("options", "able"),
    [
        (
            {"dialect": "vllm"},
            replace(ABLE["vllm"], top_logprobs=20, decode_logprobs=20),
        ),
        (
            {"dialect": "vllm", "top_logprobs": 100},
            Capabilities(
                prompt_logprobs=True,
                top_logprobs=100,
                seed=True,
                decode_logprobs=100,
                chat=True,
                tool_prompts=True,
                load=True,
                primed=True,
            ),
        ),
        (
            {"dialect": "sglang", "top_logprobs": 0},
            Capabilities(
                prompt_logprobs=True,
                top_logprobs=0,
                cached_prefix=True,
                chat=True,
                tool_prompts=True,
                load=True,
                primed=True,
            ),
        ),
        ({"dialect": "openai", "top_logprobs": 5}, Capabilities(chat=True, tools=True)),
        (
            {"dialect": "sglang", "tools": True},
            replace(ABLE["sglang"], tools=True),
        ),
    ],
)
def test_it_can_do_what_its_dialect_can(options: Any, able: Capabilities) -> None:
    assert Endpoint.able(EndpointOptions(**options)) == able


def test_suites_that_need_more_are_refused(tmp_path: Path) -> None:
    engine = {"kind": "endpoint", "options": {"dialect": "openai", "base_url": "http://h:1"}}
    path = run_file(tmp_path, {"cheap": {"base_url": "http://h:2"}}, engine=engine)
    with pytest.raises(
        UsageError, match=r"suites\.kl: engine `endpoint` cannot give logprobs of given tokens, top-20 lists;"
    ):
        assemble(load_run(path), path, lambda _: None, here=False)
