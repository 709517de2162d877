"""What a gate is: one rule, applied to one candidate's evidence, with a margin that was fixed before the run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.growth import Growth
from evalrig.analysis.responses import Responses
from evalrig.plan import GatePlan
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
    """Both arms' distributions at every scored token. Arrays of n tokens."""

    kl: FloatArray
    """Nats; lower bound from top-K lists and one bucket for the rest."""
    prompt: NDArray[np.str_]
    """The cluster: the sample, or what it shares its text with."""
    position: NDArray[np.int64]
    """In the response, from 1."""
    tail: FloatArray
    """Reference probability outside the tokens both sides list."""
    same_top: NDArray[np.bool_]
    reference_logprob: FloatArray
    candidate_logprob: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRows:
    """Rows over the whole vocabulary, both arms: float32 [n, V]."""

    reference: NDArray[np.float32]
    candidate: NDArray[np.float32]
    listed: int
    """Tokens a row keeps where the vocabulary is not audited: K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was measured about one candidate against the reference."""

    candidate: str
    alpha: float
    pairs: Mapping[tuple[str, str], Pairs]
    """(suite, metric) -> pairs."""
    distances: Mapping[str, Distances]
    audits: Mapping[str, AuditRows]
    floors: Mapping[str, Distances]
    """Suite -> reference against `reference_again`."""
    growths: Mapping[str, Growth] = field(default_factory=dict[str, Growth])
    """Suite -> how the distance changes along the answer."""
    responses: Mapping[str, Responses] = field(default_factory=dict[str, Responses])
    """Suite -> whole responses that the reference drew."""


class Gate(ABC):
    """One rule. `check` judges its own evidence; correction over several gates is the verdict's work."""

    Options: ClassVar[type]
    earns: ClassVar[bool] = True
    """False: a veto, whose pass is no reason for GO."""

    def __init__(self, plan: GatePlan, options: Any) -> None:
        self.plan = plan
        self.options = options

    @classmethod
    def accepts(cls, metric: Metric | None) -> bool:
        """Can this gate judge that metric of its suite?"""
        return True

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
