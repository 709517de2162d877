"""Bounds from top-K lists: known answers, and the truth of random whole vocabularies always between them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from evalrig.analysis.aligned import NOBODY, TopK, partners
from evalrig.analysis.full_vocabulary import full_distances
from evalrig.analysis.kl import truncate
from evalrig.analysis.topk_bounds import bounds, dual_low, largest_tail_ratio, list_entropy

quick = settings(deadline=None, derandomize=True, max_examples=60)


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def one(ids, probabilities, **extra):
    with np.errstate(divide="ignore"):
        more: dict[str, Any] = {name: np.array([values]) for name, values in extra.items()}
        return TopK(ids=np.array([ids]), logprobs=np.log(np.array([probabilities])), **more)


def lists(logprobs, k):
    ids, top = truncate(logprobs, k)
    return TopK(ids=ids, logprobs=top)


def test_known_answers():
    """Worked by hand: lists that differ in one id, and the same ids on both sides."""
    p, q = one([1, 2, 3], [0.6, 0.2, 0.1]), one([1, 2, 9], [0.5, 0.28, 0.12])
    found = bounds(p, q)
    assert found.kl_low[0] == pytest.approx(0.0230365, abs=1e-7)
    assert dual_low(p, q)[0] == pytest.approx(0.0238663, abs=1e-7)
    assert (found.tv_low[0], found.tv_high[0]) == pytest.approx((0.1, 0.3))
    assert found.kl_high[0] == math.inf
    ids = [4, 5, 6, 7]
    p, q = one(ids, [0.6, 0.2, 0.1, 0.05]), one(ids, [0.5, 0.28, 0.1, 0.06])
    found = bounds(p, q, assumed=1.0)
    assert (found.kl_low[0], found.kl_high[0]) == pytest.approx((0.0238663, 0.0475791), abs=2e-6)
    assert (found.tv_low[0], found.tv_high[0]) == pytest.approx((0.10, 0.15))
    assert (found.js_low[0], found.js_high[0]) == pytest.approx((0.00608, 0.04398), abs=5e-6)
    assert dual_low(p, q)[0] == found.kl_low[0]
    same = bounds(one([0, 1, 2], [0.5, 0.3, 0.1]), one([0, 1, 2], [0.45, 0.35, 0.1]))
    assert (same.tv_low[0], same.tv_high[0]) == pytest.approx((0.05, 0.15))


def test_equal_lists_are_at_exactly_zero():
    side = lists(log_softmax(np.random.default_rng(0).normal(0, 4, (50, 300))).astype(np.float32), 20)
    found = bounds(side, side)
    for low in (found.kl_low, found.reverse_low, found.tv_low, found.js_low, dual_low(side, side)):
        assert (low == 0.0).all()
    assert found.tv_high == pytest.approx(found.tail_reference)


def truth_and_bounds(seed, k, spread, noise, ruled_out):
    """Six positions of a vocabulary of 200; some ids ruled out by both, and, for `ruled_out` 2, some by one side only."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (6, 200))
    other = logits + rng.normal(0, noise, logits.shape) if noise else rng.normal(0, spread, logits.shape)
    if ruled_out:
        gone = rng.random(logits.shape) < 0.6
        gone[:, 0] = False
        logits[gone] = other[gone] = -np.inf
    if ruled_out == 2:
        logits[:3, 1:][rng.random((3, 199)) < 0.05] = -np.inf
        other[3:, 1:][rng.random((3, 199)) < 0.05] = -np.inf
    p, q = log_softmax(logits), log_softmax(other)
    return p, q, lists(p, k), lists(q, k + 3)


@quick
@given(
    st.integers(0, 10**6),
    st.sampled_from([5, 20, 100]),
    st.sampled_from([0.1, 2.0, 10.0]),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.integers(0, 2),
)
def test_the_truth_lies_between(seed, k, spread, noise, ruled_out):
    p, q, reference, candidate = truth_and_bounds(seed, k, spread, noise, ruled_out)
    truth = full_distances(p, q)
    assumed = largest_tail_ratio(p, q, k, factor=1.0)
    found = bounds(reference, candidate, assumed if math.isfinite(assumed) else None)
    slack = 2e-6
    dual = dual_low(reference, candidate)
    assert (found.kl_low <= truth.kl + slack).all()
    assert (dual <= truth.kl + slack).all()
    assert (dual >= found.kl_low).all()
    assert (truth.kl <= found.kl_high + slack).all()
    assert (found.reverse_low <= truth.reverse + slack).all()
    assert (found.tv_low <= truth.tv + slack).all()
    assert (truth.tv <= found.tv_high + slack).all()
    assert (found.js_low <= truth.js + slack).all()
    assert (truth.js <= found.js_high + slack).all()
    assert (list_entropy(reference) <= truth.entropy + 2e-5).all()


@quick
@given(st.integers(0, 10**6), st.sampled_from([5, 20]), st.integers(0, 2))
def test_swapping_the_sides_swaps_the_bounds(seed, k, ruled_out):
    _, _, reference, candidate = truth_and_bounds(seed, k, 2.0, 0.3, ruled_out)
    one, other = bounds(reference, candidate), bounds(candidate, reference)
    for name in ("tv_low", "tv_high", "js_low", "js_high"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-12)
    assert one.kl_low == pytest.approx(other.reverse_low, abs=1e-12)
    assert one.tail_reference == pytest.approx(other.tail_candidate, abs=1e-12)


@quick
@given(st.integers(0, 10**6))
def test_a_list_of_the_whole_vocabulary_leaves_nothing_open(seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (5, 40))
    p, q = log_softmax(logits), log_softmax(logits + rng.normal(0, 0.3, logits.shape))
    truth, found = full_distances(p, q), bounds(lists(p, 40), lists(q, 40), vocabulary=40)
    for low, high, exact in (
        (found.kl_low, found.kl_high, truth.kl),
        (found.tv_low, found.tv_high, truth.tv),
        (found.js_low, found.js_high, truth.js),
    ):
        assert low == pytest.approx(exact, abs=1e-12)
        assert high == pytest.approx(exact, abs=1e-12)
    assert (found.tail_reference == 0).all()


def test_the_dual_bound_is_near_the_best_there_is():
    """Against the exact minimum over all completions, found by a solver, for lists that overlap badly."""
    p, q = one([1, 2, 3], [0.5, 0.2, 0.1]), one([1, 4, 5], [0.4, 0.3, 0.15])
    shared = 0.5 * math.log(0.5 / 0.4)

    def completion(x):
        q2, q3, p4, p5 = x  # what each side gives the ids that only the other lists; the rest in one bucket
        rest_p, rest_q = max(1 - 0.8 - p4 - p5, 1e-12), max(1 - 0.85 - q2 - q3, 1e-12)
        pairs = [(0.2, q2), (0.1, q3), (p4, 0.3), (p5, 0.15), (rest_p, rest_q)]
        return shared + sum(a * math.log(a / b) for a, b in pairs)

    limits = [(1e-9, 0.15), (1e-9, 0.15), (1e-9, 0.1), (1e-9, 0.1)]
    inside = [
        {"type": "ineq", "fun": lambda x: 0.15 - x[0] - x[1]},
        {"type": "ineq", "fun": lambda x: 0.2 - x[2] - x[3]},
    ]
    least = optimize.minimize(completion, [0.05, 0.05, 0.05, 0.05], bounds=limits, constraints=inside).fun
    found, merged = dual_low(p, q)[0], bounds(p, q).kl_low[0]
    assert merged < 0.7 * least
    assert 0.98 * least < found <= least + 1e-6


def test_ids_asked_for_besides_sharpen_the_bounds():
    p = one([1, 2, 3], [0.6, 0.2, 0.1])
    plain = one([1, 2, 9], [0.5, 0.28, 0.12])
    asked = one(
        [1, 2, 9], [0.5, 0.28, 0.12], extra_ids=[3, 2, NOBODY], extra_logprobs=[math.log(0.05), math.log(0.28), 0]
    )
    found, before = bounds(p, asked), bounds(p, plain)
    expected = 0.6 * math.log(0.6 / 0.5) + 0.2 * math.log(0.2 / 0.28) + 0.1 * math.log(2) + 0.1 * math.log(0.1 / 0.17)
    assert found.kl_low[0] == pytest.approx(expected, abs=1e-6)
    assert found.kl_low[0] > before.kl_low[0]
    assert found.tv_high[0] - found.tv_low[0] < before.tv_high[0] - before.tv_low[0]
    # what both sides say of the sampled token
    given = one([1, 2], [0.6, 0.2], extra_ids=[7], extra_logprobs=[math.log(0.02)])
    again = one([1, 2], [0.6, 0.2], extra_ids=[7], extra_logprobs=[math.log(0.04)])
    assert bounds(given, again).tail_candidate[0] == pytest.approx(1 - 0.84)
    with pytest.raises(ValueError, match="twice"):
        bounds(one([1, 2], [0.6, 0.2], extra_ids=[7, 7], extra_logprobs=[-3.0, -3.0]), plain)


def test_an_assumption_that_the_masses_contradict_bounds_nothing():
    p, q = one([1, 2], [0.6, 0.2]), one([1, 2], [0.6, 0.39])
    assert bounds(p, q, assumed=1.0).kl_high[0] == math.inf
    assert math.isfinite(bounds(p, q, assumed=4.0).kl_high[0])
    with pytest.raises(ValueError, match="assumed"):
        bounds(p, q, assumed=math.nan)


def test_what_the_candidate_rules_out():
    found = bounds(one([1, 2], [0.5, 0.4]), one([1, 2], [0.9, 0.0]))
    assert (found.kl_low[0], math.isfinite(found.reverse_low[0])) == (math.inf, True)
    assert found.tv_low[0] == pytest.approx(0.4)
    assert found.js_low[0] > 0.5 * 0.4 * math.log(2)
    unlisted = dual_low(one([1, 2], [0.5, 0.4]), one([1, 3], [1.0, 0.0]))
    assert 1 < unlisted[0] < math.inf  # a cap of 0 is read as CAP_FLOOR: large, never infinite on a list's word


def test_ids_far_apart_are_found_like_near_ones():
    rng = np.random.default_rng(5)
    left = np.stack([rng.permutation(80)[:30] for _ in range(40)]).astype(np.int32)
    right = np.stack([rng.permutation(80)[:50] for _ in range(40)]).astype(np.int64)
    found = partners(left, right)
    both = np.isin(np.arange(left.size), found.unfound, invert=True).reshape(left.shape)
    sought = np.isin(np.arange(right.size), found.untaken, invert=True).reshape(right.shape)
    for row in range(40):
        assert both[row].tolist() == np.isin(left[row], right[row]).tolist()
        assert sought[row].tolist() == np.isin(right[row], left[row]).tolist()
    assert (right.ravel()[found.place[both]] == left[both]).all()
    assert (found.place[both] // right.shape[1] == np.nonzero(both)[0]).all()


def test_tail_ratio_is_taken_outside_what_both_name():
    p, q = np.log([[0.6, 0.3, 0.06, 0.04]]), np.log([[0.3, 0.6, 0.02, 0.08]])
    assert largest_tail_ratio(p, q, 2, factor=1.0) == pytest.approx(math.log(3))
    with pytest.raises(ValueError, match="some"):
        largest_tail_ratio(p[:0], q[:0], 2)


def test_entropy_of_a_list():
    assert list_entropy(one([1, 2], [0.5, 0.25]))[0] == pytest.approx(0.5 * math.log(2) + 2 * 0.25 * math.log(4))
    assert list_entropy(one([1, 2], [1.0, 0.0]))[0] == pytest.approx(0.0, abs=2e-5)
