"""Summaries of per-token KL: weights, tails that are resolved or not, and values that must not vanish."""

import math

import numpy as np
import pytest

from evalrig.analysis.kl import by_octave, delta_p, summary
from evalrig.analysis.paired import cluster_t


def drawn(prompts, tokens, seed=0):
    rng = np.random.default_rng(seed)
    kl = np.exp(rng.normal(-5, 1, (prompts, tokens)) + rng.normal(0, 0.5, (prompts, 1)))
    return kl.ravel(), np.repeat(np.arange(prompts), tokens)


def test_mean_is_over_tokens_and_its_error_over_prompts():
    kl, prompt = [1.0, 0.0, 0.0, 0.0], ["a", "b", "b", "b"]
    found = summary(kl, prompt)
    assert (found.mean, found.tokens, found.prompts) == (0.25, 4, 2)
    assert (found.low, found.high) == (cluster_t(kl, prompt).low, cluster_t(kl, prompt).high)


def test_tail_is_resolved_only_when_enough_prompts_reach_it():
    few = summary(*drawn(48, 64)).tail
    many = summary(*drawn(400, 100)).tail
    assert not few.p999_resolved
    assert many.p99_resolved
    assert many.p999_resolved
    kl, prompt = drawn(400, 100)
    kl[prompt < 3] += 10.0
    assert not summary(kl, prompt).tail.p999_resolved


def test_quantiles_are_observed_values():
    kl, prompt = drawn(100, 20)
    found = summary(kl, prompt)
    assert {found.median, found.tail.p99, found.tail.p999, found.tail.maximum} <= set(kl.tolist())
    assert found.median < found.tail.p99 < found.tail.p999 <= found.tail.maximum == kl.max()


def test_one_huge_token_shows_in_the_share_not_in_the_winsorised_mean():
    kl, prompt = drawn(100, 100)
    plain = summary(kl, prompt)
    kl[1234] = 1e4
    spiked = summary(kl, prompt)
    assert spiked.tail.top_share > 0.98
    assert plain.tail.top_share < 0.1
    assert spiked.tail.winsorised_mean == pytest.approx(plain.tail.winsorised_mean, rel=0.05)


def test_infinite_values_stay_in_the_mean():
    kl, prompt = drawn(100, 20)
    finite = summary(kl, prompt)
    kl[7] = math.inf
    found = summary(kl, prompt)
    assert (found.mean, found.high, found.infinite, found.tail.maximum) == (math.inf, math.inf, 1, math.inf)
    assert found.tail.top_share == 1.0
    assert finite.low * 0.9 < found.low < math.inf
    assert found.median < 1
    nothing_else = summary([math.inf, math.inf], [0, 1])
    assert (nothing_else.mean, nothing_else.low) == (math.inf, 0.0)


def test_negative_values_are_kept_for_the_alarm():
    assert summary([-1e-3, 0.1], [0, 1]).minimum == -1e-3


def test_all_zero_is_zero():
    found = summary(np.zeros(100), np.arange(100) // 2)
    assert (found.mean, found.tail.top_share, found.infinite) == (0.0, 0.0, 0)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_broken_values_are_refused(bad):
    with pytest.raises(ValueError, match="kl"):
        summary([0.1, bad], [0, 1])
    with pytest.raises(ValueError, match="no tokens"):
        summary([], [])


def test_change_of_the_observed_token():
    mean, rms = delta_p(np.log([0.5, 0.5]), np.log([0.4, 0.7]))
    assert (mean, rms) == pytest.approx((0.05, math.sqrt((0.01 + 0.04) / 2)))
    assert delta_p([-math.inf], [0.0]) == (1.0, 1.0)
    with pytest.raises(ValueError, match="NaN"):
        delta_p([math.nan], [0.0])
    with pytest.raises(ValueError, match="tokens"):
        delta_p([0.0, 0.0], [0.0])


def test_octaves():
    kl, prompt, position = drawn(40, 9)[0], np.repeat(np.arange(40), 9), np.tile(np.arange(1, 10), 40)
    rows = by_octave(kl, position, prompt)
    assert [(r.start, r.stop, r.tokens) for r in rows] == [(1, 2, 80), (3, 4, 80), (5, 8, 160), (9, 16, 40)]
    assert rows[2].mean == pytest.approx(kl[(position >= 5) & (position <= 8)].mean())
    assert all(r.low < r.mean < r.high for r in rows)
    assert sum(r.mean * r.tokens for r in rows) == pytest.approx(kl.sum())
    far = by_octave([0.1, 0.2], [70000, 131072], [0, 1])
    assert [(r.start, r.stop) for r in far] == [(65537, 131072)]
    with pytest.raises(ValueError, match="position"):
        by_octave([0.1], [0], [0])
