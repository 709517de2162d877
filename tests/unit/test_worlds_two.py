"""What the pipeline and the store of tables must refuse, and which other ways lead to the same end."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.errands import Composed, Draw, Part
from evalrig.world import Move, State, ToolError
from evalrig.worlds.pipeline import Pipeline
from evalrig.worlds.tables import Tables
from evalrig.worlds.tables.acts import transaction_of

Maker = Callable[[Draw, State], Part]


def part_of(world: Composed, kind: str, cost: int) -> tuple[State, Part]:
    """One part by itself, in a state that holds nothing else."""
    state = world.empty()
    make = next(maker.make for maker in world.makers if (maker.kind, maker.cost) == (kind, cost))
    return state, make(Draw("one"), state)


def done(world: Composed, start: State, moves: list[Move] | tuple[Move, ...]) -> State:
    state = copy.deepcopy(start)
    for move in moves:
        world.call(state, move)
    return state


def call(world: Composed, state: State, tool: str, **arguments: Any) -> Any:
    return world.call(state, Move(name=tool, arguments=arguments))


def cells(**values: Any) -> list[dict[str, Any]]:
    return [{"column": name, "value": value} for name, value in values.items()]


def test_each_part_needs_as_many_calls_as_it_says() -> None:
    for world in (Pipeline(), Tables()):
        for maker in world.makers:
            assert len(maker.make(Draw("count"), world.empty()).moves) == maker.cost, maker.kind


class TestPipeline:
    """Stages, approvals, needs."""

    def test_no_stage_is_skipped_and_nothing_untested_is_deployed(self) -> None:
        world = Pipeline()
        start, part = part_of(world, "releasing", 6)
        for left_out, why in (("run_tests", "not tested"), ("deploy_build", "staging first")):
            state = copy.deepcopy(start)
            place = [move.name for move in part.moves].index(left_out)
            with pytest.raises(ToolError, match=why):
                done(world, state, part.moves[:place] + part.moves[place + 1 :])

    def test_an_approval_counts_for_the_build_that_it_was_given_for(self) -> None:
        world = Pipeline()
        state, part = part_of(world, "releasing", 6)
        state["approvals"]["ap-other"] = "b-other"
        state = done(world, state, part.moves[:-1])
        last = part.moves[-1].arguments
        for target in ({"stage": "production"}, {"stage": "production", "approval": "ap-other"}):
            with pytest.raises(ToolError, match="needs an approval"):
                call(world, state, "deploy_build", build=last["build"], target=target)
        call(world, state, "deploy_build", **last)

    def test_only_the_approver_approves(self) -> None:
        world = Pipeline()
        start, part = part_of(world, "releasing", 6)
        place = [move.name for move in part.moves].index("request_approval")
        state = done(world, start, part.moves[:place])
        asked = part.moves[place].arguments
        other = "y.tanaka" if asked["approver"] != "y.tanaka" else "l.silva"
        with pytest.raises(ToolError, match="does not approve"):
            call(world, state, "request_approval", build=asked["build"], approver=other)

    def test_what_a_service_needs_comes_first(self) -> None:
        world = Pipeline()
        start, part = part_of(world, "releasing_both", 13)
        own = part.moves[-1].arguments["build"]
        service = part.moves[0].arguments["service"]
        mine = [
            move
            for move in part.moves
            if move.arguments.get("build") == own or move.arguments.get("service") == service
        ]
        state = copy.deepcopy(start)
        given = world.walk(state, mine)
        assert "needs the head of" in str(given)
        assert all(on["build"] != own for on in state["stages"][service].values())

    def test_a_restarted_build_must_be_tested_again(self) -> None:
        world = Pipeline()
        start, part = part_of(world, "releasing", 6)
        state = done(world, start, part.moves[:-1])
        call(world, state, "restart_build", build=part.moves[-1].arguments["build"])
        with pytest.raises(ToolError, match="not tested"):
            done(world, state, part.moves[-1:])

    def test_builds_of_other_commits_and_twins_are_seen_as_changes(self) -> None:
        world = Pipeline()
        start, part = part_of(world, "rebuilding", 4)
        service = part.moves[0].arguments["service"]
        twin = start["services"][service]["previous"]
        with pytest.raises(ToolError, match="stale"):
            call(world, copy.deepcopy(start), "start_build", service=service, commit=twin)
        goal = copy.deepcopy(start)
        world.walk(goal, part.moves)
        state = copy.deepcopy(start)
        wrong = [
            Move(name=move.name, arguments={**move.arguments, "commit": twin}) if move.name == "start_build" else move
            for move in part.moves
        ]
        given = world.walk(state, wrong)
        assert "built before" in str(given[-1])
        assert not world.alike(state, goal)

    def test_independent_releases_may_be_interleaved(self) -> None:
        world, draw = Pipeline(), Draw("two")
        state = world.empty()
        make = next(maker.make for maker in world.makers if maker.cost == 8)
        one, two = make(draw, state), make(draw, state)
        mixed = [move for pair in zip(one.moves, two.moves, strict=True) for move in pair]
        first, second = copy.deepcopy(state), copy.deepcopy(state)
        world.walk(first, [*one.moves, *two.moves])
        world.walk(second, mixed)
        assert world.alike(first, second)
        assert not world.alike(first, state)


def store() -> State:
    """Two tables, one of which refers to the other."""
    state = Tables().empty()
    column = {"type": "text", "refers_to": "", "unique": False, "note": ""}
    state["tables"]["a_1"] = {
        "columns": {"code": {**column, "unique": True}, "level": {**column, "type": "number"}},
        "rows": {"r1": {"code": "x", "level": 1}, "r2": {"code": "y", "level": 5}, "r3": {"level": 9}},
        "guarded": False,
    }
    state["tables"]["b_1"] = {
        "columns": {"a": {**column, "refers_to": "a_1"}, "on": {**column, "type": "flag"}},
        "rows": {"q1": {"a": "r1", "on": True}},
        "guarded": False,
    }
    return state


def where(match: str, *conditions: tuple[str, str, Any]) -> dict[str, Any]:
    return {
        "match": match,
        "conditions": [dict(zip(("column", "test", "value"), one, strict=True)) for one in conditions],
    }


def _writes() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    id, level = st.sampled_from(["r1", "r2", "r3", "r4", "q1", "q2"]), st.integers(0, 9)
    table = st.sampled_from(["a_1", "b_1"])
    some = st.one_of(
        st.builds(lambda code, n: cells(code=code, level=n), st.sampled_from("xyz"), level),
        st.builds(lambda a: cells(a=a), id),
    )
    chosen = st.builds(lambda n, test: where("all", ("level", test, n)), level, st.sampled_from(["above", "below"]))
    opened = table.map(lambda name: {"transaction": transaction_of(name)})

    def of(tool: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
        return st.tuples(st.just(tool), st.fixed_dictionaries(arguments))

    return st.one_of(
        of("insert_row", table=table, id=id, cells=some),
        of("update_row", table=table, id=id, cells=some),
        of("update_rows", table=table, where=chosen, cells=some),
        of("delete_row", table=table, id=id),
        of("delete_rows", table=table, where=chosen),
        of("begin", table=table),
        *(st.tuples(st.just(tool), opened) for tool in ("commit", "roll_back")),
    )


class TestTables:
    """Conditions, constraints, transactions."""

    @pytest.mark.parametrize(
        ("condition", "ids"),
        [
            (where("all", ("level", "above", 1), ("level", "below", 9)), ["r2"]),
            (where("any", ("level", "below", 2), ("id", "equal", "r3")), ["r1", "r3"]),
            (where("all", ("code", "unequal", "x")), ["r2"]),
        ],
    )
    def test_conditions_choose_rows_and_an_empty_cell_meets_none(self, condition: Any, ids: list[str]) -> None:
        rows = call(Tables(), store(), "select_rows", table="a_1", where=condition)["rows"]
        assert [row["id"] for row in rows] == ids

    @pytest.mark.parametrize(
        ("tool", "arguments", "why"),
        [
            ("select_rows", {"table": "a_1", "where": where("all", ("code", "above", "x"))}, "only numbers"),
            ("select_rows", {"table": "a_1", "where": where("all", ("level", "equal", True))}, "takes a number"),
            ("insert_row", {"table": "a_1", "id": "r1", "cells": cells(level=1)}, "there already"),
            ("insert_row", {"table": "a_1", "id": "r4", "cells": cells(code="x")}, "is taken; the store proposes x-"),
            ("insert_row", {"table": "a_1", "id": "r4", "cells": cells(level="1")}, "takes a number"),
            ("insert_row", {"table": "a_1", "id": "r4", "cells": cells(levels=1)}, "no column levels"),
            ("insert_row", {"table": "b_1", "id": "q2", "cells": cells(a="r9")}, "has no row r9"),
            ("update_row", {"table": "a_1", "id": "r2", "cells": cells(id="r9")}, "does not change"),
            (
                "update_rows",
                {"table": "a_1", "where": where("all", ("level", "above", 0)), "cells": cells(code="z")},
                "taken",
            ),
            ("delete_row", {"table": "a_1", "id": "r1"}, "row q1 of b_1 refers"),
            ("delete_rows", {"table": "a_1", "where": where("all", ("level", "above", 0))}, "row q1 of b_1 refers"),
            ("create_table", {"table": "a_1", "columns": [{"name": "n", "type": "text"}]}, "already"),
            (
                "create_table",
                {"table": "c", "columns": [{"name": "n", "type": "text", "refers_to": "d"}]},
                "no table d",
            ),
            ("sum_column", {"table": "a_1", "column": "code"}, "no column code of numbers"),
        ],
    )
    def test_what_breaks_a_constraint_is_refused_and_changes_nothing(self, tool: str, arguments: Any, why: str) -> None:
        state = store()
        with pytest.raises(ToolError, match=why):
            call(Tables(), state, tool, **arguments)
        assert state == store()

    def test_of_several_rows_all_are_inserted_or_none(self) -> None:
        state = store()
        rows = [{"id": "r4", "cells": cells(code="n")}, {"id": "r5", "cells": cells(code="n")}]
        with pytest.raises(ToolError, match="taken"):
            call(Tables(), state, "insert_rows", table="a_1", rows=rows)
        assert state == store()

    def test_a_guarded_table_is_written_only_in_its_own_transaction(self) -> None:
        world, state = Tables(), store()
        state["tables"]["a_1"]["guarded"] = True
        call(world, state, "begin", table="b_1")
        with pytest.raises(ToolError, match="only in a transaction"):
            call(world, state, "update_row", table="a_1", id="r1", cells=cells(level=3))

    def test_rolling_back_leaves_everything_as_it_was(self) -> None:
        world, state = Tables(), store()
        opened = call(world, state, "begin", table="a_1")["transaction"]
        call(world, state, "update_row", table="a_1", id="r1", cells=cells(level=3))
        call(world, state, "delete_row", table="a_1", id="r3")
        call(world, state, "roll_back", transaction=opened)
        assert state == store()

    def test_rolling_back_leaves_nothing_that_refers_to_nowhere(self) -> None:
        world, state = Tables(), store()
        opened = call(world, state, "begin", table="a_1")["transaction"]
        call(world, state, "insert_row", table="a_1", id="r4", cells=cells(level=3))
        call(world, state, "insert_row", table="b_1", id="q4", cells=cells(a="r4"))
        with pytest.raises(ToolError, match="row q4 of b_1 refers to row r4"):
            call(world, state, "roll_back", transaction=opened)

    def test_what_is_not_committed_does_not_count(self) -> None:
        world = Tables()
        start, part = part_of(world, "transacting", 5)
        kept, left_open = done(world, start, part.moves), done(world, start, part.moves[:-1])
        assert not world.alike(kept, left_open)

    def test_a_row_may_be_replaced_instead_of_updated(self) -> None:
        """The same end, and the same receipt."""
        world = Tables()
        start, part = part_of(world, "retrying", 2)
        start["busy"] = {}
        update = part.moves[0].arguments
        row = start["tables"][update["table"]]["rows"][update["id"]]
        state = copy.deepcopy(start)
        call(world, state, "delete_row", table=update["table"], id=update["id"])
        new = {**row, "code": update["cells"][0]["value"]}
        inserted = call(world, state, "insert_row", table=update["table"], id=update["id"], cells=cells(**new))
        updated = call(world, other := copy.deepcopy(start), "update_row", **update)
        assert inserted["receipt"] == updated["receipt"], "a report on it would tell the ways apart"
        assert world.alike(state, other)

    def test_rows_that_get_a_code_each_cannot_be_replaced_at_once(self) -> None:
        """Deleting and inserting all of them would be a shorter way than the one that is counted as shortest."""
        world = Tables()
        start, part = part_of(world, "spreading", 6)
        update = part.moves[1].arguments
        with pytest.raises(ToolError, match="refers"):
            call(world, copy.deepcopy(start), "delete_row", table=update["table"], id=update["id"])

    @settings(max_examples=100, deadline=None)
    @given(writes=st.lists(_writes(), min_size=1, max_size=12))
    def test_no_calls_break_a_constraint(self, writes: list[tuple[str, dict[str, Any]]]) -> None:
        """Whatever is written: what is unique stays so, what is referred to is there, a refusal changes nothing."""
        world, state = Tables(), store()
        for tool, arguments in writes:
            before = copy.deepcopy(state)
            try:
                call(world, state, tool, **arguments)
            except ToolError:
                assert state == before
            for table in state["tables"].values():
                for name, facts in table["columns"].items():
                    values = [row[name] for row in table["rows"].values() if name in row]
                    assert not facts["unique"] or len(values) == len(set(values))
                    other = facts["refers_to"]
                    assert not other or all(value in state["tables"][other]["rows"] for value in values)
