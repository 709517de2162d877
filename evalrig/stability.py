"""What befell the engines while they worked, as validity: crashes and hangs, and trouble that only a log tells."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from evalrig.evidence import Gathered
from evalrig.troubles import RUINOUS
from evalrig.types import AGAIN, REFERENCE, Event, Finding, Level

STABILITY = "stability"
LOG = "engine log"
FALLS: Mapping[str, str] = {"crash": "crashed", "hang": "hung", "silent": "ran and answered nothing"}
"""Kinds of events that ended an engine."""


def of_events(gathered: Gathered) -> Iterator[Finding]:
    """Both rules, for every variant. A candidate's numbers stand beside those of the reference, which is the same program."""
    events = {variant.name: gathered.folder.events(variant.name) for variant in gathered.plan.variants}
    reference = [*events.get(REFERENCE, []), *events.get(AGAIN, [])]
    if not any(event.kind in FALLS for rows in events.values() for event in rows):
        yield Finding(rule=STABILITY, level=Level.OK, text="no engine crashed or hung while it worked")
    for name, rows in events.items():
        scope = "" if name in (REFERENCE, AGAIN) else name
        if text := _fell(name, rows, reference if scope else None):
            yield Finding(rule=STABILITY, level=Level.WARN, text=text, candidate=scope)
        for kind, count in sorted(_troubles(rows).items()):
            line = next(event.line for event in rows if event.trouble == kind)
            beside = f" (reference: {_troubles(reference)[kind]})" if scope else ""
            text = f"{name}: {kind}, {count} in its log{beside}: {line}"
            level = Level.INVALID if kind in RUINOUS else Level.WARN
            yield Finding(rule=LOG, level=level, text=text, candidate=scope)


def _fell(name: str, rows: Sequence[Event], reference: Sequence[Event] | None) -> str:
    """How often and why; empty: it did not. `reference` None: it is the reference."""
    falls = Counter(event.kind for event in rows if event.kind in FALLS)
    if not falls:
        return ""
    how = " and ".join(f"{FALLS[kind]} {_times(count)}" for kind, count in falls.items())
    again = sum(event.kind == "restart" for event in rows)
    cut = sum(event.unfinished for event in rows)
    words = [f"{name}: its engine {how} while it worked", f"it was started again {_times(again)}"]
    words += [f"{cut} attempts were cut short"] if cut else []
    if reference is not None:
        theirs = sum(event.kind in FALLS for event in reference)
        words.append(f"the reference's fell {_times(theirs)}" if theirs else "the reference's did not")
    first = next(event.line for event in rows if event.kind in FALLS)
    return f"{'; '.join(words)}; first: {first}"


def _troubles(rows: Sequence[Event]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for event in rows:
        if event.kind == "trouble":
            counts[event.trouble] += event.count
    return counts


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")
