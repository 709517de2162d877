"""Distances over whole vocabularies: known answers, inequalities that always hold, and suppressed ids."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.analysis.full_vocabulary import full_distances
from evalrig.analysis.kl import full_kl

quick = settings(deadline=None, derandomize=True, max_examples=60)


def logs(*rows):
    with np.errstate(divide="ignore"):
        return np.log(np.array(rows))


def drawn(seed, spread, noise):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (8, 100))
    other = logits + rng.normal(0, noise, logits.shape)
    gone = rng.random(100) < 0.2
    gone[0] = False
    logits[:, gone] = other[:, gone] = -np.inf
    return tuple(x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (logits, other))


def test_known_answers():
    found = full_distances(logs([0.5, 0.5]), logs([0.4, 0.6]))
    assert found.kl[0] == pytest.approx(0.5 * math.log(0.5 / 0.4) + 0.5 * math.log(0.5 / 0.6))
    assert found.reverse[0] == pytest.approx(0.4 * math.log(0.4 / 0.5) + 0.6 * math.log(0.6 / 0.5))
    middle = 0.5 * (0.5 * math.log(0.5 / 0.45) + 0.5 * math.log(0.5 / 0.55))
    middle += 0.5 * (0.4 * math.log(0.4 / 0.45) + 0.6 * math.log(0.6 / 0.55))
    assert found.js[0] == pytest.approx(middle)
    assert (found.tv[0], found.entropy[0]) == pytest.approx((0.1, math.log(2)))
    apart = full_distances(logs([1.0, 0.0]), logs([0.0, 1.0]))
    assert (apart.kl[0], apart.reverse[0], apart.js[0], apart.tv[0]) == (
        math.inf,
        math.inf,
        pytest.approx(math.log(2)),
        1,
    )


def test_inf_logits_do_not_make_nan():
    found = full_distances(logs([0.5, 0.5, 0.0], [1.0, 0.0, 0.0]), logs([0.4, 0.6, 0.0], [0.5, 0.5, 0.0]))
    assert found.kl == pytest.approx([0.5 * math.log(0.5 / 0.4) + 0.5 * math.log(0.5 / 0.6), math.log(2)])
    assert found.reverse[1] == math.inf
    assert np.isfinite([found.js, found.tv, found.entropy]).all()


@quick
@given(st.integers(0, 10**6), st.sampled_from([0.3, 2.0, 8.0]), st.sampled_from([1e-4, 0.05, 1.0, 5.0]))
def test_inequalities(seed, spread, noise):
    p, q = drawn(seed, spread, noise)
    found, swapped, own = full_distances(p, q), full_distances(q, p), full_distances(p, p)
    assert (found.kl > -1e-15).all()
    assert (found.kl > 0).all()
    for zero in (own.kl, own.reverse, own.js, own.tv):
        assert (zero == 0).all()
    assert found.js == pytest.approx(swapped.js, rel=1e-12)
    assert found.kl == pytest.approx(swapped.reverse, rel=1e-12)
    assert (found.tv <= np.sqrt(found.kl / 2) + 1e-9).all()
    assert (found.tv <= np.sqrt(-np.expm1(-found.kl)) + 1e-9).all()
    assert (found.js <= math.log(2) * found.tv + 1e-12).all()
    assert found.kl == pytest.approx(full_kl(p, q), abs=0)


def test_tiny_distances_keep_their_digits():
    """JS is about KL/4 for near distributions; computed as a difference of logs it would be rounding alone."""
    p, q = drawn(3, 1.0, 1e-6)
    found = full_distances(p, q)
    gap = np.exp(p) - np.exp(q)
    square = np.where(p > -np.inf, gap**2 / np.maximum(np.exp(p), 1e-300), 0).sum(axis=1)
    assert found.js == pytest.approx(square / 8, rel=1e-4)


def test_vocabularies_that_differ_are_refused():
    with pytest.raises(ValueError, match="shape"):
        full_distances(logs([0.5, 0.5]), logs([0.5, 0.3, 0.2]))
    with pytest.raises(ValueError, match="candidate"):
        full_distances(logs([0.5, 0.5]), np.array([[math.nan, 0.0]]))
