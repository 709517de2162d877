"""A running engine is looked after: its pulse, its log, and what becomes of it when it falls."""

import asyncio
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toys.engine import Toy, ToyOptions
from toys.nouns import small_folder
from toys.runs import Silent, carry_out, run_file

from evalrig import watch
from evalrig.engine import Launch
from evalrig.engines.sglang import Sglang, SglangOptions
from evalrig.errors import EngineError
from evalrig.filing import Files
from evalrig.records import RunFolder
from evalrig.sglang_pd import Pd
from evalrig.troubles import LLAMA_CPP, REFENGINE, RUINOUS, SGLANG, SGLANG_WORKS, VLLM, VLLM_WORKS, Trouble
from evalrig.types import REFERENCE, Event, Outcome, State, Variant
from evalrig.watch import Fell, Pulse, Tail, Watch

WIRE = Path(__file__).parents[1] / "contract" / "wire"
GOOD = {"noise": 0.02}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK", 0.02)


def toy(folder: Path, hang_seconds: float | None = None, **args: Any) -> Toy:
    variant = Variant(name="cheap", role="candidate", engine="toys.engine", weights="toy")
    launch = Launch(log=folder / "engine.log", start_seconds=1, request_seconds=1, hang_seconds=hang_seconds)
    return Toy(variant, ToyOptions(**args), launch)


def within(test: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.wait_for(test(), 30))


# ---- pulse


def test_only_calls_that_wait_count_as_unanswered(tmp_path: Path) -> None:
    engine = toy(tmp_path, hang_after=2)
    pulse = Pulse(engine)

    async def test() -> tuple[float, float, float]:
        await engine.start()
        await engine.tokenize("a")
        await asyncio.sleep(0.05)
        idle = pulse.unanswered()
        asked = asyncio.ensure_future(engine.tokenize("b"))
        await asyncio.sleep(0.05)
        waited = pulse.unanswered()
        asked.cancel()
        await asyncio.wait({asked})
        return idle, waited, pulse.unanswered()

    idle, waited, after = within(test)
    assert idle == after == 0.0, "a grader that takes an hour is no hang of the engine"
    assert waited >= 0.05


def test_calls_that_time_out_together_are_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between them none is in flight for a moment: an engine that never answers was never seen to hang."""
    engine = toy(tmp_path)

    async def late(prompt: Any) -> Any:
        await asyncio.sleep(0.1)
        raise EngineError("no answer in time")

    monkeypatch.setattr(engine, "tokenize", late)
    pulse = Pulse(engine)

    async def test() -> float:
        for _ in range(3):
            await asyncio.gather(engine.tokenize("a"), engine.tokenize("b"), return_exceptions=True)
            await asyncio.sleep(0.01)
        asked = asyncio.ensure_future(engine.tokenize("c"))
        await asyncio.sleep(0)
        waited = pulse.unanswered()
        await asyncio.wait({asked})
        assert asked.exception()
        return waited

    assert within(test) >= 0.3


def test_silent_blocks_add_up_and_pauses_in_them_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests of a block may have failed in time: that it ended is no answer."""
    clock, told = [100.0], list[float]()
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    engine = toy(tmp_path)
    pulse = Pulse(engine)

    async def block(*beats: float) -> None:
        clock[0] += 30
        for seconds in beats:
            engine.beat(seconds)
        told.append(pulse.unanswered())

    async def test() -> None:
        for beats in ((), (), (20.0,), (math.inf,), ()):
            await engine.carry(block(*beats))
            clock[0] += 1000  # between blocks nothing is asked

    within(test)
    assert told == [30, 60, 70, 0, 30]


# ---- log


def heard(tail: Tail, final: bool = False) -> dict[str, int]:
    tail.read(64)
    return {kind: more for kind, more, _ in tail.news(final)}


def test_a_log_is_read_on_from_where_it_ended_and_lines_are_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("KV checksum mismatch req=0\n")
    tail = Tail([log], SGLANG)
    with log.open("a") as file:
        file.write("fine\n[2026-11-29 10:00:00 TP0] KV checksum mis")
        file.flush()
        assert heard(tail) == {}, "half a line, and one of an earlier run"
        file.write("match req=1\x1b[2J\n")
        file.flush()
        tail.read()
        assert list(tail.news()) == [
            ("KV checksum mismatch", 1, "KV checksum mismatch req=1\N{REPLACEMENT CHARACTER}[2J")
        ]


def test_counts_are_told_at_doublings_and_are_whole_at_the_end(tmp_path: Path) -> None:
    """A kill of evalrig loses half at most, and a flood is no flood of events."""
    log = tmp_path / "log"
    tail, told = Tail([log], SGLANG), []
    for _ in range(100):
        with log.open("a") as file:
            file.write("KV cache pool is full. Retract requests. #retracted_reqs: 1\n")
        told += list(heard(tail).values())
    assert len(told) == 7
    assert sum(told) == 64
    assert heard(tail, final=True) == {"retraction for want of KV cache": 36}
    assert heard(tail, final=True) == {}


def test_a_log_without_end_costs_a_bounded_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PIECE", 1000)
    monkeypatch.setattr(watch, "RECENT", 4000)
    log = tmp_path / "log"
    tail = Tail([log], SGLANG)
    log.write_text("x" * 20_000 + "\nKV checksum mismatch\n")
    tail.read()
    assert tail._places[0].at == 1000
    tail.read(64)
    assert [kind for kind, *_ in tail.news()] == ["KV checksum mismatch"]


LINES: dict[str, tuple[tuple[Trouble, ...], str]] = {
    "[2026-03-01 04:44:04 TP1] Detected errors during sampling! NaN in the logits.": (SGLANG, "NaN"),
    "Tool call parsing error: KV checksum mismatch": (SGLANG, "tool parser error"),
    "Error in detect_and_parse: Expecting value": (SGLANG, "tool parser error"),
    "KV cache pool is full. Retract requests. #retracted_reqs: 1": (SGLANG, "retraction for want of KV cache"),
    "KV checksum mismatch req=a bootstrap_room=1 expected=1 got=2": (SGLANG, "KV checksum mismatch"),
    "kv_canary violation: launch_tag=HEAD fail_reason=verify_chain_hash slot_idx=3": (SGLANG, "KV canary violation"),
    "[canary] step=100 protected_tokens=9 sweep_passes=1 violations=2 launch_tags_active=1/2": (SGLANG, "KV canary violation"),
    "[canary] step=100 protected_tokens=9 sweep_passes=1 violations=0 launch_tags_active=1/2": (SGLANG, ""),
    "kv-canary: per-forward verify skipped this step due to overflow": (SGLANG, "KV check skipped"),
    "RuntimeError: CUDA error: an illegal memory access was encountered": (SGLANG, "GPU error"),
    "[t] Receive: obj=GenerateReqInput(text='KV checksum mismatch; a list that contains NaN')": (SGLANG, ""),
    "server_args=ServerArgs(enable_nan_detection=False, kv_canary='none', info=1)": (SGLANG, ""),
    "ERROR hermes_tool_parser.py:136 Error in extracting tool call from response.": (VLLM, "tool parser error"),
    "Sequence group 7 is preempted by PreemptionMode.RECOMPUTE mode": (VLLM, "retraction for want of KV cache"),
    "srv update_slots: failed to find free space in the KV cache, retrying": (LLAMA_CPP, "retraction for want of KV cache"),
    "model.py:9: RuntimeWarning: invalid value encountered in subtract": (REFENGINE, "NaN"),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_lines_of_trouble_are_known_and_their_likes_are_not(line: str, tmp_path: Path) -> None:
    troubles, kind = LINES[line]
    log = tmp_path / "log"
    tail = Tail([log], troubles)
    log.write_text(f"{line}\n")
    assert heard(tail) == ({kind: 1} if kind else {})


HEALTHY = {
    "logs/sglang/ready_capacity_and_shutdown.txt": SGLANG,
    "logs/vllm/ready_capacity_and_shutdown.txt": VLLM,
    "llamacpp/kv_f16_capacity.txt": LLAMA_CPP,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_recorded_healthy_logs_hold_no_trouble(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = Tail([log], HEALTHY[name])
    log.write_bytes((WIRE / name).read_bytes())
    assert heard(tail, final=True) == {}


def test_kinds_that_ruin_a_measurement_are_named_somewhere() -> None:
    assert {trouble.kind for trouble in (*SGLANG, *VLLM, *LLAMA_CPP, *REFENGINE)} > RUINOUS


# ---- one engine


def watched(folder: Path, tmp_path: Path, **args: Any) -> tuple[Watch, RunFolder, Silent]:
    run, said = small_folder(folder), Silent()
    engine = toy(tmp_path, **args)
    tail = Tail(engine.logs, engine.troubles, engine.at_work)
    return Watch(engine, Files(run, said), tail), run, said


def test_work_is_cut_short_when_the_engine_hangs_and_its_own_failure_is_not_the_reason(tmp_path: Path) -> None:
    one, _, _ = watched(tmp_path / "runs", tmp_path, hang_seconds=0.1, hang_after=1)

    async def work() -> None:
        try:
            await one.engine.tokenize("a")
        finally:
            raise EngineError("connection reset")

    async def test() -> None:
        await one.engine.start()
        with pytest.raises(
            Fell, match=r"^cheap: the engine hangs: no answer for 0 s, 1 calls in flight during `quiz`$"
        ):
            await one.during(work(), "`quiz`")

    within(test)


def test_a_long_call_of_an_engine_that_is_seen_at_work_is_no_hang(tmp_path: Path) -> None:
    """One answer of a hundred thousand tokens, alone in flight: no call ends, but the log tells of decoding."""
    one, _, _ = watched(tmp_path / "runs", tmp_path, hang_seconds=0.4, hang_after=1)

    async def decode() -> None:
        for step in range(8):
            await asyncio.sleep(0.1)
            with one.engine.launch.log.open("a") as log:
                log.write(f"[2026-09-13 16:06:07] Decode batch, #running-req: 1, #token: {step}, token usage: 0.10\n")

    async def test() -> float:
        await one.engine.start()
        began, writing = asyncio.get_running_loop().time(), asyncio.ensure_future(decode())
        with pytest.raises(Fell, match="hangs"):
            await one.during(one.engine.tokenize("a"), "`quiz`")
        await writing
        return asyncio.get_running_loop().time() - began

    assert within(test) >= 0.8 + 0.4 - 0.1


def test_work_in_a_log_is_told_from_idling() -> None:
    assert re.search(
        VLLM_WORKS, "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.3 tokens/s, Running: 1"
    )
    assert not re.search(
        VLLM_WORKS, "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 1"
    )
    assert re.search(SGLANG_WORKS, "[2026-11-29 TP0] Prefill batch, #new-seq: 1, #new-token: 6")


def test_patience_covers_every_try_of_one_call_where_work_is_not_seen(tmp_path: Path) -> None:
    from evalrig.watch import UNSEEN
    from evalrig.wire import RETRIES

    assert UNSEEN > RETRIES + 1
    seen, _, _ = watched(tmp_path / "runs", tmp_path)
    assert seen._patience == 1.5 * seen.engine.launch.request_seconds


def test_an_interruption_stays_one_whatever_the_calls_it_cut_say(tmp_path: Path) -> None:
    """SIGTERM while calls are in flight: taken for a crash, the run would go on."""
    one, run, _ = watched(tmp_path / "runs", tmp_path, hang_after=1)

    async def work() -> None:
        try:
            await one.engine.tokenize("a")
        finally:
            raise EngineError("connection reset")

    async def test() -> None:
        await one.engine.start()
        task = asyncio.ensure_future(one.during(work(), "`quiz`"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    within(test)
    assert run.events("cheap") == []


def test_a_failure_of_an_engine_that_runs_on_is_no_fall(tmp_path: Path) -> None:
    one, run, _ = watched(tmp_path / "runs", tmp_path)
    error = EngineError("cheap: /tokenize failed: HTTP 400")

    async def test() -> EngineError | None:
        await one.engine.start()
        return await one.recover(error)

    assert within(test) is error
    assert not one.ended
    assert run.events("cheap") == []


# ---- whole runs


def events(folder: RunFolder, variant: str) -> list[tuple[str, int]]:
    return [(event.kind, event.unfinished) for event in folder.events(variant)]


def made(folder: RunFolder) -> list[tuple[str, str, str, int]]:
    plan = folder.plan()
    return sorted(
        (r.variant, r.suite, r.sample, r.epoch)
        for variant in plan.variants
        for suite in plan.suites
        for r in folder.records(variant.name, suite.name)
    )


def planned(folder: RunFolder) -> list[tuple[str, str, str, int]]:
    cells = [cell for cell in folder.plan().cells if cell.stage == "attempt"]
    return sorted((cell.variant, cell.suite, sample, cell.epoch) for cell in cells for sample in cell.samples)


@pytest.mark.parametrize("fault", ["die_after", "hang_after"])
@pytest.mark.parametrize("place", [30, 100, 250])
def test_a_fallen_engine_is_started_again_and_every_attempt_is_there_once(
    fault: str, place: int, tmp_path: Path
) -> None:
    path = run_file(
        tmp_path,
        {"falls": {**GOOD, fault: place, "faulty_starts": 1}},
        engine={"kind": "toys.engine", "request_seconds": 0.1, "hang_seconds": 0.3},
        runner={"engines": 1, "concurrency": 4},
    )
    finished = carry_out(path)
    assert made(finished.folder) == planned(finished.folder)
    assert finished.verdict.candidates["falls"].outcome is Outcome.GO
    kind = {"die_after": "crash", "hang_after": "hang"}[fault]
    assert [found for found, _ in events(finished.folder, "falls")] == [kind, "restart"]
    [said] = [found for found in finished.verdict.validity if found.rule == "stability"]
    assert (said.level, said.candidate) == ("warn", "falls")
    assert said.text.startswith(f"falls: its engine {'crashed' if kind == 'crash' else 'hung'} once while it worked; ")
    assert "it was started again once; " in said.text
    assert "the reference's did not; first: falls: the engine " in said.text
    assert said.text.replace("`", "") in (finished.folder.path / "summary.md").read_text().replace("&#96;", "")
    assert "stability" in (finished.folder.path / "report.html").read_text()


def test_a_reference_that_falls_while_it_answers_is_started_again_and_no_trace_is_lost(tmp_path: Path) -> None:
    """A candidate waits for all traces: one that was counted twice or never would stop the night."""
    reference = {"weights": "toy", "args": {"die_after": 40, "faulty_starts": 1}}
    finished = carry_out(run_file(tmp_path, {"good": GOOD}, reference=reference))
    assert made(finished.folder) == planned(finished.folder)
    assert len(finished.folder.traces("kl")) == 30
    assert finished.verdict.candidates["good"].outcome is Outcome.GO
    said = [found for found in finished.verdict.validity if found.rule == "stability"]
    assert [(found.level, found.candidate) for found in said] == [("warn", "")] * 2, "it runs a second time, as A/A"
    assert said[0].text.startswith("reference: its engine crashed once while it worked; ")


def test_more_falls_than_restarts_end_that_candidate_and_no_other(tmp_path: Path) -> None:
    finished = carry_out(run_file(tmp_path, {"falls": {**GOOD, "die_after": 60}, "good": GOOD}))
    assert {name: one.outcome for name, one in finished.verdict.candidates.items()} == {
        "falls": Outcome.INVALID,
        "good": Outcome.GO,
    }
    kinds = [kind for kind, _ in events(finished.folder, "falls")]
    assert kinds.count("restart") == 1
    assert kinds.count("crash") >= 2
    assert "; engine.restarts (1) is used up" in finished.verdict.candidates["falls"].reasons[0]


def test_without_restarts_the_first_fall_is_the_last(tmp_path: Path) -> None:
    path = run_file(tmp_path, {"falls": {**GOOD, "die_after": 60, "faulty_starts": 1}})
    one = {"engines": 1, "concurrency": 4}
    finished = carry_out(path, ["engine.restarts=0", *(f"runner.{key}={value}" for key, value in one.items())])
    assert [kind for kind, _ in events(finished.folder, "falls")] == ["crash"]
    assert finished.verdict.candidates["falls"].outcome is Outcome.INVALID


def test_a_start_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    finished = carry_out(run_file(tmp_path, {"bad": {"fail_start": "bad flag"}, "good": GOOD}))
    assert events(finished.folder, "bad") == []
    assert finished.verdict.candidates["bad"].reasons == ("bad: bad flag",)


def test_an_engine_that_answers_nothing_is_restarted_as_one_that_hangs(tmp_path: Path, monkeypatch: Any) -> None:
    """Each failed call is an attempt that failed: twenty in a row are an engine that failed."""
    score, dumb = Toy.score, Toy.processes

    async def deaf(self: Toy, *given: Any, **named: Any) -> Any:
        if self.variant.name == "deaf" and dumb[self.launch.log] == 1 and self.scorings > 40:
            raise EngineError("deaf: HTTP 503")
        return await score(self, *given, **named)

    monkeypatch.setattr(Toy, "score", deaf)
    finished = carry_out(run_file(tmp_path, {"deaf": GOOD}), ["runner.engines=1", "runner.concurrency=1"])
    assert [kind for kind, _ in events(finished.folder, "deaf")] == ["silent", "restart"]
    assert made(finished.folder) == planned(finished.folder)
    states = [row.state for suite in ("kl", "piqa") for row in finished.folder.records("deaf", suite)]
    assert states.count(State.INFRA) == 20


@pytest.mark.parametrize(
    ("line", "outcome", "level"),
    [
        ("KV checksum mismatch req=1", Outcome.INVALID, "invalid"),
        ("kv_canary violation: launch_tag=A fail_reason=verify_token", Outcome.INVALID, "invalid"),
        ("Detected errors during sampling! NaN in the logits.", Outcome.INVALID, "invalid"),
        ("Tool call parsing error: Expecting value", Outcome.GO, "warn"),
        ("KV cache pool is full. Retract requests. #retracted_reqs: 1", Outcome.GO, "warn"),
    ],
)
def test_trouble_in_a_log_reaches_the_verdict(line: str, outcome: Outcome, level: str, tmp_path: Path) -> None:
    progress = Silent()
    path = run_file(tmp_path, {"cheap": {**GOOD, "says": [line] * 5}}, runner={"engines": 1, "concurrency": 4})
    finished = carry_out(path, progress=progress)
    assert finished.verdict.candidates["cheap"].outcome is outcome
    [said] = [found for found in finished.verdict.validity if found.rule == "engine log"]
    assert (said.level, said.candidate) == (level, "cheap")
    assert f", 5 in its log (reference: 0): {line}" in said.text
    assert len([told for told in progress.lines if line in told]) == 1, "the first of each kind is said, once"
    assert sum(event.count for event in finished.folder.events("cheap")) == 5


def test_a_reference_whose_log_tells_a_mismatch_makes_the_run_invalid(tmp_path: Path) -> None:
    reference = {"weights": "toy", "args": {"says": ["KV checksum mismatch"]}}
    finished = carry_out(run_file(tmp_path, {"good": GOOD}, reference=reference))
    assert finished.verdict.candidates["good"].outcome is Outcome.INVALID


def test_what_befell_an_engine_before_a_resume_counts(tmp_path: Path) -> None:
    """The restarts of a run are those on file, whoever started them."""
    from evalrig.run import resume

    path = run_file(tmp_path, {"falls": {**GOOD, "die_after": 60}}, runner={"engines": 1, "concurrency": 4})
    first = carry_out(path)
    assert first.verdict.candidates["falls"].outcome is Outcome.INVALID
    before = first.folder.events("falls")
    second = asyncio.run(resume(first.folder.path, Silent()))
    after = second.folder.events("falls")
    assert after[: len(before)] == before
    assert [event.kind for event in after].count("restart") == 1, "the limit is one a run"
    assert second.folder.records(REFERENCE, "kl")


def test_a_torn_event_is_dropped_and_named(tmp_path: Path) -> None:
    run = small_folder(tmp_path)
    run.append_event("cheap", Event(time="t", kind="crash", line="x"))
    run.close()
    path = run.variant_path("cheap") / "events.jsonl"
    with path.open("ab") as file:
        file.write(b'{"time": ')
    assert run.torn() == [path]
    assert [event.line for event in run.events("cheap")] == ["x"]


def test_every_role_of_a_split_is_heard(tmp_path: Path) -> None:
    """The decode server finds a broken hand-over; its log is not the prefill server's."""
    variant = Variant(name="split", role="candidate", engine="sglang", weights=str(tmp_path))
    launch = Launch(log=tmp_path / "engine.log", start_seconds=1, request_seconds=1)
    engine = Sglang(variant, SglangOptions(pd=Pd(prefill=1, decode=2)), launch)
    assert [log.name for log in engine.logs] == [
        "engine.prefill-0.log",
        "engine.decode-0.log",
        "engine.decode-1.log",
        "engine.router.log",
    ]
    tail = Tail(engine.logs, engine.troubles)
    engine.logs[2].write_text("KV checksum mismatch req=1\n")
    engine.logs[0].write_text("KV checksum mismatch req=2\n")
    assert heard(tail) == {"KV checksum mismatch": 2}
