"""The excess over the floor: against the formulas for full overlap, its coverage, and when it claims nothing."""

import math

import numpy as np
import pytest
from scipy import special

from evalrig.analysis.kl import excess, merged_bucket, truncate
from evalrig.analysis.paired import cluster_t


def drawn(rng, prompts=48, tokens=30, level=0.02):
    """Candidate and floor values [prompts, tokens] that share a log-normal prompt effect; true means level, level/4."""
    shared = rng.normal(0, 0.5, (prompts, 1))
    spread = 0.5**2 + 1.2**2
    base = math.log(level) - spread / 2
    candidate = np.exp(base + shared + rng.normal(0, 1.2, (prompts, tokens)))
    floor = np.exp(base - math.log(4) + shared + rng.normal(0, 1.2, (prompts, tokens)))
    return candidate, floor, np.repeat(np.arange(prompts), tokens)


def part(floor, prompt, prompts):
    """The floor as measured on the first `prompts` prompts only."""
    chosen = prompt < prompts
    return floor.ravel()[chosen], prompt[chosen]


def test_full_overlap_is_the_paired_test():
    candidate, floor, prompt = drawn(np.random.default_rng(0))
    kl, again = candidate.ravel(), floor.ravel()
    found = excess(kl, prompt, again, prompt, 0.05, 0.01)
    t = cluster_t(kl - again, prompt, 0.05)
    assert (found.excess, found.low, found.high) == pytest.approx((t.estimate, t.low, t.high))
    assert found.p_above == pytest.approx(float(special.stdtr(47, -(t.estimate - 0.01) / t.se)))
    assert found.p_above + found.p_below == pytest.approx(1.0)
    # the published delta-method ratio, written out
    a, b = candidate.sum(axis=1), floor.sum(axis=1)
    influence = (a - kl.mean() * 30) / kl.sum() - (b - again.mean() * 30) / again.sum()
    se = math.sqrt(48 / 47 * float((influence**2).sum()))
    ratio = kl.mean() / again.mean()
    assert found.levels.ratio == pytest.approx(ratio)
    assert found.levels.ratio_low == pytest.approx(ratio * math.exp(float(special.stdtrit(47, 0.05)) * se))


def test_unequal_prompts_are_weighted_by_tokens():
    candidate, floor, prompt = drawn(np.random.default_rng(1))
    kept = np.random.default_rng(2).random(prompt.size) < 0.3 + 0.7 * (prompt % 2)
    kl, again = candidate.ravel()[kept], floor.ravel()[kept]
    found = excess(kl, prompt[kept], again, prompt[kept], 0.05, 0.01)
    t = cluster_t(kl - again, prompt[kept], 0.05)
    assert (found.excess, found.low, found.high) == pytest.approx((t.estimate, t.low, t.high))


@pytest.mark.parametrize("floor_prompts", [16, 48])
def test_interval_covers_the_true_excess(floor_prompts):
    rng = np.random.default_rng(3)
    covered = []
    for _ in range(1000):
        candidate, floor, prompt = drawn(rng)
        found = excess(candidate.ravel(), prompt, *part(floor, prompt, floor_prompts), 0.05, 0.05)
        covered.append(found.low <= 0.015 <= found.high)
    assert 0.84 <= np.mean(covered) <= 0.96


def test_a_reference_against_itself_has_no_excess():
    """200 studies of one model whose every run moves the logits by seeded noise, scored through top-20 lists."""
    studies, prompts, tokens, vocabulary = 200, 30, 10, 40
    rng = np.random.default_rng(16)
    rows = studies * prompts * tokens
    logits = rng.normal(0, 2, (rows, vocabulary))
    level = np.repeat(np.exp(rng.normal(-2.5, 0.7, studies * prompts)), tokens)[:, None]  # some prompts are noisier

    def run():
        moved = logits + level * rng.standard_normal(logits.shape)
        return truncate(moved - np.log(np.exp(moved).sum(axis=1, keepdims=True)), 20)

    reference, again, candidate = run(), run(), run()
    kl = merged_bucket(*reference, *candidate).kl.reshape(studies, -1)
    floor = merged_bucket(*reference, *again).kl.reshape(studies, -1)
    prompt = np.repeat(np.arange(prompts), tokens)
    found = [excess(kl[i], prompt, floor[i], prompt, 0.05, 0.05) for i in range(studies)]
    assert 0.84 <= np.mean([f.low <= 0.0 <= f.high for f in found]) <= 0.96
    assert min(f.levels.mean_kl for f in found) > 1e-3


def test_shared_prompts_keep_their_covariance():
    candidate, floor, prompt = drawn(np.random.default_rng(4))
    paired = excess(candidate.ravel(), prompt, *part(floor, prompt, 16), 0.05, 0.05)
    apart = excess(candidate.ravel(), prompt, floor.ravel()[prompt < 16], prompt[prompt < 16] + 1000, 0.05, 0.05)
    assert paired.excess == pytest.approx(apart.excess)
    assert paired.high - paired.low < apart.high - apart.low


def test_partial_floor_uses_the_smaller_number_of_prompts():
    candidate, floor, prompt = drawn(np.random.default_rng(5))
    found = excess(candidate.ravel(), prompt, *part(floor, prompt, 16), 0.05, 0.05)
    assert found.method == "cluster-robust t, 15 degrees of freedom"
    assert (found.levels.prompts, found.levels.floor_prompts) == (48, 16)
    assert found.p_below < 0.05 < found.p_above


def test_a_candidate_far_away_is_found():
    candidate, floor, prompt = drawn(np.random.default_rng(6), level=0.35)
    found = excess(candidate.ravel(), prompt, *part(floor, prompt, 16), 0.05, 0.05)
    assert found.p_above < 0.001
    assert found.p_below > 0.999


def test_floor_of_exactly_zero_has_no_ratio():
    candidate, floor, prompt = drawn(np.random.default_rng(7))
    found = excess(candidate.ravel(), prompt, *part(0 * floor, prompt, 16), 0.05, 0.05)
    t = cluster_t(candidate.ravel(), prompt)
    assert (found.levels.floor, found.levels.ratio, found.levels.ratio_low) == (0.0, None, None)
    assert (found.low, found.high) == pytest.approx((t.low, t.high))
    assert found.method == "cluster-robust t, 47 degrees of freedom"


@pytest.mark.parametrize("floor_prompts", [0, 1])
def test_without_a_floor_noise_is_not_blamed_on_the_candidate(floor_prompts):
    candidate, floor, prompt = drawn(np.random.default_rng(8), level=0.35)
    far = excess(candidate.ravel(), prompt, *part(floor, prompt, floor_prompts), 0.05, 0.05)
    assert (far.p_above, far.low, far.levels.floor, far.levels.ratio) == (1.0, -math.inf, None, None)
    near = excess(candidate.ravel() / 50, prompt, *part(floor, prompt, floor_prompts), 0.05, 0.05)
    assert near.p_below < 0.05
    assert "no floor" in near.method


@pytest.mark.parametrize("prompts", [1, 2, 19])
def test_few_prompts_claim_nothing(prompts):
    candidate, floor, prompt = drawn(np.random.default_rng(9), prompts=prompts, level=5.0)
    found = excess(candidate.ravel(), prompt, floor.ravel(), prompt, 0.05, 0.05)
    assert (found.p_above, found.p_below, found.low, found.high) == (1.0, 1.0, -math.inf, math.inf)
    assert found.method.startswith("too few prompts")


def test_values_that_do_not_vary_claim_nothing():
    candidate, _, prompt = drawn(np.random.default_rng(10))
    for kl, floor in ((np.zeros(1440), np.zeros(1440)), (candidate.ravel(), candidate.ravel())):
        found = excess(kl, prompt, floor, prompt, 0.05, 0.05)
        assert (found.p_above, found.p_below) == (1.0, 1.0)
        assert found.excess == 0.0


def test_infinite_values_never_pass():
    candidate, floor, prompt = drawn(np.random.default_rng(11))
    kl = candidate.ravel().copy()
    kl[5] = math.inf
    near = excess(kl, prompt, *part(floor, prompt, 16), 0.05, 0.05)
    assert (near.p_below, near.excess, near.high) == (1.0, math.inf, math.inf)
    assert near.p_above > 0.05
    assert (near.levels.infinite, near.levels.mean_kl, near.levels.ratio) == (1, math.inf, None)
    assert "finite part" in near.method
    far = excess(20 * kl, prompt, *part(floor, prompt, 16), 0.05, 0.05)
    assert far.p_above < 0.05  # what is finite already exceeds the limit
    assert far.p_below == 1.0


def test_an_infinite_floor_claims_nothing():
    candidate, floor, prompt = drawn(np.random.default_rng(12), level=0.35)
    floor[0, 0] = math.inf
    found = excess(candidate.ravel(), prompt, *part(floor, prompt, 16), 0.05, 0.05)
    assert (found.p_above, found.p_below, found.levels.floor) == (1.0, 1.0, math.inf)


def test_names_and_order_do_not_matter():
    candidate, floor, prompt = drawn(np.random.default_rng(13))
    found = excess(candidate.ravel(), prompt, *part(floor, prompt, 16), 0.05, 0.05)
    order = np.random.default_rng(14).permutation(prompt.size)
    named = np.array([f"prompt-{(p * 5) % 48}" for p in prompt])
    again_kl, again_prompt = part(floor, prompt, 16)
    again_named = np.array([f"prompt-{(p * 5) % 48}" for p in again_prompt])
    renamed = excess(candidate.ravel()[order], named[order], again_kl, again_named, 0.05, 0.05)
    assert (renamed.low, renamed.high, renamed.p_below) == pytest.approx((found.low, found.high, found.p_below))


def test_broken_input_is_refused():
    candidate, floor, prompt = drawn(np.random.default_rng(15))
    kl, again = candidate.ravel(), floor.ravel()
    with pytest.raises(ValueError, match="kl"):
        excess(np.where(prompt == 3, math.nan, kl), prompt, again, prompt, 0.05, 0.05)
    with pytest.raises(ValueError, match="floor_kl"):
        excess(kl, prompt, np.where(prompt == 3, math.nan, again), prompt, 0.05, 0.05)
    with pytest.raises(ValueError, match="limit"):
        excess(kl, prompt, again, prompt, 0.05, math.nan)
    with pytest.raises(ValueError, match="named differently"):
        excess(kl, prompt, again, prompt.astype(str), 0.05, 0.05)
    with pytest.raises(ValueError, match="no tokens"):
        excess([], [], again, prompt, 0.05, 0.05)
