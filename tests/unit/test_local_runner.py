"""The local runner: who works on what, in which order, and what is left when an engine is lost."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.engine import Toy
from toys.nouns import run_config, small_plan
from toys.runs import Silent, carry_out, run_file

from evalrig.config.schema import SuiteConfig
from evalrig.errors import EngineError
from evalrig.plan import Cell, Plan
from evalrig.runner import Filing, Work
from evalrig.runners.local import Board, Local, _seed
from evalrig.types import AGAIN, REFERENCE, Outcome, State


def two_suites(candidates: int = 2) -> Plan:
    config = run_config(chat=SuiteConfig(kind="kl", again=0.5), quiz=SuiteConfig(kind="piqa", again=0.5))
    config.candidates = {f"c{n}": config.candidates["cheap"] for n in range(candidates)}
    return small_plan(config, traced=["chat"])


def board(plan: Plan, join_above: int = 4, only: Sequence[Cell] | None = None) -> Board:
    chosen: Any = None
    pending = {cell: cell.samples for cell in (plan.cells if only is None else only)}
    work = Work(
        plan=plan,
        suites={},
        samples={},
        pending=pending,
        traces={},
        answers={},
        engine=chosen,
        preflight=chosen,
        file=Mock(spec=Filing),
    )
    return Board(work, join_above)


async def work_through(board: Board, slots: int, log: list[tuple[str, Any]], refuse: str = "") -> None:
    """Slots that start, prove and work as the runner's do, without engines; every event goes to the log."""

    async def slot(number: int) -> None:
        engine = ""
        while cell := await board.next(number):
            if engine != cell.variant:
                engine = cell.variant
                await asyncio.sleep(0)
                log.append(("start", engine))
                if engine == refuse:
                    await board.note(refused=engine)
                    continue
                await board.note(proved=engine)
            while queue := board.left[cell]:
                sample = queue.popleft()
                log.append(("begin", (cell, sample)))
                await asyncio.sleep(0)
                log.append(("end", (cell, sample)))
                await board.ended(cell)
        await board.note(gone=number)

    async with asyncio.TaskGroup() as group:
        for number in range(slots):
            group.create_task(slot(number))


def logged(plan: Plan, slots: int, **more: Any) -> list[tuple[str, Any]]:
    log: list[tuple[str, Any]] = []
    refuse: str = more.pop("refuse", "")
    asyncio.run(asyncio.wait_for(work_through(board(plan, **more), slots, log, refuse), 20))
    return log


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 20))
def test_every_attempt_is_made_once_and_idle_slots_never_wait_for_each_other(
    slots: int, candidates: int, join_above: int
) -> None:
    plan = two_suites(candidates)
    done = [what for event, what in logged(plan, slots, join_above=join_above) if event == "end"]
    assert len(done) == len(set(done)) == sum(len(cell.samples) for cell in plan.cells)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_traces_end_before_any_attempt_of_their_suite_begins(slots: int) -> None:
    log = logged(two_suites(), slots)
    traced = [i for i, (event, what) in enumerate(log) if event == "end" and what[0].stage == "trace"]
    attempts = [
        i for i, (event, what) in enumerate(log) if event == "begin" and what[0].suite == "chat" and what[0].stage == "attempt"
    ]  # fmt: skip
    assert max(traced) < min(attempts)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_candidate_waits_for_the_reference_to_be_proved(slots: int) -> None:
    starts = [what for event, what in logged(two_suites(), slots) if event == "start"]
    assert starts[0] == REFERENCE


def test_a_refused_variant_is_left_out_and_the_others_are_complete() -> None:
    plan = two_suites()
    done = {what for event, what in logged(plan, 2, refuse="c0") if event == "end"}
    assert done == {(cell, sample) for cell in plan.cells if cell.variant != "c0" for sample in cell.samples}


def test_a_refused_reference_ends_everything() -> None:
    assert not [what for event, what in logged(two_suites(), 2, refuse=REFERENCE) if event == "end"]


def test_two_processes_share_a_cell_that_is_long_enough() -> None:
    plan = small_plan(run_config(quiz=SuiteConfig(kind="piqa", again=0.1)))
    reference = [cell for cell in plan.cells if cell.variant == REFERENCE]
    assert [what for event, what in logged(plan, 2, only=reference, join_above=2) if event == "start"] == [
        REFERENCE
    ] * 2
    assert [what for event, what in logged(plan, 2, only=reference, join_above=99) if event == "start"] == [REFERENCE]


def test_a_resumed_run_without_work_for_the_reference_starts_at_once() -> None:
    plan = two_suites()
    left = [cell for cell in plan.cells if cell.variant == AGAIN]
    assert {what for event, what in logged(plan, 2, only=left) if event == "start"} == {AGAIN}


def test_incomplete_traces_are_an_error_not_a_wait() -> None:
    plan = two_suites()
    stuck = board(plan, only=[cell for cell in plan.cells if cell.suite == "chat"])
    for cell in stuck.left:
        if cell.stage == "trace":
            stuck.left[cell].clear()  # taken, and never ended

    async def test() -> None:
        with pytest.raises(EngineError, match="the reference's traces are incomplete"):
            await stuck.next(0)

    asyncio.run(asyncio.wait_for(test(), 20))


def test_reference_again_runs_at_another_concurrency() -> None:
    plan = small_plan()
    lanes = {variant.name: Local(2, 8)._lanes(variant) for variant in plan.variants}
    assert lanes[AGAIN] < lanes[REFERENCE] == lanes["cheap"] == 8
    assert Local(1, 1)._lanes(replace(plan.variants[0], name=AGAIN)) == 2, "alone beside in pairs"


def test_repeats_are_not_one_cached_answer() -> None:
    """Pitfall 2: each (suite, sample, epoch) has a seed of its own, whatever the order and however often resumed."""
    plan = two_suites()
    cells = [replace(plan.cells[0], suite=suite, epoch=epoch) for suite in ("chat", "quiz") for epoch in range(5)]
    seeds = {_seed(plan.header.seed, cell, sample) for cell in cells for sample in ("s-000", "s-001")}
    assert len(seeds) == 20
    assert seeds == {_seed(plan.header.seed, cell, sample) for sample in ("s-001", "s-000") for cell in reversed(cells)}
    assert not seeds & {_seed(1, cell, sample) for cell in cells for sample in ("s-000", "s-001")}


# ---- with engines

GOOD = {"noise": 0.02}


def test_a_lost_candidate_leaves_the_others_complete(tmp_path: Path) -> None:
    finished = carry_out(run_file(tmp_path, {"dies": {**GOOD, "die_after": 40}, "good": GOOD}))
    outcomes = {name: one.outcome for name, one in finished.verdict.candidates.items()}
    assert outcomes == {"dies": Outcome.INVALID, "good": Outcome.GO}
    assert not finished.stopped
    assert "the engine died during" in finished.folder.failed("dies")
    absent = {row.variant: row.absent for row in finished.verdict.accounting if row.suite == "piqa"}
    assert absent["dies"] > 0
    assert absent["good"] == absent[REFERENCE] == absent[AGAIN] == 0
    assert finished.verdict.candidates["dies"].reasons[0] == finished.folder.failed("dies")


def test_a_candidate_that_does_not_start_leaves_the_others_complete(tmp_path: Path) -> None:
    finished = carry_out(run_file(tmp_path, {"bad": {"fail_start": "no such weights"}, "good": GOOD}))
    assert finished.verdict.candidates["bad"].outcome is Outcome.INVALID
    assert finished.verdict.candidates["bad"].reasons == ("bad: no such weights",)
    assert finished.verdict.candidates["good"].outcome is Outcome.GO


def test_a_lost_reference_ends_the_run_as_invalid_and_keeps_the_records(tmp_path: Path) -> None:
    path = run_file(tmp_path, {"good": GOOD}, reference={"weights": "toy", "args": {"die_after": 150}})
    finished = carry_out(path)
    assert (finished.verdict.outcome, finished.verdict.exit_code) == (Outcome.INVALID, 3)
    assert "the engine died during" in finished.stopped
    assert finished.folder.stopped() == finished.stopped
    assert finished.folder.records(REFERENCE, "kl")


def test_every_engine_is_stopped_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[int] = set()
    start, stop = Toy.start, Toy.stop

    async def started(self: Toy) -> None:
        running.add(id(self))
        await start(self)

    async def stopped(self: Toy) -> None:
        running.discard(id(self))
        await stop(self)

    monkeypatch.setattr(Toy, "start", started)
    monkeypatch.setattr(Toy, "stop", stopped)
    cases: dict[str, Any] = {"ok": {}, "dead": {"reference": {"weights": "toy", "args": {"die_after": 60}}}}
    for name, changes in cases.items():
        carry_out(run_file(tmp_path / name, {"bad": {"fail_start": "x"}, "good": GOOD}, **changes))
        assert not running


def test_an_overloaded_engine_is_infra_and_never_a_wrong_answer(tmp_path: Path) -> None:
    progress = Silent()
    path = run_file(tmp_path, {"busy": {**GOOD, "refuse_every": 20}})
    finished = carry_out(path, ["runner.engines=1"], progress=progress)  # a second process would count its own calls
    rows = finished.folder.records("busy", "piqa")
    infra = [row for row in rows if row.state == "infra"]
    assert len(infra) == 12
    assert all(row.scores == {} and row.trajectory.error == "busy: HTTP 503" for row in infra)
    assert finished.verdict.candidates["busy"].outcome is Outcome.INVALID
    assert "stability, not accuracy" in finished.verdict.candidates["busy"].reasons[0]


def test_a_failed_reference_answer_is_missing_in_every_arm_and_ends_no_night(tmp_path: Path) -> None:
    path = run_file(tmp_path, {"cheap": {"noise": 0.02}})
    finished = carry_out(path, ["+reference.args.refuse_answers=15"])  # 2 of 30
    states = {
        variant: Counter(record.state for record in finished.folder.records(variant, "kl"))
        for variant in (REFERENCE, "cheap")
    }
    assert states[REFERENCE] == states["cheap"] == {State.SCORED: 28, State.INFRA: 2}
    assert not finished.stopped


def test_a_second_process_that_cannot_start_leaves_the_work_to_the_first(tmp_path: Path, monkeypatch: Any) -> None:
    running: Counter[str] = Counter()
    refused: list[str] = []
    start, stop = Toy.start, Toy.stop

    async def alone(self: Toy) -> None:
        if running[self.variant.name]:
            refused.append(self.variant.name)
            raise EngineError(f"{self.variant.name}: out of memory")
        running[self.variant.name] += 1
        await start(self)

    async def gone(self: Toy) -> None:
        running[self.variant.name] -= self.table is not None
        await stop(self)

    monkeypatch.setattr(Toy, "start", alone)
    monkeypatch.setattr(Toy, "stop", gone)
    finished = carry_out(run_file(tmp_path, {"cheap": {"noise": 0.02}}), ["+reference.args.delay=0.005"])
    assert REFERENCE in refused, "the second slot did not try"
    assert not finished.stopped
    assert finished.verdict.candidates["cheap"].outcome is Outcome.GO


def test_a_process_that_comes_too_late_to_help_is_no_loss() -> None:
    """The other process finished the variant and moved on while this one was still starting."""

    async def late() -> tuple[bool, bool]:
        shared = board(small_plan())
        shared.open = {cell: 0 if cell.variant == AGAIN else left for cell, left in shared.open.items()}
        return await shared.give_up(0, AGAIN), await shared.give_up(0, REFERENCE)

    assert asyncio.run(late()) == (True, False)


def test_a_hung_engine_does_not_eat_the_night(tmp_path: Path) -> None:
    path = run_file(tmp_path, {"deaf": {"noise": 0.02, "refuse_every": 1}, "cheap": {"noise": 0.02}})
    finished = carry_out(path, ["runner.concurrency=1"])
    assert finished.verdict.candidates["cheap"].outcome is Outcome.GO
    assert finished.verdict.candidates["deaf"].outcome is Outcome.INVALID


def test_a_bug_in_a_run_leaves_an_invalid_verdict_and_keeps_its_traceback(tmp_path: Path, monkeypatch: Any) -> None:
    async def broken(self: Local, work: Work) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(Local, "run", broken)
    with pytest.raises(ZeroDivisionError):
        carry_out(run_file(tmp_path, {"cheap": {"noise": 0.02}}))
    [verdict] = tmp_path.glob("runs/toy/2*/verdict.json")
    assert '"outcome": "INVALID"' in verdict.read_text()
    assert "crashed: ZeroDivisionError: a bug of ours" in verdict.read_text()


def test_an_engine_that_tells_no_texts_loses_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(self: Toy, ids: Sequence[int]) -> tuple[str, ...]:
        raise EngineError("reference: HTTP 404")

    told = carry_out(run_file(tmp_path / "told", {"quiet": {"noise": 0.02}})).folder.traces("kl")
    assert all(len(trace.pieces) == len(trace.token_ids) > 0 for trace in told)
    monkeypatch.setattr(Toy, "pieces", refused)
    untold = carry_out(run_file(tmp_path / "untold", {"quiet": {"noise": 0.02}})).folder.traces("kl")
    assert {trace.sample: trace.token_ids for trace in untold} == {trace.sample: trace.token_ids for trace in told}
    assert all(trace.pieces == () for trace in untold)
