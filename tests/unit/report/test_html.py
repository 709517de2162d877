"""The page: escaped, self-contained, strict."""

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from evalrig.records import RunFolder
from evalrig.report import write_report
from evalrig.report.html import html
from evalrig.report.shown import Page
from evalrig.report.view import page
from evalrig.verdict import judge

Make = Callable[..., RunFolder]
EVIL = "<script>alert(1)</script></style>]]>\"'><img src=x onerror=alert(2)>\u202e\x00{{ 7*7 }}"


class Reader(HTMLParser):
    """Collects tags, attributes, ids and text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def view(make: Make) -> Page:
    folder = make(answer=EVIL, question=EVIL)
    return page(folder, judge(folder))


@pytest.fixture(scope="module")
def document(view: Page) -> str:
    return html(view)


def test_hostile_output_is_text(document: str) -> None:
    reader = Reader(document)
    assert "script" not in reader.tags
    assert "img" not in reader.tags
    text = "".join(reader.words)
    assert "<script>alert(1)</script></style>]]>" in text
    assert "⟨U+202E⟩␀{{ 7*7 }}" in text
    assert "\u202e" not in document
    assert "\x00" not in document


def test_nothing_is_fetched_and_nothing_runs(document: str) -> None:
    reader = Reader(document)
    assert not [key for key, _ in reader.attributes if key.startswith("on") or key in ("src", "style", "srcset")]
    assert all(value.startswith("#") for key, value in reader.attributes if key == "href")
    assert all(value.startswith("url(#") for _, value in reader.attributes if "url(" in value)
    assert {"link", "iframe", "object", "embed", "form", "base"}.isdisjoint(reader.tags)


def test_the_policy_allows_only_the_style_sheet_by_its_digest(document: str) -> None:
    styles = re.findall(r"<style>(.*?)</style>", document, re.DOTALL)
    assert len(styles) == 1
    digest = base64.b64encode(hashlib.sha256(styles[0].encode()).digest()).decode()
    assert f'content="default-src &#39;none&#39;; style-src &#39;sha256-{digest}&#39;;' in document


def test_ids_are_unique_and_links_lead_somewhere(document: str) -> None:
    attributes = Reader(document).attributes
    ids = [value for key, value in attributes if key == "id"]
    assert len(ids) == len(set(ids))
    targets = {value[1:] for key, value in attributes if key == "href"}
    targets |= {name for key, value in attributes if key == "aria-labelledby" for name in value.split()}
    assert targets <= set(ids)


def test_plots_have_words_and_follow_the_page(document: str) -> None:
    svgs = re.findall(r"<svg.*?</svg>", document, re.DOTALL)
    assert len(svgs) == 3
    for svg in svgs:
        assert 'role="img"' in svg
        assert re.search(r"<title id=\"\w+-title\">[^<]{10,}</title>", svg)
        assert re.search(r"<desc id=\"\w+-desc\">[^<]{30,}</desc>", svg)
        assert "currentColor" in svg
        assert not re.findall(r'(?:fill|stroke)="#\w+"', svg)


def test_the_order_of_sections(document: str) -> None:
    sections = re.findall(r'<section id="(\w+)"', document)
    order = "verdicts signature validity accounting suites distance flips engines sources repeat"
    assert sections == order.split()


def test_the_same_view_gives_the_same_page(view: Page, document: str) -> None:
    assert html(view) == document


def test_empty_parts_are_said(view: Page) -> None:
    bare = replace(view, cards=(), suites=(), distances=(), flips=(), accounting=())
    text = "".join(Reader(html(bare)).words)
    for words in ("No candidate was judged", "No suite was in this run", "No distance was measured"):
        assert words in text


def test_all_files_are_written(make_own: Make) -> None:
    folder = make_own()
    write_report(folder, judge(folder))
    for name in ("verdict.json", "junit.xml", "summary.md", "report.html"):
        assert (folder.path / name).stat().st_size > 500
