"""Distances between log-probabilities: known answers, bounds on random softmaxes, and faults seen in other tools."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.analysis.kl import ALARM, audit, full_kl, merged_bucket, row_faults, truncate

quick = settings(deadline=None, derandomize=True, max_examples=60)


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def row(ids, probabilities):
    with np.errstate(divide="ignore"):
        return np.array([ids]), np.log(np.array([probabilities]))


def merged(p_ids, p, q_ids, q):
    return merged_bucket(*row(p_ids, p), *row(q_ids, q))


def test_known_answers():
    partly = merged([1, 2, 3], [0.6, 0.2, 0.1], [1, 2, 9], [0.5, 0.28, 0.12])
    assert partly.kl[0] == pytest.approx(0.0230365, abs=1e-7)
    assert (partly.tail_reference[0], partly.tail_candidate[0]) == pytest.approx((0.2, 0.22))
    assert (int(partly.shared[0]), bool(partly.top1_same[0])) == (2, True)
    ids = [4, 5, 6, 7]
    assert merged(ids, [0.6, 0.2, 0.1, 0.05], ids, [0.5, 0.28, 0.1, 0.06]).kl[0] == pytest.approx(0.0238663, abs=1e-7)


def test_equal_lists_are_at_exactly_zero():
    logprobs = log_softmax(np.random.default_rng(0).normal(0, 4, (50, 300))).astype(np.float32)
    ids, top = truncate(logprobs, 20)
    assert (merged_bucket(ids, top, ids, top).kl == 0.0).all()
    assert (full_kl(logprobs, logprobs) == 0.0).all()


def test_kl_is_not_sum_of_absolute_differences():
    p, q = np.array([[0.5, 0.5]]), np.array([[0.4, 0.6]])
    exact = full_kl(np.log(p), np.log(q))[0]
    assert exact == pytest.approx(0.5 * math.log(0.5 / 0.4) + 0.5 * math.log(0.5 / 0.6))
    assert exact < 0.2 * float((p * np.abs(np.log(p / q))).sum())


def test_inf_logits_do_not_make_nan():
    both = full_kl(np.log([[0.5, 0.5]]), np.log([[0.4, 0.6]]))
    with np.errstate(divide="ignore"):
        suppressed = full_kl(np.log([[0.5, 0.5, 0.0]]), np.log([[0.4, 0.6, 0.0]]))
        only_reference = full_kl(np.log([[1.0, 0.0]]), np.log([[0.5, 0.5]]))
        only_candidate = full_kl(np.log([[0.5, 0.5]]), np.log([[1.0, 0.0]]))
    assert suppressed[0] == both[0]
    assert only_reference[0] == pytest.approx(math.log(2))
    assert only_candidate[0] == math.inf


def test_what_only_the_candidate_rules_out_is_infinite_not_dropped():
    assert merged([1, 2], [0.5, 0.4], [1, 2], [0.9, 0.0]).kl[0] == math.inf
    kept = merged([1, 2], [0.6, 0.0], [1, 2], [0.5, 0.1]).kl[0]
    assert kept == pytest.approx(0.6 * math.log(0.6 / 0.5) + 0.4 * math.log(0.4 / 0.4), abs=1e-6)


def test_a_tail_that_rounds_to_nothing_is_not_infinite():
    assert 0 < merged([1, 2], [0.7, 0.299], [1, 2], [0.7, 0.3]).kl[0] < 0.01
    over = merged([1, 2], [0.7, 0.3000004], [1, 2], [0.7, 0.3000004])
    assert over.kl[0] == 0.0
    assert over.tail_reference[0] == 0.0


def test_a_broken_pair_stays_below_the_alarm():
    assert merged([1, 2], [0.6, 0.4], [1, 2], [0.9, 0.6]).kl[0] < ALARM  # the candidate sums to 1.5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logprobs_are_refused(bad):
    good, broken = np.log([[0.5, 0.5]]), np.array([[bad, -1.0]])
    with pytest.raises(ValueError, match="candidate"):
        full_kl(good, broken)
    with pytest.raises(ValueError, match="reference"):
        merged_bucket(np.array([[1, 2]]), broken, np.array([[1, 2]]), good)


def test_malformed_lists_are_refused():
    good = np.log([[0.5, 0.4]])
    with pytest.raises(ValueError, match="twice"):
        merged_bucket(np.array([[1, 2]]), good, np.array([[3, 3]]), good)
    with pytest.raises(ValueError, match="negative"):
        merged_bucket(np.array([[1, -1]]), good, np.array([[1, 2]]), good)
    with pytest.raises(ValueError, match="shape"):
        merged_bucket(np.array([[1, 2, 3]]), good, np.array([[1, 2]]), good)
    with pytest.raises(ValueError, match="rows"):
        merged_bucket(np.array([[1, 2]]), good, np.array([[1, 2]] * 2), np.repeat(good, 2, axis=0))
    with pytest.raises(ValueError, match="shape"):
        full_kl(good, np.log([[0.5, 0.3, 0.2]]))


def test_largest_token_ids_fit():
    top = 2**31 - 1
    assert merged([top, 0], [0.6, 0.3], [0, top], [0.3, 0.6]).kl[0] == pytest.approx(0.0, abs=1e-12)


def test_no_rows_give_no_distances():
    empty = np.zeros((0, 5))
    assert merged_bucket(empty.astype(int), empty, empty.astype(int), empty).kl.shape == (0,)


def test_equally_probable_tops_are_the_same_top():
    assert merged([8, 3], [0.4, 0.4], [3, 8], [0.4, 0.4]).top1_same[0]
    assert not merged([8, 3], [0.5, 0.3], [3, 8], [0.5, 0.3]).top1_same[0]


@quick
@given(st.integers(0, 10**6), st.sampled_from([5, 20, 100]), st.sampled_from([0.1, 2.0, 10.0, 60.0]), st.booleans())
def test_merging_never_exceeds_the_full_divergence(seed, k, spread, related):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (8, 200))
    other = logits + rng.normal(0, 0.3, logits.shape) if related else rng.normal(0, spread, logits.shape)
    p, q = log_softmax(logits), log_softmax(other)
    exact = full_kl(p, q)
    bound = merged_bucket(*truncate(p, k), *truncate(q, k)).kl
    assert (bound <= exact + 1e-9).all()
    assert (bound >= -1e-9).all()
    assert (exact >= -1e-12).all()
    assert spread > 2 or (exact > 0).all()  # beyond, float64 knows only one possible token
    single = merged_bucket(*truncate(p.astype(np.float32), k), *truncate(q.astype(np.float32), k)).kl
    assert single == pytest.approx(bound, rel=1e-4, abs=2e-5)


@quick
@given(st.integers(0, 10**6))
def test_order_within_a_row_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    p, q = (truncate(log_softmax(rng.normal(0, 2, (4, 60))), 10) for _ in range(2))
    shuffled = rng.permutation(10)
    one, other = merged_bucket(*p, *q), merged_bucket(p[0][:, shuffled], p[1][:, shuffled], *q)
    assert one.kl == pytest.approx(other.kl, abs=1e-12)
    assert (one.top1_same == other.top1_same).all()
    assert (one.shared == other.shared).all()


def test_matching_ids_agrees_with_a_plain_loop():
    rng = np.random.default_rng(7)
    p, q = (truncate(log_softmax(rng.normal(0, 2, (30, 40))), 12) for _ in range(2))
    found = merged_bucket(*p, *q)
    for i in range(30):
        left = dict(zip(p[0][i].tolist(), np.exp(p[1][i]).tolist(), strict=True))
        right = dict(zip(q[0][i].tolist(), np.exp(q[1][i]).tolist(), strict=True))
        both = left.keys() & right.keys()
        rest_p, rest_q = 1 - sum(left[x] for x in both), 1 - sum(right[x] for x in both)
        expected = sum(left[x] * math.log(left[x] / right[x]) for x in both) + rest_p * math.log(rest_p / rest_q)
        assert found.kl[i] == pytest.approx(expected, abs=1e-5)
        assert found.shared[i] == len(both)


def test_blocks_do_not_change_the_numbers(monkeypatch):
    rng = np.random.default_rng(8)
    p, q = (log_softmax(rng.normal(0, 2, (33, 50))) for _ in range(2))
    whole, lists = full_kl(p, q), merged_bucket(*truncate(p, 9), *truncate(q, 9)).kl
    monkeypatch.setattr("evalrig.analysis.kl.BLOCK_ENTRIES", 100)
    monkeypatch.setattr("evalrig.analysis.kl.LIST_ENTRIES", 100)
    assert (full_kl(p, q) == whole).all()
    assert (merged_bucket(*truncate(p, 9), *truncate(q, 9)).kl == lists).all()


def test_truncate_keeps_the_most_probable_in_order():
    ids, top = truncate(np.log([[0.1, 0.6, 0.05, 0.25]]), 3)
    assert ids.tolist() == [[1, 3, 0]]
    assert np.exp(top) == pytest.approx(np.array([[0.6, 0.25, 0.1]]))
    with pytest.raises(ValueError, match="k"):
        truncate(np.log([[0.5, 0.5]]), 3)


def test_audit_measures_what_truncation_hides():
    rng = np.random.default_rng(9)
    logits = rng.normal(0, 1, (40, 2000))
    p, q = log_softmax(logits), log_softmax(logits + rng.normal(0, 0.1, logits.shape))
    shallow, deep, all_of_it = audit(p, q, 20), audit(p, q, 1000), audit(p, q, 2000)
    assert shallow.lost_share is not None
    assert deep.lost_share is not None
    assert all_of_it.lost_share is not None
    assert 0.5 < shallow.lost_share < 1
    assert all_of_it.lost_share < deep.lost_share < shallow.lost_share
    assert abs(all_of_it.lost_share) < 1e-9
    assert (shallow.rows, shallow.kl_full_mean) == (40, pytest.approx(0.005, rel=0.1))
    assert audit(p, p, 20).lost_share is None
    with pytest.raises(ValueError, match="no rows"):
        audit(p[:0], q[:0], 20)


def test_faults_are_counted_by_kind():
    good = [-0.5, -1.5, -2.5]
    lists = np.array(
        [good, [0.0, 0.0, 0.0], [math.nan, -1, -2], [-2.5, -0.5, -1.5], [-math.inf] * 3, [-0.4, -1.2, -math.inf]]
    )
    faults = row_faults(lists, full=False)
    assert (faults.non_finite, faults.over_unity, faults.unsorted) == (2, 1, 1)


def test_whole_vocabularies_must_sum_to_one():
    logprobs = np.log([[0.5, 0.25, 0.25], [0.5, 0.25, 0.2], [0.5, 0.3, 0.25], [0.25, 0.5, 0.25]])
    faults = row_faults(logprobs, full=True)
    assert (faults.non_finite, faults.over_unity, faults.unsorted) == (0, 2, 0)
    assert row_faults(logprobs, full=False).over_unity == 1


def test_logits_are_not_taken_for_logprobs():
    logits = -np.sort(-np.random.default_rng(1).normal(900, 5, (10, 20)), axis=1)
    assert row_faults(logits, full=False).over_unity == 10


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_narrow_token_ids_do_not_make_every_top_token_agree(dtype):
    """Ids come from disk as int32; a sentinel that overflowed there once made all top tokens equal."""
    left, right = np.array([[8, 3]], dtype), np.array([[3, 8]], dtype)
    values = np.log(np.array([[0.5, 0.3]], np.float32))
    assert not merged_bucket(left, values, right, values).top1_same[0]
    assert merged_bucket(left, values, left, values).top1_same[0]
