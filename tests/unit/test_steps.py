"""What is wrong with a step: nothing a model wrote is evaluated, and every word of the taxonomy has its case."""

import inspect
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalrig.steps import ERRORS, canonical, compared, complaint, fault, is_id, lost, plain, taken, unfit
from evalrig.types import Tool, ToolCall

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "object"}},
        "count": {"type": "integer"},
    },
    "required": ["id"],
    "additionalProperties": False,
}
TOOLS = tuple(Tool(name=name, description="", parameters=SCHEMA) for name in ("open", "open_all", "close"))
ID = "9f31c0a4"


def call(name: str = "open", **arguments: Any) -> ToolCall:
    return ToolCall(id="call_0", name=name, arguments=json.dumps(arguments or {"id": ID}))


def written(arguments: str) -> ToolCall:
    return ToolCall(id="call_0", name="open", arguments=arguments)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"b": 1.0, "a": [1e2, 0.10]}', {"a": [100, 0.1], "b": 1}),
        ('{"id": 123456789012345678901}', {"id": 123456789012345678901}),
        ('{"x": -0.0}', {"x": 0}),
        ("", {}),
        (" \n", {}),
        ("[1]", None),
        ('"Paris"', None),
        ("null", None),
        ('{"a": 1, "a": 2}', None),
        ('{"o": {"a": 1, "a": 1}}', None),
        ('{"a": NaN}', None),
        ('{"a": 1e999999999}', None),
        ('{"a": 1e400}', None),
        ('{"a": ' + "9" * 5000 + "}", None),
        ("[" * 100_000, None),
        ('{"a": ' + "[" * 300 + "]" * 300 + "}", None),
        ('{"a": ["\\ud800"]}', None),
        ('{"\\udfff": 1}', None),
        ('{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        ('{"a": 1} and so on', None),
        ("{'a': 1}", None),
        ("{__import__('os')}", None),
    ],
)
def test_arguments_are_parsed_to_values_or_are_none(text: str, found: Any) -> None:
    said = canonical(text)
    assert said == found
    if found:
        assert list(said or {}) == sorted(found)


def test_true_is_not_one() -> None:
    assert compared([call(id=ID, count=1)], "", [("open", {"id": ID, "count": True})], TOOLS).error
    assert not compared(
        [written('{"count": 1.0, "id": "9f31c0a4"}')], "", [("open", {"id": ID, "count": 1})], TOOLS
    ).error


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(-1e6, 1e6) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.randoms())
def test_the_order_of_keys_makes_no_difference(arguments: dict[str, Any], rng: Any) -> None:
    keys = list(arguments)
    rng.shuffle(keys)
    shuffled = {key: arguments[key] for key in keys}
    assert json.dumps(canonical(json.dumps(shuffled))) == json.dumps(canonical(json.dumps(arguments)))
    assert plain(arguments) == canonical(json.dumps(arguments))


@given(st.text(max_size=40))
def test_whatever_is_written_is_told_apart_and_never_a_crash(text: str) -> None:
    step = compared([written(text)], text, [("open", {"id": ID})], TOOLS)
    assert step.error in ("", *ERRORS)
    assert taken([], text, TOOLS).error in ("", "gave_up", "parser_lost")


@pytest.mark.parametrize(
    ("calls", "text", "due", "error"),
    [
        ([call()], "", [("open", {"id": ID})], ""),
        ([], "All done.", [], ""),
        ([written("{")], "", [("open", {"id": ID})], "bad_json"),
        ([call("opne")], "", [("open", {"id": ID})], "unknown_tool"),
        ([call(id=7)], "", [("open", {"id": ID})], "schema"),
        ([call(id=ID, more=1)], "", [("open", {"id": ID})], "schema"),
        ([call("open_all")], "", [("open", {"id": ID})], "wrong_tool"),
        ([call(), call()], "", [("open", {"id": ID})], "wrong_tool"),
        ([call(id="9f31c0a5")], "", [("open", {"id": ID})], "wrong_id"),
        ([call(id=ID, count=2)], "", [("open", {"id": ID, "count": 1})], "wrong_arguments"),
        ([call(id="9f31c0a5", count=2)], "", [("open", {"id": ID, "count": 1})], "wrong_arguments"),
        ([call(id=ID)], "", [("open", {"id": ID, "count": 1})], "wrong_arguments"),
        ([call(id=ID, lines=[{}])], "", [("open", {"id": ID, "lines": []})], "wrong_arguments"),
        ([call()], "", [], "went_on"),
        ([], "I am done.", [("open", {"id": ID})], "gave_up"),
        ([], " ", [], "gave_up"),
        ([], '<tool_call>{"name": "open"', [("open", {"id": ID})], "parser_lost"),
        ([], 'Now {"name": "open", "arguments": {"id": "x"}}', [("open", {"id": ID})], "parser_lost"),
        ([], "<|tool_calls_section_begin|>", [], "parser_lost"),
    ],
)
def test_every_departure_has_its_word(calls: list[ToolCall], text: str, due: Any, error: str) -> None:
    assert compared(calls, text, due, TOOLS).error == error


def test_parallel_calls_come_in_any_order() -> None:
    due = [("open", {"id": "a"}), ("close", {"id": "b"}), ("open", {"id": "c"})]
    calls = [call("open", id="c"), call("open", id="a"), call("close", id="b")]
    assert not compared(calls, "", due, TOOLS).error
    assert compared(calls[:2], "", due, TOOLS).error == "wrong_tool"
    slipped = [call("open", id="c9f31c0a5"), *calls[1:]]
    due = [("open", {"id": "c9f31c0a4"}), *due[:2]]
    step = compared(slipped, "", due, TOOLS)
    assert (step.error, step.named, step.valid) == ("wrong_id", True, True)


def test_an_ending_with_calls_that_brought_none_is_lost_not_an_answer() -> None:
    """Pitfalls 12 and 20: the model called, a parser of another format gave nothing."""
    assert taken([], "The weather is", TOOLS, promised=True).error == "parser_lost"
    assert compared([], "Done.", [], TOOLS, promised=True).error == "parser_lost"


def test_words_about_json_are_no_lost_call() -> None:
    assert not lost('The record is {"name": "Ada", "arguments": 3}; and {"name": "open"}.', TOOLS)
    assert not lost("Use open and close.", TOOLS)


def test_the_worst_of_several_calls_counts() -> None:
    assert fault([call(id=7), written("{"), call("x")], TOOLS) == "bad_json"
    assert fault([call(id=7), call("x")], TOOLS) == "unknown_tool"
    assert not fault([], TOOLS)


def test_what_is_wrong_is_told_in_words_that_help() -> None:
    assert "the tools are: close, open, open_all" in complaint(call("x"), TOOLS)[1]
    assert complaint(call(id=7), TOOLS)[1] == "argument `id`: 7 is not of type 'string'"
    assert "'more' was unexpected" in complaint(call(id=ID, more=1), TOOLS)[1]


def test_ids_are_what_is_copied() -> None:
    assert is_id("9f31c0a4")
    assert is_id(12345678)
    assert not any(
        map(is_id, ("abcdef", "a1", "2026-03-04", "2026-03-04T10:00", "12 small boxes", 12, True, None, 1.5))
    )


def test_a_schema_is_no_way_to_fetch_something() -> None:
    away = Tool(name="open", description="", parameters={"$ref": "http://127.0.0.1:9/schema"})
    with pytest.raises(Exception, match="Unresolvable"):
        fault([call()], [away])


def test_tools_that_cannot_be_offered_are_named() -> None:
    assert not unfit(TOOLS)
    assert unfit([*TOOLS, TOOLS[0]]) == "two tools are called 'open'"
    wrong = Tool(name="odd", description="", parameters={"type": "objekt"})
    assert "tool 'odd' are no JSON schema" in unfit([wrong])


def test_a_reference_that_leads_nowhere_is_named_before_a_call_comes_to_it() -> None:
    lost = {"type": "object", "properties": {"x": {"$ref": "#/$defs/gone"}}, "$defs": {"there": {"type": "string"}}}
    assert "its `$ref` '#/$defs/gone' leads nowhere" in unfit([Tool(name="odd", description="", parameters=lost)])
    away = {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema"}}}
    assert "leads nowhere" in unfit([Tool(name="odd", description="", parameters=away)])
    found = {**lost, "properties": {"x": {"$ref": "#/$defs/there"}, "$ref": {"type": "string"}}}
    assert not unfit([Tool(name="fine", description="", parameters=found)])


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}},
        },
    ],
)
def test_a_reference_that_comes_back_to_itself_is_refused_and_no_recursion_error(schema: dict[str, Any]) -> None:
    assert "comes back to itself" in unfit([Tool(name="odd", description="", parameters=schema)])


def test_a_schema_of_a_tree_is_fine_and_arguments_too_deep_for_it_are_the_calls_own_fault() -> None:
    tree = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "under": {"type": "array", "items": {"$ref": "#"}}},
    }
    tool = Tool(name="open", description="", parameters=tree)
    assert not unfit([tool])
    small, deep = '{"under": [{"name": 7}]}', '{"under": [' * 31 + "{}" + "]}" * 31
    assert "`under.0.name`" in complaint(ToolCall(id="", name="open", arguments=small), [tool])[1]
    assert complaint(ToolCall(id="", name="open", arguments=deep), [tool]) == ("", "")

    def far_down(frames: int) -> tuple[str, str]:
        return far_down(frames - 1) if frames else complaint(ToolCall(id="", name="open", arguments=deep), [tool])

    word, words = far_down(sys.getrecursionlimit() - _frames() - 110)
    assert (word, words) == ("schema", "the arguments nest too deep for the tool's schema")


def _frames() -> int:
    frame, count = inspect.currentframe(), 0
    while frame:
        frame, count = frame.f_back, count + 1
    return count


def test_a_schema_that_nests_too_deep_is_named() -> None:
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"properties": {"x": deep}}
    assert "it nests too deep" in unfit([Tool(name="odd", description="", parameters=deep)])
