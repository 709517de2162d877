"""Serving load in the report: what is said, what is escaped, and that it is absent where nothing was loaded."""

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.rounds import load_folder

from evalrig.evidence import Gathered
from evalrig.loadgen.block import Block, Health
from evalrig.loadgen.raw import write_block
from evalrig.loadgen.served import Events, Requests, Served
from evalrig.records import RunFolder
from evalrig.report.html import html
from evalrig.report.markdown import markdown
from evalrig.report.shown import Page
from evalrig.report.shown_load import LoadView
from evalrig.report.text import ending
from evalrig.report.view import page
from evalrig.types import AGAIN, REFERENCE
from evalrig.verdict import judge

GATES: dict[str, dict[str, Any]] = {
    "speed": {"kind": "load_ratio", "metric": "output_tokens_per_second", "margin": 0.01},
    "cheaper": {"kind": "saving", "metric": "usd_per_million_output", "margin": 0.1},
    "held": {"kind": "kv_capacity", "margin": 0, "options": {"min_ratio": 1.9}},
}
EVIL = "<script>alert(1)</script>]]>\"'><img src=x onerror=alert(2)>\u202e{{ 7*7 }}"


def shown(folder: RunFolder) -> Page:
    return page(folder, judge(folder))


def load_of(found: Page) -> LoadView:
    view = found.suites[0].load
    assert view is not None
    return view


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return load_folder(tmp_path_factory.mktemp("real"), {name: derived(gate) for name, gate in GATES.items()})


def derived(gate: dict[str, Any]) -> dict[str, Any]:
    """With the margin that `assemble` derives."""
    return gate | ({"margin": -0.9} if gate["margin"] == 0 else {})


def test_every_metric_stands_beside_a_a_with_what_the_rounds_resolve(real: RunFolder) -> None:
    table = load_of(shown(real)).tables[0]
    rows = {row.label: dict(zip(table.columns[1:], row.cells, strict=True)) for row in table.rows}
    rate = rows["output_tokens_per_second"]
    assert float(rate["ratio"]) == pytest.approx(1.25, rel=0.005)
    assert (rate["reading"], rows["tpot_p50"]["reading"]) == ("better", "better")
    assert float(rate["A/A"]) == pytest.approx(1.0, abs=0.005)
    [hint] = [row.hint for row in table.rows if row.label == "output_tokens_per_second"]
    assert hint == "tokens/s; speed: pass"
    assert rate["resolves"].endswith(" %")
    assert "ttft_p99" not in rows
    assert "too few requests: ttft_p99" in table.note


def test_capacity_cost_and_the_client_are_said(real: RunFolder) -> None:
    lines = "\n".join(load_of(shown(real)).lines)
    assert "cheap holds: 2.00 times the reference's KV tokens" in lines
    assert "as the formats promise (2.00)" in lines
    assert "KV is not the binding limit here" in lines
    assert "usd_per_million_output" in lines
    assert re.search(r": 20\.\d % saved \(", lines)
    assert "at least 99.0 % of the events of each block have an exact time of arrival" in lines


def test_the_label_of_an_emulation_stands_in_all_three_forms(tmp_path: Path) -> None:
    folder = load_folder(tmp_path, GATES | {"held": derived(GATES["held"])}, emulation="formats in f32")
    verdict = judge(folder)
    found = page(folder, verdict)
    label = "emulated formats: speed is not evidence"
    assert load_of(found).label.startswith(f"{label} (formats in f32)")
    assert label in html(found)
    assert label in markdown(found)
    assert label in ending(folder, verdict, "")
    roles = {row.gate: row.role for row in found.cards[0].checks}
    assert roles == {"speed": "diagnostic", "cheaper": "diagnostic", "held": "gating"}


class Reader(HTMLParser):
    """Collects tags and text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_hostile_reason_of_a_void_block_is_text(tmp_path: Path) -> None:
    """It can hold what a server answered."""
    folder = load_folder(tmp_path, GATES | {"held": derived(GATES["held"])}, void={("cheap", 1): EVIL})
    found = page(folder, judge(folder))
    assert load_of(found).void == (f"cheap, round-01: void: {EVIL}".replace("\u202e", "⟨U+202E⟩"),)
    document = html(found)
    reader = Reader(document)
    assert {"script", "img"}.isdisjoint(reader.tags)
    assert "<script>alert(1)</script>]]>" in "".join(reader.words)
    assert "\u202e" not in document
    assert "<script>" not in markdown(found)


def test_the_section_is_there_for_load_alone(real: RunFolder, make: Callable[..., RunFolder]) -> None:
    assert 'id="load"' in html(shown(real))
    other = make()
    assert 'id="load"' not in html(page(other, judge(other)))


def test_every_block_void_is_said_and_is_no_pass(tmp_path: Path) -> None:
    void = {("cheap", number): "the client was too busy" for number in range(12)}
    folder = load_folder(tmp_path, {"speed": GATES["speed"]}, void=void)
    verdict = judge(folder)
    assert verdict.outcome == "INCONCLUSIVE"
    found = page(folder, verdict)
    assert load_of(found).tables[0].rows == ()
    assert "No round has both halves" in html(found)
    assert len(load_of(found).void) == 12


def served(starts: np.ndarray, seconds: float) -> Served:
    n = len(starts)
    counts = np.full(n, 4)
    requests = Requests(
        ok=np.ones(n, np.bool_),
        due=starts,
        sent=starts,
        first=starts + seconds / 2,
        last=starts + seconds,
        prompt_tokens=counts,
        cached_tokens=counts * 0,
        tokens=counts,
        error=("",) * n,
    )
    none = np.zeros(0)
    events = Events(request=none.astype(np.int64), at=none, exact=none.astype(np.bool_), tokens=none)
    return Served(requests=requests, events=events, seconds=float(starts[-1] + seconds))


def test_requests_in_flight_are_drawn_from_the_stored_tables(tmp_path: Path) -> None:
    """Four requests a second, each of half a second: two at once; the candidate takes a whole second: four."""
    folder = load_folder(tmp_path, {"speed": GATES["speed"]})
    health = Health(
        cpu_share=0.1,
        send_lag_p99=0.0,
        read_lag_p99=0.0,
        coalesced=0.0,
        clock_moved=0.0,
        kernel=True,
        cpu_per_event=0.0,
        workers=1,
    )
    block = Block(start=0, start_utc="", exchanges=(), health=health, schedule_sha256="")
    for arm, seconds in ((REFERENCE, 0.499), ("cheap", 0.999), (AGAIN, 0.499)):
        path = folder.variant_path(arm) / "load" / "load" / "round-06"
        path.parent.mkdir(parents=True)
        write_block(path, block, served(np.arange(0, 5, 0.25), seconds))
    view = next(one for one in load_of(shown(folder)).pictures if one.style == "steps")
    assert {line.arm: max(point.y for point in line.points) for line in view.lines} == {
        "reference": 2,
        "cheap": 4,
        "A/A (reference again)": 2,
    }


def test_damaged_tables_cost_a_picture_and_no_verdict(tmp_path: Path) -> None:
    folder = load_folder(tmp_path, {"speed": GATES["speed"]})
    path = folder.variant_path(REFERENCE) / "load" / "load"
    path.mkdir(parents=True)
    for ending_ in (".block.arrows", ".requests.arrows", ".events.arrows"):
        (path / f"round-06{ending_}").write_bytes(b"torn")
    assert [one.style for one in load_of(shown(folder)).pictures] == ["curve"]


def test_a_page_with_a_picture_of_every_kind_is_one_strict_file(real: RunFolder) -> None:
    found = shown(real)
    view = load_of(found)
    square = replace(view.pictures[0], style="points", title="square", x_limit=0.9, y_limit=-5.0)
    steps = replace(view.pictures[0], style="steps", title="flight")
    suite = replace(found.suites[0], load=replace(view, pictures=(*view.pictures, square, steps)))
    document = html(replace(found, suites=(suite,)))
    assert document.count("<svg") == 3
    assert "style=" not in document
    assert Gathered(real).evidence("cheap").loads.keys() == {"load"}
