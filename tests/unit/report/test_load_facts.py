"""What the report says of a load besides ratios: what fits at once, memory, and the SLO point."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toys.rounds import GPU, USER

from evalrig.levels import level_of
from evalrig.loads import Load, Rounds
from evalrig.report.load_sentences import _at_slo, _iso, _knee, _memory, _room
from evalrig.types import AGAIN, REFERENCE, Capacity

NAMES = tuple(f"c{lanes:02d}-round-{number}" for number in range(4) for lanes in (2, 8))


def load(**told: Any) -> Load:
    arms = (REFERENCE, "cheap", AGAIN)
    scores = {arm: {name: np.asarray(values, float) for name, values in told.get(arm, {}).items()} for arm in arms}
    there = np.zeros(len(NAMES), np.bool_)
    return Load(rounds={}, void={}, capacity={}, names=NAMES, told=scores, missing=dict.fromkeys(arms, there))


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
        "waiting_usual": np.where(heavy, 2.0, 0.0),
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


def test_a_point_that_one_arm_lacks_makes_no_shortcut_through_the_curve() -> None:
    """Equal arms on a bent curve, the middle block void in one: a straight line across it read 0.6."""
    names = tuple(f"c{lanes:02d}-round-{number}" for number in range(4) for lanes in (2, 8, 32))
    user, gpu = np.tile([50.0, 40.0, 10.0], 4), np.tile([100.0, 320.0, 320.0], 4)
    hole = np.arange(12) == 4  # c08 of the second round

    def rounds(metric: Any, values: Any) -> Rounds:
        return Rounds(
            metric=metric, names=names, reference=values, candidate=np.where(hole, np.nan, values), again=values
        )

    there = np.zeros(12, np.bool_)
    one = Load(
        rounds={USER.name: rounds(USER, user), GPU.name: rounds(GPU, gpu)},
        void={},
        capacity={},
        names=names,
        missing={REFERENCE: there, "cheap": hole, AGAIN: there},
    )
    [line] = _iso("cheap", one, 0.05)
    assert "tokens per second and GPU × 1.000 (1.000 to 1.000) in 3 of 4 rounds; A/A × 1.000 (1.000 to 1.000)" in line
