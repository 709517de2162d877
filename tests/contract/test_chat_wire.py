"""Chat and tool calls over the wire: the same assertions for what SGLang 0.5.23, vLLM 0.32.0 and llama.cpp b11549 answered."""

import asyncio
import json
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
from toys.chats import DIALECTS, Recordings, answer, events, question, recorded, serving, stream

from evalrig.chat_wire import OPENAI, Client, Dialect
from evalrig.engine import Chat, Penalties, Sampling
from evalrig.errors import EngineError
from evalrig.types import Completion, Message, Tool, ToolCall
from evalrig.wire import RETRIES, Wire

KINDS = list(DIALECTS)
CITY = Tool(name="get_weather", description="", parameters={"type": "object", "properties": {}})
HELLO = Chat(messages=(Message(role="user", content="Hello"),))
SHORT = Sampling(max_tokens=4)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[Recordings]:
    monkeypatch.setattr("evalrig.wire.PAUSES", (0.0, 0.0))
    with serving(request.param) as running:
        yield running


def ask(
    server: Recordings,
    chat: Chat,
    sampling: Sampling = SHORT,
    dialect: Dialect | None = None,
    model: str = "",
    **more: Any,
) -> Completion:
    async def go() -> Completion:
        wire = Wire("arm", f"http://127.0.0.1:{server.server_port}", more.pop("seconds", 10), **more)
        try:
            return await Client(wire, dialect or DIALECTS[server.kind], model).chat(chat, sampling)
        finally:
            await wire.close()

    return asyncio.run(asyncio.wait_for(go(), 30))


def again(server: Recordings, name: str) -> Completion:
    """Ask what was recorded under that name; the server checks that it is asked so."""
    return ask(server, *question(server.kind, name))


def given(server: Recordings, *contents: Any, chat: Chat = HELLO, status: int = 200, **more: Any) -> Completion:
    """Ask, and get these answers whatever was asked; lists are streams."""
    server.instead = [(status, content) for content in contents]
    return ask(server, replace(chat, stream=isinstance(contents[-1], list)), **more)


def refusal(call: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(EngineError) as caught:
        call(*arguments, **more)
    assert str(caught.value).startswith("arm: ")
    return str(caught.value).removeprefix("arm: ")


def alike(completion: Completion) -> Any:
    """What must not depend on the form of the answer. Ids of calls are drawn anew, and vLLM's whole replies lose white space."""
    message = completion.message
    assert message is not None
    calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    counts = completion.prompt_tokens, completion.completion_tokens
    return completion.text, message.content, message.reasoning, calls, completion.finish, counts


# ---- answers as recorded


@pytest.mark.parametrize(
    ("whole", "streamed"),
    [
        ("2-chat-greedy-stop", "2-chat-stream-stop"),
        ("2-chat-stop-string", "2-chat-stream-stop-string"),
        ("2-chat-length", "2-chat-stream-length"),
        ("3-tools-auto-call", "3-tools-auto-call-stream"),
        ("3-tools-named", "3-tools-named-stream"),
    ],
)
def test_a_stream_and_a_whole_reply_give_the_same_completion(server: Recordings, whole: str, streamed: str) -> None:
    """Pitfall 37: the usage comes in a chunk without choices, and counts."""
    one, other = again(server, whole), again(server, streamed)
    assert alike(one) == alike(other)
    assert one.prompt_tokens > 0 < one.completion_tokens
    assert one.retries == other.retries == 0
    assert one.seconds > 0 < other.seconds


def test_an_answer_in_words(server: Recordings) -> None:
    found = again(server, "2-chat-greedy-stop")
    assert (found.text, found.finish) == ("The capital of France is Paris.", "stop")
    assert (found.prompt_tokens, found.completion_tokens) == (21, 8)
    assert found.message == Message(role="assistant", content="The capital of France is Paris.")
    assert again(server, "2-chat-stop-string").text == "The capital of "


def test_a_tool_call(server: Recordings) -> None:
    for name in ("3-tools-auto-call", "3-tools-auto-call-stream"):
        found = again(server, name)
        assert found.message is not None
        [call] = found.message.tool_calls
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
        assert call.id
        assert (found.finish, found.text) == ("tool_calls", "")
        # SGLang writes `"defer_loading": null` into every tool: eight tokens each
        assert found.prompt_tokens == {"sglang": 500, "vllm": 484, "llamacpp": 484}[server.kind]


@pytest.mark.parametrize("name", ["3-tools-auto-cut", "3-tools-auto-cut-stream"])
def test_a_call_that_max_tokens_cut_is_no_call(server: Recordings, name: str) -> None:
    """vLLM streams it with the arguments `{}`: it looks whole. Pitfall 12: a cut call counted as agreement."""
    found = again(server, name)
    assert found.finish == "length"
    assert found.message is not None
    assert found.message.tool_calls == ()


def test_the_recorded_cut_call_of_vllm_does_look_whole() -> None:
    [call] = events("vllm", "3-tools-auto-cut-stream")[1]["choices"][0]["delta"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": "{}"}


def test_a_named_tool_is_a_call_where_the_engine_forces_it(server: Recordings) -> None:
    """vLLM ends it with `stop`; llama.cpp forces nothing."""
    found = again(server, "3-tools-named")
    assert found.message is not None
    names = [call.name for call in found.message.tool_calls]
    if server.kind == "llamacpp":
        assert (names, found.finish) == ([], "length")
    else:
        assert (names, found.finish) == (["get_weather"], "tool_calls")
    said = {"sglang": "tool_calls", "vllm": "stop", "llamacpp": "length"}[server.kind]
    assert recorded(server.kind, "3-tools-named")["response"]["choices"][0]["finish_reason"] == said


def test_a_required_tool(server: Recordings) -> None:
    """SGLang's ended by length, whole and streamed: however much came, it is no call."""
    found = again(server, "3-tools-required"), again(server, "3-tools-required-stream")
    wanted = "tool_calls" if server.kind == "vllm" else "length"
    assert [answer.finish for answer in found] == [wanted, wanted]
    assert [bool(answer.message and answer.message.tool_calls) for answer in found] == [server.kind == "vllm"] * 2
    assert again(server, "3-tools-required-cut").finish == "length"
    assert again(server, "3-tools-named-cut").finish == "length"


def test_a_result_is_answered_from(server: Recordings) -> None:
    found = again(server, "3-tools-history-then-answer")
    assert found.finish == "stop"
    assert "rain" in found.text


def test_tools_may_be_shown_and_not_called(server: Recordings) -> None:
    """Pitfall 14: no call is an absent key, an empty list or null; the answer is kept."""
    found = again(server, "3-tools-auto-no-call")
    assert found.text.startswith("Paris, France")
    assert again(server, "3-tools-none").finish in ("stop", "length")
    for nothing in ([], None):
        whole = answer(server.kind, "2-chat-greedy-stop")
        whole["choices"][0]["message"]["tool_calls"] = nothing
        assert given(server, whole).text == "The capital of France is Paris."
        pieces = events(server.kind, "2-chat-stream-stop")
        for piece in pieces[:-1]:
            piece["choices"][0]["delta"]["tool_calls"] = nothing
        found = given(server, stream(pieces))
        assert (found.text, found.finish) == ("The capital of France is Paris.", "stop")


def test_characters_of_several_tokens_come_whole(server: Recordings) -> None:
    found = again(server, "2-chat-unicode-stream")
    assert found.text.startswith("🎉")
    assert found.finish == "length"


def test_token_ids_where_the_server_gives_them(server: Recordings) -> None:
    found = given(server, answer(server.kind, "2-chat-return-ids"))
    assert found.token_ids == (504, 3575, 282, 4649)
    call = given(server, answer(server.kind, "3-tools-return-ids"))
    assert len(call.token_ids) == call.completion_tokens == 31
    fewer = answer(server.kind, "2-chat-return-ids")
    fewer["usage"]["completion_tokens"] = 5
    assert given(server, fewer).token_ids == ()


def test_an_empty_answer_is_an_answer(server: Recordings) -> None:
    found = given(server, answer(server.kind, "2-chat-empty-answer"))
    assert (found.text, found.finish, found.completion_tokens) == ("", "stop", 1)


# ---- what is no answer


def test_a_stream_that_breaks_off_is_no_answer(server: Recordings) -> None:
    """A dying server ends a stream without a read error: no [DONE] is all there is to see."""
    for cut in (
        recorded(server.kind, "6-abort-stream")["response"],
        recorded(server.kind, "2-chat-stream-stop")["response"][:-3],
    ):
        assert "[DONE]" not in "".join(cut)
        server.asked.clear()
        said = refusal(given, server, cut)
        assert said == "/v1/chat/completions failed: the stream broke off before [DONE]"
        assert len(server.chats) == RETRIES + 1


def test_an_answer_without_a_finish_reason_is_none(server: Recordings) -> None:
    """Pitfall 12: `finish_reason or "stop"`."""
    pieces = [
        piece
        for piece in events(server.kind, "2-chat-stream-stop")
        if not (piece["choices"] and piece["choices"][0]["finish_reason"])
    ]
    whole = answer(server.kind, "2-chat-greedy-stop")
    whole["choices"][0]["finish_reason"] = None
    for content in (stream(pieces), whole):
        server.asked.clear()
        assert "an answer ended with no finish reason; counted as a failed call" in refusal(given, server, content)
        assert len(server.chats) == 1


@pytest.mark.parametrize("finish", ["abort", "content_filter", "error"])
def test_an_ending_that_is_not_known_is_no_answer(server: Recordings, finish: str) -> None:
    """Pitfall 11: replies of a content filter taken for answers."""
    whole = answer(server.kind, "2-chat-greedy-stop")
    whole["choices"][0]["finish_reason"] = finish
    assert f"an answer ended with {finish} finish reason" in refusal(given, server, whole)


def test_an_answer_without_token_counts_is_none(server: Recordings) -> None:
    pieces = [piece for piece in events(server.kind, "2-chat-stream-stop") if piece["choices"]]
    for piece in pieces:
        piece.pop("usage", None)
    assert "an answer came without token counts" in refusal(given, server, stream(pieces))


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        ({"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}, RETRIES + 1),
        ({"message": "The input is too long.", "type": "invalid_request_error", "code": 400}, 1),
        ("out of memory", RETRIES + 1),
    ],
)
def test_an_error_inside_a_stream_of_status_200(server: Recordings, error: Any, tries: int) -> None:
    """vLLM, its engine killed, sends an error event and then [DONE]."""
    begun = events(server.kind, "2-chat-stream-stop")[:3]
    said = refusal(given, server, stream([*begun, {"error": error}]))
    assert "an error in a reply of status 200: " in said
    assert len(server.chats) == tries


def test_retries_are_for_what_may_pass_and_are_counted(server: Recordings) -> None:
    whole = answer(server.kind, "2-chat-greedy-stop")
    server.instead = [(429, {"error": {"message": "slow"}}), (503, {"error": {"message": "busy"}}), (200, whole)]
    assert ask(server, HELLO).retries == 2
    server.asked.clear()
    assert "HTTP 400" in refusal(given, server, {"error": {"message": "no"}}, status=400)
    assert len(server.chats) == 1
    server.asked.clear()
    assert "HTTP 500" in refusal(given, server, {"error": {"message": "no"}}, status=500)
    assert len(server.chats) == RETRIES + 1


@pytest.mark.parametrize("content", [b"no JSON", [], {"choices": "none"}, {"no": "choices"}])
def test_another_shape_is_the_engines_fault(server: Recordings, content: Any) -> None:
    said = content.decode() if isinstance(content, bytes) else content
    server.instead = [(200, json.dumps(said) if isinstance(said, list) else said)]
    assert "answered in an unknown shape" in refusal(ask, server, HELLO)


def test_calls_that_cannot_be_told_apart_or_have_no_name_are_no_answer(server: Recordings) -> None:
    pieces = events(server.kind, "3-tools-auto-call-stream")
    first = next(piece for piece in pieces if piece["choices"][0]["delta"].get("tool_calls"))
    twin = json.loads(json.dumps(first))
    twin["choices"][0]["delta"]["tool_calls"][0]["id"] = "another"
    assert "two tool calls came under one index" in refusal(given, server, stream([*pieces[:2], twin, *pieces[2:]]))
    first["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] = None
    assert "a tool call without a name came back" in refusal(given, server, stream(pieces))


def test_a_finish_of_tool_calls_without_any_says_that_they_were_lost(server: Recordings) -> None:
    """Kimi K2 behind a parser that gave nothing: neither an answer in words nor a call."""
    whole = answer(server.kind, "2-chat-greedy-stop")
    whole["choices"][0]["finish_reason"] = "tool_calls"
    found = given(server, whole)
    assert (found.finish, found.text) == ("tool_calls", "The capital of France is Paris.")
    assert found.message is not None
    assert found.message.tool_calls == ()


# ---- what is sent


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=0),
        Sampling(max_tokens=-1),
        Sampling(max_tokens=4, temperature=-1.0),
        Sampling(max_tokens=4, temperature=float("nan")),
        Sampling(max_tokens=4, top_p=1.5),
        Sampling(max_tokens=4, top_p=0.0),
        Sampling(max_tokens=4, top_k=-2),
        Sampling(max_tokens=4, min_p=1.1),
        Sampling(max_tokens=4, penalties=Penalties(presence=3.0)),
        Sampling(max_tokens=4, penalties=Penalties(repetition=0.0)),
    ],
)
def test_what_some_server_would_take_for_something_else_is_not_sent(server: Recordings, sampling: Sampling) -> None:
    """llama.cpp takes max_tokens -1 for no limit, and 0 for one token."""
    with pytest.raises(ValueError, match=r"max_tokens|temperature|top_p|min_p|penalty"):
        ask(server, HELLO, sampling)
    assert server.asked == []


@pytest.mark.parametrize("choice", ["required", "get_time"])
def test_a_choice_of_tool_needs_that_tool(server: Recordings, choice: str) -> None:
    with pytest.raises(ValueError, match="without such a tool"):
        ask(server, replace(HELLO, tools=() if choice == "required" else (CITY,), tool_choice=choice))
    assert server.asked == []


def test_an_empty_list_of_tools_is_not_sent(server: Recordings) -> None:
    """vLLM refuses it."""
    assert recorded("vllm", "3-tools-empty-list")["status"] == 400
    given(server, answer(server.kind, "2-chat-greedy-stop"))
    assert not {"tools", "tool_choice"} & server.chats[0].keys()


def test_every_parameter_is_sent_by_its_name(server: Recordings) -> None:
    server.instead = [(200, answer(server.kind, "2-chat-greedy-stop"))]
    penalties = Penalties(presence=0.1, frequency=0.2, repetition=1.1)
    wanted = Sampling(
        max_tokens=4, temperature=0.7, top_p=0.9, top_k=20, min_p=0.05, penalties=penalties, stop=("x",), seed=7
    )
    ask(server, HELLO, wanted)
    [body] = server.chats
    repetition = "repeat_penalty" if server.kind == "llamacpp" else "repetition_penalty"
    sent = {"max_tokens": 4, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "stop": ["x"], "seed": 7}
    sent |= {"presence_penalty": 0.1, "frequency_penalty": 0.2, repetition: 1.1, "model": "smollm2-135m"}
    assert {key: body[key] for key in sent} == sent


def test_openais_own_route_takes_no_top_k(server: Recordings) -> None:
    server.instead = [(200, answer(server.kind, "2-chat-greedy-stop"))]
    ask(server, HELLO, dialect=OPENAI)
    assert not {"top_k", "min_p", "repetition_penalty", "return_token_ids"} & server.chats[0].keys()
    assert "its route takes no top_k; it was not sent" in refusal(ask, server, HELLO, replace(SHORT, top_k=5), OPENAI)


def test_the_model_is_looked_up_because_servers_answer_to_any_name(server: Recordings) -> None:
    assert recorded(server.kind, "6-bad-model")["status"] == (404 if server.kind == "vllm" else 200)
    assert refusal(ask, server, HELLO, model="nope") == "it does not serve 'nope'; name one of /v1/models"
    assert server.chats == []


def test_arguments_go_back_as_the_model_wrote_them(server: Recordings) -> None:
    """Broken JSON in a call of the history: SGLang refuses it, vLLM takes it, llama.cpp fails."""
    if server.kind == "vllm":
        assert again(server, "3-tools-history-bad-arguments").text
    else:
        said = refusal(again, server, "3-tools-history-bad-arguments")
        assert said.endswith("tool-call arguments that are no JSON, sent as the model wrote them")
        assert f"HTTP {400 if server.kind == 'sglang' else 500}" in said
    [call] = server.chats[0]["messages"][1]["tool_calls"]
    assert call["function"]["arguments"] == '{"city": "Par'


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("streamed", [False, True])
def test_reasoning_is_kept_apart_and_passed_back(server: Recordings, key: str, streamed: bool) -> None:
    """Pitfall 16: thinking inside the answer."""
    if streamed:
        content: Any = events(server.kind, "2-chat-stream-stop")
        thought = json.loads(json.dumps(content[1]))
        thought["choices"][0]["delta"] = {key: "Hmm, ", "content": None}
        content = stream([content[0], thought, thought, *content[1:]])
    else:
        content = answer(server.kind, "2-chat-greedy-stop")
        content["choices"][0]["message"][key] = "Hmm, Hmm, "
    found, said = given(server, content), "The capital of France is Paris."
    wanted = Message(role="assistant", content=said, reasoning="Hmm, Hmm, ")
    assert (found.message, found.text) == (wanted, said)
    server.asked.clear()
    given(server, answer(server.kind, "2-chat-greedy-stop"), chat=Chat(messages=(*HELLO.messages, wanted)))
    back = {"sglang": "reasoning_content", "vllm": "reasoning", "llamacpp": "reasoning_content"}[server.kind]
    assert server.chats[0]["messages"][1] == {"role": "assistant", "content": found.text, back: "Hmm, Hmm, "}


def test_a_line_separator_in_a_text_does_not_cut_its_event(server: Recordings) -> None:
    pieces = events(server.kind, "2-chat-stream-stop")
    pieces[1]["choices"][0]["delta"]["content"] = "a\u2028b\x85c"
    assert given(server, stream(pieces)).text.startswith("a\u2028b\x85c")


def test_halves_of_characters_are_joined_or_replaced(server: Recordings) -> None:
    """No file can hold half of a surrogate pair, and no request."""
    pieces = events(server.kind, "2-chat-stream-stop")
    pieces[1]["choices"][0]["delta"]["content"] = "\ud83d"
    pieces[2]["choices"][0]["delta"]["content"] = "\ude00\ud83d"
    raw = [line.encode("ascii", "backslashreplace").decode() for line in stream(pieces)]
    found = given(server, raw)
    assert found.text.startswith("😀\ufffd")
    given(
        server, answer(server.kind, "2-chat-greedy-stop"), chat=Chat(messages=(Message(role="user", content="\ud83d"),))
    )
    assert server.chats[-1]["messages"][0]["content"] == "\ufffd"


# ---- connections


def test_the_key_is_sent_and_never_said(server: Recordings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of the environment")
    monkeypatch.setenv("OPENAI_ORG_ID", "of the environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    key = "canary-" + "k" * 60
    for status in (401, 500):
        for before in (0, 170, 230, 260):  # also where the error is cut off
            echo = {"error": {"message": "x" * before + f" {key} is not valid"}}
            said = refusal(given, server, echo, status=status, key=key)
            assert "canary" not in said
    for content in (stream([{"error": {"message": key}}]), {"error": {"message": key}}, f"no JSON {key}"):
        assert "canary" not in refusal(given, server, content, key=key)
    assert {headers.get("authorization") for headers in server.headers} == {f"Bearer {key}"}
    server.headers.clear()
    given(server, answer(server.kind, "2-chat-greedy-stop"))
    assert "of the environment" not in repr(server.headers)


def test_a_proxy_of_the_environment_is_not_used(server: Recordings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert again(server, "2-chat-greedy-stop").finish == "stop"


def test_no_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalrig.wire.PAUSES", (0.0, 0.0))

    async def go() -> None:
        wire = Wire("arm", "http://127.0.0.1:9", 5)
        try:
            await Client(wire, OPENAI).chat(HELLO, SHORT)
        finally:
            await wire.close()

    with pytest.raises(EngineError, match=r"^arm: /v1/models failed: ConnectError"):
        asyncio.run(go())


def test_a_message_of_a_tool_names_its_call(server: Recordings) -> None:
    call = ToolCall(id="call_9", name="get_weather", arguments="{}")
    said = Message(role="assistant", content="", tool_calls=(call,))
    result = Message(role="tool", content="rain", tool_call_id="call_9")
    given(server, answer(server.kind, "2-chat-greedy-stop"), chat=Chat(messages=(*HELLO.messages, said, result)))
    assert server.chats[0]["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_9", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "content": "rain", "tool_call_id": "call_9"},
    ]
