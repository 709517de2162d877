"""KL from drawn tokens: known answers, unbiased against the exact value, and refused where it would mean nothing."""

import math

import numpy as np
import pytest

from evalrig.analysis.kl import full_kl
from evalrig.analysis.monte_carlo import Drawn, k123, monte_carlo

PLAIN = Drawn(temperature=1.0, truncated=False, raw=True)


def drawn(seed, noise, prompts=200, tokens=60, temperature=1.0):
    """Tokens drawn from p; their logprobs on both sides, their prompts, and the exact KL of each position."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (prompts * tokens, 50))
    other = logits + rng.normal(0, noise, logits.shape)
    log_p, log_q = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (logits, other))
    token = (log_p / temperature + rng.gumbel(size=log_p.shape)).argmax(axis=1)
    rows = np.arange(len(token))
    return log_p[rows, token], log_q[rows, token], np.repeat(np.arange(prompts), tokens), full_kl(log_p, log_q)


def test_known_answers():
    k1, k2, k3 = k123([math.log(0.5)], [math.log(0.4)])
    assert (k1[0], k2[0], k3[0]) == pytest.approx((0.2231436, 0.0248965, 0.0231436), abs=1e-7)


@pytest.mark.parametrize("noise", [0.05, 0.4])
def test_k3_is_the_exact_kl_within_its_interval(noise):
    log_p, log_q, prompt, exact = drawn(1, noise)
    found = monte_carlo(log_p, log_q, prompt, PLAIN)
    assert found.k3.low < exact.mean() < found.k3.high
    assert found.k3.mean == pytest.approx(exact.mean(), rel=0.1)
    assert found.k3.high - found.k3.low < 0.5 * (found.k1.high - found.k1.low)
    assert found.k1.low < exact.mean() < found.k1.high
    assert found.consistent
    assert (found.tokens, found.prompts, found.infinite) == (12000, 200, 0)


def test_the_same_model_is_at_exactly_zero():
    log_p, _, prompt, _ = drawn(2, 0.1)
    found = monte_carlo(log_p, log_p, prompt, PLAIN)
    assert (found.k1.mean, found.k2.mean, found.k3.mean, found.k3.high) == (0.0, 0.0, 0.0, 0.0)
    assert found.consistent


@pytest.mark.parametrize(
    ("drawn", "word"),
    [
        (Drawn(temperature=0.0, truncated=False, raw=True), "temperature 0"),
        (Drawn(temperature=0.6, truncated=False, raw=True), "temperature 0.6"),
        (Drawn(temperature=1.0, truncated=True, raw=True), "truncated"),
        (Drawn(temperature=1.0, truncated=False, raw=False), "raw"),
    ],
)
def test_tokens_drawn_otherwise_are_refused(drawn, word):
    with pytest.raises(ValueError, match=word):
        monte_carlo([-1.0], [-1.0], [0], drawn)


def test_tokens_drawn_at_another_temperature_show_in_the_self_check():
    log_p, log_q, prompt, exact = drawn(3, 0.8, temperature=0.5)
    found = monte_carlo(log_p, log_q, prompt, PLAIN)
    assert not found.consistent
    assert not found.k3.low < exact.mean() < found.k3.high


def test_what_the_candidate_rules_out_is_infinite_and_counted():
    log_p, log_q, prompt, _ = drawn(4, 0.1)
    log_q = log_q.copy()
    log_q[17] = -math.inf
    found = monte_carlo(log_p, log_q, prompt, PLAIN)
    assert (found.infinite, found.k1.mean, found.k2.mean, found.k3.mean) == (1, math.inf, math.inf, math.inf)
    assert 0 < found.k3.low < math.inf
    assert math.isfinite(found.mean_ratio.mean)


@pytest.mark.parametrize("bad", [(math.nan, -1.0), (-1.0, math.nan), (-math.inf, -1.0), (-1.0, math.inf)])
def test_broken_logprobs_are_refused(bad):
    with pytest.raises(ValueError, match="drawn tokens"):
        monte_carlo([bad[0], -1.0], [bad[1], -1.0], [0, 1], PLAIN)
    with pytest.raises(ValueError, match="no tokens"):
        monte_carlo([], [], [], PLAIN)
