"""What a gate is: one rule, applied to one candidate's evidence, with a margin that was fixed before the run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.clusters import ClusterSums
from evalrig.analysis.growth import Growth
from evalrig.analysis.kl import Audit
from evalrig.analysis.kl_stream import StreamResult
from evalrig.analysis.responses import Responses
from evalrig.horizon import Horizon
from evalrig.loads import Load
from evalrig.plan import GatePlan, SuitePlan
from evalrig.types import Check, CheckOutcome, Metric

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """One metric of both arms, sample by sample: means over epochs, NaN where an arm has no score."""

    metric: Metric
    samples: tuple[str, ...]
    clusters: NDArray[np.str_]
    reference: FloatArray
    candidate: FloatArray

    @property
    def clustered(self) -> bool:
        """Some samples share text."""
        return len(np.unique(self.clusters)) < len(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """What one pass over both arms' distributions at every scored token found. Nothing is kept by token."""

    found: StreamResult | None
    """KL in nats: lower bounds from top-K lists and one bucket for the rest. None: no position could be read."""
    by_prompt: ClusterSums
    """KL summed by prompt; a prompt has the same number in every arm of its suite."""
    tokens: int
    """Positions scored by both arms."""
    broken: int
    """Of these, positions without a number on either side."""
    same: bool
    """Both arms gave every token the same logprob, bit for bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the reference's whole answers tell, beyond their tokens."""

    growth: Growth | None
    """How the distance changes along an answer; None: no answer is long enough."""
    responses: Responses
    """Whole responses that the reference drew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was measured about one candidate against the reference."""

    candidate: str
    alpha: float
    pairs: Mapping[tuple[str, str], Pairs]
    """(suite, metric) -> pairs."""
    distances: Mapping[str, Distances]
    audits: Mapping[str, Audit]
    """Suite -> what its lists lose of the KL; not there where nothing was audited or rows are broken."""
    floors: Mapping[str, Distances]
    """Suite -> reference against `reference_again`."""
    answers: Mapping[str, Answers] = field(default_factory=dict[str, Answers])
    """Suite -> growth along the answers, and the responses as wholes."""
    horizons: Mapping[str, Horizon] = field(default_factory=dict[str, Horizon])
    """Suite -> the steps of its attempts; not there where none has a step."""
    loads: Mapping[str, Load] = field(default_factory=dict[str, Load])
    """Suite -> its rounds of load; not there where it has none."""
    failures: Mapping[tuple[str, str], Pairs] = field(default_factory=dict[tuple[str, str], Pairs])
    """(suite, word) -> share of each sample's attempts that failed so; missing where its scores are missing."""


class Gate(ABC):
    """One rule. `check` judges its own evidence; correction over several gates is the verdict's work."""

    Options: ClassVar[type]
    earns: ClassVar[bool] = True
    """False: a veto, whose pass is no reason for GO."""

    def __init__(self, plan: GatePlan, options: Any) -> None:
        self.plan = plan
        self.options = options

    @classmethod
    def margin_of(cls, plan: GatePlan, options: Any) -> float:
        """The margin that is registered: as written, or, for kinds that can, derived from `options` where 0 is written."""
        return plan.margin

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """Can this gate judge that metric of its suite? None: a gate that names no metric."""
        return True

    @classmethod
    def unfit(cls, options: Any, suite: SuitePlan) -> str:
        """Why it cannot judge that suite with these options; empty: it can."""
        return ""

    @abstractmethod
    def check(self, evidence: Evidence) -> Check:
        """Pass, fail or undecided with a reason; undecided where there is nothing to judge."""

    def undecided(self, reason: str, **more: Any) -> Check:
        """No judgement, and why."""
        return Check(
            gate=self.plan.name,
            suite=self.plan.suite,
            outcome=CheckOutcome.UNDECIDED,
            reason=reason,
            gating=self.plan.gating,
            **more,
        )


def outcome_of(p_go: float, p_nogo: float, alpha: float) -> CheckOutcome:
    """The two regions are disjoint; what lies in neither is undecided."""
    if p_nogo <= alpha:
        return CheckOutcome.FAILED
    return CheckOutcome.PASSED if p_go <= alpha else CheckOutcome.UNDECIDED
