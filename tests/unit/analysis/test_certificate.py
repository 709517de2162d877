"""Certificates: known answers, bounds that hold on chains whose truth can be computed, and what is not certified."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.analysis.certificate import (
    event_bounds,
    from_likelihoods,
    from_summed_kl,
    kl_interval,
    over_steps,
    summed,
)
from evalrig.analysis.monte_carlo import Drawn
from evalrig.analysis.reweighted import success_change

quick = settings(deadline=None, derandomize=True, max_examples=80)
PLAIN = Drawn(temperature=1.0, truncated=False, raw=True)


def test_known_answers():
    found = event_bounds(0.02, 0.9)
    assert (found.pinsker, found.bretagnolle_huber, found.largest) == pytest.approx((0.1, 0.1407172, 0.1), abs=1e-7)
    assert (found.drop, found.gain) == pytest.approx((0.0703836, 0.0493708), abs=1e-7)


def test_the_table_of_drops():
    """Worked beforehand with a solver; rows are the reference's rate, columns D."""
    table = {
        0.5: [0.0071, 0.0100, 0.0223, 0.0704, 0.213, 0.398],
        0.9: [0.0043, 0.0061, 0.0139, 0.0477, 0.182, 0.475],
        0.95: [0.0031, 0.0045, 0.0104, 0.0369, 0.156, 0.453],
        0.99: [0.0015, 0.0021, 0.0051, 0.0211, 0.118, 0.415],
    }
    for p, drops in table.items():
        for divergence, drop in zip([1e-4, 2e-4, 1e-3, 1e-2, 0.1, 0.5], drops, strict=True):
            assert event_bounds(divergence, p).drop == pytest.approx(drop, abs=6e-4 if divergence >= 0.1 else 6e-5)


@quick
@given(st.floats(0, 1), st.floats(0, 3), st.floats(0, 3))
def test_more_divergence_never_allows_less(p, one, other):
    near, far = sorted((one, other))
    (low, high), (lower, higher) = kl_interval(p, near), kl_interval(p, far)
    assert lower[0] <= low[0] <= p <= high[0] <= higher[0]
    assert lower[0] >= 0
    assert higher[0] <= 1
    assert event_bounds(near).largest <= event_bounds(far).largest <= 1
    assert max(p - low[0], high[0] - p) <= event_bounds(near).largest + 2e-8


@quick
@given(st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_the_other_rate_always_lies_in_the_interval(p, q):
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    low, high = kl_interval(p, max(divergence, 0.0) * (1 + 1e-9) + 1e-15)
    assert low[0] - 1e-9 <= q <= high[0] + 1e-9


def test_edges_of_the_rate():
    low, high = kl_interval([0.0, 1.0, 0.3], 0.1)
    assert low[0] == 0.0
    assert high[0] == pytest.approx(-math.expm1(-0.1))
    assert (low[1], high[1]) == (pytest.approx(math.exp(-0.1)), 1.0)
    assert kl_interval(0.3, 0.0) == (0.3, 0.3)
    assert kl_interval(0.3, 50.0) == (pytest.approx(0.0, abs=1e-12), pytest.approx(1.0))
    with pytest.raises(ValueError, match="divergence"):
        event_bounds(math.nan)


def responses(rng, prompts, tokens, noise, vocabulary=6):
    """Responses of independent tokens: log drop, exact summed KL, the drawn tokens, and both laws of each token."""
    logits = rng.normal(0, 1.5, (prompts, tokens, vocabulary))
    other = logits + rng.normal(0, noise, logits.shape)
    log_p, log_q = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (logits, other))
    drawn = (log_p + rng.gumbel(size=log_p.shape)).argmax(axis=-1)[..., None]
    drop = (np.take_along_axis(log_p, drawn, -1) - np.take_along_axis(log_q, drawn, -1))[..., 0].sum(axis=1)
    return drop, (np.exp(log_p) * (log_p - log_q)).sum(axis=(1, 2)), drawn[..., 0], (np.exp(log_p), np.exp(log_q))


def true_tv(laws):
    """TV of each prompt's response law, by listing all responses (tokens independent, few of them)."""
    p, q = laws
    joint = []
    for side in (p, q):
        law = np.ones((len(side), 1))
        for t in range(side.shape[1]):
            law = (law[:, :, None] * side[:, t, None, :]).reshape(len(side), -1)
        joint.append(law)
    return 0.5 * np.abs(joint[0] - joint[1]).sum(axis=1)


def test_both_routes_hold_for_the_true_tv():
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(60):
        drop, kl, _, laws = responses(rng, prompts=100, tokens=4, noise=0.15)
        tv, prompt = float(true_tv(laws).mean()), np.arange(100)
        by_tv, by_kl = from_likelihoods(drop, prompt, PLAIN), from_summed_kl(kl, prompt, exact=True)
        missed += by_tv.bound < tv
        assert tv < by_kl.bound
        assert by_tv.estimate == pytest.approx(tv, abs=0.04)
    assert missed <= 3


def test_no_event_moves_by_more_than_the_bound():
    """The worst event of all, not a typical one: the responses that the candidate makes less likely."""
    rng = np.random.default_rng(1)
    drop, _, _, laws = responses(rng, prompts=300, tokens=3, noise=0.2)
    found = from_likelihoods(drop, np.arange(300), PLAIN)
    assert float(true_tv(laws).mean()) < found.bound < 0.5
    assert (found.status, found.assumptions) == ("certified", ())
    assert found.upper_t < found.bound


def test_several_rollouts_of_a_prompt_are_one_draw():
    rng = np.random.default_rng(2)
    drop = rng.normal(0.02, 0.2, 30)
    once, again = (
        from_likelihoods(drop, np.arange(30), PLAIN),
        from_likelihoods(np.tile(drop, 8), np.tile(np.arange(30), 8), PLAIN),
    )
    assert (again.bound, again.prompts) == (pytest.approx(once.bound), 30)
    by_kl = from_summed_kl(np.tile(drop**2, 8), np.tile(np.arange(30), 8), exact=True)
    assert by_kl.bound == pytest.approx(from_summed_kl(drop**2, np.arange(30), exact=True).bound)


def test_kl_from_lists_is_only_conditional():
    kl = np.random.default_rng(3).exponential(0.001, 100)
    exact, lists = (from_summed_kl(kl, np.arange(100), exact=x) for x in (True, False))
    assert exact.bound == lists.bound == pytest.approx(math.sqrt(exact.upper / 2))
    assert exact.estimate < exact.upper
    assert (exact.status, lists.status, len(lists.assumptions)) == ("conditional", "conditional", 2)


def test_jensen_is_not_used_the_wrong_way_round():
    """The mean of sqrt(D/2) over rollouts is below the root of the mean: it would certify too much."""
    kl = np.repeat([0.0, 0.2], 50) + np.random.default_rng(4).uniform(0, 0.01, 100)
    assert from_summed_kl(kl, np.arange(100), exact=True).bound > float(np.sqrt(kl / 2).mean())


def test_vacuous_bounds_say_so():
    rng = np.random.default_rng(5)
    few = from_likelihoods(rng.normal(0.0, 0.05, 5), np.arange(5), PLAIN)
    far = from_summed_kl(rng.exponential(3.5, 200), np.arange(200), exact=True)
    assert (few.status, far.status) == ("vacuous", "vacuous")
    ruled_out = from_summed_kl([0.1, math.inf, 0.1], [0, 1, 2], exact=True)
    assert (ruled_out.bound, ruled_out.estimate, ruled_out.status) == (1.0, math.inf, "vacuous")
    single = from_summed_kl([0.001], [0], exact=True)
    assert (single.bound, single.status) == (1.0, "vacuous")
    zeros = from_summed_kl(np.zeros(50), np.arange(50), exact=False)
    assert (zeros.bound, zeros.status) == (1.0, "vacuous")  # zero lower bounds prove nothing


def test_a_ruled_out_response_counts_whole():
    drop = np.zeros(200)
    drop[:20] = math.inf
    found = from_likelihoods(drop, np.arange(200), PLAIN)
    assert found.estimate == pytest.approx(0.1)
    assert found.bound > 0.1


def test_logprobs_that_contradict_themselves_certify_nothing():
    found = from_likelihoods(np.random.default_rng(9).normal(-0.2, 0.05, 200), np.arange(200), PLAIN)
    assert (found.status, found.estimate) == ("conditional", pytest.approx(0.0, abs=1e-3))
    assert "mean of q/p is 1.2" in found.assumptions[0]


def test_nothing_is_certified_from_tokens_drawn_otherwise():
    with pytest.raises(ValueError, match="temperature 0"):
        from_likelihoods([0.1], [0], Drawn(temperature=0.0, truncated=False, raw=True))
    with pytest.raises(ValueError, match="NaN"):
        from_likelihoods([math.nan], [0], PLAIN)
    with pytest.raises(ValueError, match="no responses"):
        from_likelihoods([], [], PLAIN)


def test_steps_add_up():
    rng = np.random.default_rng(6)
    _, _, _, (p, q) = responses(rng, prompts=50, tokens=4, noise=0.2)
    by_step = 0.5 * np.abs(p - q).sum(axis=2)
    assert (true_tv((p, q)) <= by_step.sum(axis=1) + 1e-12).all()
    assert over_steps(0.02, 12) == pytest.approx(0.24)
    assert over_steps(0.3, 12) == 1.0


def test_sums_by_response():
    sums, tokens = summed([0.1, 0.2, 0.4], ["a", "a", "b"])
    assert (sums.tolist(), tokens.tolist()) == ([pytest.approx(0.3), 0.4], [2, 1])


def solved(drawn):
    """A success that depends on the response: its first token is one of the first three."""
    return (drawn[:, 0] < 3).astype(float)


def test_success_of_the_candidate_from_the_reference_alone():
    rng = np.random.default_rng(7)
    covered, widths, refused = [], [], 0
    for _ in range(150):
        drop, _, tokens, (p, q) = responses(rng, prompts=400, tokens=3, noise=0.15)
        found = success_change(drop, solved(tokens), np.arange(400), PLAIN)
        truth = float((q[:, 0, :3].sum(axis=1) - p[:, 0, :3].sum(axis=1)).mean())
        covered.append(found.low <= truth <= found.high)
        widths.append(found.high - found.low)
        refused += found.refusal is not None
    assert refused <= 3  # the self-check at three standard errors
    assert 0.84 < np.mean(covered) < 0.96
    assert np.mean(widths) < 0.06  # two independent runs of 400 would have about 0.11


def test_the_same_answers_as_the_formulas_written_out():
    drop, score = np.array([0.1, -0.2, 0.05, 0.0]), np.array([1.0, 0.0, 1.0, 0.0])
    w = np.exp(-drop)
    found = success_change(drop, score, np.arange(4), PLAIN)
    assert found.estimate == pytest.approx((w * score).sum() / w.sum() - 0.5)
    assert (found.effective, found.mean_weight) == pytest.approx((w.sum() ** 2 / (w**2).sum(), w.mean()))
    assert found.refusal == "4 prompts; at least 20 are needed"


def test_too_far_apart_is_refused_with_its_reason():
    rng = np.random.default_rng(8)
    drop, _, tokens, _ = responses(rng, prompts=200, tokens=20, noise=0.5)
    far = success_change(drop, solved(tokens), np.arange(200), PLAIN)
    assert far.refusal is not None
    assert "nats per response" in far.refusal
    uneven = np.full(100, 0.05)
    uneven[0] = -6.0
    heavy = success_change(uneven, np.ones(100), np.arange(100), PLAIN)
    assert heavy.refusal is not None
    assert "worth" in heavy.refusal
    shifted = success_change(np.full(100, 0.2) + rng.normal(0, 0.01, 100), np.ones(100), np.arange(100), PLAIN)
    assert shifted.refusal is not None
    assert "mean weight" in shifted.refusal
    gone = success_change([math.inf] * 5 + [0.0] * 95, [1] * 100, np.arange(100), PLAIN)
    assert gone.refusal is not None
    assert gone.divergence == math.inf
    with pytest.raises(ValueError, match="every response"):
        success_change([math.inf] * 30, [1] * 30, np.arange(30), PLAIN)


def test_the_same_model_changes_nothing():
    found = success_change(np.zeros(50), np.arange(50) % 2, np.arange(50), PLAIN)
    assert (found.estimate, found.low, found.high, found.effective, found.refusal) == (0.0, 0.0, 0.0, 50.0, None)
