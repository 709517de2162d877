"""Growth with position: found where it is, not where it is not, and paired within prompts."""

import math

import numpy as np
import pytest

from evalrig.analysis.growth import octave_ratio, position_growth


def drawn(rng, growth, prompts=100, tokens=40, last=16384):
    """Log-normal KL with a prompt effect that grows by `growth` per doubling, at positions spread over octaves."""
    position = np.exp(rng.uniform(math.log(65), math.log(last), (prompts, tokens))).astype(int)
    level = rng.normal(-7, 1.0, (prompts, 1)) + math.log1p(growth) * np.log2(position / 64)
    kl = np.exp(level + rng.normal(0, 2.0, position.shape))
    return kl.ravel(), position.ravel(), np.repeat(np.arange(prompts), tokens)


def by_the_book(kl, position, prompt):
    """The slope of each prompt by numpy's own least squares."""
    y, x = np.log(kl + 1e-8), np.log2(np.maximum(position, 64))
    return [np.polyfit(x[prompt == g], y[prompt == g], 1)[0] for g in np.unique(prompt)]


def test_slopes_are_those_of_least_squares():
    kl, position, prompt = drawn(np.random.default_rng(0), 0.08, prompts=25)
    found = position_growth(kl, position, prompt)
    assert found is not None
    assert found.per_doubling == pytest.approx(math.expm1(np.mean(by_the_book(kl, position, prompt))))
    assert (found.low < found.per_doubling < found.high, found.prompts) == (True, 25)


def test_growth_is_found_and_its_absence_mostly_not():
    rng = np.random.default_rng(1)
    grows = [position_growth(*drawn(rng, 0.08)) for _ in range(50)]
    flat = [position_growth(*drawn(rng, 0.0)) for _ in range(400)]
    assert np.mean([f.p < 0.05 for f in grows if f]) > 0.9
    assert 0.02 < np.mean([f.p < 0.05 for f in flat if f]) < 0.09
    covered = [f.low <= 0.0 <= f.high for f in flat if f]
    assert len(covered) == 400
    assert 0.84 < np.mean(covered) < 0.96


def test_growth_across_prompts_is_not_growth_within():
    """Longer contexts being harder texts must not read as accumulation."""
    rng = np.random.default_rng(2)
    kl, position, prompt = drawn(rng, 0.0, prompts=60)
    found = position_growth(kl * (1 + prompt), position * (1 + prompt), prompt)
    assert found is not None
    assert found.p > 0.05
    ratio = octave_ratio(kl * (1 + prompt), position, prompt)
    assert ratio is not None
    assert ratio.low < 1 < ratio.high


def test_few_prompts_claim_nothing():
    kl, position, prompt = drawn(np.random.default_rng(3), 0.5, prompts=10)
    found = position_growth(kl, position, prompt)
    assert found is not None
    assert found.p == 1.0
    assert octave_ratio(kl, position, prompt) is None
    assert position_growth([0.1, 0.2], [5, 60], [0, 0]) is None  # all count as position 64
    assert position_growth([], [], []) is None


def test_zero_and_infinite_values_make_no_nan():
    kl, position, prompt = drawn(np.random.default_rng(4), 0.0)
    kl[::7] = 0.0
    kl[3] = math.inf
    found = position_growth(kl, position, prompt)
    assert found is not None
    assert math.isfinite(found.per_doubling)
    assert octave_ratio(kl, position, prompt) is None
    zero = position_growth(0 * position, position, prompt)
    assert zero is not None
    assert (zero.per_doubling, zero.p) == (0.0, 1.0)


def test_ratio_of_the_last_octave_to_the_first():
    rng = np.random.default_rng(5)
    kl, position, prompt = drawn(rng, 0.3, prompts=300, tokens=100)
    found = octave_ratio(kl, position, prompt)
    assert found is not None
    assert (found.first, found.last) == ((65, 128), (8193, 16384))
    assert found.low < 1.3**7 < found.high
    first, last = (position <= 128) & (position >= 65), position > 8192
    both = np.isin(prompt, prompt[first]) & np.isin(prompt, prompt[last])
    assert found.ratio == pytest.approx(kl[last & both].mean() / kl[first & both].mean())


def test_positions_count_from_one():
    with pytest.raises(ValueError, match="position"):
        position_growth([0.1], [0], [0])
