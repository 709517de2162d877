"""Tool calls and thinking told from text, however the answer is cut into pieces."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.refengine.parsing import AnswerStream, Call, Parsing, Parts, assemble, parse
from evalrig.refengine.tool_calls import Piece, PieceKind

TOOLS = Parsing(tools=frozenset({"get_weather", "get_time"}))
BOTH = Parsing(tools=TOOLS.tools, reasoning=True)
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CALLED = Call(name="get_weather", arguments='{"city": "Paris"}')


def streamed(pieces: Sequence[str], parsing: Parsing) -> list[Piece]:
    stream = AnswerStream(parsing)
    return [*(piece for text in pieces for piece in stream.push(text)), *stream.finish()]


def is_complete(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


WHOLE: dict[str, tuple[str, Parts]] = {
    "one call": (PARIS, Parts(content="", reasoning="", calls=(CALLED,))),
    "content before it is kept": (
        f"Let me look.\n\n{PARIS}",
        Parts(content="Let me look.", reasoning="", calls=(CALLED,)),
    ),
    "two calls": (f"{PARIS}\n{PARIS}\n", Parts(content="", reasoning="", calls=(CALLED, CALLED))),
    "text behind it is kept": (f"A {PARIS}\nB", Parts(content="A \nB", reasoning="", calls=(CALLED,))),
    "no closing tag": (PARIS.removesuffix("</tool_call>"), Parts(content="", reasoning="", calls=(CALLED,))),
    "no call": ("Paris is warm. \n", Parts(content="Paris is warm. \n", reasoning="", calls=())),
    "cut": (PARIS[:40], Parts(content=PARIS[:40], reasoning="", calls=())),
    "cut before the last bracket": (PARIS[:-14], Parts(content=PARIS[:-14], reasoning="", calls=())),
    "a second one cut": (
        f"{PARIS}\n{PARIS[:30]}",
        Parts(content=PARIS[:30], reasoning="", calls=(CALLED,)),
    ),
    "no JSON": ("<tool_call>oops</tool_call>", Parts(content="<tool_call>oops</tool_call>", reasoning="", calls=())),
    "an unknown function": (
        PARIS.replace("get_weather", "get_lost"),
        Parts(content=PARIS.replace("get_weather", "get_lost"), reasoning="", calls=()),
    ),
    "arguments that are text": (
        '<tool_call>{"name": "get_time", "arguments": "{}"}</tool_call>',
        Parts(content='<tool_call>{"name": "get_time", "arguments": "{}"}</tool_call>', reasoning="", calls=()),
    ),
    "a number that is not JSON": (
        '<tool_call>{"name": "get_time", "arguments": {"a": NaN}}</tool_call>',
        Parts(content='<tool_call>{"name": "get_time", "arguments": {"a": NaN}}</tool_call>', reasoning="", calls=()),
    ),
    "no arguments": (
        '<tool_call>{"name": "get_time"}</tool_call>',
        Parts(content="", reasoning="", calls=(Call(name="get_time", arguments="{}"),)),
    ),
    "arguments first": (
        '<tool_call>{"arguments": {"a": [1, {"b": "}"}]}, "name": "get_time"}</tool_call>',
        Parts(content="", reasoning="", calls=(Call(name="get_time", arguments='{"a": [1, {"b": "}"}]}'),)),
    ),
    "tags inside a string": (
        '<tool_call>{"name": "get_time", "arguments": {"a": "</tool_call><tool_call>\\""}}</tool_call>',
        Parts(
            content="", reasoning="", calls=(Call(name="get_time", arguments='{"a": "</tool_call><tool_call>\\""}'),)
        ),
    ),
    "named twice": (
        '<tool_call>{"name": "get_time", "arguments": {}, "name": "get_weather"}</tool_call>',
        Parts(
            content='<tool_call>{"name": "get_time", "arguments": {}, "name": "get_weather"}</tool_call>',
            reasoning="",
            calls=(),
        ),
    ),
    "a tag that is none": ("<tool_cal", Parts(content="<tool_cal", reasoning="", calls=())),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_answer(name: str) -> None:
    text, wanted = WHOLE[name]
    assert parse(text, TOOLS) == wanted


def test_very_deep_arguments_are_text_and_no_crash() -> None:
    text = '<tool_call>{"name": "get_time", "arguments": {"a": ' + "[" * 5000 + "]" * 5000 + "}}</tool_call>"
    assert parse(text, TOOLS).content == text


def test_without_tools_nothing_is_looked_for() -> None:
    assert parse(PARIS, Parsing()) == Parts(content=PARIS, reasoning="", calls=())


def test_a_stream_names_the_function_first_and_then_sends_arguments() -> None:
    cuts = [
        "<tool",
        "_call>\n",
        '{"name',
        '": "get_we',
        'ather"',
        ', "arg',
        'uments": ',
        '{"ci',
        'ty": "Par',
        'is"}',
        "}\n",
    ]
    stream = AnswerStream(TOOLS)
    news = [stream.push(text) for text in cuts]
    shown = [[(piece.kind.value, piece.text) for piece in pieces] for pieces in news]
    assert shown == [
        *([[]] * 4),
        [("call", "get_weather")],
        [],
        [],
        [("arguments", '{"ci')],
        [("arguments", 'ty": "Par')],
        [("arguments", 'is"')],  # the last bracket waits until the call is sound
        [("arguments", "}")],
    ]
    assert stream.called
    assert stream.finish() == []


def test_a_streamed_call_that_is_cut_never_looks_complete() -> None:
    """vLLM's stream sends `"{}"` there, and a client runs a tool that was never called."""
    for end in range(len(PARIS) - len("}\n</tool_call>") + 1):
        parts = assemble(streamed(list(PARIS[:end]), TOOLS))
        assert not any(is_complete(call.arguments) for call in parts.calls), PARIS[:end]


def test_what_may_be_the_start_of_a_tag_is_held_back() -> None:
    stream = AnswerStream(TOOLS)
    assert stream.push("a <tool_c") == [Piece(kind=PieceKind.CONTENT, text="a")]
    assert stream.push("ake>") == [Piece(kind=PieceKind.CONTENT, text=" <tool_cake>")]


NAMES = st.sampled_from(["get_weather", "get_time", "get_lost"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
BLANKS = st.sampled_from(["", " ", "\n", " \n\t"])


@st.composite
def calls(draw: st.DrawFn) -> str:
    arguments = json.dumps(
        draw(st.dictionaries(st.text(max_size=4), VALUES, max_size=3)),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1])),
    )
    name, key = json.dumps(draw(NAMES)), draw(st.sampled_from(["arguments", "parameters"]))
    members = [f'"name": {name}', f'"{key}": {arguments}']
    body = ", ".join(members if draw(st.booleans()) else members[::-1])
    close = draw(st.sampled_from(["</tool_call>", "</tool_call>", ""]))
    return f"<tool_call>{draw(BLANKS)}{{{body}}}{draw(BLANKS)}{close}"


@st.composite
def broken(draw: st.DrawFn) -> str:
    """A call with one stretch of it lost or replaced."""
    text = draw(calls())
    first = draw(st.integers(0, len(text)))
    last = draw(st.integers(first, min(len(text), first + 4)))
    return text[:first] + draw(st.sampled_from(["", "}", "{", '"', "\\", ",", "x"])) + text[last:]


TEXTS = st.text(alphabet='ab <>/{}"\\\n', max_size=8) | st.sampled_from(["<tool_call>", "</tool_call>", "<think>"])
SOUND = st.lists(st.one_of(calls(), st.text(alphabet="ab \n.", max_size=6)), max_size=4).map("".join)
ANY = st.lists(st.one_of(calls(), broken(), TEXTS, st.sampled_from(["<think>", "</think>"])), max_size=5).map("".join)


@st.composite
def cut(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> list[str]:
    text = draw(texts)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@given(cut(SOUND))
@settings(max_examples=300, deadline=None)
def test_a_stream_of_sound_calls_adds_up_to_the_whole(pieces: list[str]) -> None:
    assert assemble(streamed(pieces, TOOLS)) == parse("".join(pieces), TOOLS)


@given(cut(ANY), st.sampled_from([TOOLS, BOTH, Parsing(reasoning=True), Parsing(reasoning=True, thinking=True)]))
@settings(max_examples=500, deadline=None)
def test_any_stream_adds_up_to_the_same_however_it_is_cut(pieces: list[str], parsing: Parsing) -> None:
    text = "".join(pieces)
    together = assemble(streamed(pieces, parsing))
    assert together == assemble(streamed(list(text), parsing)) == assemble(streamed([text], parsing))
    whole = parse(text, parsing)
    assert together.reasoning == whole.reasoning
    # A call that was begun and turned out unsound is in a stream without its end; the sound ones are the same.
    assert tuple(call for call in together.calls if is_complete(call.arguments)) == whole.calls
    assert all(is_complete(call.arguments) for call in whole.calls)


THOUGHTS: dict[str, tuple[str, bool, str, str]] = {
    "apart": ("<think>\nHm.\n</think>\n\nYes.", False, "Hm.", "Yes."),
    "blanks first": ("\n <think>Hm.</think>Yes.", False, "Hm.", "Yes."),
    "none": ("Yes. <think>no</think>", False, "", "Yes. <think>no</think>"),
    "blanks are kept without it": ("\n\nYes.", False, "", "\n\nYes."),
    "never closed": ("<think>Hm. And", False, "Hm. And", ""),
    "cut in the tag": ("<think>Hm.</thi", False, "Hm.</thi", ""),
    "empty": ("<think>\n\n</think>\n\nYes.", False, "", "Yes."),
    "opened by the prompt": ("Hm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
    "opened twice": ("\n<think>\nHm.</think>Yes.", True, "Hm.", "Yes."),
    "less than": ("<think>a < b, a </ b\n\nc</think>d", False, "a < b, a </ b\n\nc", "d"),
}


@pytest.mark.parametrize("name", THOUGHTS)
def test_thinking_is_kept_apart(name: str) -> None:
    text, inside, thought, said = THOUGHTS[name]
    parsing = Parsing(reasoning=True, thinking=inside)
    wanted = Parts(content=said, reasoning=thought, calls=())
    assert parse(text, parsing) == wanted
    assert assemble(streamed(list(text), parsing)) == wanted


def test_a_call_inside_the_thinking_is_no_call() -> None:
    parts = parse(f"<think>{PARIS}</think>{PARIS}", BOTH)
    assert (parts.reasoning, parts.content, parts.calls) == (PARIS, "", (CALLED,))


def test_the_opening_of_a_forced_call_belongs_to_the_answer() -> None:
    opening = '<tool_call>\n{"name": "get_weather", "arguments":'
    parsing = Parsing(tools=frozenset({"get_weather"}), opening=opening)
    rest: Any = ' {"city": "Paris"}}\n</tool_call>'
    assert parse(rest, parsing).calls == (CALLED,)
    assert parse(' {"city', parsing).content == opening + ' {"city'
    assert assemble(streamed(list(rest), parsing)).calls == (CALLED,)
