"""Gates on growth and on the certificate: pass, fail, undecided, each with its reason."""

from dataclasses import replace

import numpy as np
import pytest
from toys.nouns import evidence, gate_plan

from evalrig.analysis.growth import Growth, growth_against, position_growth
from evalrig.analysis.monte_carlo import Drawn
from evalrig.analysis.responses import Responses, Spoken, responses
from evalrig.errors import UsageError
from evalrig.gate import Answers
from evalrig.gates.certificate import Certificate, CertificateOptions
from evalrig.gates.position_growth import PositionGrowth, PositionGrowthOptions
from evalrig.types import Check, CheckOutcome

RAW = Drawn(temperature=1.0, truncated=False, raw=True)
PASSED, FAILED, UNDECIDED = CheckOutcome.PASSED, CheckOutcome.FAILED, CheckOutcome.UNDECIDED


def growing(slope: float, prompts: int = 60, spread: float = 0.05) -> Growth:
    """Growth of made-up tokens at positions 64 to 4096, KL times (1 + slope) per doubling, each prompt a little otherwise."""
    rng = np.random.default_rng(2)
    position = np.tile(np.arange(64, 4097, 64), prompts)
    prompt = np.repeat(np.arange(prompts), 64)
    own = (np.log1p(slope) + spread * rng.standard_normal(prompts))[prompt]
    kl = 1e-3 * np.exp(own * np.log2(position / 64) + 0.3 * rng.standard_normal(position.size))
    found = position_growth(kl, position, prompt)
    assert found is not None
    return found


def judged(found: Growth | None, margin: float = 0.05) -> Check:
    gate = PositionGrowth(gate_plan("position_growth", "kl", margin), PositionGrowthOptions())
    return gate.check(replace(evidence(), answers={"quiz": Answers(growth=found, responses=responses([], RAW))}))


@pytest.mark.parametrize(
    ("slope", "outcome", "words"),
    [
        (0.0, PASSED, "growth of 5 % per doubling is excluded"),
        (0.12, FAILED, "grows along the answer by more than 5 %"),
        (0.05, UNDECIDED, "cannot tell"),
    ],
)
def test_growth_is_judged_against_its_margin(slope: float, outcome: CheckOutcome, words: str) -> None:
    check = judged(growing(slope))
    assert check.outcome is outcome
    assert words in check.reason
    assert "60 prompts" in check.reason
    assert check.estimate is not None
    assert check.estimate.n == 60


def test_growth_without_enough_prompts_or_tokens_is_undecided() -> None:
    assert "at least 20" in judged(growing(0.5, prompts=19)).reason
    assert "beyond position 64" in judged(None).reason
    still = Growth(per_doubling=0.0, low=0.0, high=0.0, p=1.0, prompts=60)
    assert judged(still).outcome is UNDECIDED


def test_p_values_of_growth_agree_with_its_limits() -> None:
    found = growing(0.08)
    below, above = growth_against(found, found.high * 1.001)
    assert below < 0.05 < above
    assert growth_against(found, found.high * 0.999)[0] > 0.05
    assert growth_against(found, found.low * 0.999)[1] < 0.05 < growth_against(found, found.low * 1.001)[1]


# ---- certificate

P = np.array([0.7, 0.2, 0.1])


def spoken(shift: float, prompts: int = 200, tokens: int = 12, cut: bool = False, raw: bool = True) -> Responses:
    q = np.array([0.7 - shift, 0.2 + shift, 0.1])
    rows = np.random.default_rng(5).choice(3, size=(prompts, tokens), p=P)
    said = [
        Spoken(prompt=f"p{i}", reference_logprob=np.log(P[row]), candidate_logprob=np.log(q[row]), cut=cut)
        for i, row in enumerate(rows)
    ]
    return responses(said, Drawn(temperature=1.0, truncated=False, raw=raw))


def certified(found: Responses | None, margin: float = 0.05, part: str = "response") -> Check:
    gate = Certificate(gate_plan("certificate", "kl", margin), CertificateOptions(part=part))
    return gate.check(replace(evidence(), answers={"quiz": Answers(growth=None, responses=found)} if found else {}))


@pytest.mark.parametrize(
    ("shift", "outcome", "words"),
    [
        (0.002, PASSED, "no success rate of these prompts can change by more than"),
        (0.3, FAILED, "some event of the responses changes by more than 5 points, though perhaps none that is graded"),
        (0.02, UNDECIDED, "cannot certify 5 points: the bound is"),
    ],
)
def test_the_certificate_is_judged_against_its_margin(shift: float, outcome: CheckOutcome, words: str) -> None:
    check = certified(spoken(shift))
    assert check.outcome is outcome
    assert words in check.reason


def test_a_cut_response_is_certified_as_far_as_it_was_measured() -> None:
    check = certified(spoken(0.002, cut=True))
    assert check.outcome is PASSED
    assert "200 of them were cut: said of the first 12 tokens only" in check.reason


def test_a_short_answer_can_pass_where_the_whole_cannot() -> None:
    found = spoken(0.01, prompts=400, tokens=200)
    assert certified(found, 0.1).outcome is not PASSED
    assert certified(found, 0.1, "beginning").outcome is PASSED
    assert "single tool calls of 0 prompts" in certified(found, 0.1, "call").reason


def test_a_certificate_needs_raw_logprobs_of_enough_prompts() -> None:
    assert "not raw" in certified(spoken(0.002, raw=False)).reason
    assert "at least 20" in certified(spoken(0.002, prompts=19)).reason
    assert certified(None).outcome is UNDECIDED


def test_logprobs_of_another_mode_decide_nothing() -> None:
    """Every token less probable than it was drawn: the mean of q/p is off 1, and no law does that."""
    rows = np.random.default_rng(5).choice(3, size=(200, 12), p=P)
    said = [
        Spoken(prompt=f"p{i}", reference_logprob=np.log(P[row]), candidate_logprob=np.log(P[row]) - 0.05, cut=False)
        for i, row in enumerate(rows)
    ]
    check = certified(responses(said, Drawn(temperature=1.0, truncated=False, raw=True)))
    assert check.outcome is UNDECIDED
    assert "held back" in check.reason
    assert "the mean of q/p" in check.reason


@pytest.mark.parametrize(("margin", "part"), [(5.0, "response"), (0.0, "response"), (0.05, "tail")])
def test_a_certificate_gate_refuses_margins_and_parts_that_mean_nothing(margin: float, part: str) -> None:
    with pytest.raises(UsageError, match=r"gates\.kl_gate\."):
        Certificate(gate_plan("certificate", "kl", margin), CertificateOptions(part=part))
