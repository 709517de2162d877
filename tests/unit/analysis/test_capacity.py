"""KV capacity: both factors of the ratio, what does not fit its format, and whose fault it is that requests wait."""

import math

import pytest

from evalrig.analysis.capacity import Level, capacity_ratio, fits, knee
from evalrig.types import Capacity

PER_TOKEN = 2.0 * 80 * 8 * 128 * 2
"""Keys and values of 80 layers with 8 heads of 128 in two bytes."""
BF16 = Capacity(kv_tokens=100_000, kv_bytes_per_token=PER_TOKEN)
NAN = math.nan


def test_half_the_bytes_give_twice_the_tokens_in_an_equal_pool():
    found = capacity_ratio(BF16, Capacity(kv_tokens=200_000, kv_bytes_per_token=PER_TOKEN / 2), promised=2.0)
    assert (found.tokens, found.pool, found.per_token, found.agrees) == (2.0, 1.0, 2.0, True)
    assert found.words == (
        "2.00 times the reference's KV tokens; 1.00 by the pool's bytes, 2.00 by bytes a token; as the formats promise (2.00)"
    )


def test_pages_round_the_pool_and_that_is_no_disagreement():
    ours, theirs = (Capacity(kv_tokens=n, kv_bytes_per_token=b) for n, b in ((389_872, 1000.0), (779_760, 500.0)))
    found = capacity_ratio(ours, theirs, promised=2.0)
    assert found.tokens == pytest.approx(2.00004, abs=1e-5)
    assert found.agrees


def test_a_ratio_of_1_77_says_how_many_bytes_are_something_else():
    held = PER_TOKEN / 1.77
    found = capacity_ratio(BF16, Capacity(kv_tokens=177_000, kv_bytes_per_token=held), promised=2.0)
    assert (found.agrees, round(found.tokens, 2), round(found.pool, 2)) == (False, 1.77, 1.0)
    assert f"{held - PER_TOKEN / 2:,.0f} of {held:,.0f} bytes a token are something else: scales" in found.words


def test_lighter_weights_and_a_lighter_cache_are_two_factors():
    found = capacity_ratio(BF16, Capacity(kv_tokens=300_000, kv_bytes_per_token=PER_TOKEN / 2), promised=2.0)
    assert (found.tokens, found.pool, found.per_token) == (3.0, 1.5, 2.0)
    weights_only = capacity_ratio(BF16, Capacity(kv_tokens=150_000, kv_bytes_per_token=PER_TOKEN), promised=1.0)
    assert (weights_only.tokens, weights_only.pool, weights_only.agrees) == (1.5, 1.5, True)


def test_fewer_bytes_than_the_format_takes_is_told_too():
    found = capacity_ratio(BF16, Capacity(kv_tokens=300_000, kv_bytes_per_token=PER_TOKEN / 3), promised=2.0)
    assert found.agrees is False
    assert "fewer than its format takes" in found.words


def test_what_an_engine_does_not_say_is_no_ratio():
    found = capacity_ratio(BF16, Capacity(), promised=2.0)
    assert all(math.isnan(value) for value in (found.tokens, found.pool, found.per_token))
    assert (found.agrees, found.words) == (None, "the engine does not say what it holds")
    half = capacity_ratio(BF16, Capacity(kv_tokens=200_000), promised=2.0)
    assert (half.tokens, half.agrees) == (2.0, None)
    assert math.isnan(half.pool)
    assert half.words == "2.00 times the reference's KV tokens"


def test_requests_that_run_at_once_three_ways():
    room = fits(100_000, 800, 400, limit=256)
    assert (room.limit, room.worst, room.expected) == (256.0, pytest.approx(83.333, abs=1e-3), 100.0)
    assert room.by_memory
    assert fits(100_000, 800, 400).limit == math.inf
    assert not fits(1_000_000, 800, 400, limit=256).by_memory
    for wrong in ((0, 1, 1), (10, 0, 0), (10, NAN, 1)):
        with pytest.raises(ValueError, match="nothing to fit"):
            fits(*wrong)


def calm(concurrency, usage=0.2):
    return Level(concurrency=concurrency, waiting=[0, 0, 0], preemptions=[0, 0, 0], kv_usage=usage)


ROOM = fits(100_000, 800, 400, limit=256)


def test_the_knee_is_the_first_level_that_waits_in_two_windows_in_a_row():
    burst = Level(concurrency=64, waiting=[3, 0, 3], preemptions=[0, 0, 0], kv_usage=0.95)
    full = Level(concurrency=128, waiting=[0, 4, 9], preemptions=[0, 0, 0], kv_usage=0.99)
    found = knee([full, calm(32), burst], ROOM)
    assert (found.concurrency, found.tried, found.kv_binds) == (128, 128, True)
    assert found.words == "KV is the binding limit here; at 128 requests some wait with 99 % of the KV pool in use"


def test_requests_put_back_mean_kv():
    found = knee([calm(8), Level(concurrency=16, waiting=[NAN] * 3, preemptions=[0, 1, 2], kv_usage=NAN)], ROOM)
    assert (found.concurrency, found.kv_binds) == (16, True)
    assert "put back for lack of KV memory" in found.words


def test_a_queue_before_an_empty_pool_is_not_kv():
    found = knee([calm(128), Level(concurrency=300, waiting=[40, 44], preemptions=[0, 0], kv_usage=0.4)], ROOM)
    assert (found.concurrency, found.kv_binds) == (300, False)
    assert found.words.startswith("KV is not the binding limit here: more of it cannot help; at 300 requests")


@pytest.mark.parametrize(
    ("concurrency", "room", "binds"),
    [
        (40, ROOM, False),
        (128, ROOM, True),
        (300, fits(1_000_000, 800, 400, limit=256), False),
        (260, fits(250_000, 800, 400, limit=240), None),
    ],
)
def test_where_the_pool_is_not_told_room_and_limit_say_who_binds(concurrency, room, binds):
    found = knee([Level(concurrency=concurrency, waiting=[5, 5], preemptions=[NAN, NAN])], room)
    assert found.kv_binds is binds


def test_no_queue_up_to_the_end_and_no_gauge_at_all_are_different_answers():
    none = knee([calm(8), calm(64)], ROOM)
    assert (none.concurrency, none.tried, none.kv_binds) == (None, 64, False)
    partly = knee([calm(8), Level(concurrency=64, waiting=[7], preemptions=[NAN])], ROOM)
    assert partly.tried == 8
    assert partly.words == "KV is not the binding limit here: up to 8 requests at once none had to wait for long"
    unsized = knee([Level(concurrency=64, waiting=[5, 5], preemptions=[])])
    assert (unsized.concurrency, unsized.kv_binds) == (64, None)
    mute = knee([Level(concurrency=64, waiting=[NAN], preemptions=[])], ROOM)
    assert (mute.concurrency, mute.kv_binds) == (None, None)
    assert "tells neither" in mute.words
    with pytest.raises(ValueError, match="levels"):
        knee([], ROOM)


def test_what_waits_at_a_light_load_does_not_hide_that_kv_binds_at_a_heavy_one():
    """A burst waits at 8 with 5 % of the pool in use; at 128 requests are put back: FP8 KV helps there."""
    levels = [
        Level(concurrency=8, waiting=[3, 3], preemptions=[0, 0], kv_usage=0.05),
        Level(concurrency=128, waiting=[40, 50], preemptions=[40, 50], kv_usage=1.0),
    ]
    found = knee(levels)
    assert (found.concurrency, found.kv_binds) == (8, True)
    assert found.words == "KV is the binding limit here; at 128 requests some were put back for lack of KV memory"


def test_more_kv_is_said_not_to_help_only_where_every_level_is_known():
    levels = [
        Level(concurrency=8, waiting=[3, 3], preemptions=[NAN, NAN], kv_usage=0.05),
        Level(concurrency=128, waiting=[40, 50], preemptions=[NAN, NAN]),
    ]
    assert knee(levels).kv_binds is None
