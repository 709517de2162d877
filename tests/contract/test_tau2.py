"""tau2 data with a scripted user: known actions pass, doing nothing fails where a write is due, attempts share nothing."""

import asyncio
import json
from functools import cache
from typing import Any

import pytest
from toys.script import Script, acts

from evalrig import fetch
from evalrig.errors import UsageError
from evalrig.simulation import SimulatedArena
from evalrig.steps import complaint
from evalrig.suite import Attempt
from evalrig.suites.tau2 import LABEL, Task, Tau2, Tau2Options
from evalrig.types import State, ToolCall
from evalrig.world import ToolError

BORN = {"write": {"airline": 30, "retail": 101}, "no_write": {"airline": 20, "retail": 9}}


@cache
def tau2(due: str) -> Tau2:
    """One process for all tests of a kind: it takes longer to start than to answer."""
    if absent := fetch.missing(Tau2.content):
        pytest.fail(f"{absent} not in the cache; run `evalrig fetch` before the tests")
    suite = Tau2("tau2", Tau2Options(due=due))
    suite.samples()
    return suite


async def played(arena: SimulatedArena, task: Task, count: int) -> bool:
    """An attempt that makes so many of the known actions; look-ups among them may find nothing."""
    assert arena.request() == task.words
    for name, arguments in task.calls[:count]:
        try:
            await arena.call(name, arguments)
        except ToolError:
            continue
    found = await arena.judge("done")
    await arena.close()
    return found.success


def digests(suite: Tau2) -> list[list[str]]:
    return [suite.child.ask_now({"ask": "digests", "attempt": "", "domain": name}) for name in suite.domains]


@pytest.mark.parametrize("due", BORN)
def test_tasks_by_whether_their_known_actions_write_each_labelled_as_no_tau2_bench_score(due: str) -> None:
    suite = tau2(due)
    samples = suite.samples()
    assert {domain: sum(sample.tags[0] == domain for sample in samples) for domain in BORN[due]} == BORN[due]
    assert all(sample.tags[1:] == (due, LABEL) for sample in samples)
    assert [metric.name for metric in suite.metrics] == ["success_not_a_tau2_bench_score"]
    assert all(part in fetch.cards()["tau2"].title for part in LABEL.split())
    for task in suite.tasks.values():
        for number, (name, arguments) in enumerate(task.calls):
            call = ToolCall(id=str(number), name=name, arguments=json.dumps(arguments))
            assert complaint(call, task.tools) == ("", "")


def test_what_nobody_can_do_is_left_out_by_rule_and_told() -> None:
    """The known answer of these makes a write that the tools themselves refuse."""
    suite = tau2("write")
    refusing = {"return_delivered_order_items": (12, 13), "exchange_delivered_order_items": (64, 105)}
    assert suite.left_out == {f"retail.{number}": name for name, numbers in refusing.items() for number in numbers}


@pytest.mark.parametrize("domain", ["airline", "retail"])
def test_known_actions_pass_and_none_of_them_does_not(domain: str) -> None:
    suite = tau2("write")
    chosen = [task for task in suite.tasks.values() if task.domain == domain][:: 10 if domain == "airline" else 30]
    before = digests(suite)

    async def tried() -> list[tuple[bool, bool]]:
        return [
            (await played(suite.arena(task), task, len(task.calls)), await played(suite.arena(task), task, 0))
            for task in chosen
        ]

    assert asyncio.run(tried()) == [(True, False)] * len(chosen)
    assert digests(suite) == before, "an attempt reached the shared database"
    assert all(begins == fresh for begins, fresh in before), "tables that copy their rows hold the same as the database"


def test_where_no_write_is_due_doing_nothing_passes_and_a_write_fails() -> None:
    suite = tau2("no_write")
    task = suite.tasks["retail.10"]

    async def both() -> tuple[bool, bool]:
        idle, busy = suite.arena(task), suite.arena(task)
        assert idle.request() == busy.request()
        await busy.call("modify_user_address", MOVED)
        return (await idle.judge("")).success, (await busy.judge("")).success

    assert asyncio.run(both()) == (True, False)


MOVED = {
    "user_id": "yusuf_rossi_9620", "address1": "1 Only Here", "address2": "", "city": "X", "state": "Y", "country": "USA", "zip": "1",
}  # fmt: skip


def test_two_attempts_share_no_row_and_what_is_no_tool_or_no_sound_argument_is_refused() -> None:
    suite = tau2("write")
    task = suite.tasks["retail.0"]

    async def both() -> list[str]:
        one, other = suite.arena(task), suite.arena(task)
        assert one.request() == other.request()
        await one.call("modify_user_address", MOVED)
        for name, arguments in (
            ("__class__", {}),
            ("use_tool", {"tool_name": "calculate"}),
            ("get_user_details", {"user_id": "__import__('os').getpid()"}),
            ("get_user_details", {"user_id": "yusuf_rossi_9620", "requestor": "user"}),
            ("calculate", {"expression": "9**9**9**9"}),
            ("calculate", {"expression": "__import__('os').getpid()"}),
        ):
            with pytest.raises(ToolError):
                await one.call(name, arguments)
        assert await one.call("calculate", {"expression": "(2 + 2) * 3"}) == "12.0"
        return [await arena.call("get_user_details", {"user_id": "yusuf_rossi_9620"}) for arena in (one, other)]

    seen = asyncio.run(both())
    assert "Only Here" in seen[0]
    assert "Only Here" not in seen[1]
    assert suite.child.starts == 1


def attempted(suite: Tau2, sample_id: str, engine: Script) -> Attempt:
    sample = next(sample for sample in suite.samples() if sample.id == sample_id)

    async def once() -> Attempt:
        await engine.start()
        return await suite.attempt(engine, sample, 0, None)

    return asyncio.run(once())


def test_an_attempt_is_told_the_policy_and_all_of_the_user_and_scored_by_the_database() -> None:
    suite = tau2("write")
    task = suite.tasks["retail.0"]
    engine = Script(*(acts((name, dict(arguments))) for name, arguments in task.calls), acts(content="Done."))
    found = attempted(suite, "retail.0", engine)
    assert (found.state, found.scores["success"], found.trajectory.failure) == (State.SCORED, 1.0, "")
    system, user = engine.asked[0].messages[:2]
    assert (system.role, user.role) == ("system", "user")
    assert task.policy in system.content
    assert "You are Yusuf Rossi" in user.content
    idle = attempted(suite, "retail.0", Script(acts(content="Done.")))
    assert (idle.scores["success"], idle.trajectory.failure) == (0.0, "gave_up")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"domains": ["telecom"]}, r"options\.domains: no domain 'telecom'"),
        ({"domains": []}, "at least one"),
        ({"due": "all"}, r"options\.due: 'all'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Tau2("t", Tau2Options(**options))
