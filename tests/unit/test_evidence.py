"""From epochs to one number a sample: what a gate judges is what the metric says, and nothing is lost on the way."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.coins import heads
from toys.runs import carry_out, run_file

from evalrig.errors import UsageError
from evalrig.evidence import Gathered
from evalrig.gate import Pairs
from evalrig.types import Outcome

EPOCHS = 4


def tossed(folder: Path, **options: Any) -> Gathered:
    suites = {"coins": {"kind": "toys.coins", "epochs": EPOCHS, "options": options}}
    gates = {"g": {"kind": "noninferior", "suite": "coins", "metric": "pass^2", "margin": 0.05}}
    return Gathered(carry_out(run_file(folder, {"cheap": {"noise": 0.1}}, suites=suites, gates=gates)).folder)


def pairs_of(gathered: Gathered) -> dict[str, Pairs]:
    found = gathered.evidence("cheap").pairs
    return {metric: found["coins", metric] for _, metric in found}


def test_each_metric_is_a_mean_over_all_draws_of_the_epochs(tmp_path: Path) -> None:
    """Pitfall 36: a reducer that turns 0.4 into 0 or 1."""
    pairs = pairs_of(tossed(tmp_path, k=2))
    assert pairs.keys() == {"pass@1", "pass@2", "pass^2"}
    for arm in ("reference", "cheap"):
        for number, sample in enumerate(pairs["pass@1"].samples):
            tosses = [heads(arm, sample, epoch) for epoch in range(EPOCHS)]
            draws = list(combinations(tosses, 2))
            side = "reference" if arm == "reference" else "candidate"
            assert getattr(pairs["pass@1"], side)[number] == pytest.approx(np.mean(tosses))
            assert getattr(pairs["pass@2"], side)[number] == pytest.approx(sum(map(any, draws)) / len(draws))
            assert getattr(pairs["pass^2"], side)[number] == pytest.approx(sum(map(all, draws)) / len(draws))
    assert len(set(pairs["pass@1"].reference)) > 2


@pytest.mark.parametrize("arm", ["reference", "cheap"])
def test_what_the_grader_lost_is_missing_in_both_arms(arm: str, tmp_path: Path) -> None:
    """It says nothing of the arm: counted in one alone it would be a loss, or a gain, that nobody had."""
    pairs = pairs_of(tossed(tmp_path, ungraded=f"{arm}/toss-07"))
    for metric in pairs.values():
        assert [metric.samples[n] for n in np.flatnonzero(np.isnan(metric.reference))] == ["toss-07"]
        assert [metric.samples[n] for n in np.flatnonzero(np.isnan(metric.candidate))] == ["toss-07"]


def test_a_share_is_no_toss_and_is_refused(tmp_path: Path) -> None:
    """pass@k of 0.4 does not exist: it is neither rounded nor counted."""
    with pytest.raises(UsageError, match=r"suites\.coins: solved scored 0\.4; pass@2 counts 0 and 1 alone"):
        tossed(tmp_path, worth=0.4)


def test_a_gate_on_repeated_draws_gives_a_verdict(tmp_path: Path) -> None:
    suites = {"coins": {"kind": "toys.coins", "epochs": EPOCHS, "again": 1.0}}
    gates = {"g": {"kind": "noninferior", "suite": "coins", "metric": "pass^2", "margin": 0.05}}
    verdict = carry_out(run_file(tmp_path, {"cheap": {"noise": 0.1}}, suites=suites, gates=gates)).verdict
    [check] = verdict.candidates["cheap"].checks
    assert (check.gate, verdict.outcome) == ("g", Outcome.INCONCLUSIVE)
    assert "40" in check.reason
