"""What every world on the shelf keeps: its errands can be done, only in full, and only by doing them."""

import copy
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.errors import UsageError
from evalrig.plugins import find, kinds, make
from evalrig.types import Tool
from evalrig.world import Errand, Move, State, ToolError, World

KINDS = kinds("worlds")
HORIZONS = (1, 2, 3, 4, 5, 10, 20, 40, 80)
IMPOSSIBLE = {"missing_tool", "missing_parameter"}
SEED = 11
every_world = pytest.mark.parametrize("kind", KINDS)
every_horizon = pytest.mark.parametrize("horizon", HORIZONS)


def world_of(kind: str) -> World:
    return make(find("worlds", kind, World, "test"))


@functools.cache
def errands(kind: str, horizon: int) -> tuple[Errand, ...]:
    return tuple(world_of(kind).errands(horizon, 20 if horizon <= 20 else 10, SEED))


def doable(kind: str, horizon: int) -> list[Errand]:
    return [errand for errand in errands(kind, horizon) if not IMPOSSIBLE & set(errand.tags)]


def impossible(kind: str) -> list[Errand]:
    return [one for horizon in HORIZONS for one in errands(kind, horizon) if IMPOSSIBLE & set(one.tags)]


def right_words(errand: Errand) -> str:
    return f"Well: {' '.join(errand.answer)}."


def ended(world: World, errand: Errand, way: tuple[Move, ...]) -> State:
    state = copy.deepcopy(errand.start)
    world.walk(state, way)
    return state


def passes(world: World, errand: Errand, way: tuple[Move, ...]) -> bool:
    return world.reached(errand, ended(world, errand, way), right_words(errand))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Path and value of everything that is neither object nor list."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from leaves(inner, (*path, place))
    else:
        yield path, value


def changed(arguments: Mapping[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    new: Any = copy.deepcopy(dict(arguments))
    spot = new
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    return new


def fits(tools: tuple[Tool, ...], move: Move) -> bool:
    schema = next(tool.parameters for tool in tools if tool.name == move.name)
    return jsonschema.Draft202012Validator(schema).is_valid(move.arguments)


def writes(world: World, errand: Errand) -> list[int]:
    """Places in the way of the calls that change what the user sees."""
    state, places = copy.deepcopy(errand.start), list[int]()
    for place, move in enumerate(errand.way):
        before = copy.deepcopy(state)
        world.walk(state, [move])
        if not world.alike(before, state):
            places.append(place)
    return places


def unknown(world: World, errand: Errand, way: tuple[Move, ...]) -> set[tuple[str, str]]:
    """Words of the calls that nothing had told before they were made: (tool, word). Results worked out are among them."""
    tools = json.dumps([[tool.name, tool.description, tool.parameters] for tool in errand.tools], default=dict)
    told = f"{world.policy}\n{errand.request}\n{tools}"
    state, never = copy.deepcopy(errand.start), set[tuple[str, str]]()
    for move in way:
        never |= {(move.name, str(word)) for _, word in leaves(move.arguments) if str(word) not in told}
        told += json.dumps(world.walk(state, [move]), ensure_ascii=False)
    return never


@every_horizon
@every_world
def test_the_solver_passes_and_doing_nothing_does_not(kind: str, horizon: int) -> None:
    world = world_of(kind)
    assert len(doable(kind, horizon)) >= 8
    for errand in doable(kind, horizon):
        assert errand.horizon == horizon, errand.id
        assert passes(world, errand, errand.way), errand.id
        assert not passes(world, errand, ()), errand.id


@every_world
def test_what_cannot_be_done_wants_the_right_words_and_no_change(kind: str) -> None:
    world, seen = world_of(kind), set[str]()
    for errand in impossible(kind):
        seen |= IMPOSSIBLE & set(errand.tags)
        assert errand.answer, errand.id
        assert world.alike(world.goal(errand), errand.start)
        assert passes(world, errand, ())
        for words in ("", "DONE", "I did all of it."):
            assert not world.reached(errand, copy.deepcopy(errand.start), words)
    assert seen == IMPOSSIBLE


@every_world
def test_words_for_one_lack_do_not_pass_for_the_other(kind: str) -> None:
    world, wanted = world_of(kind), dict[str, str]()
    for errand in impossible(kind):
        (lack,) = IMPOSSIBLE & set(errand.tags)
        wanted[lack] = right_words(errand)
    for errand in impossible(kind):
        (other,) = IMPOSSIBLE - set(errand.tags)
        assert not world.reached(errand, copy.deepcopy(errand.start), wanted[other])


@every_world
def test_what_cannot_be_done_is_not_excused_by_its_words_once_something_is_changed(kind: str) -> None:
    world, tried = world_of(kind), 0
    for errand in doable(kind, 10):
        for place in writes(world, errand)[:1]:
            lacking = replace(errand, way=(), answer=("CANNOT",))
            tried += 1
            assert not world.reached(lacking, ended(world, errand, errand.way[: place + 1]), "CANNOT")
    assert tried


@every_horizon
@every_world
def test_every_call_of_the_way_is_on_offer_and_fits_its_schema(kind: str, horizon: int) -> None:
    for errand in doable(kind, horizon):
        names = [tool.name for tool in errand.tools]
        assert len(names) == len(set(names))
        assert {move.name for move in errand.way} <= set(names), errand.id
        assert all(fits(errand.tools, move) for move in errand.way), errand.id
        if horizon <= 5:
            assert set(names) - {move.name for move in errand.way}, "no distractor"


@every_horizon
@every_world
def test_no_call_of_the_way_can_be_left_out(kind: str, horizon: int) -> None:
    """Without it the goal is missed, or something is used that nobody told."""
    world = world_of(kind)
    for errand in doable(kind, horizon)[: max(1, 60 // horizon)]:
        before = unknown(world, errand, errand.way)
        for place in range(horizon):
            way = errand.way[:place] + errand.way[place + 1 :]
            needed = not passes(world, errand, way) or unknown(world, errand, way) - before
            assert needed, f"{errand.id}: call {place} {errand.way[place]} is idle"


@every_world
def test_the_solver_uses_no_id_that_nothing_told(kind: str) -> None:
    """A request that leaves out an id which no tool gives would measure luck. Amounts may be worked out."""
    world = world_of(kind)
    for horizon in HORIZONS[:-2]:
        for errand in doable(kind, horizon):
            never = {word for _, word in unknown(world, errand, errand.way) if not (word.isdigit() and len(word) <= 7)}
            assert not never - {"True", "False", "None"}, f"{errand.id}: {never}"


@every_horizon
@every_world
def test_one_character_of_an_id_makes_the_difference(kind: str, horizon: int) -> None:
    world, tried = world_of(kind), 0
    for errand in doable(kind, horizon)[: max(1, 60 // horizon)]:
        for place in writes(world, errand):
            move = errand.way[place]
            for path, word in leaves(move.arguments):
                if not isinstance(word, str) or not any(letter.isdigit() for letter in word):
                    continue
                spot = max(at for at, letter in enumerate(word) if letter.isdigit())
                wrong = word[:spot] + str((int(word[spot]) + 1) % 10) + word[spot + 1 :]
                other = Move(name=move.name, arguments=changed(move.arguments, path, wrong))
                if fits(errand.tools, other):
                    tried += 1
                    way = (*errand.way[:place], other, *errand.way[place + 1 :])
                    assert not passes(world, errand, way), f"{errand.id}: {other}"
    assert tried


@every_world
def test_look_alikes_lie_beside_what_is_meant(kind: str) -> None:
    """Ids in the state that differ from the right one in one character: acting on one of them as well is seen."""
    world, tried = world_of(kind), 0
    for errand in doable(kind, 5):
        texts = json.dumps(errand.start)
        words = {w for w in texts.replace("/", '"').split('"') if len(w) >= 5}
        words |= {str(word) for _, word in leaves(errand.start)} | _keys(errand.start)
        for place in writes(world, errand):
            move = errand.way[place]
            for path, word in leaves(move.arguments):
                for twin in sorted(words) if isinstance(word, str) and len(word) >= 5 else ():
                    if len(twin) == len(word) and sum(a != b for a, b in zip(twin, word, strict=True)) == 1:
                        extra = Move(name=move.name, arguments=changed(move.arguments, path, twin))
                        state = ended(world, errand, (*errand.way, extra))
                        if not world.alike(state, world.goal(errand)):
                            tried += 1
                            assert not world.reached(errand, state, right_words(errand))
    assert tried, "no errand has a look-alike that a tool would act on"


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in _keys(inner)}
    return {key for inner in value for key in _keys(inner)} if isinstance(value, list) else set()


@every_world
def test_one_more_change_than_asked_for_fails(kind: str) -> None:
    """The writing calls of all other errands, with their names and words, against this one's goal."""
    world, tried = world_of(kind), 0
    for errand in doable(kind, 5):
        for place in writes(world, errand):
            for path, word in leaves(errand.way[place].arguments):
                if isinstance(word, str):
                    extra = Move(
                        name=errand.way[place].name, arguments=changed(errand.way[place].arguments, path, word + "0")
                    )
                    if not fits(errand.tools, extra):
                        continue
                    state = ended(world, errand, (*errand.way, extra))
                    if not world.alike(state, world.goal(errand)):
                        tried += 1
                        assert not world.reached(errand, state, right_words(errand))
    assert tried


@every_world
def test_independent_changes_may_come_in_any_order(kind: str) -> None:
    """Two neighbouring changes, swapped: where neither uses what the other gave, the goal is the same."""
    world, tried = world_of(kind), 0
    for errand in doable(kind, 10):
        for place in range(9):
            way = (*errand.way[:place], errand.way[place + 1], errand.way[place], *errand.way[place + 2 :])
            given = json.dumps(world.walk(copy.deepcopy(errand.start), errand.way))
            if "error" in given or unknown(world, errand, way) - unknown(world, errand, errand.way):
                continue
            told = json.dumps(world.walk(copy.deepcopy(errand.start), way))
            if "error" not in told:
                tried += 1
                assert passes(world, errand, way), f"{errand.id}: {place}"
    assert tried


@every_world
def test_a_tool_that_says_no_changes_nothing(kind: str) -> None:
    world, refused = world_of(kind), 0
    for errand in (one for horizon in (3, 5, 10) for one in doable(kind, horizon)):
        state = copy.deepcopy(errand.start)
        for move in errand.way:
            tries = [
                Move(name=move.name, arguments=changed(move.arguments, path, f"{word}x"))
                for path, word in leaves(move.arguments)
                if isinstance(word, str)
            ]
            for attempt in (one for one in tries if fits(errand.tools, one)):
                before = copy.deepcopy(state)
                if _refused(world, copy.deepcopy(state), attempt):
                    refused += 1
                    assert _refused(world, state, attempt).strip()
                    assert world.alike(before, state)
            world.walk(state, [move])
    assert refused


def _refused(world: World, state: State, move: Move) -> str:
    try:
        world.call(state, move)
    except ToolError as error:
        return str(error)
    return ""


@every_world
def test_tools_that_fail_at_first_are_met_and_are_asked_again(kind: str) -> None:
    world, met = world_of(kind), 0
    for errand in (one for horizon in (3, 5, 10, 20) for one in doable(kind, horizon) if "recovery" in one.tags):
        given = world.walk(copy.deepcopy(errand.start), errand.way)
        assert any(isinstance(one, dict) and "error" in one for one in given), errand.id
        met += 1
    assert met


@every_world
def test_two_attempts_from_one_errand_share_nothing(kind: str) -> None:
    world = world_of(kind)
    for errand in doable(kind, 10):
        start = json.dumps(errand.start, sort_keys=True)
        first, second = copy.deepcopy(errand.start), copy.deepcopy(errand.start)
        for move in errand.way:
            arguments = json.dumps(move.arguments, sort_keys=True, default=dict)
            (given,) = world.walk(first, [move])
            kept = json.dumps(first, sort_keys=True)
            _spoil(given)
            assert json.dumps(first, sort_keys=True) == kept, f"what {move.name} gives is part of the state"
            assert json.dumps(move.arguments, sort_keys=True, default=dict) == arguments
        assert json.dumps(second, sort_keys=True) == start == json.dumps(errand.start, sort_keys=True)
        assert world.reached(errand, first, right_words(errand))


def _spoil(value: Any) -> None:
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _spoil(inner)
    if isinstance(value, dict | list):
        value.clear()


@every_world
def test_what_is_put_in_is_not_shared_with_the_state(kind: str) -> None:
    world = world_of(kind)
    for errand in doable(kind, 10):
        state = copy.deepcopy(errand.start)
        for move in errand.way:
            handed = copy.deepcopy(dict(move.arguments))
            world.walk(state, [Move(name=move.name, arguments=handed)])
            _spoil(handed)
        assert world.reached(errand, state, right_words(errand)), errand.id


@every_world
def test_states_and_what_tools_give_are_plain_json(kind: str) -> None:
    world = world_of(kind)
    for errand in (*doable(kind, 5), *doable(kind, 20), *impossible(kind)):
        assert json.loads(json.dumps(errand.start)) == errand.start
        state = copy.deepcopy(errand.start)
        given_back = world.walk(state, errand.way)
        assert json.loads(json.dumps(given_back)) == given_back
        assert json.loads(json.dumps(state)) == state


@every_world
def test_tools_have_strict_schemas_with_types_lists_and_objects(kind: str) -> None:
    tools = {tool.name: tool for horizon in HORIZONS for errand in errands(kind, horizon) for tool in errand.tools}
    assert 10 <= len(tools) <= 20
    deep = json.dumps([tool.parameters["properties"] for tool in tools.values()], default=dict)
    assert '"object"' in deep
    assert '"array"' in deep
    assert '"enum"' in deep
    for tool in tools.values():
        jsonschema.Draft202012Validator.check_schema(tool.parameters)
        assert tool.description
        assert len(json.dumps(tool.parameters, default=dict)) < 900, tool.name
        for schema in _objects(tool.parameters):
            assert schema["additionalProperties"] is False, tool.name
            assert set(schema["required"]) <= set(schema["properties"])


def _objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, Mapping):
        if schema.get("type") == "object":
            yield schema
        for inner in schema.values():
            yield from _objects(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _objects(inner)


@every_world
def test_a_wrong_typed_left_out_or_added_argument_does_not_fit(kind: str) -> None:
    for errand in (*doable(kind, 5), *doable(kind, 10)):
        for move in errand.way:
            schema: Any = next(tool.parameters for tool in errand.tools if tool.name == move.name)
            assert not fits(errand.tools, replace(move, arguments={**move.arguments, "surely_not": 1}))
            for name in schema["required"]:
                left = {key: value for key, value in move.arguments.items() if key != name}
                assert not fits(errand.tools, replace(move, arguments=left))
                for wrong in (None, [[]], {"surely_not": 1}):
                    assert not fits(errand.tools, replace(move, arguments={**move.arguments, name: wrong})), move


@every_world
def test_the_same_arguments_give_the_same_errands_whatever_the_hash_seed(kind: str) -> None:
    code = (
        "import hashlib;from evalrig.plugins import find;from evalrig.world import World;"
        f"print(hashlib.sha256(repr(find('worlds', {kind!r}, World, 't')().errands(10, 12, 3)).encode()).hexdigest())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


@every_world
def test_seeds_and_places_give_different_errands_with_ids_of_their_own(kind: str) -> None:
    world = world_of(kind)
    for horizon in (1, 5, 20):
        many = [one for seed in (0, 1, 2) for one in world.errands(horizon, 12, seed)]
        assert len({one.id for one in many}) == 36
        assert len({(one.request, json.dumps(one.start, sort_keys=True)) for one in many}) == 36
        assert world.errands(horizon, 7, 1) == world.errands(horizon, 12, 1)[:7]
    assert len({one.id for horizon in HORIZONS for one in errands(kind, horizon)}) == sum(
        len(errands(kind, horizon)) for horizon in HORIZONS
    )


@every_world
def test_errands_come_from_several_templates_and_say_what_is_hard(kind: str) -> None:
    many = world_of(kind).errands(10, 60, SEED)
    assert len({errand.cluster for errand in many}) >= 5
    tags = {tag for errand in many for tag in errand.tags}
    assert {"ids", "carry", "nested", "recovery", *IMPOSSIBLE} <= tags


@pytest.mark.parametrize("horizon", [40, 80])
@every_world
def test_long_errands_carry_something_over_twenty_calls(kind: str, horizon: int) -> None:
    """A word that one call gave, that nothing gave since, and that is used twenty or more calls later."""
    world = world_of(kind)
    for errand in (one for one in doable(kind, horizon) if "carry" in one.tags):
        given = [json.dumps(one) for one in world.walk(copy.deepcopy(errand.start), errand.way)]
        longest = 0
        for place, move in enumerate(errand.way):
            for _, word in leaves(move.arguments):
                told = [at for at in range(place) if isinstance(word, str) and len(word) >= 6 and word in given[at]]
                if told and word not in errand.request:
                    longest = max(longest, place - told[-1])
        assert longest >= 20, errand.id
    assert any("carry" in one.tags for one in doable(kind, horizon))


@every_world
def test_a_horizon_of_nothing_is_refused(kind: str) -> None:
    with pytest.raises(UsageError, match="horizon 0"):
        world_of(kind).errands(0, 1, 1)


@every_world
def test_prompts_fit_a_small_context(kind: str) -> None:
    """Policy, tools and request, and the solver's conversation, in characters: about 3.5 of them make a token."""
    world = world_of(kind)
    for horizon, most in ((5, 12_000), (10, 15_000), (20, 22_000)):
        for errand in doable(kind, horizon):
            tools = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in errand.tools]
            prompt = world.policy + errand.request + json.dumps(tools, default=dict)
            given = world.walk(copy.deepcopy(errand.start), errand.way)
            calls = json.dumps([[move.name, move.arguments] for move in errand.way], default=dict)
            assert len(prompt) + len(calls) + len(json.dumps(given)) <= most, errand.id


@every_world
@settings(max_examples=25, deadline=None)
@given(horizon=st.integers(1, 30), seed=st.integers(0, 2**40), index=st.integers(0, 12))
def test_any_seed_and_horizon_gives_an_errand_that_can_be_done(kind: str, horizon: int, seed: int, index: int) -> None:
    world = world_of(kind)
    errand = world.errands(horizon, index + 1, seed)[index]
    assert passes(world, errand, errand.way)
    if not IMPOSSIBLE & set(errand.tags):
        assert errand.horizon == horizon
        assert not passes(world, errand, errand.way[:-1])
