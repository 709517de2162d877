"""Teacher forcing: each step from the given history; running ahead is no departure, a cut turn is no agreement."""

import asyncio
import json
import random
from typing import Any

import pytest
from toys.chain_world import Chain
from toys.script import CHAIN, DONE, ERRAND, WAY, Script, acts

from evalrig.dialect import Dialect
from evalrig.distractors import choices
from evalrig.engine import Sampling
from evalrig.forced_steps import Stage, follow, stages, walked
from evalrig.steps import compared, fault
from evalrig.types import Completion, Message, Step, Tool, ToolCall

STAGES = stages(walked(CHAIN, ERRAND), ERRAND.tools)


def followed(*said: Completion, chosen: Any = None) -> tuple[Step, ...]:
    return asyncio.run(follow(Script(*said), STAGES, Dialect("native"), Sampling(max_tokens=9), chosen))[1]


def errors(*said: Completion) -> list[str]:
    return [step.error for step in followed(*said)]


def test_a_way_becomes_a_stage_for_every_act() -> None:
    assert [stage.due for stage in STAGES] == [((name, dict(given)),) for name, given in WAY] + [()]
    assert [len(stage.messages) for stage in STAGES] == [2, 4, 6, 8]
    assert STAGES[-1].text == "done"
    assert json.loads(STAGES[1].messages[-1].content) == {"look": WAY[1][1]["id"]}
    assert STAGES[1].messages[-1].tool_call_id == STAGES[1].messages[-2].tool_calls[0].id


def test_walking_leaves_the_errand_as_it_was() -> None:
    assert walked(CHAIN, ERRAND) == walked(CHAIN, ERRAND)
    assert not ERRAND.start["stamped"]


def test_the_right_acts_agree_and_each_error_stays_at_its_step() -> None:
    right = [acts(call) for call in WAY]
    assert errors(*right, DONE) == ["", "", "", ""]
    assert errors(right[0], acts(("lock", WAY[1][1])), right[2], DONE) == ["", "wrong_tool", "", ""]
    assert errors(DONE, right[1], right[2], right[2]) == ["gave_up", "", "", "went_on"]


def test_a_call_that_is_due_later_is_the_wrong_order() -> None:
    assert errors(acts(WAY[1]), acts(WAY[1]), acts(WAY[2]), DONE)[0] == "wrong_order"


def test_calls_that_run_ahead_along_the_way_agree() -> None:
    assert errors(acts(*WAY), acts(*WAY[1:]), acts(WAY[2]), DONE) == ["", "", "", ""]
    assert errors(acts(WAY[0], WAY[2]), acts(WAY[1]), acts(WAY[2]), DONE)[0] == "wrong_tool"


def test_truncation_agrees_with_nothing() -> None:
    """Pitfall 12: cut turns counted as agreement gave F1 = 1.000."""
    cut = Completion(text="", finish="length", message=Message(role="assistant", content=""))
    found = followed(cut)
    assert [step.error for step in found] == ["truncated"] * 4
    assert not any(step.stopped for step in found)


def test_some_steps_can_be_chosen() -> None:
    found = followed(acts(WAY[1]), DONE, chosen=[1, 3])
    assert [(step.error, step.stopped) for step in found] == [("", False), ("", True)]


def test_a_call_that_is_no_json_is_history_and_never_due() -> None:
    call = ToolCall(id="a", name="look", arguments="{")
    found = stages(
        (
            Message(role="user", content="Go."),
            Message(role="assistant", content="", tool_calls=(call,)),
            Message(role="assistant", content="Done."),
        ),
        (),
    )
    assert [stage.due for stage in found] == [()]
    assert found[0].messages[-1].tool_calls == (call,)


# ---- choices


@pytest.mark.parametrize("seed", range(20))
def test_one_call_is_right_and_three_are_wrong_each_in_its_way(seed: int) -> None:
    [errand] = Chain().errands(8, 1, seed)
    found = stages(walked(CHAIN, errand), errand.tools)
    for place, stage in enumerate(found[:-1]):
        calls = choices(found, place, random.Random(seed))
        assert len({(call.name, call.arguments) for call in calls}) == 4
        said = [compared((call,), "", stage.due, stage.tools).error for call in calls]
        assert said[:3] == ["", "wrong_id", "wrong_tool"], said
        assert said[3] == "wrong_id"
        wrong = [((call.name, json.loads(call.arguments)),) for call in calls[1:]]
        assert not any(other.due in wrong for other in found[place:]), "what is due later may be as good now"
        assert not fault(calls[:2], stage.tools), "a slipped id still fits the schema"
    assert choices(found, len(found) - 1, random.Random(seed)) == ()


def test_choices_are_the_same_in_every_variant() -> None:
    assert choices(STAGES, 0, random.Random("a")) == choices(STAGES, 0, random.Random("a"))
    assert choices(STAGES, 0, random.Random("a")) != choices(STAGES, 0, random.Random("b"))


def test_a_step_without_three_ways_to_be_wrong_is_left_out() -> None:
    lone = Tool(name="go", description="", parameters={"type": "object"})
    stage = Stage(messages=(), tools=(lone,), due=(("go", {}),))
    assert choices([stage], 0, random.Random(0)) == ()


def test_nested_arguments_slip_in_one_place() -> None:
    tool = Tool(name="put", description="", parameters={"type": "object"})
    given = {"lines": [{"sku": "AB-120934", "count": 12}], "to": {"id": "9f31c0a4"}}
    calls = choices([Stage(messages=(), tools=(tool,), due=(("put", given),))], 0, random.Random(1))
    for call in calls[1:]:
        step = compared((call,), "", [("put", given)], (tool,))
        assert (step.error, step.valid) == ("wrong_id", True)
