"""Chat through a real llama.cpp server, on a tiny random model whose template shows tools."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from toys.gguf_model import TOOL_TEMPLATE, tiny_model

from evalrig.engine import Chat, Launch, Penalties, Sampling
from evalrig.engines.llama_cpp import LlamaCpp, LlamaCppOptions
from evalrig.errors import EngineError
from evalrig.ladder import HISTORY, PLAIN, WEATHER, climb
from evalrig.proof import RungOutcome
from evalrig.types import Message, Variant


def within(folder: Path, model: Path, options: LlamaCppOptions, call: Callable[[LlamaCpp], Awaitable[Any]]) -> Any:
    variant = Variant(name="arm", role="reference", engine="llama_cpp", weights=str(model))
    engine = LlamaCpp(variant, options, Launch(log=folder / "engine.log", start_seconds=60, request_seconds=60))

    async def go() -> Any:
        try:
            await engine.start()
            return await call(engine)
        finally:
            await engine.stop()

    return asyncio.run(asyncio.wait_for(go(), 120))


async def asked(engine: LlamaCpp) -> dict[str, Any]:
    plain = Chat(messages=PLAIN.messages)
    short, hot = Sampling(max_tokens=12), Sampling(max_tokens=12, temperature=1.0, top_k=40, seed=7)
    tools = Chat(messages=HISTORY, tools=(WEATHER,))
    return {
        "whole": await engine.chat(plain, short),
        "streamed": await engine.chat(Chat(messages=PLAIN.messages, stream=True), short),
        "ids": await engine.tokenize(PLAIN.messages),
        "generated": await engine.generate(await engine.tokenize(PLAIN.messages), short),
        "hot": [await engine.chat(plain, hot) for _ in range(2)],
        "punished": await engine.chat(
            plain, Sampling(max_tokens=12, min_p=0.01, penalties=Penalties(repetition=5.0, presence=2.0))
        ),
        "bare": await engine.chat(Chat(messages=HISTORY), short),
        "tools": await engine.chat(tools, short),
        "many": await asyncio.gather(*(engine.chat(plain, short) for _ in range(6))),
        "ladder": await climb(engine),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("llama")
    model = tiny_model(folder / "tools.gguf", template=TOOL_TEMPLATE)
    options = LlamaCppOptions(tools=True, parallel=2, cache_type_k="f32", cache_type_v="f32", flash_attn=False)
    return within(folder, model, options, asked)


def test_a_stream_gives_what_a_whole_reply_gives(found: dict[str, Any]) -> None:
    """Up to a torn character: what comes behind one at the very end the stream keeps back (random weights tear many)."""
    one, other = found["whole"], found["streamed"]
    assert one.finish == other.finish
    assert one.text.startswith(other.text)
    assert one.text[len(other.text) :][:1] in ("", "\N{REPLACEMENT CHARACTER}")
    assert (one.prompt_tokens, one.completion_tokens) == (other.prompt_tokens, other.completion_tokens)


def test_the_chat_route_is_the_template_and_then_the_same_tokens(found: dict[str, Any]) -> None:
    assert found["whole"].prompt_tokens == len(found["ids"])
    ids = found["whole"].token_ids
    assert ids == found["streamed"].token_ids
    if ids:  # a torn character at the end keeps its row back
        assert ids == found["generated"].token_ids
    assert found["whole"].finish == found["generated"].finish


def test_sampling_is_taken(found: dict[str, Any]) -> None:
    first, again = found["hot"]
    assert first.text == again.text != found["whole"].text
    assert found["punished"].text != found["whole"].text


def test_tools_reach_the_prompt(found: dict[str, Any]) -> None:
    assert found["tools"].prompt_tokens > found["bare"].prompt_tokens + 50


def test_more_chats_than_slots_wait_their_turn(found: dict[str, Any]) -> None:
    assert len(found["many"]) == 6
    assert all(answer.finish in ("stop", "length") for answer in found["many"])


def test_the_ladder_of_a_real_server(found: dict[str, Any]) -> None:
    outcomes = {rung.name: rung.outcome for rung in found["ladder"]}
    assert len(outcomes) == 15
    for name in ("chat", "template", "stream", "temperature, top_p, top_k, seed", "same seed", "min_p, penalties"):
        assert outcomes[name] is RungOutcome.PASSED, found["ladder"]
    assert outcomes["tool result"] is RungOutcome.PASSED
    assert outcomes["tool, required"] in (RungOutcome.NO_CALL, RungOutcome.CUT)  # random weights: nothing is forced


def test_a_template_without_tools_is_refused_where_tools_are_asked_for(tmp_path: Path) -> None:
    """llama.cpp drops them without a word."""
    assert LlamaCpp.able(LlamaCppOptions()).tools is False
    with pytest.raises(EngineError, match="its chat template shows no tools, so they would be dropped"):
        within(tmp_path, tiny_model(tmp_path / "plain.gguf"), LlamaCppOptions(tools=True), lambda engine: climb(engine))


def test_a_server_that_takes_broken_arguments_is_not_needed(tmp_path: Path) -> None:
    """Broken JSON in a call of the history ends in an error that says so, not in a score."""
    broken = Message(
        role="assistant",
        content="",
        tool_calls=(HISTORY[1].tool_calls[0].__class__(id="c", name="f", arguments='{"a'),),
    )
    model = tiny_model(tmp_path / "tools.gguf", template=TOOL_TEMPLATE)
    chat = Chat(messages=(HISTORY[0], broken, HISTORY[2]), tools=(WEATHER,))
    with pytest.raises(EngineError, match="tool-call arguments that are no JSON, sent as the model wrote them"):
        within(tmp_path, model, LlamaCppOptions(tools=True), lambda engine: engine.chat(chat, Sampling(max_tokens=4)))
