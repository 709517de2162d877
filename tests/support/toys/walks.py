"""Attempts with steps, drawn from known error rates, as records of both arms."""

from collections.abc import Iterable, Sequence

import numpy as np

from evalrig.horizon import Attempts
from evalrig.types import Record, State, Step, Trajectory

DUE = '[{"arguments":{"id":7},"name":"open"}]'
OTHER = '[{"arguments":{"id":8},"name":"open"}]'
BROKEN = "open(7"
STEPS = {
    "": Step(due=DUE, said=DUE),
    "wrong_id": Step(due=DUE, said=OTHER, error="wrong_id"),
    "bad_json": Step(due=DUE, said=BROKEN, error="bad_json", valid=False, named=False),
}
FREE = {
    word: Step(said=step.said, error=step.error, named=step.named, valid=step.valid) for word, step in STEPS.items()
}


def attempt(
    words: Iterable[str], sample: str = "s-000", variant: str = "cheap", forced: bool = True, **more: object
) -> Record:
    """One attempt, a word of its errors for each step."""
    steps = tuple((STEPS if forced else FREE)[word] for word in words)
    wrong = any(step.error for step in steps)
    filled: dict[str, object] = {"state": State.SCORED, "scores": {"accuracy": float(not wrong)}, "epoch": 0, **more}
    return Record(variant=variant, suite="quiz", sample=sample, trajectory=Trajectory(steps=steps), **filled)  # type: ignore[arg-type]


def drawn(
    rng: np.random.Generator, lengths: Sequence[int], hazard: float, variant: str, word: str = "wrong_id"
) -> list[Record]:
    """Attempts of these lengths whose steps go wrong independently."""
    found: list[Record] = []
    for number, length in enumerate(lengths):
        wrong = rng.random(length) < hazard
        found.append(attempt((word if x else "" for x in wrong), f"s-{number:04d}", variant))
    return found


def owed(count: int) -> Attempts:
    names = [f"s-{number:04d}" for number in range(count)]
    return Attempts(planned=[(name, 0) for name in names], cluster={name: "" for name in names}, score="accuracy")
