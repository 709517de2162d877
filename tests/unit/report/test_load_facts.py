"""What the report says of a load besides ratios: what a request costs, what fits at once, memory, and the SLO point."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evalrig.levels import level_of
from evalrig.loads import Load
from evalrig.report.load_sentences import _at_slo, _knee, _memory, _room
from evalrig.report.request_cost import request_cost
from evalrig.types import AGAIN, REFERENCE, Capacity

NAMES = tuple(f"c{lanes:02d}-round-{number}" for number in range(4) for lanes in (2, 8))


def load(**told: Any) -> Load:
    arms = (REFERENCE, "cheap", AGAIN)
    scores = {arm: {name: np.asarray(values, float) for name, values in told.get(arm, {}).items()} for arm in arms}
    there = np.zeros(len(NAMES), np.bool_)
    return Load(rounds={}, void={}, capacity={}, names=NAMES, told=scores, missing=dict.fromkeys(arms, there))


def costs(prompt: float, output: float, waits: bool = False) -> dict[str, Any]:
    noise = np.tile([0.0, 1e-5], 4)
    one: dict[str, Any] = {
        "request_start": np.full(8, 0.01),
        "request_per_prompt": prompt + noise,
        "request_per_output": output + noise,
        "request_per_both": np.full(8, -1e-7),
    }
    heavy = np.array([level_of(name) == "c08" for name in NAMES])
    return one | {"waiting_most": np.where(heavy & waits, 3.0, 0.0)}


def test_what_a_request_costs_is_told_by_part_and_concurrency() -> None:
    """FP8 KV, vllm #42058: prefill dearer and decode cheaper, which end-to-end times hide."""
    found = request_cost("cheap", load(reference=costs(2e-4, 0.02), cheap=costs(3e-4, 0.01)), 0.05)
    assert found is not None
    assert found.columns[:5] == ("part", "concurrency", "reference", "cheap", "difference")
    rows = {(row.label, row.cells[0]): row.cells[1:] for row in found.rows}
    assert len(rows) == 8
    assert rows["a token of the prompt", "c02"][:4] == ("0.200", "0.300", "0.100", "0.100 to 0.100")
    assert rows["a generated token", "c08"][:3] == ("20.0", "10.0", "−10.0")
    assert rows["both", "c02"][:2] == ("−0.100", "−0.100")


def test_blocks_in_which_requests_waited_tell_no_cost() -> None:
    found = request_cost("cheap", load(reference=costs(2e-4, 0.02, waits=True), cheap=costs(3e-4, 0.01)), 0.05)
    assert found is not None
    assert {row.cells[0] for row in found.rows} == {"c02"}
    assert request_cost("cheap", load(reference=costs(2e-4, 0.02)), 0.05) is None


def test_how_many_requests_fit_is_told_by_three_rules() -> None:
    lengths = {"tokens_in": np.full(8, 1000.0), "tokens_out": np.full(8, 200.0)}
    one = replace(load(cheap=lengths), capacity={"cheap": Capacity(kv_tokens=12_000, max_requests=48)})
    [line] = _room("cheap", one)
    assert line == (
        "cheap: its KV cache has room for about 10 requests of 1,000 tokens in and 200 out at once, 10 if all have grown to "
        "their end; its own limit is 48."
    )
    assert not list(_room("cheap", load(cheap=lengths))), "an engine that does not tell what it holds"
    assert not list(_room("cheap", replace(one, told={})))


@pytest.mark.parametrize(
    ("tokens", "limit", "words"),
    [
        (6_000, 48, "KV is the binding limit here"),
        (120_000, 4, "KV is not the binding limit here: more of it cannot help"),
    ],
)
def test_why_requests_wait_is_told_from_their_lengths_where_the_engine_is_silent(
    tokens: int, limit: int, words: str
) -> None:
    heavy = np.array([level_of(name) == "c08" for name in NAMES])
    told = {
        "tokens_in": np.full(8, 1000.0),
        "tokens_out": np.full(8, 200.0),
        "waiting_most": np.where(heavy, 2.0, 0.0),
        "concurrency": np.where(heavy, 8.0, 2.0),
    }
    one = replace(load(cheap=told), capacity={"cheap": Capacity(kv_tokens=tokens, max_requests=limit)})
    [line] = _knee("cheap", one)
    assert words in line


def test_peak_memory_is_told_where_nvml_told_it_in_both_arms() -> None:
    one = {"gpu_bytes_most": np.array([70e9, 71e9, np.nan, 70e9, 70e9, 70e9, 70e9, 70e9])}
    [line] = _memory("cheap", load(reference={"gpu_bytes_most": np.full(8, 78e9)}, cheap=one))
    assert line.startswith("cheap: at most 71")
    assert "the reference 78" in line
    assert not list(_memory("cheap", load(cheap=one)))


def test_no_limits_no_slo_point() -> None:
    assert not list(_at_slo("cheap", load(), 0.05))
