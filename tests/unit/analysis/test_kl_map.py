"""Maps of KL by group: means and tests against the rest, paired within prompts, and entropy quartiles."""

import math

import numpy as np
import pytest

from evalrig.analysis.kl_map import by_group
from evalrig.analysis.kl_summary import quantiles
from evalrig.analysis.paired import cluster_t, holm

NAMES = ("structure", "digits", "prose", "unused")


def drawn(rng, factor=1.0, prompts=60, tokens=50):
    """Log-normal KL with a prompt effect; digits are `factor` times as far."""
    group = rng.choice(3, (prompts, tokens), p=[0.2, 0.1, 0.7])
    kl = np.exp(rng.normal(-6, 0.5, (prompts, 1)) + rng.normal(0, 1.5, group.shape))
    kl[group == 1] *= factor
    return kl.ravel(), group.ravel(), np.repeat(np.arange(prompts), tokens)


def test_means_are_those_of_the_tokens():
    kl, group, prompt = drawn(np.random.default_rng(0))
    rows = by_group(kl, group, NAMES, prompt)
    assert [row.name for row in rows] == ["structure", "digits", "prose"]
    assert sum(row.tokens for row in rows) == kl.size
    for code, row in enumerate(rows):
        t = cluster_t(kl[group == code], prompt[group == code])
        assert (row.mean, row.low, row.high) == pytest.approx((t.estimate, t.low, t.high))
        assert row.above_rest == pytest.approx(kl[group == code].mean() - kl[group != code].mean())
    assert [row.p_holm for row in rows] == pytest.approx(list(holm([row.p for row in rows])))


def test_a_class_that_is_hit_is_named_and_no_other():
    rows = by_group(*_args(drawn(np.random.default_rng(1), factor=4.0)))
    assert [row.name for row in rows if row.p_holm < 0.01] == ["digits"]


def test_without_a_difference_no_class_is_named_too_often():
    rng = np.random.default_rng(2)
    named = [min(row.p_holm for row in by_group(*_args(drawn(rng)))) < 0.05 for _ in range(300)]
    assert np.mean(named) < 0.1


def test_groups_in_different_prompts_do_not_lend_each_other_precision():
    """A class that lives in few prompts must not be judged by the number of its tokens."""
    kl, _, prompt = drawn(np.random.default_rng(3))
    group = np.where(prompt < 5, 1, 2)
    rows = {row.name: row for row in by_group(kl, group, NAMES, prompt)}
    assert (rows["digits"].p, rows["digits"].prompts) == (1.0, 5)
    single = by_group(kl, np.where(prompt == 0, 1, 2), NAMES, prompt)[0]
    assert (single.low, single.high) == (-math.inf, math.inf)


def test_tokens_of_no_group_are_rest():
    kl, group, prompt = drawn(np.random.default_rng(4))
    rows = by_group(kl, np.where(group == 2, -1, group), NAMES, prompt)
    whole = by_group(kl, group, NAMES, prompt)
    assert [row.name for row in rows] == ["structure", "digits"]
    assert rows[0].above_rest == pytest.approx(whole[0].above_rest)
    alone = by_group(kl, 0 * group, NAMES, prompt)[0]
    assert (alone.above_rest, alone.p) == (0.0, 1.0)


def test_infinite_and_zero_values_make_no_nan():
    kl, group, prompt = drawn(np.random.default_rng(5))
    kl[7] = math.inf
    assert all(math.isfinite(row.mean) and 0 <= row.p <= 1 for row in by_group(kl, group, NAMES, prompt))
    assert {row.p for row in by_group(0 * group, group, NAMES, prompt)} == {1.0}
    with pytest.raises(ValueError, match="group"):
        by_group(kl, group + 2, NAMES, prompt)
    assert by_group([], [], NAMES, []) == ()


def _args(found):
    kl, group, prompt = found
    return kl, group, NAMES, prompt


def test_quantiles_with_their_owners():
    kl, _, prompt = drawn(np.random.default_rng(7), prompts=60, tokens=200)
    found = {quantile.level: quantile for quantile in quantiles(kl, prompt)}
    assert list(found) == [0.5, 0.9, 0.95, 0.99, 0.999, 1.0]
    assert found[0.9].value == np.quantile(kl, 0.9, method="higher")
    assert found[0.99].owners == len(np.unique(prompt[kl >= found[0.99].value]))
    assert (found[0.5].resolved, found[0.999].resolved, found[1.0].owners) == (True, False, 1)
    few = quantiles(kl[prompt < 20], prompt[prompt < 20])
    assert not any(quantile.resolved for quantile in few)
    with pytest.raises(ValueError, match="no tokens"):
        quantiles([], [])
