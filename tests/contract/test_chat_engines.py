"""Chat through the engines: who can, who parses tools, and that a key is nowhere written."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toys.chats import answer, question, serving
from toys.engine import Toy, ToyOptions

from evalrig.config.load import options
from evalrig.engine import Chat, Engine, Launch, Sampling
from evalrig.engines.endpoint import Endpoint, EndpointOptions
from evalrig.engines.llama_cpp import LlamaCpp
from evalrig.engines.refengine import Refengine
from evalrig.engines.replay import Replay, ReplayOptions
from evalrig.engines.sglang import Sglang
from evalrig.engines.vllm import Vllm
from evalrig.errors import EngineError
from evalrig.ladder import WEATHER
from evalrig.preflight import prove
from evalrig.proof import RungOutcome
from evalrig.types import Message, Variant

LAUNCH = Launch(log=Path(), start_seconds=1, request_seconds=10)
HELLO = Chat(messages=(Message(role="user", content="Hello"),))
KEY = "canary-" + "k" * 40


def within(engine: Engine, call: Any) -> Any:
    async def go() -> Any:
        try:
            await engine.start()
            return await call(engine)
        finally:
            await engine.stop()

    return asyncio.run(asyncio.wait_for(go(), 60))


def endpoint(server: Any, **given: Any) -> Endpoint:
    url = f"http://127.0.0.1:{server.server_port}/v1"
    return Endpoint(
        Variant(name="arm", role="candidate", engine="endpoint", weights=url), EndpointOptions(**given), LAUNCH
    )


@pytest.mark.parametrize("kind", [Sglang, Vllm])
def test_tools_need_a_parser(kind: Any) -> None:
    """A server without one drops the tools (SGLang) or refuses them (vLLM): suites with tools are refused at the plan."""
    bare = options({}, kind.Options, "test")
    parsed = options({"parsers": {"tool_call_parser": "hermes"}}, kind.Options, "test")
    assert (kind.able(bare).chat, kind.able(bare).tools, kind.able(parsed).tools) == (True, False, True)


@pytest.mark.parametrize("kind", [LlamaCpp, Refengine])
def test_engines_of_this_machine_chat_and_take_no_tools_unasked(kind: Any) -> None:
    assert (kind.able(kind.Options()).chat, kind.able(kind.Options()).tools) == (True, False)


def test_a_seed_is_ignored_by_sglang_unless_deterministic() -> None:
    seeded = options({"numerics": {"deterministic": True}}, Sglang.Options, "test")
    assert (Sglang.able(options({}, Sglang.Options, "test")).seed, Sglang.able(seeded).seed) == (False, True)


def test_an_endpoint_answers_as_recorded() -> None:
    with serving("vllm") as server:
        chat, sampling = question("vllm", "3-tools-auto-call")
        found = within(endpoint(server, dialect="vllm", tools=True), lambda engine: engine.chat(chat, sampling))
    assert found.message.tool_calls[0].name == "get_weather"


def test_openais_dialect_is_proved_by_chats_alone_and_its_key_is_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    with serving("vllm") as server:
        server.instead = [(200, answer("vllm", "2-chat-greedy-stop"))]
        engine = endpoint(server, dialect="openai", api_key_env="MY_KEY", model="smollm2-135m")
        found = within(engine, prove)
        assert {headers["authorization"] for headers in server.headers if "authorization" in headers} == {
            f"Bearer {KEY}"
        }
        outcomes = {rung.name: rung.outcome for rung in found.ladder}
        assert (outcomes["chat"], outcomes["min_p, penalties"]) == (RungOutcome.PASSED, RungOutcome.REFUSED)
        assert found.probes.prompt_digests == {}
        server.instead = [(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})]
        refused = within(engine, prove)
        assert [rung.outcome for rung in refused.ladder] == [RungOutcome.REFUSED]
    written = msgspec.json.encode([found, refused]).decode()
    assert "Incorrect API key provided: (key)" in written
    assert KEY not in written + repr(engine.options) + repr(engine.variant)


def test_a_chat_before_the_start_is_one_line() -> None:
    with serving("vllm") as server, pytest.raises(EngineError, match=r"^arm: the engine was not started$"):
        asyncio.run(endpoint(server).chat(HELLO, Sampling(max_tokens=4)))


def test_recorded_chats_are_answered_again(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    toy = Toy(
        Variant(name="arm", role="reference", engine="toys.engine", weights="toy"),
        ToyOptions(record=str(file)),
        LAUNCH,
    )
    asked = [
        (HELLO, Sampling(max_tokens=6)),
        (HELLO, Sampling(max_tokens=6, stop=("x",))),
        (Chat(messages=HELLO.messages, tools=(WEATHER,), tool_choice="required", stream=True), Sampling(max_tokens=40)),
    ]

    async def all_of(engine: Engine) -> Any:
        return [await engine.chat(chat, sampling) for chat, sampling in asked]

    ours = within(toy, all_of)
    variant = Variant(name="arm", role="reference", engine="replay", weights=str(file))
    again = Replay(variant, ReplayOptions(chat=True), LAUNCH)
    assert within(again, all_of) == ours
    assert ours[2].message.tool_calls[0].name == "get_weather"
    assert (Replay.able(ReplayOptions()).chat, Replay.able(ReplayOptions(chat=True, tools=True)).tools) == (False, True)
    with pytest.raises(EngineError, match="arm: no recorded answer to "):
        within(again, lambda engine: engine.chat(HELLO, Sampling(max_tokens=7)))
