"""Public sets: known answers pass by their owners' rules, doing nothing fails, attempts share nothing, a dead child costs nothing."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from toys.script import Script, acts

from evalrig import fetch
from evalrig.bfcl_entries import ANSWERED, CATEGORIES, MULTI_TURN, Entry, entries, schema
from evalrig.children import Child, Crashed, Lost
from evalrig.errors import RunError, UsageError
from evalrig.simulation import SimulatedArena
from evalrig.steps import unfit
from evalrig.suite import Attempt
from evalrig.suites.agentdojo import Agentdojo, AgentdojoOptions, Task
from evalrig.suites.bfcl import MORE, Bfcl, BfclOptions, gold
from evalrig.types import State
from evalrig.world import ToolError


def bfcl(*categories: str) -> Bfcl:
    if absent := fetch.missing(["bfcl", "mpmath"]):
        pytest.fail(f"{absent} not in the cache; run `evalrig fetch` before the tests")
    suite = Bfcl("bfcl", BfclOptions(categories=list(categories)))
    suite.samples()
    return suite


async def played(arena: SimulatedArena, calls: list[list[tuple[str, dict[str, Any]]]]) -> bool:
    """An attempt that makes these calls, turn by turn."""
    for turn in calls:
        assert arena.request()
        for name, arguments in turn:
            try:
                await arena._carried_out(name, arguments)
            except ToolError:
                continue
    assert arena.request() is None
    found = await arena.judge("done")
    await arena.close()
    return found.success


@pytest.mark.parametrize("category", MULTI_TURN)
def test_the_known_answers_of_bfcl_pass_and_doing_nothing_fails(category: str) -> None:
    suite = bfcl(category)

    async def all_of_them() -> tuple[int, int]:
        chosen = list(suite.entries.values())
        right = [await played(suite.arena(entry), gold(entry)) for entry in chosen]
        idle = [await played(suite.arena(entry), [[] for _ in entry.truth]) for entry in chosen]
        return sum(right), sum(idle)

    assert asyncio.run(all_of_them()) == (200, 0)
    assert suite.child.starts == 1


def test_one_known_answer_uses_a_function_that_is_still_held_back() -> None:
    """Upstream's own flaw, told in the docs: nobody can pass that entry."""
    suite = bfcl(*MULTI_TURN)
    early = {
        entry.id
        for entry in suite.entries.values()
        for turn, calls in enumerate(gold(entry))
        if not {name for name, _ in calls} <= {tool.name for tool in entry.tools(turn)}
    }
    assert early == {"multi_turn_miss_func_49"}


def first(suite: Bfcl, service: str = "GorillaFileSystem") -> Entry:
    return next(entry for entry in suite.entries.values() if service in entry.raw["involved_classes"])


def test_two_attempts_at_once_share_nothing() -> None:
    suite = bfcl("multi_turn_base")
    entry = first(suite)

    async def both() -> list[str]:
        one, other = suite.arena(entry), suite.arena(entry)
        assert one.request() == other.request()
        await one.call("touch", {"file_name": "only_here.txt"})
        return [await arena.call("ls", {"a": True}) for arena in (one, other)]

    seen = asyncio.run(both())
    assert "only_here.txt" in seen[0]
    assert "only_here.txt" not in seen[1]


def test_attempts_interleaved_call_by_call_come_out_as_alone() -> None:
    suite = bfcl("multi_turn_base")
    chosen = list(suite.entries.values())[:24]

    async def all_at_once() -> list[bool]:
        return await asyncio.gather(*(played(suite.arena(entry), gold(entry)) for entry in chosen for _ in range(2)))

    assert all(asyncio.run(all_at_once()))


def test_a_killed_child_costs_no_attempt_its_state() -> None:
    suite = bfcl("multi_turn_base")
    entry = first(suite)

    async def through_a_kill() -> tuple[str, bool]:
        arena = suite.arena(entry)
        assert arena.request()
        await arena.call("touch", {"file_name": "kept.txt"})
        os.killpg(suite.child.pid, signal.SIGKILL)
        seen = await arena.call("ls", {"a": True})
        calls = gold(entry)
        other = suite.arena(entry)
        for number, turn in enumerate(calls):
            assert other.request()
            for name, arguments in turn:
                await other.call(name, arguments)
            if number == 0:
                os.killpg(suite.child.pid, signal.SIGKILL)
        return seen, (await other.judge("")).success

    seen, success = asyncio.run(through_a_kill())
    assert "kept.txt" in seen
    assert success
    assert suite.child.starts == 3


def test_a_call_that_never_ends_is_lost_and_no_score() -> None:
    suite = bfcl("multi_turn_base")
    suite._child = Child("bfcl_side", [fetch.folder_of(name) for name in suite.content], seconds=0.5)
    entry = first(suite, "MathAPI")

    async def endless() -> str:
        arena, other = suite.arena(entry), suite.arena(entry)
        assert arena.request()
        assert other.request()
        assert "result" in await other.call("add", {"a": 1, "b": 2})
        with pytest.raises(Lost, match="no answer within"):
            await arena.call("logarithm", {"value": 7, "base": 3, "precision": 10**8})
        return await other.call("add", {"a": 2, "b": 3})

    assert "5" in asyncio.run(endless())


HOSTILE = ("__import__('os').system('touch owned')", "x'); import os; os._exit(1) #", "ls()", "{0.__class__}")


@pytest.mark.parametrize("text", HOSTILE)
def test_arguments_stay_strings(text: str) -> None:
    suite = bfcl("multi_turn_base")
    entry = first(suite)

    async def echoed() -> str:
        arena = suite.arena(entry)
        assert arena.request()
        said = await arena.call("echo", {"content": text})
        await arena.judge("")
        return said

    assert text in asyncio.run(echoed())
    assert suite.child.starts == 1


@pytest.mark.parametrize("name", ["__class__", "_load_scenario", "eval", "exit", "turns", "ls()"])
def test_what_is_no_tool_on_offer_is_refused_by_the_child_itself(name: str) -> None:
    suite = bfcl("multi_turn_base")
    entry = first(suite)

    async def asked() -> Any:
        arena = suite.arena(entry)
        assert arena.request()
        with pytest.raises(ToolError):
            await arena.call(name, {})
        await arena.call("pwd", {})
        return await suite.child.ask({"ask": "call", "attempt": arena.name, "turn": 0, "name": name, "arguments": {}})

    assert "no tool" in asyncio.run(asked())["refused"]


def test_a_function_is_held_back_until_its_turn() -> None:
    suite = bfcl("multi_turn_miss_func")
    for entry in suite.entries.values():
        arena = suite.arena(entry)
        for turn in range(len(arena.turns)):
            words, names = arena.request(), {tool.name for tool in arena.tools()}
            for begin, held in entry.held_back.items():
                assert set(held).isdisjoint(names) == (turn < begin)
                assert (words == MORE) == (turn == begin)


def test_words_of_bfcl_become_json_schema() -> None:
    own = {
        "type": "dict",
        "properties": {
            "type": {"type": "float", "description": "d", "optional": True},
            "pair": {"type": "tuple", "items": {"type": "any"}},
        },
        "required": ["type"],
    }
    assert schema(own) == {
        "type": "object",
        "properties": {"type": {"type": "number", "description": "d"}, "pair": {"type": "array", "items": {}}},
        "required": ["type"],
    }


def test_every_category_gives_samples_with_tools_that_are_schemas() -> None:
    suite = Bfcl("bfcl", BfclOptions(categories=list(CATEGORIES)))
    samples = suite.samples()
    assert len(samples) == 800 + 400 + 600 + 258 + 1053 + 16 + 24 + 240 + 884 + 16
    assert len({sample.id for sample in samples}) == len(samples)
    assert len({sample.cluster for sample in samples if sample.id.startswith("multi_turn")}) == 200
    offers = {tuple(tool.name for tool in entry.tools()): entry.tools() for entry in suite.entries.values()}
    known = {json.dumps(tool.parameters): tool for tools in offers.values() for tool in tools}
    assert not any(unfit([tool]) for tool in list(known.values())[::20])
    assert all(len(set(names)) == len(names) for names in offers)
    assert all(re.fullmatch(r"[\w-]{1,64}", name) for names in offers for name in names)


def right(entry: Entry) -> list[dict[str, Any]]:
    """A first allowed value for each argument that must be given."""
    return [{name.replace(".", "_"): chosen(allowed)} for each in entry.truth for name, allowed in each.items()]


def chosen(allowed: dict[str, list[Any]]) -> dict[str, Any]:
    pairs = ((key, values[0]) for key, values in allowed.items() if values and "" not in values)
    return {key: chosen(value) if isinstance(value, dict) else value for key, value in pairs}


@pytest.mark.parametrize(
    ("category", "least"), [("simple_python", 397), ("parallel_multiple", 198), ("live_simple", 250)]
)
def test_allowed_values_pass_a_single_turn_and_another_function_does_not(category: str, least: int) -> None:
    suite = bfcl(category)

    def judged(entry: Entry, calls: list[dict[str, Any]]) -> bool:
        question = {
            "ask": "single", "attempt": "", "functions": entry.functions, "calls": calls, "allowed": entry.truth,
            "category": entry.category,
        }  # fmt: skip
        return suite.child.ask_now(question)["success"]

    rows = list(suite.entries.values())
    assert category in ANSWERED
    assert sum(judged(entry, right(entry)) for entry in rows) >= least
    assert not any(judged(entry, [{"another": {}} for _ in entry.truth]) for entry in rows)


def agentdojo(*environments: str) -> Agentdojo:
    if absent := fetch.missing(Agentdojo.content):
        pytest.fail(f"{absent} not in the cache; run `evalrig fetch` before the tests")
    suite = Agentdojo("agentdojo", AgentdojoOptions(environments=list(environments)))
    suite.samples()
    return suite


LAX = {f"banking.user_task_{number}" for number in (5, 6, 8, 9, 10)}
"""Upstream's checks of these find what they look for in the environment as it begins."""


@pytest.mark.parametrize(("environment", "count"), [("workspace", 40), ("travel", 20), ("banking", 16), ("slack", 21)])
def test_the_known_answers_of_agentdojo_pass_and_doing_nothing_fails(environment: str, count: int) -> None:
    suite = agentdojo(environment)

    async def tried(task: Task, act: bool) -> bool:
        arena = suite.arena(task)
        assert arena.request() == task.prompt
        if not act:
            return (await arena.judge("")).success
        await arena._play()
        known = suite.gold(arena)
        for name, arguments in known["calls"]:
            await arena.call(name, arguments)
        found = await arena.judge(known["answer"])
        await arena.close()
        return found.success

    async def all_of_them() -> tuple[int, set[str]]:
        right = [await tried(task, True) for task in suite.tasks.values()]
        return sum(right), {sample for sample, task in suite.tasks.items() if await tried(task, False)}

    passed, idle = asyncio.run(all_of_them())
    assert passed == len(suite.tasks) == count
    assert idle == {sample for sample in LAX if sample.startswith(environment)}


def test_environments_of_two_attempts_share_nothing_and_a_tool_may_refuse() -> None:
    suite = agentdojo("banking")
    task = suite.tasks["banking.user_task_0"]

    async def both() -> list[str]:
        one, other = suite.arena(task), suite.arena(task)
        assert one.request() == other.request()
        with pytest.raises(ToolError, match="ValidationError"):
            await one.call("send_money", {"recipient": 5})
        with pytest.raises(ToolError, match="no tool"):
            await one.call("__class__", {})
        await one.call("update_password", {"password": "__import__('os').getpid()"})
        await one.call("update_user_info", {"first_name": "Only Here"})
        return [await arena.call("get_user_info", {}) for arena in (one, other)]

    seen = asyncio.run(both())
    assert "Only Here" in seen[0]
    assert "Only Here" not in seen[1]


def test_a_category_with_a_typing_error_is_refused() -> None:
    with pytest.raises(UsageError, match=r"suites\.b\.options\.categories: no category 'multi_turn'; known: "):
        Bfcl("b", BfclOptions(categories=["multi_turn"]))


def test_a_child_that_cannot_start_says_why(tmp_path: Any) -> None:
    with pytest.raises(RunError, match="No module named 'bfcl_eval'"):
        asyncio.run(Child("bfcl_side", [tmp_path]).ask({"ask": "open", "attempt": "a"}))


def test_the_child_sees_neither_our_packages_nor_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not for others")
    suite = bfcl("multi_turn_base")
    suite.child.ask_now({"ask": "close", "attempt": "none"})
    with open(f"/proc/{suite.child.pid}/environ", "rb") as file:  # noqa: PTH123
        assert b"OPENAI_API_KEY" not in file.read()
    with open(f"/proc/{suite.child.pid}/maps", encoding="utf-8") as file:  # noqa: PTH123
        assert "site-packages" not in file.read()


def test_files_that_are_not_as_pinned_are_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="not in the cache"):
        fetch.folder_of("mpmath")
    for file in fetch.cards()["mpmath"].files:
        place = fetch.cards()["mpmath"].place(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"x" * file.size)
    assert not fetch.missing(["mpmath"])
    with pytest.raises(UsageError, match="not what its card says"):
        fetch.folder_of("mpmath")


def test_entries_are_read_in_the_order_of_their_file() -> None:
    found = [entry.id for entry in entries(fetch.folder_of("bfcl"), "multi_turn_base")]
    assert found == [f"multi_turn_base_{number}" for number in range(200)]


class Knowing(Script):
    """Makes the known answer's calls, several of a turn at once, then says the last words."""

    def __init__(self, calls: list[list[tuple[str, dict[str, Any]]]], words: str = "Done.") -> None:
        said = [part for turn in calls for part in ([acts(*turn)] if turn else []) + [acts(content=words)]]
        super().__init__(*said)


def attempted(suite: Bfcl | Agentdojo, sample_id: str, engine: Script) -> Attempt:
    sample = next(sample for sample in suite.samples() if sample.id == sample_id)

    async def once() -> Attempt:
        await engine.start()
        return await suite.attempt(engine, sample, 0, None)

    return asyncio.run(once())


def test_an_attempt_at_a_conversation_succeeds_with_the_known_answer_and_names_how_it_failed_without() -> None:
    suite = bfcl("multi_turn_base")
    calls = gold(suite.entries["multi_turn_base_0"])
    found = attempted(suite, "multi_turn_base_0", Knowing(calls))
    assert (found.state, found.scores["success"], found.trajectory.failure) == (State.SCORED, 1.0, "")
    assert len(found.trajectory.steps) == 2 * len(calls)
    idle = attempted(suite, "multi_turn_base_0", Script(acts(content="Done.")))
    assert (idle.scores["success"], idle.trajectory.failure) == (0.0, "gave_up")
    short = attempted(suite, "multi_turn_base_0", Knowing([calls[0], *([] for _ in calls[1:])]))
    assert (short.scores["success"], short.trajectory.failure) == (0.0, "missed")


def test_a_request_takes_twenty_turns_with_calls_and_no_more() -> None:
    suite = bfcl("multi_turn_base")
    endless = Script(*(acts(("echo", {"content": str(number)})) for number in range(40)))
    found = attempted(suite, "multi_turn_base_0", endless)
    assert (found.state, found.trajectory.failure) == (State.TRUNCATED, "step_limit")
    assert len(found.trajectory.steps) == 21


def test_a_service_lost_twice_over_one_call_is_infra() -> None:
    suite = bfcl("multi_turn_base")
    suite._child = Child("bfcl_side", [fetch.folder_of(name) for name in suite.content], seconds=0.5)
    entry = first(suite, "MathAPI")
    call = ("logarithm", {"value": 7, "base": 3, "precision": 10**8})
    found = attempted(suite, entry.id, Script(acts(call)))
    assert found.state is State.INFRA
    assert not found.scores
    assert "lost twice" in found.trajectory.error


def breaking(monkeypatch: pytest.MonkeyPatch, suite: Bfcl | Agentdojo, ask: str) -> None:
    """The third party's own check raises, in the child, as it would itself: over a question that it cannot read."""
    whole = suite.child.ask

    async def asked(question: Mapping[str, Any]) -> Any:
        if question["ask"] == ask:
            question = {
                key: value for key, value in question.items() if key not in ("answer", "functions", "arguments")
            }
        return await whole(question)

    monkeypatch.setattr(suite.child, "ask", asked)


@pytest.mark.parametrize("ask", ["judge", "call"])
def test_a_check_that_raises_costs_one_attempt_its_score_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    suite = agentdojo("banking")
    breaking(monkeypatch, suite, ask)
    found = attempted(suite, "banking.user_task_0", Script(acts(("get_balance", {})), acts(content="Done.")))
    assert (found.state, found.scores) == (State.UNSCORED, {})
    assert "KeyError" in found.trajectory.error
    assert suite.child.starts == 1, "the others go on in the same process"


def test_a_single_turn_over_which_the_check_raises_is_unscored(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = bfcl("simple_python")
    breaking(monkeypatch, suite, "single")
    found = attempted(suite, "simple_python_0", Script(acts(("calculate_triangle_area", {"base": 10, "height": 5}))))
    assert (found.state, found.scores) == (State.UNSCORED, {})
    assert "KeyError" in found.trajectory.error


def test_a_crash_that_every_attempt_would_meet_ends_the_run() -> None:
    suite = agentdojo("banking")
    with pytest.raises(RunError, match="KeyError") as caught:
        suite.child.ask_now({"ask": "open", "attempt": "a", "suite": "nowhere", "task": "x"})
    assert not isinstance(caught.value, Crashed)


SINGLE = (
    ("simple_python_0", [("calculate_triangle_area", {"base": 10, "height": 5})], ""),
    ("simple_python_0", [("calculate_triangle_area", {"base": 10, "height": 6})], "wrong_arguments"),
    ("simple_python_0", [("calculate_triangle_area", {"base": "10", "height": 5})], "schema"),
    ("simple_python_0", [("calculate_triangle_area", "{base: 10}")], "bad_json"),
    ("simple_python_0", [("area", {"base": 10})], "unknown_tool"),
    ("simple_python_0", [], "gave_up"),
    ("irrelevance_0", [], ""),
    ("irrelevance_0", [("determine_body_mass_index", {"weight": 70, "height": 1.7})], "went_on"),
)


@pytest.mark.parametrize(("sample", "calls", "failure"), SINGLE)
def test_a_single_turn_is_scored_and_its_failure_named(sample: str, calls: list[Any], failure: str) -> None:
    suite = bfcl("simple_python", "irrelevance")
    found = attempted(suite, sample, Script(acts(*calls, content="" if calls else "I cannot.")))
    assert found.trajectory.failure == failure
    assert found.scores == {"success": float(not failure)}


def test_a_single_turn_that_was_cut_is_truncated() -> None:
    suite = bfcl("simple_python")
    cut = replace(acts(content="Let me see"), finish="length")
    found = attempted(suite, "simple_python_0", Script(cut))
    assert (found.state, found.scores, found.trajectory.failure) == (State.TRUNCATED, {}, "truncated")


def test_an_attempt_at_a_user_task_succeeds_with_the_known_answer() -> None:
    suite = agentdojo("banking")
    arena = suite.arena(suite.tasks["banking.user_task_0"])
    asyncio.run(arena._play())
    known = suite.gold(arena)
    found = attempted(
        suite, "banking.user_task_0", Knowing([[tuple(call) for call in known["calls"]]], known["answer"])
    )
    assert (found.state, found.scores["success"], found.trajectory.failure) == (State.SCORED, 1.0, "")
    idle = attempted(suite, "banking.user_task_0", Script(acts(content="Done.")))
    assert (idle.scores["success"], idle.trajectory.failure) == (0.0, "gave_up")
