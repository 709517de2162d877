"""Pages: promised, taken, tagged, given back; capacity in the format's bytes."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.refengine.architecture import Architecture, Rope
from evalrig.refengine.cache import PAGE, CachedSequence, OutOfPages, PagedCache, PageTagError, pages_for
from evalrig.refengine.formats import KV_FORMATS

TINY = Architecture(
    family="llama",
    layers=1,
    width=8,
    heads=2,
    kv_heads=1,
    head_dim=4,
    vocabulary=16,
    context=256,
    rope=Rope(base=1e4),
    norm_epsilon=1e-5,
)


def cache(pages: int = 8, kv: str = "f32", rows: int = 4) -> PagedCache:
    return PagedCache(TINY, KV_FORMATS[kv], pages=pages, rows=rows, context=256)


@given(
    tokens=st.lists(st.integers(1, 100), min_size=1, max_size=12),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_pages_come_back_whatever_the_order(tokens: list[int], order: Random) -> None:
    pool = cache(pages=12, rows=6)
    held: list[CachedSequence] = []
    for count in tokens:
        try:
            sequence = pool.open(count)
        except OutOfPages:
            if held:
                pool.close(held.pop(order.randrange(len(held))))
            continue
        pool.grow(sequence, count)
        sequence.length = count
        held.append(sequence)
        pool.check(held, [one.length for one in held])
        assert pool.used_pages == sum(pages_for(one.length) for one in held)
    for sequence in held:
        pool.close(sequence)
    assert (pool.used_pages, pool.reserved_pages) == (0, 0)
    assert (pool.owner_and_generation[:, 0] == -1).all()


def test_a_promise_is_kept_and_not_exceeded() -> None:
    pool = cache(pages=4)
    first = pool.open(3 * PAGE)
    with pytest.raises(OutOfPages):
        pool.open(2 * PAGE)
    pool.open(PAGE)
    with pytest.raises(OutOfPages):
        pool.grow(first, 3 * PAGE + 1)
    pool.grow(first, 3 * PAGE)


@pytest.mark.parametrize("column", [0, 1], ids=["owner", "generation"])
def test_a_changed_tag_is_caught(column: int) -> None:
    pool = cache()
    mine, other = pool.open(40), pool.open(40)
    for sequence in (mine, other):
        pool.grow(sequence, 40)
        sequence.length = 40
    pool.check([mine, other], [40, 40])
    page = int(pool.slots(np.array([mine.row]), np.array([20]))[0][0])
    pool.owner_and_generation[page, column] += 1
    with pytest.raises(PageTagError, match=rf"\[{mine.identity}\]"):
        pool.check([other, mine], [40, 40])
    pool.check([mine], [PAGE])  # the pages before it are untouched


def test_a_page_given_to_another_is_caught_in_the_old_table() -> None:
    pool = cache(pages=2)
    first = pool.open(PAGE)
    pool.grow(first, PAGE)
    row = pool._table[first.row].copy()
    expected = pool._expected[first.row].copy()
    pool.close(first)
    second = pool.open(PAGE)
    pool.grow(second, PAGE)
    pool._table[second.row], pool._expected[second.row] = row, expected
    with pytest.raises(PageTagError):
        pool.check([second], [PAGE])


def test_what_is_written_is_read_back_rounded_and_nothing_else() -> None:
    pool = cache(kv="fp8_e4m3")
    sequence = pool.open(20)
    pool.grow(sequence, 20)
    fresh = np.random.default_rng(0).standard_normal((2, 20, 1, 4)).astype(np.float32) * 300
    positions = np.arange(20)
    pool.write(0, pool.slots(np.full(20, sequence.row), positions), fresh[0], fresh[1])
    keys, values = pool.read(0, sequence, 20)
    rounded = KV_FORMATS["fp8_e4m3"].round(fresh)
    assert np.array_equal(keys.transpose(2, 0, 1), rounded[0])
    assert np.array_equal(values.transpose(1, 0, 2), rounded[1])
    grouped, _ = pool.read_group(0, [sequence], 64)
    assert not grouped[0, :, :, 20:].any()


def test_a_page_is_wiped_before_it_is_handed_out_again() -> None:
    pool = cache(pages=1)
    first = pool.open(PAGE)
    pool.grow(first, PAGE)
    ones = np.full((PAGE, 1, 4), np.nan, np.float32)
    pool.write(0, pool.slots(np.full(PAGE, first.row), np.arange(PAGE)), ones, ones)
    pool.close(first)
    second = pool.open(PAGE)
    pool.grow(second, 1)
    keys, values = pool.read(0, second, PAGE)
    assert not keys.any()
    assert not values.any()


def test_a_scale_changes_the_grid() -> None:
    pool = cache(kv="fp8_e4m3")
    pool.scales[:] = 4.0
    sequence = pool.open(1)
    pool.grow(sequence, 1)
    fresh = np.array([[[1000.0, 1792.0, 5000.0, 1.0]]], np.float32)
    pool.write(0, pool.slots(np.array([sequence.row]), np.array([0])), fresh, fresh)
    keys, _ = pool.read(0, sequence, 1)
    assert keys.ravel().tolist() == [1024.0, 1792.0, 1792.0, 1.0]
