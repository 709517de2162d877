"""Numbers and foreign text in words."""

import math

import pytest

from evalrig.report.shown import Row
from evalrig.report.words import (
    amount,
    cleaned,
    count,
    cut,
    interval,
    listed,
    p_value,
    percent,
    points,
    short,
    significant,
    sized,
    visible,
)
from evalrig.types import Metric

POINTS = Metric(name="accuracy", kind="binary", units="points", scale=100.0)
NATS = Metric(name="lead", kind="continuous", units="nats")
KL = Metric(name="kl", kind="distance", units="nats/token")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b", "a␀b"),
        ("\x1b[31mred", "␛[31mred"),
        ("a\u202eb\u2066c\u2069", "a⟨U+202E⟩b⟨U+2066⟩c⟨U+2069⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("\u0085\x7f", "⟨U+0085⟩␡"),
        ("\ufffe\U000e0041", "⟨U+FFFE⟩⟨U+E0041⟩"),
        ("line\none\ttab", "line\none\ttab"),
        ("Straße 東京 🙂 می‌خواهم", "Straße 東京 🙂 می‌خواهم"),
    ],
)
def test_hostile_text_is_shown_and_harmless(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown
    shown.encode()


def test_cleaned_reaches_every_text_of_a_tree() -> None:
    row = Row(label="\x00", cells=("\u202e", "fine"))
    assert cleaned((row, 1)) == (Row(label="␀", cells=("⟨U+202E⟩", "fine")), 1)


def test_a_long_text_is_cut_and_says_how_much_is_missing() -> None:
    assert cut("x" * 100_000, 10) == "xxxxxxxxxx … (cut here: 99,990 more characters)"
    assert cut("short", 10) == "short"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.3529, "0.353"),
        (1640.0, "1640"),
        (0.000012, "0.0000120"),
        (-0.5, "−0.500"),
        (0.0, "0"),
        (1.2e-9, "1.2e−09"),
        (math.inf, "∞"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_significant_digits_without_exponent(value: float | None, shown: str) -> None:
    assert significant(value) == shown


def test_a_margin_is_shown_as_it_was_written() -> None:
    assert [short(x) for x in (5.0, 0.05, 0.5, 1e-5, 100 * 0.01, 250.0)] == ["5", "0.05", "0.5", "0.00001", "1", "250"]


def test_points_are_signed_and_never_minus_zero() -> None:
    assert [points(x) for x in (-0.31, 2.44, -0.04, 0.0)] == ["−0.3", "+2.4", "0.0", "0.0"]


def test_a_p_value_is_never_zero_nor_one() -> None:
    assert [p_value(p) for p in (0.0, 1e-30, 0.0321, 1.0, None)] == ["< 1e-12", "< 1e-12", "0.032", "> 0.99", "–"]


def test_a_distance_has_no_sign_and_a_score_has_one() -> None:
    assert amount(0.35, KL) == "0.35"
    assert amount(0.35, NATS) == "+0.35"
    assert amount(-0.0033, POINTS) == "−0.3"
    assert amount(math.inf, KL) == "∞"


def test_an_interval_without_limits_says_so() -> None:
    assert interval(-0.021, 0.014, POINTS) == "−2.1 to +1.4"
    assert interval(None, None, POINTS) == "no valid interval"
    assert interval(None, 0.02, KL) == "at most 0.020"
    assert interval(0.2, math.inf, KL) == "at least 0.20"


def test_small_words() -> None:
    assert (count(1, "loss", "losses"), count(1200, "sample")) == ("1 loss", "1,200 samples")
    assert [listed(x) for x in ([], ["a"], ["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert [sized(x) for x in (269e6, 23040, 12)] == ["269 MB", "23 kB", "12 B"]
    assert (percent(0.863), percent(None), percent(-0.001)) == ("86.3 %", "–", "−0.1 %")
