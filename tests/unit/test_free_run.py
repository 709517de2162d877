"""Free runs: every end has its reason, errors come back to the model, and attempts share nothing."""

import asyncio
import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from toys.chain_world import TOOLS, Chain
from toys.script import CHAIN, DONE, ERRAND, WAY, Script, acts

from evalrig.arena import Arena, ErrandArena, Finding
from evalrig.dialect import Dialect
from evalrig.engine import Sampling
from evalrig.errors import EngineError
from evalrig.free_run import Limits, Ride, ride
from evalrig.types import Completion, Tool
from evalrig.world import Move, State, ToolError

NATIVE = Dialect("native")


def run(engine: Script, arena: Arena | None = None, **limits: int) -> Ride:
    opened = arena or ErrandArena(CHAIN, ERRAND)
    return asyncio.run(ride(engine, opened, NATIVE, Sampling(max_tokens=50), Limits(**{"steps": 11, **limits})))


def errors(taken: Ride) -> list[str]:
    return [step.error for step in taken.steps]


def test_the_shortest_way_succeeds_and_doing_nothing_does_not() -> None:
    found = run(Script(*(acts(call) for call in WAY), DONE))
    assert (found.end, found.success, errors(found)) == ("answered", True, [""] * 4)
    assert [message.role for message in found.messages] == ["system", "user", *["assistant", "tool"] * 3, "assistant"]
    nothing = run(Script(DONE))
    assert (nothing.end, nothing.success, nothing.detail) == ("answered", False, "the state is not the goal")
    silent = run(Script(*(acts(call) for call in WAY), acts(content="Ready.")))
    assert (silent.success, silent.detail) == (False, "the answer lacks what it must say")


def test_something_else_changed_is_no_success() -> None:
    more = ("lock", WAY[0][1])
    assert not run(Script(*(acts(call) for call in (*WAY, more)), DONE)).success


def test_parallel_calls_are_carried_out_in_their_order() -> None:
    found = run(Script(acts(*WAY), DONE))
    assert found.success
    assert [message.tool_call_id for message in found.messages if message.role == "tool"] == [
        "call_0",
        "call_1",
        "call_2",
    ]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (("look", "{"), "bad_json", "no JSON object"),
        (("lok", {"id": "a"}), "unknown_tool", "the tools are: lock, look, stamp"),
        (("look", {"id": "short"}), "schema", "does not match"),
        (("look", {"id": "00000000"}), "refused_call", "no id 00000000"),
    ],
)
def test_a_bad_call_comes_back_with_what_was_wrong_and_can_be_recovered_from(call: Any, error: str, words: str) -> None:
    engine = Script(acts(call), *(acts(each) for each in WAY), DONE)
    found = run(engine)
    assert (found.success, errors(found)) == (True, [error, "", "", "", ""])
    told = engine.asked[1].messages[-1]
    assert (told.role, told.tool_call_id) == ("tool", "call_0")
    assert words in json.loads(told.content)["error"]


def test_a_refusal_on_the_shortest_way_is_no_error_of_the_models() -> None:
    class Closed(Chain):
        def call(self, state: State, move: Move) -> Any:
            if move.name == "stamp" and not state["marks"].setdefault("tried", 0):
                state["marks"]["tried"] = 1
                raise ToolError("try again")
            return super().call(state, move)

    errand = replace(ERRAND, way=(*ERRAND.way, ERRAND.way[-1]))
    found = run(Script(*(acts(call) for call in (*WAY, WAY[-1])), DONE), ErrandArena(Closed(), errand))
    assert (found.success, errors(found)) == (True, [""] * 5)


def test_the_same_calls_with_the_same_results_are_a_loop() -> None:
    found = run(Script(acts(WAY[0])))
    assert (found.end, found.success, errors(found)) == ("loop", False, ["", "", "loop"])
    assert run(Script(acts(WAY[0])), repeats=5).end == "loop"


def test_a_limit_of_steps_ends_it() -> None:
    found = run(Script(*(acts(call) for call in WAY[:2] * 9)), steps=6)
    assert (found.end, len(found.steps), found.success) == ("step_limit", 6, False)


def test_a_turn_that_was_cut_is_truncated_and_its_call_is_not_made() -> None:
    """Pitfall 12."""
    cut = Completion(text="", finish="length", message=acts(WAY[0]).message)
    found = run(Script(cut))
    assert (found.end, errors(found)) == ("truncated", ["truncated"])
    assert [message.role for message in found.messages] == ["system", "user", "assistant"]


def test_a_limit_of_tokens_over_all_turns() -> None:
    assert run(Script(*(acts(call) for call in WAY), DONE), tokens=25).end == "truncated"
    assert run(Script(*(acts(call) for call in WAY), DONE), tokens=40).success


@pytest.mark.parametrize(
    "words",
    [
        "HTTP 400 The input (2610 tokens) is longer than the model's context length (2048 tokens).",
        "HTTP 400 Requested token count exceeds the model's maximum context length of 2048 tokens.",
        "HTTP 400 This model's maximum context length is 2048 tokens. However, your prompt contains",
        "HTTP 400 request (2610 tokens) exceeds the available context size (2048 tokens), try increasing it",
        "HTTP 400 Input length (1200 tokens) exceeds the maximum allowed length (1018 tokens).",
    ],
)
def test_a_conversation_that_outgrows_the_context_is_truncated(words: str) -> None:
    found = run(Script(acts(WAY[0]), words))
    assert (found.end, found.success, errors(found)) == ("truncated", False, ["", "truncated"])
    with pytest.raises(EngineError):
        run(Script(words))  # not even the request fits: the run file's fault, nobody's act


def test_an_engine_that_fails_is_no_end_of_the_models() -> None:
    """Pitfall 7: infrastructure is no score."""
    with pytest.raises(EngineError, match="HTTP 503"):
        run(Script(acts(WAY[0]), "script: HTTP 503"))


def test_a_call_left_in_the_text_ends_it_and_is_named() -> None:
    found = run(Script(acts(content='<tool_call>{"name": "look"}</tool_call>')))
    assert (found.end, errors(found)) == ("answered", ["parser_lost"])


class Mutating(Arena):
    """Everything it is given and gives is changed afterwards: what another attempt sees must not show it."""

    system = ""

    def __init__(self, way: list[Any]) -> None:
        self.way = way
        self.words: list[str | None] = ["Go.", "Go on.", None]

    def tools(self) -> tuple[Tool, ...]:
        return TOOLS[: len(self.words)]

    def request(self) -> str | None:
        return self.words.pop(0)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        assert isinstance(arguments, dict)
        self.way.append(dict(arguments))
        arguments["id"] = "changed"
        return "ok"

    async def judge(self, answer: str) -> Finding:
        return Finding(success=answer == "All done.", detail=str(len(self.way)))


def test_a_user_may_go_on_and_offer_other_tools() -> None:
    engine = Script(acts(WAY[0]), DONE, acts(WAY[1]), DONE)
    found = run(engine, Mutating([]))
    assert (found.success, found.detail, len(found.turns)) == (True, "2", 4)
    assert [len(chat.tools) for chat in engine.asked] == [2, 2, 1, 1]
    assert found.steps[2].said == json.dumps([{"arguments": dict(WAY[1][1]), "name": "look"}], separators=(",", ":"))


def test_attempts_in_flight_share_no_state() -> None:
    """Many at once on one errand, each stamping, of which one changes whatever it can reach."""

    class Grasping(Chain):
        def call(self, state: State, move: Move) -> Any:
            given = super().call(state, move)
            state["marks"].setdefault("arguments", []).append(move.arguments)
            state["marks"]["arguments"][0]["id"] = "seized"
            return given

        def alike(self, state: State, goal: State) -> bool:
            return state["stamped"] == goal["stamped"] and len(state["marks"]["arguments"]) == 3

    async def all_at_once() -> Sequence[Ride]:
        limits = Limits(steps=11)
        arenas = [ErrandArena(Grasping(), ERRAND) for _ in range(200)]
        scripts = [Script(*(acts(call) for call in WAY), DONE) for _ in arenas]
        pairs = zip(scripts, arenas, strict=True)
        return await asyncio.gather(*(ride(s, a, NATIVE, Sampling(max_tokens=9), limits) for s, a in pairs))

    before = copy.deepcopy(ERRAND)
    assert all(found.success for found in asyncio.run(all_at_once()))
    assert before == ERRAND
