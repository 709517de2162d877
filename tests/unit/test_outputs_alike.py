"""When two outputs of a program count as the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalrig.outputs_alike import Rule, same_text, same_value


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("3", "3\n"),
        ("1 2\n3", "1 2  \n3   \n\n"),
        ("\n\n 1 2\n", "1 2"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("1  2", "1 2"),
        ("0.3333333", "0.33333333333"),
        ("1e-1", "0.1"),
        ("3.0", "3"),
        ("+3", "3"),
        ("3", "3.0"),
        ("100000000.5", "100000000.4999999"),
        ("", "\n"),
        ("x 0.5", "x 0.50"),
        ("nan", "nan"),  # the same word, if a problem asks for it
    ],
)
def test_spaces_and_the_way_a_number_is_written_do_not_count(given: str, wanted: str) -> None:
    assert same_text(given, wanted, "tokens", 1e-6)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("", "3"),
        (" \n", "0"),
        ("nan", "3"),
        ("nan", "0.5"),
        ("inf", "0.5"),
        ("1e9999", "0.5"),
        ("1e99999999999999", "0.5"),
        ("3 3", "3"),
        ("3\n3", "3"),
        ("1 2", "1\n2"),
        ("1\n\n2", "1\n2"),
        ("2.9999999", "3"),
        ("50000000000000001", "50000000000000000"),
        ("50000000000000000.0000001", "50000000000000000"),
        ("0.333", "0.33333333333"),
        ("YES", "Yes"),
        ("1_0", "10"),
        ("٣", "3"),
        ("0x3", "3"),
        ("True", "1"),
        ("..##", " ##"),
        ("0.5 y", "0.5 x"),
        ("1.0" + "0" * 100_000 + "1", "1"),
    ],
)
def test_nothing_else_stands_for_the_answer(given: str, wanted: str) -> None:
    assert not same_text(given, wanted, "tokens", 1e-6)


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ("1 2 \n", "1 2", True),
        ("1  2", "1 2", False),
        (" 1", "1", False),
        ("0.50", "0.5", False),
        ("\n\n1\n", "1", True),
    ],
)
def test_exact_forgives_only_the_ends_of_lines(given: str, wanted: str, same: bool) -> None:
    assert same_text(given, wanted, "exact", 1e-6) is same


@given(st.text(alphabet="01.eE+-na \n"), st.sampled_from(["tokens", "exact"]))
def test_an_output_is_like_itself_and_any_text_gets_an_answer(text: str, rule: Rule) -> None:
    assert same_text(text, text, rule, 0.0)
    assert same_text(text, "7 words that nobody prints", rule, 1e-6) is False


NAN = float("nan")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((1, 2), [1, 2]),
        ([(1, "a"), (2, "b")], [[1, "a"], [2, "b"]]),
        (2.0, 2),
        (2, 2.0),
        (0.1 + 0.2, 0.3),
        ([4.4], [4.400000000000001]),
        ({"a": (1,)}, {"a": [1]}),
        (None, None),
        (True, True),
        (10**30, 10**30),
        ("", ""),
        ([], []),
    ],
)
def test_values_are_compared_as_json_has_them(given: Any, wanted: Any) -> None:
    assert same_value(given, wanted, 1e-6)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (1, True),
        (True, 1),
        (0, False),
        (False, 0.0),
        (None, False),
        (None, 0),
        (NAN, 0.5),
        (NAN, 1),
        (float("inf"), 1e308),
        (10**400, 1e308),
        ("1", 1),
        (1, "1"),
        ([], None),
        ([1], [1, 2]),
        ([1, 2], [2, 1]),
        ("ab", ["a", "b"]),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({}, []),
        (2.0000001, 2),
        (10**30 + 1, 10**30),
        (0.31, 0.3),
        ([[1], 1], [[1], True]),
    ],
)
def test_no_value_stands_for_another(given: Any, wanted: Any) -> None:
    """Pitfall 35: a check that NaN, nothing or `True` passes is none."""
    assert not same_value(given, wanted, 1e-6)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        st.lists,
    )
)
def test_a_value_is_like_itself_after_json(value: Any) -> None:
    assert same_value(json.loads(json.dumps(value)), value, 0.0)
