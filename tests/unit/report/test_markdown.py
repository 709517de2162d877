"""The summary on a CI job page."""

from collections.abc import Callable
from dataclasses import replace

from evalrig.records import RunFolder
from evalrig.report.markdown import code, escaped, markdown
from evalrig.report.view import page
from evalrig.verdict import judge

Make = Callable[..., RunFolder]


def test_the_summary_says_what_must_not_be_missed(make: Make) -> None:
    folder = make()
    text = markdown(page(folder, judge(folder)))
    assert text.startswith("## evalrig: NO-GO (made-up)\n")
    assert "| fp8kv | **GO** | fp8kv loses no more than 5 points on piqa" in text
    assert "| int4 | **NO-GO** | int4 moves the token distribution by 0.3" in text
    assert "- Not covered: coding, tool calls, long context, serving load" in text
    assert "- Note: the weights were already 4-bit" in text
    assert "`evalrig judge runs/made-up/2026-11-29T12-00-00Z`" in text
    assert len(text.splitlines()) <= 60


def test_many_candidates_still_fit(make: Make) -> None:
    folder = make()
    view = page(folder, judge(folder))
    many = replace(view, cards=view.cards * 40)
    text = markdown(many)
    assert len(text.splitlines()) <= 60
    assert "64 further candidates" in text


def test_foreign_text_is_no_markup() -> None:
    assert escaped("a|b `c` <script> [x](y) **z**\n# h") == (
        "a&#124;b &#96;c&#96; &lt;script&gt; \\[x\\](y) \\*\\*z\\*\\* \\# h"
    )
    assert escaped("\x00\u202e") == "␀⟨U+202E⟩"
    assert len(escaped("x" * 100_000)) < 600
    assert code("a`b|c\nd") == "`a'b¦c d`"
