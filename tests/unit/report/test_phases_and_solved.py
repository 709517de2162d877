"""Phases as curves, and what a solved task takes, from blocks and records whose numbers are known."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from toys.sse import DONE, block, exchange, text, usage

from evalrig.loadgen.events import parse
from evalrig.loadgen.raw import write_block
from evalrig.loads import Load, Rounds
from evalrig.report.phase_pictures import phase_pictures
from evalrig.report.request_cost import request_cost
from evalrig.report.solved import solved_lines
from evalrig.types import AGAIN, REFERENCE, Completion, Metric, Record, Sample, State, Trajectory

NAMES = ("c02-round-00", "c08-round-00", "c02-round-01", "c08-round-01")
COST = Metric(name="usd_per_million_output", kind="ratio", units="USD", less=True)
HERE: Any = np.zeros(4, np.bool_)


def load(**told: Any) -> Load:
    again = np.array([4.0, 5.0, 4.1, 5.1])
    rounds = Rounds(metric=COST, names=NAMES, reference=again, candidate=again / 2, again=again)
    return Load(
        rounds={COST.name: rounds},
        names=NAMES,
        void={},
        capacity={},
        told=told,
        missing={arm: HERE for arm in (REFERENCE, "cheap", AGAIN)},
    )


def gathered(folder: Path, **more: Any) -> Any:
    return SimpleNamespace(folder=SimpleNamespace(variant_path=lambda arm: folder / arm), **more)


SUITE: Any = SimpleNamespace(name="load")


def test_a_step_takes_longer_in_a_larger_batch(tmp_path: Path) -> None:
    slow = {"decode_seconds": np.array([0.02, 0.04, 0.02, 0.04])}
    fast = {"decode_seconds": np.array([0.01, 0.03, np.nan, 0.03])}
    one = load(**{REFERENCE: slow, AGAIN: slow, "cheap": fast})
    [picture] = phase_pictures(gathered(tmp_path), SUITE, {"cheap": one}, 0.05)
    assert picture.title == "load: decode over the batch"
    lines = {line.arm: [(point.x, point.y) for point in line.points] for line in picture.lines}
    assert lines["reference"] == [(2, 0.02), (8, 0.04)]
    assert lines["cheap"] == [(2, 0.01), (8, 0.03)]


def test_a_first_token_takes_longer_behind_a_longer_prompt(tmp_path: Path) -> None:
    """Requests that met others on the engine waited for those, and are no part of the curve."""
    for arm, each in ((REFERENCE, 0.2), ("cheap", 0.1)):
        for name in NAMES:
            gap, asked = (100 if name.startswith("c02") else 1), list[Any]()
            for at, n in enumerate((100, 200, 100, 200)):
                due = 10 + gap * at
                asked.append(exchange([(due + each * n, text("a") + usage(1, prompt=n) + DONE)], index=at, due=due))
            one = block(*asked)
            write_block(tmp_path / arm / "load" / "load" / name, one, parse(one))
    slope = {"prefill_slope": np.array([1e-4, np.nan, 1e-4, np.nan])}
    told = {arm: slope for arm in (REFERENCE, AGAIN, "cheap")}
    [picture] = phase_pictures(gathered(tmp_path), SUITE, {"cheap": load(**told)}, 0.05)
    assert picture.title == "load: prefill over the length of the prompt"
    lines = {line.arm: [(point.x, round(point.y, 4)) for point in line.points] for line in picture.lines}
    assert lines == {"reference": [(100, 0.02), (200, 0.04)], "cheap": [(100, 0.01), (200, 0.02)]}


def record(arm: str, sample: str, solved: bool | None, tokens: int) -> Record:
    return Record(
        variant=arm,
        suite="quiz",
        sample=sample,
        epoch=0,
        state=State.TRUNCATED if solved is None else State.SCORED,
        scores={} if solved is None else {"right": float(solved)},
        trajectory=Trajectory(turns=(Completion(text="", completion_tokens=tokens),)),
    )


def quiz(tokens: int) -> Any:
    """The candidate solves as much with `tokens` where the reference takes 100; of 40 answers a quarter is cut and wrong."""
    right = Metric(name="right", kind="binary", units="points")
    names = [f"s{n:02d}" for n in range(40)]
    arms = {
        arm: [record(arm, name, None if n % 4 == 0 else True, spent) for n, name in enumerate(names)]
        for arm, spent in ((REFERENCE, 100), ("cheap", tokens))
    }
    return SimpleNamespace(
        plan=SimpleNamespace(suites=[SimpleNamespace(name="quiz", metrics=(right,))]),
        records={(arm, "quiz"): rows for arm, rows in arms.items()},
        samples={"quiz": {name: Sample(id=name) for name in names}},
    )


def test_a_cheaper_token_of_which_more_are_needed_is_no_saving() -> None:
    [line] = solved_lines(quiz(200), {"cheap": load()}, 0.05)
    assert line.startswith("cheap: tokens generated per solved task of quiz × 2")
    words, dollars = line.split("; dollars per solved task × ")
    assert words
    assert float(dollars.split(" ")[0]) == pytest.approx(1.0, rel=1e-3)


def test_answers_that_were_only_scored_cost_no_tokens() -> None:
    assert list(solved_lines(quiz(0), {"cheap": load()}, 0.05)) == []


def test_what_a_request_costs_is_read_from_the_requests_of_all_rounds(tmp_path: Path) -> None:
    """vllm #42058: FP8 KV made prefill dearer and decode cheaper, which end-to-end times hid. A block that piled up is left out."""
    names, random = tuple(f"c02-round-{number:02d}" for number in range(4)), np.random.default_rng(2)
    for number, name in enumerate(names):
        sizes = [(int(p), int(o)) for p, o in zip(random.integers(20, 200, 8), random.integers(2, 20, 8), strict=True)]
        for arm, per_prompt, per_output in ((REFERENCE, 0.2, 10.0), ("cheap", 0.3, 5.0), (AGAIN, 0.2, 10.0)):
            asked = list[Any]()
            for at, (prompt, output) in enumerate(sizes):
                due = 10 + 1000 * at
                took = 7 + per_prompt * prompt + per_output * output + (500 if number == 3 else 0)
                arrivals = [(due + took, text("a") + usage(output, prompt=prompt) + DONE)]
                asked.append(exchange(arrivals, index=at, due=due))
            one = block(*asked)
            write_block(tmp_path / arm / "load" / "load" / name, one, parse(one))
    piled = {"over_saturated": np.array([0.0, 0.0, 0.0, 1.0])}
    of = Load(
        rounds={},
        names=names,
        void={},
        capacity={},
        told={arm: piled for arm in (REFERENCE, "cheap", AGAIN)},
        missing=dict.fromkeys((REFERENCE, "cheap", AGAIN), np.zeros(4, np.bool_)),
    )
    table = request_cost(gathered(tmp_path), SUITE, "cheap", of, 0.05)
    assert table is not None
    rows = {row.label: row.cells for row in table.rows}
    assert rows["to begin"][0].startswith("7.00 (")
    assert rows["a token of the prompt"][0].startswith("0.200 (")
    assert rows["a token of the prompt"][1].startswith("0.300 (")
    assert rows["a token of the prompt"][2] == "0.100"
    assert rows["a generated token"][2] == "−5.00"
    assert abs(float(rows["a generated token"][4].replace("−", "-"))) < 1e-6, "A/A"
