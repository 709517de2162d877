"""Tool calls and thinking through HTTP: requests recorded from a real SGLang server, and answers that a script speaks."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from threadpoolctl import threadpool_limits
from toys.gguf_model import tiny_model

from evalrig.refengine.arrays import F32
from evalrig.refengine.chat import parse_chat
from evalrig.refengine.chat_template import ChatTemplate
from evalrig.refengine.engine import Engine, Settings, Switches, start_engine
from evalrig.refengine.messages import ChatFormat
from evalrig.refengine.requests import Limits
from evalrig.refengine.server import create_app
from tests.unit.refengine.conftest import DATA
from tests.unit.refengine.test_wire import RECORDED, differences, events, send

TOOLS = {name: exchange for name, exchange in RECORDED.items() if name.startswith("3-tools")}
FORCED = {
    "3-tools-named",
    "3-tools-named-stream",
    "3-tools-named-cut",
    "3-tools-required",
    "3-tools-required-stream",
    "3-tools-required-cut",
}
"""The recorded server forces a call by a grammar, ours by the opening of the answer: what follows differs."""
TEMPLATE = (DATA / "tool_chat_template.jinja").read_text()
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
CHAT = "/v1/chat/completions"


def with_parsers(engine: Engine) -> Engine:
    switches = Switches(tool_call_parser="hermes", reasoning_parser="think")
    return replace(
        engine,
        template=ChatTemplate(TEMPLATE, special_tokens={}),
        settings=replace(engine.settings, switches=switches),
    )


@pytest.fixture(scope="module")
def real(engine: Engine) -> Iterator[TestClient]:
    """Over the model that was recorded."""
    with TestClient(create_app(with_parsers(engine))) as opened:
        yield opened


@pytest.fixture(scope="module")
def tooled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A model that speaks noise, with an end of its own."""
    model = tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with threadpool_limits(1):
        started = start_engine(Settings(model=model, pool_bytes=1 << 24, context=2048))
        yield with_parsers(started)
        started.scheduler.stop(10)


@pytest.fixture(scope="module")
def client(tooled: Engine) -> Iterator[TestClient]:
    with TestClient(create_app(tooled)) as opened:
        yield opened


def chunks_of(answer: Any) -> list[dict[str, Any]]:
    found = events(answer.text.split("\n"))
    assert found[-1] == "[DONE]"
    return found[:-1]


def put_together(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream's message and reason, as a client adds them up."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    reason = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta, reason = choice["delta"], choice["finish_reason"] or reason
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or []:
                if call["id"] is not None:
                    assert call["index"] == len(message["tool_calls"])
                    assert call["id"].startswith("call_")
                    message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                else:
                    assert call["function"]["name"] is None
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return {**message, "finish_reason": reason}


def whole(body: dict[str, Any]) -> dict[str, Any]:
    choice = body["choices"][0]
    message = choice["message"]
    return {
        "content": message["content"],
        "reasoning_content": message["reasoning_content"] or "",
        "tool_calls": [call["function"] for call in message.get("tool_calls", [])],
        "finish_reason": choice["finish_reason"],
    }


@pytest.mark.parametrize("name", sorted(set(TOOLS) - FORCED))
def test_recorded_requests_are_answered_in_the_recorded_shape(real: TestClient, name: str) -> None:
    exchange = TOOLS[name]
    answer = send(real, exchange)
    assert answer.status_code == exchange["status"], answer.text
    recorded = exchange["response"]
    if exchange["status"] == 400:
        assert answer.json() == recorded
    elif isinstance(recorded, list):
        theirs, mine = events([line for _, line in recorded]), events(answer.text.split("\n"))
        for place in (0, 1, -3, -2):
            assert differences(theirs[place], mine[place]) == []
        assert put_together(mine[:-1])["tool_calls"] == put_together(theirs[:-1])["tool_calls"]
        assert put_together(mine[:-1])["finish_reason"] == put_together(theirs[:-1])["finish_reason"]
    else:
        assert differences(recorded, answer.json()) == []
        assert whole(answer.json())["tool_calls"] == whole(recorded)["tool_calls"]
        assert whole(answer.json())["finish_reason"] == whole(recorded)["finish_reason"]
        assert ("tool_calls" in answer.json()["choices"][0]["message"]) == bool(whole(recorded)["tool_calls"])


def test_a_cut_call_stays_text(real: TestClient) -> None:
    answer = whole(send(real, TOOLS["3-tools-auto-cut"]).json())
    assert answer["content"] == TOOLS["3-tools-auto-cut"]["response"]["choices"][0]["message"]["content"]
    assert answer["content"].startswith("<tool_call>")


@pytest.mark.parametrize("name", ["3-tools-named-cut", "3-tools-required-cut"])
def test_a_forced_call_that_is_cut_stays_text_with_its_opening(client: TestClient, name: str) -> None:
    cut = whole(send(client, TOOLS[name]).json())
    assert cut["content"].startswith('<tool_call>\n{"name": "')
    assert (cut["tool_calls"], cut["finish_reason"]) == ([], "length")


def test_the_prompt_has_the_named_tool_only_and_none_hides_them_all(client: TestClient) -> None:
    def prompt(**changes: Any) -> str:
        body = {"messages": ASK, "tools": [WEATHER, TIME], "max_tokens": 1, "return_prompt_token_ids": True, **changes}
        ids = client.post(CHAT, json=body).json()["choices"][0]["prompt_token_ids"]
        return client.post("/detokenize", json={"tokens": ids, "skip_special_tokens": False}).json()["text"]

    auto = prompt()
    assert "get_weather" in auto
    assert "get_time" in auto
    named = prompt(tool_choice={"type": "function", "function": {"name": "get_time"}})
    assert "get_weather" not in named
    assert named.endswith('<|im_start|>assistant\n<tool_call>\n{"name": "get_time", "arguments":')
    assert prompt(tool_choice="required").endswith('<|im_start|>assistant\n<tool_call>\n{"name": "')
    assert prompt(tool_choice="none") == prompt(tools=None) == prompt(tools=[])


def test_history_is_rendered_with_arguments_as_objects(real: TestClient) -> None:
    """As recorded, apart from a member that the recorded server adds to each tool."""
    exchange = RECORDED["7-tokenize-messages-tools"]
    mine = real.post("/tokenize", json=exchange["request"]).json()["tokens"]
    texts = [
        real.post("/detokenize", json={"tokens": ids, "skip_special_tokens": False}).json()["text"]
        for ids in (mine, exchange["response"]["tokens"])
    ]
    assert texts[0] == texts[1].replace(', "defer_loading": null', "")
    assert '"arguments": {"city": "London"}' in texts[0]


BAD = {
    "tools as an object": {"tools": {}},
    "a tool as text": {"tools": ["get_weather"]},
    "a tool without a name": {"tools": [{"type": "function", "function": {}}]},
    "tool_choice as a number": {"tools": [WEATHER], "tool_choice": 3},
    "tool_choice unknown": {"tools": [WEATHER], "tool_choice": "any"},
    "named without tools": {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    "calls as text": {"messages": [*ASK, {"role": "assistant", "tool_calls": "x"}]},
    "a call without a name": {"messages": [*ASK, {"role": "assistant", "tool_calls": [{"function": {}}]}]},
    "separate_reasoning as text": {"separate_reasoning": "yes"},
    "min_tokens": {"min_tokens": 3},
    "regex": {"regex": "[ab]"},
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_served_is_refused(client: TestClient, name: str) -> None:
    answer = client.post(CHAT, json={"messages": ASK, "max_tokens": 1, **BAD[name]})
    assert answer.status_code == 400, answer.text
    assert answer.json()["object"] == "error"


def test_without_a_parser_a_call_cannot_be_forced(tooled: Engine) -> None:
    plainly = replace(tooled, settings=replace(tooled.settings, switches=Switches()))
    with TestClient(create_app(plainly)) as plain:
        body = {"messages": ASK, "tools": [WEATHER], "max_tokens": 1}
        assert plain.post(CHAT, json=body).status_code == 200
        answer = plain.post(CHAT, json={**body, "tool_choice": "required"})
        assert answer.status_code == 400
        assert "--tool-call-parser" in answer.json()["message"]


@pytest.fixture
def speak(tooled: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the model say a text, whatever it was asked: everything but the choice of the token is the real engine."""
    script: list[int] = []

    def logits(hidden: F32) -> F32:
        rows = np.zeros((len(hidden), tooled.tokenizer.size), np.float32)
        for row in rows:
            row[script.pop(0)] = 30
        return rows

    def say(text: str) -> None:
        script[:] = [*tooled.tokenizer.encode(text, add_special=False), tooled.tokenizer.end_ids[0]]

    monkeypatch.setattr(tooled.scheduler._stepper, "logits", logits)
    return say


SPOKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "thinking, content and two calls": (
        '<think>\nTwo cities.\n</think>\n\nLooking.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}'
        '\n</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        {
            "content": "Looking.",
            "reasoning_content": "Two cities.",
            "tool_calls": [
                {"name": "get_weather", "arguments": '{"city": "Zürich"}'},
                {"name": "get_time", "arguments": "{}"},
            ],
            "finish_reason": "tool_calls",
        },
    ),
    "an unknown function": (
        '<tool_call>\n{"name": "get_lost", "arguments": {}}\n</tool_call>',
        {
            "content": '<tool_call>\n{"name": "get_lost", "arguments": {}}\n</tool_call>',
            "reasoning_content": "",
            "tool_calls": [],
            "finish_reason": "stop",
        },
    ),
    "prose": (
        "It is warm in Paris.",
        {"content": "It is warm in Paris.", "reasoning_content": "", "tool_calls": [], "finish_reason": "stop"},
    ),
}


@pytest.mark.parametrize("name", SPOKEN)
def test_what_the_model_says_comes_apart_the_same_whole_and_streamed(
    client: TestClient, speak: Callable[[str], None], name: str
) -> None:
    text, wanted = SPOKEN[name]
    body = {"messages": ASK, "tools": [WEATHER, TIME], "temperature": 0, "max_tokens": 230, "logprobs": True}
    speak(text)
    answer = client.post(CHAT, json={**body, "return_token_ids": True}).json()
    assert whole(answer) == wanted
    speak(text)
    chunks = chunks_of(client.post(CHAT, json={**body, "stream": True, "stream_options": {"include_usage": True}}))
    assert put_together(chunks) == wanted
    count = len(answer["choices"][0]["response_token_ids"])
    logprobs: Sequence[Any] = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert len(logprobs) == len(answer["choices"][0]["logprobs"]["content"]) == count
    assert chunks[-1]["usage"] == answer["usage"]
    assert (answer["usage"]["reasoning_tokens"] > 0) == bool(wanted["reasoning_content"])


def test_thinking_that_was_not_asked_apart_is_content(client: TestClient, speak: Callable[[str], None]) -> None:
    speak("<think>Hm.</think>Yes.")
    body = {"messages": ASK, "temperature": 0, "max_tokens": 200, "separate_reasoning": False}
    assert whole(client.post(CHAT, json=body).json())["content"] == "<think>Hm.</think>Yes."


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call_is_made_and_what_follows_it_is_kept(
    client: TestClient, speak: Callable[[str], None], choice: Any
) -> None:
    tools = [WEATHER, TIME]
    body = {"messages": ASK, "tools": tools, "tool_choice": choice, "temperature": 0, "max_tokens": 200}
    begun = 'get_weather", "arguments":' if choice == "required" else ""
    text = begun + ' {"city": "Paris"}}\n</tool_call>\nThe weather'
    speak(text)
    answer = whole(client.post(CHAT, json=body).json())
    assert answer == {
        "content": "The weather",
        "reasoning_content": "",
        "tool_calls": [{"name": "get_weather", "arguments": '{"city": "Paris"}'}],
        "finish_reason": "tool_calls",
    }
    speak(text)
    assert put_together(chunks_of(client.post(CHAT, json={**body, "stream": True}))) == answer


def test_a_streamed_call_that_is_cut_ends_by_length(client: TestClient, speak: Callable[[str], None]) -> None:
    speak('<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}')
    body = {"messages": ASK, "tools": [WEATHER], "temperature": 0, "max_tokens": 60, "stream": True}
    answer = put_together(chunks_of(client.post(CHAT, json=body)))
    assert answer["tool_calls"] == [{"name": "get_weather", "arguments": '{"city": "Par'}]
    assert answer["finish_reason"] == "length"


def test_a_forced_call_ends_the_thinking_that_a_template_opens(tooled: Engine, speak: Callable[[str], None]) -> None:
    opened = replace(tooled, template=ChatTemplate(TEMPLATE + "<think>\n", special_tokens={}))
    body = {"messages": ASK, "tools": [WEATHER], "temperature": 0, "max_tokens": 200}
    with TestClient(create_app(opened)) as client:
        speak('Hm.\n</think>\n\n<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>')
        free = whole(client.post(CHAT, json=body).json())
        assert (free["reasoning_content"], len(free["tool_calls"])) == ("Hm.", 1)
        speak(' {"city": "Paris"}}\n</tool_call>')
        forced = whole(client.post(CHAT, json={**body, "tool_choice": "required"}).json())
        assert (forced["reasoning_content"], forced["content"]) == ("", "")
        assert json.loads(forced["tool_calls"][0]["arguments"]) == {"city": "Paris"}


class TagsAsControlTokens:
    """A vocabulary in which the tags of calls steer the model, as some checkpoints mark them."""

    special = frozenset({5})
    end_ids = (2,)
    size = 9

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return [5] if text == "<tool_call>" else [7]


@pytest.mark.parametrize(("tools", "kept"), [([WEATHER], True), (None, False)])
def test_tags_that_are_control_tokens_stay_in_the_text_to_be_parsed(tools: Any, kept: bool) -> None:
    vocabulary: Any = TagsAsControlTokens()
    form = ChatFormat(template=ChatTemplate(TEMPLATE, special_tokens={}), tool_calls=True)
    body = {"messages": ASK, "tools": tools, "max_tokens": 4}
    request = parse_chat(body, Limits(tokenizer=vocabulary, context=64, pages=4), form)
    assert [job.skip_special_tokens for job in request.jobs] == [not kept]
