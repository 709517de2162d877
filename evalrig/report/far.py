"""The worst tokens and prompts in context. What models wrote is hostile: it leaves here as text, and the template escapes it."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from evalrig.analysis.kl_sums import WorstPrompt, WorstToken
from evalrig.evidence import Gathered
from evalrig.plan import SuitePlan
from evalrig.report.shown_maps import Choice, Far, FarPrompt, FarToken
from evalrig.report.words import count, cut, percent, significant
from evalrig.sources import written
from evalrig.streams import Place, Streamed, Texts
from evalrig.tokens import Columns
from evalrig.types import Sample

BEFORE, AFTER = 60, 20
"""Tokens of context."""
LISTED = 5
"""Most probable tokens of each side."""
LONGEST_TOKEN = 40
LONGEST_TEXT = 700
NO_TEXTS = "(no texts of tokens: the engine does not give them)"


def far(gathered: Gathered, suite: SuitePlan, arm: str, found: Streamed) -> Far:
    """The worst of one arm on one suite."""
    texts = gathered.texts(suite)
    read: dict[Place, tuple[Columns, Columns]] = {}
    tokens: list[FarToken] = []
    for worst in found.result.worst_tokens:
        place = found.places[bisect_right(found.places, worst.row, key=lambda one: one.row) - 1]
        if place not in read:
            read[place] = gathered.pair(suite, arm, place.sample, place.epoch)
        tokens.append(_token(read[place], place, worst, texts))
    return Far(
        arm=arm,
        tokens=tuple(tokens),
        prompts=tuple(_prompt(gathered, suite, found, worst, texts) for worst in found.result.worst_prompts),
    )


def _token(sides: tuple[Columns, Columns], place: Place, worst: WorstToken, texts: Texts) -> FarToken:
    at, (reference, candidate) = worst.row - place.row, sides
    pieces = texts.pieces(place.sample, place.epoch)
    given = int(reference["token"][at])
    return FarToken(
        place=f"{place.sample}, token {worst.position:,} of {len(reference['token']):,}",
        kl=f"{significant(worst.kl)} nats",
        before="".join(pieces[max(0, at - BEFORE) : at]) if pieces else NO_TEXTS,
        token=pieces[at] if pieces else f"#{given}",
        after="".join(pieces[at + 1 : at + 1 + AFTER]),
        choices=_choices(reference, candidate, at, texts),
    )


def _choices(reference: Columns, candidate: Columns, at: int, texts: Texts) -> tuple[Choice, ...]:
    """The most probable tokens of both sides and the given one, by the larger of both probabilities."""
    given = int(reference["token"][at])
    sides = [_listed(side, at) for side in (reference, candidate)]
    shown = dict.fromkeys(token for side in sides for token in list(side)[:LISTED])
    shown.setdefault(given)
    order = sorted(shown, key=lambda token: -max(side.get(token, 0.0) for side in sides))
    return tuple(
        Choice(
            token=_word(texts.words.get(token), token),
            reference=_probability(sides[0], token),
            candidate=_probability(sides[1], token),
            given=token == given,
        )
        for token in order
    )


def _listed(side: Columns, at: int) -> dict[int, float]:
    """Probability by token, most probable first, the given token included."""
    with np.errstate(over="ignore"):
        chances = np.exp(side["top_logprobs"][at].astype(np.float64))
    found = {int(i): float(p) for i, p in zip(side["top_ids"][at], chances, strict=True)}
    found.setdefault(int(side["token"][at]), float(np.exp(np.float64(side["logprob"][at]))))
    return found


def _probability(side: dict[int, float], token: int) -> str:
    return percent(side[token], 2) if token in side else "not listed"


def _word(text: str | None, token: int) -> str:
    """One token's text with its blanks made visible, or its number."""
    if text is None:
        return f"#{token}"
    return cut(text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥"), LONGEST_TOKEN) or f"#{token}"


def _prompt(gathered: Gathered, suite: SuitePlan, found: Streamed, worst: WorstPrompt, texts: Texts) -> FarPrompt:
    name = found.clusters[worst.prompt]
    here = [sample for sample in gathered.samples[suite.name].values() if (sample.cluster or sample.id) == name]
    trace = next((one for one in texts.traces.values() if here and one.sample == here[0].id), None)
    more = f" and {count(len(here) - 1, 'more sample')} that share its text" if len(here) > 1 else ""
    return FarPrompt(
        place=f"{here[0].id if here else name}{more}",
        mean=f"{significant(worst.mean)} nats per token over {count(worst.tokens, 'token')}",
        prompt=cut(_asked(here[0]) if here else "", LONGEST_TEXT),
        answer=cut(trace.text if trace else "", LONGEST_TEXT),
    )


def _asked(sample: Sample) -> str:
    lines: Sequence[str] = [f"{message.role}: {written(message)}" for message in sample.messages]
    return "\n".join(lines) or sample.prompt
