"""The user's own recorded conversations: each step of the assistant, and one line for what is wrong."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalrig.conversations import Conversation, read
from evalrig.errors import UsageError

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"To {name}.",
            "parameters": {"type": "object", "properties": {"of": {"type": "string"}}},
        },
    }
    for name in ("look", "move")
]


def call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


RECORDED: dict[str, Any] = {
    "id": "trip-1",
    "tools": TOOLS,
    "messages": [
        {"role": "system", "content": "You move things."},
        {"role": "user", "content": [{"type": "text", "text": "Move "}, {"type": "text", "text": "a."}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "First look.",
            "tool_calls": [call("1", "look", '{"of": "a"}'), call("2", "look", '{"of": "b", "n": 1.5}')],
        },
        {"role": "tool", "tool_call_id": "2", "content": "none"},
        {"role": "tool", "tool_call_id": "1", "content": "there"},
        {"role": "assistant", "content": "I move it.", "refusal": None, "tool_calls": [call("3", "move", "{}")]},
        {"role": "tool", "tool_call_id": "3", "content": ""},
        {"role": "assistant", "content": "Moved.", "tool_calls": []},
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "Welcome."},
    ],
}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "own.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def conversations(folder: Path, *lines: Any) -> list[Conversation]:
    return read(written(folder, *lines), "suites.own.options.path")


def test_every_message_of_the_assistant_is_a_step_with_what_was_seen_before(tmp_path: Path) -> None:
    (one,) = conversations(tmp_path, "", RECORDED, "  ")
    assert one.id == "trip-1"
    assert [len(stage.messages) for stage in one.stages] == [2, 5, 7, 9]
    assert [stage.due for stage in one.stages] == [
        (("look", {"of": "a"}), ("look", {"of": "b", "n": 1.5})),
        (("move", {}),),
        (),
        (),
    ]
    assert [stage.text for stage in one.stages] == ["", "", "Moved.", "Welcome."]
    assert {tool.name for tool in one.stages[0].tools} == {"look", "move"}
    assert one.stages[0].tools[0].parameters == TOOLS[0]["function"]["parameters"]


def test_what_was_seen_keeps_calls_results_and_reasoning(tmp_path: Path) -> None:
    (one,) = conversations(tmp_path, RECORDED)
    _, user, asked, second, _ = one.stages[1].messages
    assert user.content == "Move a."
    assert asked.content == ""
    assert asked.reasoning == "First look."
    assert [(each.id, each.name, each.arguments) for each in asked.tool_calls] == [
        ("1", "look", '{"of": "a"}'),
        ("2", "look", '{"of": "b", "n": 1.5}'),
    ]
    assert (second.role, second.tool_call_id, second.content) == ("tool", "2", "none")


def test_a_conversation_may_end_with_a_call(tmp_path: Path) -> None:
    cut = {**RECORDED, "messages": RECORDED["messages"][:3]}
    assert len(conversations(tmp_path, cut)[0].stages) == 1


def _set(place: int, **keys: Any) -> Callable[[Any], None]:
    return lambda line: line["messages"][place].update(keys)


def _cut(*places: int) -> Callable[[Any], None]:
    def cut(line: Any) -> None:
        line["messages"] = [each for at, each in enumerate(line["messages"]) if at not in places]

    return cut


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda line: line.pop("id"), "missing required field `id`"),
        (lambda line: line.update(id=""), "`id` is empty"),
        (lambda line: line.update(extra=1), "unknown field `extra`"),
        (lambda line: line["tools"].append(TOOLS[0]), "two tools have one name"),
        (lambda line: line["tools"].pop(), "message 6 calls 'move', which is not among"),
        (lambda line: line.update(messages=line["messages"][:2]), "the assistant says nothing"),
        (_set(0, role="bot"), "Invalid enum value 'bot'"),
        (_set(1, content=[{"type": "image_url", "image_url": {"url": ""}}]), "a line holds id, messages and tools"),
        (_set(1, tool_calls=[call("9", "look", "{}")]), "only the assistant calls tools"),
        (_set(3, tool_call_id="7"), "message 4 answers no open call \\('7'\\)"),
        (_set(3, tool_call_id="1"), "message 5 answers no open call \\('1'\\)"),
        (_set(5, tool_calls=[call("3", "move", '{"of": "a"')]), "message 6: the arguments of 'move' are no JSON"),
        (_set(5, tool_calls=[call("3", "move", '{"of": 1, "of": 2}')]), "a key occurs twice"),
        (_set(5, tool_calls=[call("3", "move", '{"of": NaN}')]), "NaN is no JSON number"),
        (_set(5, tool_calls=[call("3", "move", "[" * 9999)]), "the arguments of 'move' are no JSON"),
        (_set(5, tool_calls=[call("3", "move", "[]")]), "are no object"),
        (_set(5, tool_calls=[call("3", "move", '{"of": "\\ud800"}')]), "hold what no argument can be"),
        (_set(5, tool_calls=[call("3", "move", "{}"), call("3", "look", "{}")]), "two calls with one id"),
        (_set(7, content=" "), "message 8 has neither content nor tool_calls"),
        (_cut(4), "message 5 comes before the results of \\['1'\\]"),
        (_cut(8), "message 9 is the assistant's second in a row"),
        (_cut(1), "before the user said anything"),
    ],
)
def test_a_line_that_is_no_conversation_is_named_in_one_line(tmp_path: Path, spoil: Any, why: str) -> None:
    line = copy.deepcopy(RECORDED)
    spoil(line)
    with pytest.raises(UsageError, match=why) as caught:
        conversations(tmp_path, {**RECORDED, "id": "before"}, line)
    assert str(caught.value).startswith("suites.own.options.path: ")
    assert "own.jsonl line 2: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"id": "\\ud800"}'])
def test_a_line_that_is_not_json_of_that_form_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match="line 1: "):
        conversations(tmp_path, line)


def test_an_id_twice_an_empty_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 2: id 'trip-1' occurs twice"):
        conversations(tmp_path, RECORDED, RECORDED)
    with pytest.raises(UsageError, match="holds no conversation"):
        conversations(tmp_path, "", " ")
    with pytest.raises(UsageError, match=r"cannot read .* give a JSONL file"):
        read(tmp_path / "none.jsonl", "suites.own.options.path")


@given(data=st.data())
def test_whatever_is_cut_out_gives_steps_or_one_clear_line(tmp_path_factory: Any, data: st.DataObject) -> None:
    line = copy.deepcopy(RECORDED)
    count = len(line["messages"])
    line["messages"] = [line["messages"][at] for at in data.draw(st.lists(st.integers(0, count - 1), max_size=count))]
    fault = ""
    try:
        (one,) = conversations(tmp_path_factory.mktemp("cut"), line)
    except UsageError as error:
        fault = str(error)
    else:
        assert len(one.stages) == sum(message["role"] == "assistant" for message in line["messages"])
        assert all(stage.due or stage.text for stage in one.stages)
        assert all(stage.messages[-1].role != "assistant" for stage in one.stages)
    assert "\n" not in fault
