"""Wrong calls beside a right one: what a model that cannot act yet can still be asked is which of them it finds likeliest."""

import copy
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from evalrig.forced_steps import Stage
from evalrig.steps import canonical, is_id
from evalrig.types import ToolCall

COUNT: Final = 3
Call = tuple[str, Mapping[str, Any]]
Place = tuple[str | int, ...]


def choices(stages: Sequence[Stage], place: int, rng: random.Random) -> tuple[ToolCall, ...]:
    """The call that is due at a stage, and three that are not: with one character of an id changed, of another tool (the one
    called most alike), with a sibling's argument. Where a call has no such thing, another of the others stands for it.

    Empty: not one call is due there, or there are not three ways to be wrong.
    """
    stage = stages[place]
    if len(stage.due) != 1:
        return ()
    right = stage.due[0]
    found = [_text(right)]
    later = {_text(due) for each in stages[place:] for due in each.due}  # may be as good now
    for wrong in _wrong(stages, place, right, rng):
        if _text(wrong) not in {*found, *later}:
            found.append(_text(wrong))
        if len(found) > COUNT:
            return tuple(ToolCall(id="", name=name, arguments=arguments) for name, arguments in found)
    return ()


def _wrong(stages: Sequence[Stage], place: int, right: Call, rng: random.Random) -> Iterator[Call]:
    """One of each kind, then more of what there is."""
    name, arguments = right
    others = sorted({tool.name for tool in stages[place].tools} - {name})
    rng.shuffle(others)
    closest = get_close_matches(name, others, 1, 0.0)
    slips = _slips(right, rng)
    yield from _first(slips)
    yield from ((other, arguments) for other in closest)
    yield from _first(_siblings(stages, place, right, rng))
    yield from slips
    yield from ((other, arguments) for other in others)


def _first(calls: Iterator[Call]) -> Iterator[Call]:
    yield from (call for call, _ in zip(calls, range(1), strict=False))


def _slips(right: Call, rng: random.Random) -> Iterator[Call]:
    """One character changed for another of its class: in ids first, then in other words and numbers."""
    leaves = list(_leaves(right[1]))
    rng.shuffle(leaves)
    for at, leaf in sorted(leaves, key=lambda each: not is_id(each[1])):
        text = str(leaf)
        for spot in rng.sample(range(len(text)), len(text)):
            slipped = text[:spot] + _other(text[spot], rng) + text[spot + 1 :]
            value: Any = slipped if isinstance(leaf, str) else json.loads(slipped) if _numeral(slipped) else leaf
            if value != leaf:
                yield right[0], _with(right[1], at, value)


def _siblings(stages: Sequence[Stage], place: int, right: Call, rng: random.Random) -> Iterator[Call]:
    """An argument of that name with the value that another step of the way gives it."""
    name, arguments = right
    others = [other for number, stage in enumerate(stages) if number != place for other in stage.due]
    rng.shuffle(others)
    for _, given in sorted(others, key=lambda each: each[0] != name):
        for key in sorted(arguments.keys() & given.keys()):
            if given[key] != arguments[key]:
                yield name, {**arguments, key: given[key]}


def _other(letter: str, rng: random.Random) -> str:
    for letters in ("0123456789", "abcdef", "ABCDEF", "ghijklmnopqrstuvwxyz", "GHIJKLMNOPQRSTUVWXYZ"):
        if letter in letters:
            return rng.choice([other for other in letters if other != letter])
    return letter


def _numeral(text: str) -> bool:
    return canonical(f'{{"x":{text}}}') is not None


def _leaves(value: Any, at: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Words and numbers, with their places."""
    match value:
        case dict():
            for key in sorted(value):
                yield from _leaves(value[key], (*at, key))
        case list():
            for number, one in enumerate(value):
                yield from _leaves(one, (*at, number))
        case str() | int() | float() if not isinstance(value, bool) and value != "":
            yield at, value
        case _:
            return


def _with(arguments: Mapping[str, Any], at: Place, value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(dict(arguments))
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return changed


def _text(call: Call) -> tuple[str, str]:
    return call[0], json.dumps(dict(call[1]), ensure_ascii=False)
