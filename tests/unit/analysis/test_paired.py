"""The paired test as a whole: which method it takes, when it may decide, and what it must never claim."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.analysis.betting import betting_interval
from evalrig.analysis.paired import (
    cluster_sums,
    cluster_t,
    decision,
    e_pvalue,
    flags,
    holm,
    mcnemar_midp,
    noninferiority,
    two_sided_p,
)

quick = settings(deadline=None, derandomize=True, max_examples=60)
DIFFERENCES = [0, 0, -1, 0, 0, 1, 0, -0.5, 0, 0, 0.25, 0]
CLUSTERS = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def binary(losses, gains, n):
    return np.concatenate([-np.ones(losses), np.ones(gains), np.zeros(n - losses - gains)])


@pytest.mark.parametrize(
    ("losses", "gains", "n", "margin", "verdict"),
    [
        (0, 0, 164, 0.01, "undecided"),
        (0, 0, 300, 0.01, "pass"),
        (1, 0, 500, 0.01, "pass"),
        (12, 8, 1319, 0.01, "pass"),
        (25, 15, 2000, 0.01, "undecided"),
        (60, 52, 14042, 0.01, "pass"),
        (40, 10, 1000, 0.01, "fail"),
        (3, 9, 200, 0.03, "pass"),
        (2, 2, 50, 0.05, "undecided"),
    ],
)
def test_known_verdicts(losses, gains, n, margin, verdict):
    test = noninferiority(binary(losses, gains, n), margin)
    assert decision(test) == verdict
    assert test.estimate == pytest.approx((gains - losses) / n)
    assert (test.n_needed is None) == (verdict != "undecided")
    assert test.n_needed is None or test.n_needed > n


def test_cluster_example():
    t = cluster_t(DIFFERENCES, CLUSTERS, 0.05)
    assert (t.estimate, t.se, t.df) == (pytest.approx(-0.0208333, abs=1e-7), pytest.approx(0.1458333, abs=1e-7), 3)
    assert (t.low, t.high) == pytest.approx((-0.364032, 0.322366), abs=1e-6)
    assert (t.clusters, t.informative) == (4, 4)
    assert cluster_t(DIFFERENCES, None).se == pytest.approx(0.1322100, abs=1e-7)


def test_cluster_sums():
    sums, sizes = cluster_sums(DIFFERENCES, CLUSTERS)
    assert sums.tolist() == [-1.0, 1.0, -0.5, 0.25]
    assert sizes.tolist() == [3.0, 3.0, 3.0, 3.0]


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([]).size == 0
    with pytest.raises(ValueError, match="pvalues"):
        holm([0.1, math.nan])


def test_stake_after_300_equal_answers():
    assert 1 / e_pvalue(np.zeros(300), 0.01, None, "greater") == pytest.approx(4.58107, abs=1e-5)
    assert e_pvalue(np.zeros(491), 0.01, None, "greater") <= 0.05 < e_pvalue(np.zeros(490), 0.01, None, "greater")


def test_method_follows_the_data():
    rng = np.random.default_rng(1)
    flips, prompts = rng.integers(-1, 2, 200), np.repeat(np.arange(50), 4)
    assert noninferiority(flips, 0.05).method.startswith("exact")
    assert noninferiority(flips, 0.05, np.arange(200).astype(str)).method.startswith("exact")
    assert noninferiority(flips, 0.05, prompts).method == "cluster-robust t over 50 clusters"
    assert noninferiority(flips, 0.05, prompts // 5).method.startswith("betting")
    assert noninferiority(rng.uniform(-1, 1, 200), 0.05).method == "cluster-robust t over 200 clusters"
    assert noninferiority(rng.normal(0, 3, 12), 0.5, bounded=False).method.startswith("too few clusters")


def test_few_informative_clusters_are_left_to_the_bet():
    differences, cluster = np.zeros(400), np.repeat(np.arange(40), 10)
    differences[[3, 50, 120]] = -1
    test = noninferiority(differences, 0.02, cluster)
    assert test.method == "betting, too few clusters for a t test: 40 clusters, 3 of them informative"
    assert test.p_go == e_pvalue(differences, 0.02, cluster, "greater")


@pytest.mark.parametrize("value", [0.0, 0.1, -0.3, 1.0])
@pytest.mark.parametrize("n", [3, 25, 60])
def test_zero_width_interval_is_not_certainty(value, n):
    test = noninferiority(np.full(n, value), 0.01, np.arange(n) // 2)
    assert test.low < test.high
    unbounded = noninferiority(np.full(n, value), 0.01, bounded=False)
    assert (unbounded.p_go, unbounded.p_nogo) == (1.0, 1.0)
    assert (unbounded.low, unbounded.high) == (-math.inf, math.inf)
    assert flags(unbounded, 0.01) == flags(noninferiority(np.zeros(3), 0.01), 0.01)


def test_three_identical_pairs_do_not_pass():
    assert decision(noninferiority(np.zeros(3), 0.01)) == "undecided"
    needed = noninferiority(np.zeros(3), 0.01).n_needed
    assert needed is not None
    assert needed >= 299


def test_draws_are_not_independent_units():
    rng = np.random.default_rng(2)
    per_item = rng.choice([-0.5, 0.0, 0.5], p=[0.3, 0.5, 0.2], size=120)
    once = noninferiority(per_item, 0.05)
    item = np.repeat(np.arange(120), 8)
    repeated = noninferiority(np.repeat(per_item, 8), 0.05, item)
    assert repeated.p_go == pytest.approx(once.p_go)
    assert (repeated.low, repeated.high) == pytest.approx((once.low, once.high))
    taken_apart = noninferiority(np.repeat(per_item, 8), 0.05)
    assert taken_apart.high - taken_apart.low < 0.5 * (once.high - once.low)


def test_pairs_that_agree_do_not_dilute_the_test_of_change():
    few, many = binary(25, 9, 100), binary(25, 9, 5000)
    assert two_sided_p(few, None, True) == two_sided_p(many, None, True) == mcnemar_midp(25, 9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_differences_are_refused(bad):
    for call in (
        lambda x: noninferiority(x, 0.01),
        lambda x: noninferiority(x, 0.01, bounded=False),
        lambda x: two_sided_p(x, None, False),
        lambda x: e_pvalue(x, 0.01, None, "greater"),
        lambda x: cluster_t(x, None),
    ):
        with pytest.raises(ValueError, match="not finite"):
            call([0.0, 1.0, bad])


@pytest.mark.parametrize("margin", [0.0, -0.01, 1.0, math.nan])
def test_a_margin_that_is_none_is_refused(margin):
    with pytest.raises(ValueError, match="margin"):
        noninferiority([0.0, 1.0], margin)


def test_malformed_input_is_refused():
    with pytest.raises(ValueError, match="no values"):
        noninferiority([], 0.01)
    with pytest.raises(ValueError, match="bounded"):
        noninferiority([0.0, 1.5], 0.01)
    with pytest.raises(ValueError, match="one label"):
        noninferiority([0.0, 1.0], 0.01, [1])
    with pytest.raises(ValueError, match="alpha"):
        noninferiority([0.0, 1.0], 0.01, alpha=math.nan)
    with pytest.raises(ValueError, match="binary"):
        two_sided_p([0.0, 0.5], None, True)


def test_flags():
    worse = noninferiority(binary(40, 10, 1000), 0.05)
    assert decision(worse) == "pass"
    assert flags(worse, 0.05).degraded
    assert flags(worse, 0.05).equivalent
    better = noninferiority(binary(10, 90, 1000), 0.02)
    assert flags(better, 0.02).suspicious_gain
    assert flags(better, 0.02).superior
    assert not flags(better, 0.02).equivalent


def test_needed_items_when_the_planned_number_was_already_seen():
    test = noninferiority(binary(25, 15, 2000), 0.01)
    assert test.n_needed == 4940  # at the observed loss of half a point; without any loss 1237 would have done
    at_the_margin = noninferiority(binary(40, 20, 2000), 0.01)
    assert at_the_margin.n_needed is None


def test_needed_items_over_clusters():
    rng = np.random.default_rng(3)
    scores = rng.uniform(-0.9, 0.9, 300)
    scores -= scores.mean()
    test = noninferiority(scores, 0.02, np.repeat(np.arange(60), 5))
    t = cluster_t(scores, np.repeat(np.arange(60), 5))
    assert test.n_needed == pytest.approx(2.4865**2 * t.se**2 * 300 / 0.02**2, rel=0.03)
    assert noninferiority(np.zeros(10), 0.02, np.zeros(10)).n_needed == 200


def _clustered(rng, clusters, size, discordance, margin):
    """Losses and gains whose rates vary between clusters (gamma, shape 2) around a true loss of exactly `margin`."""
    scale = rng.gamma(2.0, 0.5, clusters)[:, None]
    u = rng.random((clusters, size))
    loss, gain = scale * (discordance + margin) / 2, scale * (discordance - margin) / 2
    return (np.where(u < loss, -1.0, 0.0) + np.where(u > 1 - gain, 1.0, 0.0)).ravel()


@pytest.mark.parametrize(
    ("clusters", "size", "discordance", "low", "high"),
    [(57, 40, 0.06, 0.03, 0.065), (30, 10, 0.10, 0.03, 0.065), (12, 40, 0.06, 0.0, 0.05), (30, 10, 0.02, 0.0, 0.05)],
)
def test_false_go_rate_over_clusters(clusters, size, discordance, low, high):
    rng = np.random.default_rng(20)
    label = np.repeat(np.arange(clusters), size)
    go = nogo = 0
    for _ in range(1500):
        test = noninferiority(_clustered(rng, clusters, size, discordance, 0.01), 0.01, label)
        go, nogo = go + (test.p_go <= 0.05), nogo + (test.p_nogo <= 0.05)
    assert low <= go / 1500 <= high
    assert nogo / 1500 <= 0.065


values = st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.0, 0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=60)


@st.composite
def clustered(draw):
    differences = np.array(draw(values))
    labels = draw(st.lists(st.integers(0, 40), min_size=len(differences), max_size=len(differences)))
    return differences, np.array(labels)


@quick
@given(clustered(), st.floats(0.001, 0.5))
def test_swapping_the_arms_mirrors_the_test(sample, margin):
    differences, cluster = sample
    test, mirrored = noninferiority(differences, margin, cluster), noninferiority(-differences, margin, cluster)
    assert (test.low, test.high) == pytest.approx((-mirrored.high, -mirrored.low), abs=1e-7)
    assert test.estimate == pytest.approx(-mirrored.estimate)
    assert test.low <= test.estimate <= test.high
    assert test.low < test.high


@quick
@given(clustered(), st.floats(0.001, 0.5))
def test_pass_and_fail_exclude_each_other(sample, margin):
    test = noninferiority(sample[0], margin, sample[1])
    assert max(test.p_go, test.p_nogo) > 0.05
    wide = noninferiority(sample[0], margin, sample[1], bounded=False)
    assert max(wide.p_go, wide.p_nogo) > 0.05


@quick
@given(clustered(), st.floats(0.001, 0.5), st.floats(0.001, 0.5))
def test_pvalues_are_monotone_in_the_margin(sample, one, other):
    small, large = (noninferiority(sample[0], margin, sample[1]) for margin in sorted((one, other)))
    assert large.p_go <= small.p_go + 1e-4
    assert large.p_nogo >= small.p_nogo - 1e-4


@quick
@given(clustered(), st.integers(1, 1000))
def test_names_of_clusters_do_not_matter(sample, offset):
    differences, cluster = sample
    test = noninferiority(differences, 0.05, cluster)
    renamed = noninferiority(differences, 0.05, [f"p{(7 * c + offset) % 41}" for c in cluster])
    assert (renamed.p_go, renamed.p_nogo) == pytest.approx((test.p_go, test.p_nogo))
    assert renamed.method == test.method


@quick
@given(clustered(), st.floats(0.001, 0.5))
def test_betting_interval_and_pvalue_agree(sample, margin):
    differences, cluster = sample
    low, high = betting_interval(differences, cluster, 0.05)
    p_go, p_nogo = (e_pvalue(differences, margin, cluster, side) for side in ("greater", "less"))
    if abs(low + margin) > 1e-6:
        assert (p_go <= 0.05) == (low > -margin)
    if abs(high + margin) > 1e-6:
        assert (p_nogo <= 0.05) == (high < -margin)
    assert -1 <= low < high <= 1


def test_reference_against_itself():
    assert two_sided_p(np.zeros(50), None, True) == 1.0
    assert two_sided_p([0.3, 0.3], [1, 1], False) == 1.0
    assert two_sided_p(binary(3, 9, 200), None, True) == pytest.approx(0.09229, abs=1e-5)
    assert two_sided_p([0.2] * 5, None, False) == 2.0**-4
    t = cluster_t(DIFFERENCES, CLUSTERS)
    p = two_sided_p(DIFFERENCES, CLUSTERS, True)
    assert p == two_sided_p(-np.array(DIFFERENCES), CLUSTERS, False)
    assert p == pytest.approx(0.8954, abs=1e-3)
    assert abs(t.estimate / t.se) < 0.2


def test_uneven_clusters_weigh_items_not_clusters():
    t = cluster_t([1.0, 0.0, 0.0, 0.0], ["a", "b", "b", "b"])
    assert t.estimate == 0.25
    alone = cluster_t([1.0, 0.5], [1, 1])
    assert (alone.low, alone.high, alone.df, alone.varies) == (-math.inf, math.inf, 0, False)


def test_equal_values_leave_no_rounding_for_a_standard_error():
    rng = np.random.default_rng(5)
    for value in (0.1, -0.3, 1 / 3):
        t = cluster_t(np.full(500, value), rng.integers(0, 60, 500))
        assert (t.se, t.varies, t.informative) == (0.0, False, 0)


def test_clusters_that_all_show_one_loss_carry_no_variation():
    differences = np.full(100, -0.3)
    differences[:5] = 0.2
    assert cluster_t(differences, None).informative == 5
    assert noninferiority(differences, 0.25).method.startswith("betting")
    assert noninferiority(differences, 0.25, bounded=False).p_nogo == 1.0
