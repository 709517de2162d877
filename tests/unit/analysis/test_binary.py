"""Known answers of the paired binary tests, their exact error rates, and properties that must hold for any counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from evalrig.analysis.paired import exact_pvalue, mcnemar_midp, tango_interval, tango_z

# losses, gains, n, margin, low, high, T(-margin), p_go, p_nogo, mid-p
KNOWN = [
    (0, 0, 164, 0.01, -0.01623, 0.01623, 1.2871, 0.19239, 1.0, 1.0),
    (0, 0, 300, 0.01, -0.00894, 0.00894, 1.7408, 0.04904, 1.0, 1.0),
    (1, 0, 500, 0.01, -0.00891, 0.00339, 1.7979, 0.03975, 0.99343, 0.5),
    (12, 8, 1319, 0.01, -0.00913, 0.00272, 1.8497, 0.03234, 0.97734, 0.38331),
    (25, 15, 2000, 0.01, -0.01051, 0.00021, 1.5038, 0.06733, 0.93756, 0.11728),
    (60, 52, 14042, 0.01, -0.00183, 0.00068, 9.3279, 0.0, 1.0, 0.45185),
    (40, 10, 1000, 0.01, -0.04241, -0.01894, -2.9576, 0.99852, 0.00349, 0.00001),
    (3, 9, 200, 0.03, 0.00169, 0.06285, 3.0032, 0.00131, 1.0, 0.09229),
    (2, 2, 50, 0.05, -0.08081, 0.08081, 1.1183, 0.15321, 0.92306, 0.8125),
]

counts = st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 200)).filter(lambda x: sum(x) > 0)
quick = settings(deadline=None, derandomize=True, max_examples=60)


@pytest.mark.parametrize(("losses", "gains", "n", "margin", "low", "high", "z", "p_go", "p_nogo", "midp"), KNOWN)
def test_known_answers(losses, gains, n, margin, low, high, z, p_go, p_nogo, midp):
    assert tango_interval(losses, gains, n, 0.05) == pytest.approx((low, high), abs=6e-6)
    assert float(tango_z(losses, gains, n, -margin)) == pytest.approx(z, abs=6e-5)
    assert exact_pvalue(losses, gains, n, -margin, "greater") == pytest.approx(p_go, abs=6e-6)
    assert exact_pvalue(losses, gains, n, -margin, "less") == pytest.approx(p_nogo, abs=6e-6)
    assert mcnemar_midp(losses, gains) == pytest.approx(midp, abs=6e-6)


@pytest.mark.parametrize(("n", "margin"), [(1, 0.3), (50, 0.05), (164, 0.01), (300, 0.01), (1319, 0.002)])
def test_without_discordant_pairs_the_answer_has_a_closed_form(n, margin):
    z2 = float(special.ndtri(0.95)) ** 2
    assert tango_interval(0, 0, n) == pytest.approx((-z2 / (n + z2), z2 / (n + z2)), abs=1e-9)
    assert exact_pvalue(0, 0, n, -margin, "greater") == pytest.approx((1 - margin) ** n, rel=1e-5)


def test_score_statistic_at_zero_is_mcnemar():
    assert float(tango_z(9, 3, 200, 0.0)) == pytest.approx((3 - 9) / np.sqrt(12))


def _log_trinomial(losses, gains, n, loss_rate, gain_rate):
    rest = n - losses - gains
    choose = (
        special.gammaln(n + 1) - special.gammaln(losses + 1) - special.gammaln(gains + 1) - special.gammaln(rest + 1)
    )
    terms = special.xlogy(losses, loss_rate) + special.xlogy(gains, gain_rate)
    return choose + terms + special.xlog1py(rest, -(loss_rate + gain_rate))


def _rejection_region(n, margin, side, alpha):
    """All (losses, gains) that reject: outcomes ordered by the statistic, the border found by bisection."""
    losses, gains = (x.ravel() for x in np.meshgrid(np.arange(n + 1), np.arange(n + 1)))
    possible = losses + gains <= n
    losses, gains = losses[possible], gains[possible]
    z = tango_z(losses, gains, n, -margin)
    order = np.argsort(-z if side == "greater" else z, kind="stable")
    inside, outside = -1, len(order)
    while outside - inside > 1:
        middle = (inside + outside) // 2
        at = order[middle]
        rejects = exact_pvalue(int(losses[at]), int(gains[at]), n, -margin, side) <= alpha
        inside, outside = (middle, outside) if rejects else (inside, middle)
    chosen = order[: inside + 1]
    return losses[chosen], gains[chosen]


@pytest.mark.parametrize(
    ("n", "margin", "published"), [(50, 0.01, 0.043), (50, 0.05, 0.032), (164, 0.01, 0.042), (164, 0.03, 0.047)]
)
def test_false_go_rate_enumerated_exactly(n, margin, published):
    losses, gains = _rejection_region(n, margin, "greater", 0.05)
    listed = [0.0, 0.002, 0.005, 0.02, 0.05]
    grid = [*listed, *np.linspace(0, (1 - margin) / 2, 150)]
    rates = [float(np.exp(_log_trinomial(losses, gains, n, g + margin, g)).sum()) for g in grid]
    assert max(rates) <= 0.05
    assert max(rates[: len(listed)]) == pytest.approx(published, abs=6e-4)


@pytest.mark.parametrize(("n", "margin"), [(50, 0.05), (164, 0.03)])
def test_false_nogo_rate_enumerated_exactly(n, margin):
    losses, gains = _rejection_region(n, margin, "less", 0.05)
    grid = np.linspace(0, (1 - margin) / 2, 150)
    assert max(float(np.exp(_log_trinomial(losses, gains, n, g + margin, g)).sum()) for g in grid) <= 0.05


@quick
@given(counts)
def test_swapping_the_arms_mirrors_interval_and_pvalues(parts):
    losses, gains, rest = parts
    n = losses + gains + rest
    low, high = tango_interval(losses, gains, n)
    mirrored = tango_interval(gains, losses, n)
    assert (low, high) == pytest.approx((-mirrored[1], -mirrored[0]), abs=1e-9)
    assert low < high
    greater = exact_pvalue(losses, gains, n, -0.02, "greater")
    assert greater == pytest.approx(exact_pvalue(gains, losses, n, 0.02, "less"), abs=1e-6)
    assert mcnemar_midp(losses, gains) == mcnemar_midp(gains, losses)


@quick
@given(counts, st.floats(0.001, 0.4), st.floats(0.001, 0.4))
def test_a_larger_margin_is_never_harder_to_pass(parts, one, other):
    losses, gains, rest = parts
    n = losses + gains + rest
    small, large = sorted((one, other))
    slack = 1e-4  # the maximum over the discordance is found numerically
    assert (
        exact_pvalue(losses, gains, n, -large, "greater") <= exact_pvalue(losses, gains, n, -small, "greater") + slack
    )
    assert exact_pvalue(losses, gains, n, -large, "less") >= exact_pvalue(losses, gains, n, -small, "less") - slack


@quick
@given(counts, st.floats(0.001, 0.4))
def test_go_and_nogo_regions_are_disjoint(parts, margin):
    losses, gains, rest = parts
    n = losses + gains + rest
    p_go = exact_pvalue(losses, gains, n, -margin, "greater")
    p_nogo = exact_pvalue(losses, gains, n, -margin, "less")
    assert p_go + p_nogo >= 1 - 1e-6


@pytest.mark.parametrize(("losses", "gains", "n"), [(-1, 0, 5), (3, 3, 5), (0, 0, 0)])
def test_impossible_counts_are_refused(losses, gains, n):
    with pytest.raises(ValueError, match="counts"):
        exact_pvalue(losses, gains, n, -0.01, "greater")
    with pytest.raises(ValueError, match="counts"):
        tango_interval(losses, gains, n)


@pytest.mark.parametrize("difference", [-1.0, 1.0, float("nan")])
def test_impossible_differences_are_refused(difference):
    with pytest.raises(ValueError, match="difference"):
        exact_pvalue(1, 1, 10, difference, "greater")
