"""Where the model's programs ran, as validity: from what every record says of it."""

from collections.abc import Iterator

from evalrig.evidence import Gathered
from evalrig.plan import SuitePlan
from evalrig.types import AGAIN, REFERENCE, Finding, Level

SANDBOX = "sandbox"
WEAK = {
    "none": "with all that the user may do: a program could have changed what is measured",
    "landlock": "in a weaker sandbox than bwrap: the total of its memory and files was not limited",
}
"""Kinds of sandbox that a reviewer has to know of."""


def of_programs(gathered: Gathered) -> Iterator[Finding]:
    """The same sandbox in every arm of a suite, and which. Nothing where no program was run."""
    for suite in gathered.plan.suites:
        arms = {variant.name: _sandboxes(gathered, suite, variant.name) for variant in gathered.plan.variants}
        every = sorted({label for arm in arms.values() for label in arm})
        if every:
            yield _which(suite, every)
        for name, own in arms.items():
            others = sorted({*own, *arms[REFERENCE]})
            if own and len(others) > 1:
                text = f"{name}, {suite.name}: programs ran in {' and in '.join(others)}: not marked alike in both arms"
                scope = "" if name in (REFERENCE, AGAIN) else name
                yield Finding(rule=SANDBOX, level=Level.INVALID, text=text, candidate=scope, suite=suite.name)


def _which(suite: SuitePlan, labels: list[str]) -> Finding:
    words = f"{suite.name}: the model's programs ran in {' and '.join(labels)}"
    weak = [WEAK[kind] for label in labels if (kind := label.partition(" ")[0].rstrip(",")) in WEAK]
    text = f"{words}, {weak[0]}" if weak else words
    return Finding(rule=SANDBOX, level=Level.WARN if weak else Level.OK, text=text, suite=suite.name)


def _sandboxes(gathered: Gathered, suite: SuitePlan, variant: str) -> set[str]:
    records = gathered.records[variant, suite.name]
    return {record.provenance.sandbox for record in records if record.provenance.sandbox}
