"""Two ways to talk about tools, and what is read from an answer."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toys.engine import Toy, ToyOptions

from evalrig.dialect import STOPS, Dialect, call_id
from evalrig.engine import Capabilities, Chat, Launch, Sampling
from evalrig.steps import taken
from evalrig.types import Completion, Message, Tool, ToolCall, Variant

TOOL = Tool(name="open", description="Opens", parameters={"type": "object", "properties": {"id": {"type": "string"}}})
SYSTEM, USER = Message(role="system", content="Be brief."), Message(role="user", content="Open a.")
SAMPLING = Sampling(max_tokens=9)


class Sayer(Toy):
    """Says one thing, and keeps what it was asked."""

    def __init__(self, said: Completion, chats: bool = True) -> None:
        variant = Variant(name="sayer", role="reference", engine="toys.engine", weights="toy")
        super().__init__(variant, ToyOptions(), Launch(log=Path(), start_seconds=1, request_seconds=1))
        self.said, self.chats = said, chats
        self.asked: list[Any] = []

    def able(self, options: Any) -> Capabilities:  # type: ignore[override]
        return Capabilities(chat=self.chats, tools=self.chats)

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        self.asked.append(prompt)
        return (1, 2)

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        self.asked.append((tuple(ids), sampling))
        return self.said

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        self.asked.append((chat, sampling))
        return self.said


def said(text: str, finish: str = "stop", **more: Any) -> Completion:
    return Completion(text=text, finish=finish, message=Message(role="assistant", content=text, **more))


def asked(dialect: Dialect, engine: Sayer, *messages: Message) -> Message:
    return asyncio.run(dialect.ask(engine, messages or (SYSTEM, USER), (TOOL,), SAMPLING))[1]


def read(text: str, thinking: bool = False) -> list[tuple[str, str]]:
    message = asked(Dialect("text", thinking=thinking), Sayer(said(text)))
    return [(call.name, call.arguments) for call in message.tool_calls]


HERMES = '<tool_call>\n{"name": "open", "arguments": {"id": "a"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (HERMES, [("open", '{"id": "a"}')]),
        (f"First.\n{HERMES}\n{HERMES}", [("open", '{"id": "a"}')] * 2),
        (HERMES.removesuffix("</tool_call>"), [("open", '{"id": "a"}')]),
        ('<tool_call>{"name": "open", "arguments": "{\\"id\\": \\"a\\"}"}</tool_call>', [("open", '{"id": "a"}')]),
        ('<tool_call>{"name": "open", "parameters": {}}</tool_call>', [("open", "{}")]),
        ('<tool_call>{"name": "open"}</tool_call>', [("open", "{}")]),
        (
            '<tool_call>{"name": "open", "arguments": {"id": </tool_call>',
            [("", '{"name": "open", "arguments": {"id":')],
        ),
        ('Thought: look\nAction: open\nAction Input: {"id": "a"}\nObservation: made up', [("open", '{"id": "a"}')]),
        (
            'Action: open\nAction Input: {"id": "a"}\nAction: open\nAction Input: {}',
            [("open", '{"id": "a"}'), ("open", "{}")],
        ),
        ('```json\n{"name": "open", "arguments": {"id": "a"}}\n```', [("open", '{"id": "a"}')]),
        ('{"name": "else", "arguments": {}}', []),
        ("Done, no <b>call</b>.", []),
        (f"<think>perhaps {HERMES}</think>No.", []),
        (f"perhaps {HERMES}</think>No.", []),
        (f"<think>perhaps {HERMES}", []),
    ],
)
def test_calls_are_read_from_text(text: str, calls: list[tuple[str, str]]) -> None:
    """Pitfall 16: what is only thought is no act."""
    assert read(text) == calls


def test_a_turn_that_never_leaves_an_opened_thinking_block_holds_no_act() -> None:
    assert read(HERMES)
    assert read(HERMES, thinking=True) == []
    assert read(f"so</think>{HERMES}", thinking=True)


def test_half_a_character_in_a_call_can_be_kept_in_a_record() -> None:
    for written in ('{"name": "op\\ud800", "arguments": {}}', '{"name": "open", "arguments": {"id": "\\ud800"}}'):
        message = asked(Dialect("text"), Sayer(said(f"<tool_call>{written}</tool_call>")))
        assert b"op" in msgspec.json.encode(message)
        assert taken(message.tool_calls, "", (TOOL,)).error in ("bad_json", "unknown_tool")
        msgspec.json.encode(taken(message.tool_calls, "", (TOOL,)))


def test_blank_lines_in_a_fence_take_no_time() -> None:
    """A pattern took 22 s over 3,000 of them, and every other attempt waited."""
    began = time.process_time()
    assert read("```json" + "\n" * 20_000 + "x") == []
    assert read("```json" + "\n" * 2_000 + HERMES + "\n" * 2_000 + "```")
    assert read("Action: open\nAction: open" + "\n" * 50_000 + "x") == []
    assert read("Action: open\t\n\nAction Input: {}" + " " * 50_000 + "\nFinal Answer: 1") == [("open", "{}")]
    assert time.process_time() - began < 5


def test_a_key_twice_is_no_call_to_guess_at() -> None:
    [(_, arguments)] = read('<tool_call>{"name": "open", "arguments": {"id": "a", "id": "b"}}</tool_call>')
    assert arguments.startswith('{"name"')


def test_what_a_model_makes_up_of_results_is_left_out() -> None:
    message = asked(Dialect("text"), Sayer(said(f"{HERMES}\n<tool_response>\n{HERMES}")))
    assert len(message.tool_calls) == 1
    assert "tool_response" not in message.content


def test_a_final_answer_is_its_words() -> None:
    assert asked(Dialect("text"), Sayer(said("Thought: fine\nFinal Answer: 42"))).content == "42"


def test_text_goes_through_the_chat_route_without_tools_and_stops_before_results() -> None:
    engine = Sayer(said("Done."))
    asked(Dialect("text", stream=True), engine)
    [(chat, sampling)] = engine.asked
    assert (chat.tools, chat.stream, sampling.stop) == ((), True, STOPS)
    assert json.dumps(TOOL.parameters, separators=(",", ":")) in chat.messages[0].content
    assert chat.messages[0].content.startswith("Be brief.\n\n")


def test_an_engine_without_a_chat_route_continues_the_template() -> None:
    engine = Sayer(Completion(text=HERMES, finish="stop"), chats=False)
    message = asked(Dialect("text"), engine)
    assert [call.name for call in message.tool_calls] == ["open"]
    prompt, (ids, sampling) = engine.asked
    assert prompt == Dialect("text").shown((SYSTEM, USER), (TOOL,))
    assert (ids, sampling.stop) == ((1, 2), STOPS)


def test_native_tools_go_to_the_route_and_reasoning_goes_back() -> None:
    call = ToolCall(id="call_9", name="open", arguments='{"id": "a"}')
    engine = Sayer(said("", "tool_calls", tool_calls=(call,), reasoning="hm"))
    message = asked(Dialect("native", stream=True), engine)
    [(chat, _)] = engine.asked
    assert (chat.tools, chat.stream) == ((TOOL,), True)
    assert (message.reasoning, message.tool_calls) == ("hm", (call,))
    assert Dialect("native").shown((message,), ())[0].reasoning == "hm"


def test_an_empty_list_of_calls_drops_no_answer() -> None:
    """Pitfall 14."""
    message = asked(Dialect("native"), Sayer(said("The answer is 4.", tool_calls=())))
    assert (message.content, message.tool_calls) == ("The answer is 4.", ())


@pytest.mark.parametrize("protocol", ["native", "text"])
def test_of_a_turn_that_was_cut_no_call_is_kept(protocol: Any) -> None:
    """Pitfall 12."""
    calls = (ToolCall(id="a", name="open", arguments="{}"),)
    message = asked(Dialect(protocol), Sayer(said(HERMES, "length", tool_calls=calls)))
    assert message.tool_calls == ()


def test_calls_get_ids_of_their_own_where_the_engine_gives_none_or_one_twice() -> None:
    """Pitfall 20: ids changed between releases; a result must name its call."""
    calls = tuple(ToolCall(id=own, name="open", arguments="{}") for own in ("", "x", "x"))
    before = Message(role="assistant", content="", tool_calls=(ToolCall(id=call_id(1), name="open", arguments="{}"),))
    message = asked(Dialect("native"), Sayer(said("", "tool_calls", tool_calls=calls)), SYSTEM, USER, before)
    ids = [call.id for call in message.tool_calls]
    assert ids[1] == "x"
    assert len({*ids, call_id(1)}) == 4
    assert all(len(own) == 9 and own.isalnum() for own in ids if own != "x")


def test_arguments_that_are_no_json_go_back_as_a_string() -> None:
    """Servers refuse a conversation for them: a model's slip would count as a failed call."""
    call = ToolCall(id="a", name="open", arguments='{"id": ')
    [sent] = Dialect("native").shown((Message(role="assistant", content="", tool_calls=(call,)),), (TOOL,))
    assert json.loads(sent.tool_calls[0].arguments) == {"unreadable": '{"id": '}


def test_a_conversation_with_calls_as_text_takes_turns() -> None:
    calls = tuple(ToolCall(id=own, name="open", arguments='{"id": "a"}') for own in "ab")
    results = tuple(Message(role="tool", content=f"result {own}", tool_call_id=own) for own in "ab")
    asks = Message(role="assistant", content="", tool_calls=calls)
    shown = Dialect("text").shown((SYSTEM, USER, asks, *results), (TOOL,))
    assert [message.role for message in shown] == ["system", "user", "assistant", "user"]
    assert shown[2].content == f"{HERMES}\n{HERMES}"
    assert (
        shown[3].content == "<tool_response>\nresult a\n</tool_response>\n<tool_response>\nresult b\n</tool_response>"
    )


@pytest.mark.parametrize(
    "text", [f"Well.\n{HERMES}", 'Action: open\nAction Input: {"id": "a"}', '{"name": "open", "arguments": {}}']
)
def test_what_a_model_wrote_goes_back_as_it_wrote_it(text: str) -> None:
    dialect = Dialect("text")
    message = asked(dialect, Sayer(said(text)))
    assert dialect.shown((SYSTEM, USER, message), (TOOL,))[2].content == text
