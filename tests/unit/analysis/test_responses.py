"""Responses that the reference drew: sums by response, k3, and what a certificate makes of them."""

import math

import numpy as np
import pytest

from evalrig.analysis.monte_carlo import Drawn, monte_carlo
from evalrig.analysis.responses import (
    BEGINNING,
    Responses,
    Spoken,
    kl_certificate,
    responses,
    sampled_kl,
    sequence_certificate,
    tv_against,
)

FAIR = Drawn(temperature=1.0, truncated=False, raw=True)
P, Q = np.array([0.7, 0.2, 0.1]), np.array([0.66, 0.23, 0.11])


def drawn(prompts: int, tokens: int, q: np.ndarray = Q, seed: int = 1) -> list[Spoken]:
    """Responses of independent tokens from P, each its own prompt."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(P), size=(prompts, tokens), p=P)
    return [
        Spoken(prompt=f"p{i}", reference_logprob=np.log(P[row]), candidate_logprob=np.log(q[row]), cut=False)
        for i, row in enumerate(rows)
    ]


def tv(tokens: int) -> float:
    """Total variation between P^tokens and Q^tokens, by counting."""
    total = 0.0
    for a in range(tokens + 1):
        for b in range(tokens + 1 - a):
            c = tokens - a - b
            ways = math.factorial(tokens) // (math.factorial(a) * math.factorial(b) * math.factorial(c))
            total += ways * abs(P[0] ** a * P[1] ** b * P[2] ** c - Q[0] ** a * Q[1] ** b * Q[2] ** c)
    return total / 2


def test_k3_by_response_is_k3_by_token() -> None:
    spoken = drawn(40, 30)
    p, q = (
        np.concatenate([getattr(one, side) for one in spoken]) for side in ("reference_logprob", "candidate_logprob")
    )
    whole = monte_carlo(p, q, np.repeat(np.arange(40), 30), FAIR)
    found = sampled_kl(responses(spoken, FAIR), 0.05)
    assert (found.mean, found.low, found.high) == pytest.approx((whole.k3.mean, whole.k3.low, whole.k3.high))
    assert (found.mean_ratio, found.consistent, found.tokens) == (pytest.approx(whole.mean_ratio.mean), True, 1200)


def test_k3_finds_the_exact_kl() -> None:
    found = sampled_kl(responses(drawn(300, 60), FAIR), 0.05)
    assert found.low < float(np.sum(P * np.log(P / Q))) < found.high


def test_the_certificate_of_whole_responses_bounds_the_exact_total_variation() -> None:
    truth, misses, doubted = tv(12), 0, 0
    for seed in range(40):
        found = responses(drawn(60, 12, seed=seed), FAIR)
        bound = sequence_certificate(found, found.whole, 0.05)
        doubted += bound.status == "conditional"
        misses += bound.bound < truth
    assert misses <= 4
    assert doubted <= 2, "the mean of q/p is 1 here; three standard errors are seldom missed"


def test_a_bound_from_kl_rests_on_an_assumption() -> None:
    found = responses(drawn(60, 12), FAIR)
    assert kl_certificate(found, found.whole, 0.05).status == "conditional"


def test_a_short_answer_moves_less_than_the_whole() -> None:
    found = responses(drawn(200, 64), FAIR)
    assert set(found.beginning.tokens.tolist()) == {BEGINNING}
    short, whole = (sequence_certificate(found, part, 0.05).bound for part in (found.beginning, found.whole))
    assert tv(BEGINNING) < short < whole


def test_p_values_agree_with_the_bound() -> None:
    found = responses(drawn(200, 8), FAIR)
    bound = sequence_certificate(found, found.whole, 0.05).bound
    assert tv_against(found.whole, bound * 1.02)[0] <= 0.05 < tv_against(found.whole, bound * 0.98)[0]
    assert tv_against(found.whole, 0.001)[1] <= 0.05 < tv_against(found.whole, 0.9)[1]


def test_given_streams_and_broken_ones_are_left_out_and_counted() -> None:
    spoken = drawn(3, 4)
    broken = Spoken(
        prompt="x", reference_logprob=np.array([-1.0, np.nan]), candidate_logprob=np.array([-1.0, -1.0]), cut=False
    )
    impossible = Spoken(
        prompt="y", reference_logprob=np.array([-np.inf]), candidate_logprob=np.array([-1.0]), cut=False
    )
    found = responses([*spoken, None, broken, impossible], FAIR)
    assert (found.whole.tokens.size, found.given, found.broken, found.cut) == (3, 1, 2, 0)


def test_a_token_that_the_candidate_rules_out_makes_k3_infinite_and_costs_its_response() -> None:
    spoken = drawn(30, 4)
    out = Spoken(prompt="z", reference_logprob=np.array([-1.0]), candidate_logprob=np.array([-np.inf]), cut=True)
    found = responses([*spoken, out], FAIR)
    assert math.isinf(sampled_kl(found, 0.05).mean)
    assert found.cut == 1
    without = sequence_certificate(responses(spoken, FAIR), responses(spoken, FAIR).whole, 0.05).estimate
    assert sequence_certificate(found, found.whole, 0.05).estimate == pytest.approx((30 * without + 1) / 31)


@pytest.mark.parametrize(
    "how",
    [
        Drawn(temperature=0.7, truncated=False, raw=True),
        Drawn(temperature=1.0, truncated=True, raw=True),
        Drawn(temperature=1.0, truncated=False, raw=False),
    ],
)
def test_tokens_drawn_otherwise_are_refused_with_a_reason(how: Drawn) -> None:
    found = responses(drawn(30, 4), how)
    for call in (
        lambda: sampled_kl(found, 0.05),
        lambda: sequence_certificate(found, found.whole, 0.05),
        lambda: kl_certificate(found, found.whole, 0.05),
    ):
        with pytest.raises(ValueError, match=r"tokens were drawn|not raw"):
            call()


def test_nothing_drawn_certifies_nothing() -> None:
    found: Responses = responses([None], FAIR)
    with pytest.raises(ValueError, match=r"none"):
        sampled_kl(found, 0.05)
    with pytest.raises(ValueError, match="certifies nothing"):
        kl_certificate(found, found.whole, 0.05)
