"""Classes of tokens: each rule once, on answers as models write them."""

import re

import pytest

from evalrig.analysis.token_classes import NAMES, TokenClass, classify

LETTERS = "SADCRPE"
"""One for each class, in order."""


def split(text):
    """Special tokens whole, then words and single signs, each with the blank before it."""
    return re.findall(r"<[|｜/]?[\w▁|｜]+>|\[/?[A-Z_]+\]|```| ?\w+|\s|.", text)


def shown(text, **options):
    pieces = split(text)
    assert "".join(pieces) == text
    marks = classify(pieces, **options)
    return [(piece, LETTERS[mark]) for piece, mark in zip(pieces, marks, strict=True) if piece.strip()]


def of(found, letter):
    return [piece.strip() for piece, mark in found if mark == letter]


def test_names_follow_the_classes():
    assert len(NAMES) == len(TokenClass) == len(LETTERS)
    assert (NAMES[TokenClass.ARGUMENT], NAMES[TokenClass.END]) == ("tool arguments", "end of turn")


def test_json_call_with_reasoning():
    found = shown(
        '<think>Look it up in 2024</think>I will.<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Paris", "days": 3, "metric": true}}\n</tool_call><|im_end|>'
    )
    assert of(found, "R") == ["<think>", "Look", "it", "up", "in", "</think>"]
    assert of(found, "D") == ["2024"]
    assert of(found, "A") == ["Paris", "3", "true"]
    assert of(found, "P") == ["I", "will", "."]
    assert of(found, "E") == ["<|im_end|>"]
    assert {"<tool_call>", "name", "get_weather", "arguments", "city", "days", "{", "}"} <= set(of(found, "S"))


def test_nested_values_and_lists_are_arguments():
    found = shown('<tool_call>{"name": "f", "arguments": {"a": {"b": [1, "two"]}, "c": null}, "id": "x"}</tool_call>')
    assert of(found, "A") == ["1", "two", "null"]
    assert "x" in of(found, "S")


def test_arguments_given_as_a_string():
    found = shown('<tool_call>{"name": "f", "arguments": "free text"}</tool_call>')
    assert of(found, "A") == ["free", "text"]


def test_xml_call():
    found = shown("<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>New York</arg_value></tool_call>Done")
    assert of(found, "A") == ["New", "York"]
    assert "city" in of(found, "S")
    assert of(found, "P") == ["Done"]
    other = shown("<tool_call><function=f><parameter=city>\nParis\n</parameter></function></tool_call>")
    assert of(other, "A") == ["Paris"]


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>',
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜>',
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}<|eom_id|>',
    ],
)
def test_calls_of_other_families(text):
    found = shown(text)
    assert of(found, "A") == ["Paris"]
    assert {"get_weather", "city"} <= set(re.findall(r"\w+", " ".join(of(found, "S"))))
    assert "P" not in {mark for _, mark in found}
    assert "C" not in {mark for _, mark in found}


def test_a_call_that_was_cut_off():
    found = shown('<tool_call>{"name": "f", "arguments": {"city": "New Yo')
    assert of(found, "A") == ["New", "Yo"]
    assert of(shown('<tool_call>{"name": "f'), "A") == []


def test_code_and_digits():
    found = shown("Try\n```python\nx = f(10)\n```\nIt gives 42.")
    assert of(found, "C") == ["```", "python", "x", "=", "f", "(", ")", "```"]
    assert of(found, "D") == ["10", "42"]
    assert of(found, "P") == ["Try", "It", "gives", "."]


def test_reasoning_that_the_template_opened():
    text = "First this</think>Then that"
    assert of(shown(text), "R") == ["First", "this", "</think>"]
    assert of(shown("Never closed"), "R") == []
    assert of(shown("Never closed", reasoning_open=True), "R") == ["Never", "closed"]
    assert of(shown(text, reasoning_open=True), "P") == ["Then", "that"]
    harmony = shown("<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>")
    assert "Hm" in of(harmony, "R")
    assert "Yes" in of(harmony, "P")


def test_a_token_over_a_border_goes_with_most_of_it():
    text = ['<tool_call>{"name": "f", "arguments": {"a', '": "Par', "is", '"}}', "</tool_call>"]
    assert [LETTERS[m] for m in classify(text)] == ["S", "S", "A", "S", "S"]
    assert [LETTERS[m] for m in classify(["a1", "1a", "11a", ""])] == ["P", "D", "D", "P"]


def test_blanks_and_empty_texts_have_a_class():
    assert [LETTERS[m] for m in classify(["```", " ", "", "x", "```", "\n"])] == ["C", "C", "C", "C", "C", "P"]
    assert classify([]).shape == (0,)
    assert [LETTERS[m] for m in classify(["", ""])] == ["P", "P"]


def test_every_character_is_someones():
    """Random pieces of markup: as many classes as tokens, the same twice."""
    import random

    rng = random.Random(0)
    pieces = [
        "<tool_call>",
        "</tool_call>",
        '{"',
        'name": "',
        "arguments",
        '": {',
        '"',
        "}",
        "]",
        "[",
        "1",
        ",",
        ":",
        "```",
        "<think>",
    ]
    for _ in range(300):
        texts = [rng.choice(pieces) for _ in range(rng.randrange(25))]
        found = classify(texts)
        assert (found == classify(texts)).all()
        assert ((found >= 0) & (found < len(NAMES))).all()
