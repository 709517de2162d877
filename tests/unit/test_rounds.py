"""Rounds of load in a run: who runs when, on which process, and what is left when an engine is lost."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toys import load_client
from toys.engine import Toy
from toys.runs import Silent, carry_out, piqa_file, run_file

from evalrig import watch
from evalrig.engines.llama_cpp import LlamaCpp, LlamaCppOptions
from evalrig.engines.refengine import Refengine, RefengineOptions
from evalrig.errors import EngineError, RunError, UsageError
from evalrig.filing import Files
from evalrig.loadgen.raw import read_block, read_served
from evalrig.records import RunFolder
from evalrig.report.as_others import as_others
from evalrig.run import Finished, resume
from evalrig.runner import Ended, Paper
from evalrig.suite import LoadAttempt
from evalrig.types import AGAIN, REFERENCE, Outcome, Record, State

ARMS = (REFERENCE, "cheap", AGAIN)
LOAD = {
    "workload": "random",
    "requests": 6,
    "input_tokens": 24,
    "output_tokens": 6,
    "concurrency": [2],
    "pace": {"rounds": 6},
}


def load_file(tmp_path: Path, candidates: dict[str, Any] | None = None, engines: int = 3, **more: Any) -> Path:
    """A run of load alone, unless `more` says otherwise."""
    options = {**LOAD, **more.pop("options", {})}
    suites = {"load": {"kind": "load", "again": 1.0, "options": options, **more.pop("suite", {})}}
    gate = {"kind": "load_ratio", "suite": "load", "metric": "output_tokens_per_second", "margin": 0.1}
    return run_file(
        tmp_path,
        {name: {"noise": 0.02, **args} for name, args in (candidates or {"cheap": {}}).items()},
        **{"suites": suites, "gates": {"speed": gate}, "runner": {"engines": engines, "concurrency": 4}, **more},
    )


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> load_client.Client:
    """The stand-in; no report is drawn but where one is looked for."""
    if "report" not in request.node.name:
        monkeypatch.setattr("evalrig.run.write_report", lambda *_: None)
    return load_client.installed(monkeypatch)


def records(folder: RunFolder, *arms: str) -> list[Record]:
    return [record for arm in arms or ARMS for record in folder.records(arm, "load")]


def by_round(finished: Finished) -> dict[str, list[Record]]:
    """Blocks of each round in the order in which they began."""
    rounds: dict[str, list[Record]] = {}
    for record in sorted(records(finished.folder), key=lambda record: record.provenance.started):
        rounds.setdefault(record.sample, []).append(record)
    return rounds


def starts(progress: Silent) -> Counter[str]:
    return Counter(line.partition(":")[0] for line in progress.lines if "engine ready" in line)


def test_every_round_is_whole_and_in_random_order_with_one_schedule(tmp_path: Path, client: load_client.Client) -> None:
    finished = carry_out(load_file(tmp_path))
    assert not finished.stopped
    rounds = by_round(finished)
    assert len(rounds) == 6
    orders = {tuple(record.variant for record in blocks) for blocks in rounds.values()}
    assert all(set(order) == set(ARMS) for order in orders)
    assert len({order[0] for order in orders}) > 1, "no variant always goes first"
    assert all(len({record.provenance.prompt_sha256 for record in blocks}) == 1 for blocks in rounds.values())
    assert len({blocks[0].provenance.prompt_sha256 for blocks in rounds.values()}) == 6, "a new one each round"
    for blocks in rounds.values():
        began = [record.provenance.started for record in blocks]
        assert began == sorted(began)


def test_rounds_are_not_mixed(tmp_path: Path, client: load_client.Client) -> None:
    """Blocks far apart in time differ by what drifts on the machine, not by variant."""
    ordered = sorted(records(carry_out(load_file(tmp_path)).folder), key=lambda record: record.provenance.started)
    names = [record.sample for record in ordered]
    assert all(len(set(names[n : n + 3])) == 1 for n in range(0, len(names), 3))


def test_engines_that_fit_are_kept_up(tmp_path: Path, client: load_client.Client) -> None:
    progress = Silent()
    finished = carry_out(load_file(tmp_path), progress=progress)
    assert starts(progress) == dict.fromkeys(ARMS, 1)
    assert {r.trajectory.answer.partition(", ")[2] for r in records(finished.folder)} == {
        "on an engine that was kept up"
    }


def test_engines_that_do_not_fit_are_started_for_each_round_and_proved(
    tmp_path: Path, client: load_client.Client
) -> None:
    progress = Silent()
    finished = carry_out(load_file(tmp_path, engines=2, options={"pace": {"rounds": 2}}), progress=progress)
    started = starts(progress)
    assert {started["cheap"], started[AGAIN]} == {2}
    assert started[REFERENCE] in (2, 3), "once more where a candidate came before it: it is proved first"
    passed = Counter(line.partition(":")[0] for line in progress.lines if "preflight passed" in line)
    assert passed == started
    answers = {record.trajectory.answer for record in records(finished.folder)}
    assert all(answer.endswith("on an engine started for this round") for answer in answers)
    assert {answer.partition(" in")[0] for answer in answers} == {f"turn {n} of 3" for n in (1, 2, 3)}


def test_all_blocks_of_a_round_share_its_start(tmp_path: Path, client: load_client.Client) -> None:
    """Two suites, one with two concurrencies: nine starts would be an hour each night on eight GPUs, three are enough."""
    options = {**LOAD, "pace": {"rounds": 2}}
    suites = {
        "load": {"kind": "load", "again": 1.0, "options": {**options, "concurrency": [1, 2]}},
        "other": {"kind": "load", "again": 1.0, "options": options},
    }
    progress = Silent()
    gates = {
        name: {"kind": "load_ratio", "suite": name, "metric": "output_tokens_per_second", "margin": 0.1}
        for name in suites
    }
    finished = carry_out(load_file(tmp_path, engines=1, suites=suites, gates=gates), progress=progress)
    started = starts(progress)
    assert {started["cheap"], started[AGAIN]} == {2}
    assert started[REFERENCE] in (2, 3)
    rows = [row for arm in ARMS for suite in suites for row in finished.folder.records(arm, suite)]
    assert len(rows) == 3 * (2 * 2 + 2)
    ordered = sorted(rows, key=lambda row: row.provenance.started)
    numbers = [row.sample[-2:] for row in ordered]
    assert [numbers[:9], numbers[9:]] in ([["01"] * 9, ["02"] * 9], [["02"] * 9, ["01"] * 9])
    for turn in range(6):
        assert len({row.variant for row in ordered[3 * turn : 3 * turn + 3]}) == 1


def test_blocks_are_on_disk_before_their_records_and_a_round_is_filed_together(
    tmp_path: Path, client: load_client.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    keep, append = Files.keep, RunFolder.append

    def kept(self: Files, papers: Any) -> None:
        together.append(len(papers))
        keep(self, papers)

    def appended(self: RunFolder, *rows: Record) -> None:
        for row in rows:
            block = read_block(self.load_path(row.variant, row.suite, row.sample))
            assert len(block.exchanges) == 12
        append(self, *rows)

    monkeypatch.setattr(Files, "keep", kept)
    monkeypatch.setattr(RunFolder, "append", appended)
    finished = carry_out(load_file(tmp_path))
    assert not finished.stopped
    assert together == [3] * 6
    served = read_served(finished.folder.load_path("cheap", "load", "round-03"))
    assert served.requests.tokens.tolist() == [6] * 12


def test_load_comes_when_all_else_is_done(tmp_path: Path, client: load_client.Client) -> None:
    suites = {
        "load": {"kind": "load", "again": 1.0, "options": {**LOAD, "pace": {"rounds": 2}}},
        "piqa": {"kind": "piqa", "options": {"path": str(piqa_file(tmp_path / "piqa.jsonl", rows=12))}},
    }
    gates = {
        "speed": {"kind": "load_ratio", "suite": "load", "metric": "output_tokens_per_second", "margin": 0.1},
        "accuracy": {"kind": "noninferior", "suite": "piqa", "metric": "accuracy", "margin": 0.1},
    }
    finished = carry_out(load_file(tmp_path, suites=suites, gates=gates))
    assert not finished.stopped
    last = max(record.provenance.started for arm in ARMS for record in finished.folder.records(arm, "piqa"))
    assert all(record.provenance.started >= last for record in records(finished.folder))
    assert {cell.stage for cell in finished.folder.plan().cells if cell.suite == "load"} == {"block"}


def test_a_run_of_load_ends_with_a_verdict_and_reports(tmp_path: Path, client: load_client.Client) -> None:
    """A slow candidate is found; without a suite that measures answers nothing is GO."""
    finished = carry_out(load_file(tmp_path, {"slow": {"step": 0.02}, "same": {}}, engines=4))
    assert not finished.stopped
    outcomes = {name: one.outcome for name, one in finished.verdict.candidates.items()}
    assert outcomes["slow"] is Outcome.NO_GO, finished.verdict.candidates["slow"]
    assert outcomes["same"] is not Outcome.NO_GO
    assert {"verdict.json", "report.html", "junit.xml", "summary.md"} <= {
        p.name for p in finished.folder.path.iterdir()
    }


def test_a_void_block_is_filed_with_its_reason_and_its_round_does_not_count(
    tmp_path: Path, client: load_client.Client
) -> None:
    client.void["cheap"] = ("the client was starved",)
    finished = carry_out(load_file(tmp_path, options={"pace": {"rounds": 2}}))
    assert {(r.state, r.trajectory.error) for r in records(finished.folder, "cheap")} == {
        (State.UNSCORED, "the client was starved")
    }
    assert {r.state for r in records(finished.folder, REFERENCE)} == {State.SCORED}
    assert read_block(finished.folder.load_path("cheap", "load", "round-01")).health.void
    assert finished.verdict.outcome is not Outcome.GO


def test_a_candidate_that_dies_under_load_is_started_again_once_and_then_given_up(
    tmp_path: Path, client: load_client.Client
) -> None:
    progress = Silent()
    finished = carry_out(load_file(tmp_path, {"cheap": {"flaw": "dead"}}), progress=progress)
    assert not finished.stopped, "the others go on"
    kinds = [event.kind for event in finished.folder.events("cheap")]
    assert kinds == ["crash", "restart", "crash"]
    assert "the engine died during `load`" in finished.folder.failed("cheap")
    assert records(finished.folder, "cheap") == []
    assert len(records(finished.folder, REFERENCE)) == len(records(finished.folder, AGAIN)) == 6
    assert finished.verdict.outcome is Outcome.INVALID


def test_the_block_in_which_an_engine_died_is_made_again(tmp_path: Path, client: load_client.Client) -> None:
    finished = carry_out(load_file(tmp_path, {"cheap": {"flaw": "dead", "faulty_starts": 1}}))
    assert [event.kind for event in finished.folder.events("cheap")] == ["crash", "restart"]
    assert [record.state for record in records(finished.folder, "cheap")] == [State.SCORED] * 6


@pytest.mark.parametrize("failing", [1, 5])
def test_one_failed_start_of_many_does_not_end_the_night(
    tmp_path: Path, client: load_client.Client, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Where engines do not fit side by side every round is a start; restarts bound how many may fail."""
    start, tries = Toy.start, Counter[str]()

    async def sometimes(self: Toy) -> None:
        tries[name := self.variant.name] += 1
        if name == REFERENCE and 3 < tries[name] <= 3 + failing:
            raise EngineError(f"{name}: did not start: the port was taken")
        await start(self)

    monkeypatch.setattr(Toy, "start", sometimes)
    finished = carry_out(load_file(tmp_path, engines=1, options={"pace": {"rounds": 4}}))
    kinds = [(event.kind, event.line) for event in finished.folder.events(REFERENCE)]
    assert kinds[:2] == [("crash", f"{REFERENCE}: did not start: the port was taken"), ("restart", "restart 1 of 1")]
    if failing == 1:
        assert not finished.stopped
        assert len(kinds) == 2
        assert Counter(row.variant for row in records(finished.folder)) == dict.fromkeys(ARMS, 4)
    else:
        assert finished.stopped.endswith("did not start: the port was taken; engine.restarts (1) is used up")
        assert [kind for kind, _ in kinds] == ["crash", "restart", "crash"]


def test_a_first_start_that_fails_is_not_tried_again(tmp_path: Path, client: load_client.Client) -> None:
    """A wrong flag does not mend itself."""
    finished = carry_out(load_file(tmp_path, {"cheap": {"fail_start": "bad flag"}}, options={"pace": {"rounds": 2}}))
    assert finished.folder.events("cheap") == []
    assert finished.folder.failed("cheap") == "cheap: bad flag"
    assert len(records(finished.folder, REFERENCE)) == 2


def test_an_engine_that_hangs_under_load_is_ended_and_started_again(
    tmp_path: Path, client: load_client.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own metrics are answered all the while: a server can tell of itself when what computes behind it hangs."""
    monkeypatch.setattr(watch, "LOOK", 0.02)
    engine = {"kind": "toys.engine", "request_seconds": 0.1, "hang_seconds": 0.5}
    finished = carry_out(load_file(tmp_path, {"cheap": {"flaw": "hung", "faulty_starts": 1}}, engine=engine))
    assert not finished.stopped
    assert [event.kind for event in finished.folder.events("cheap")] == ["hang", "restart"]
    assert "the engine hangs: no answer for" in finished.folder.events("cheap")[0].line
    assert [record.state for record in records(finished.folder, "cheap")] == [State.SCORED] * 6


def test_a_lost_reference_ends_the_run(tmp_path: Path, client: load_client.Client) -> None:
    finished = carry_out(load_file(tmp_path, reference={"weights": "toy", "args": {"flaw": "dead"}}))
    assert "the engine died during `load`" in finished.stopped
    assert finished.verdict.outcome is Outcome.INVALID


def test_a_candidate_that_is_not_what_it_should_be_is_not_loaded(tmp_path: Path, client: load_client.Client) -> None:
    finished = carry_out(load_file(tmp_path, {"cheap": {"says_weights": "int4"}}))
    assert "cheap" not in {model for model, _ in client.sent}
    assert finished.verdict.outcome is Outcome.INVALID
    assert len(records(finished.folder, REFERENCE)) == 6


def test_an_engine_that_answers_no_request_is_given_up_and_not_loaded_all_night(
    tmp_path: Path, client: load_client.Client
) -> None:
    finished = carry_out(load_file(tmp_path, {"cheap": {"flaw": "failing"}}), ["engine.restarts=0"])
    assert "3 blocks in a row failed" in finished.folder.failed("cheap")
    assert [r.state for r in records(finished.folder, "cheap")] == [State.INFRA] * 2


def test_a_round_that_is_cut_short_is_made_again_as_a_whole(
    tmp_path: Path, client: load_client.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends, blocks = client.sends, list[str]()

    async def interrupted(*given: Any) -> Any:
        blocks.append("")
        if len(blocks) == 11:  # with warm-ups six a round: the third block of the second
            raise asyncio.CancelledError("SIGTERM")
        return await sends(*given)

    monkeypatch.setattr(client, "sends", interrupted)
    finished = carry_out(load_file(tmp_path))
    assert finished.stopped.startswith("interrupted by SIGTERM")
    assert len(records(finished.folder)) == 3
    before = [record for record in records(finished.folder)]
    again = asyncio.run(resume(finished.folder.path, Silent()))
    assert not again.stopped
    assert len(records(again.folder)) == 18
    assert [r for r in records(again.folder) if r in before] == before
    assert len({(r.variant, r.sample) for r in records(again.folder)}) == 18


def test_a_round_that_lacks_a_block_is_made_again_by_all(tmp_path: Path, client: load_client.Client) -> None:
    """The other halves are of another hour: a pair of both would hold all that drifted meanwhile."""
    finished = carry_out(load_file(tmp_path))
    lines = (path := finished.folder.records_path("cheap", "load")).read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    before, lost = records(finished.folder), by_round(finished)
    client.sent.clear()
    again = asyncio.run(resume(finished.folder.path, Silent()))
    assert sorted(model for model, _ in client.sent) == sorted([*ARMS, *ARMS]), "a warm-up and the block of each"
    (name,) = {row.sample for row in records(again.folder) if row not in before}
    assert len({row.provenance.prompt_sha256 for row in by_round(again)[name]}) == 1
    assert all(row not in lost[name] for row in by_round(again)[name])
    assert len(records(again.folder)) == 18
    withdrawn = again.folder.variant_path(REFERENCE) / "withdrawn" / "load.jsonl"
    assert msgspec.json.decode(withdrawn.read_bytes(), type=Record) in lost[name]


@pytest.mark.parametrize("engines", [1, 3])
def test_a_candidate_that_is_taken_up_again_is_paired_with_what_ran_beside_it(
    tmp_path: Path, client: load_client.Client, engines: int
) -> None:
    """Given up while the reference made all rounds, and alone on the machine hours later: that gave a GO."""
    flaw = {"cheap": {"flaw": "dead", "faulty_starts": 2}}
    finished = carry_out(load_file(tmp_path, flaw, engines, options={"pace": {"rounds": 3}}))
    assert Counter(row.variant for row in records(finished.folder)) == {REFERENCE: 3, AGAIN: 3}
    last = max(row.provenance.started for row in records(finished.folder))
    again = asyncio.run(resume(finished.folder.path, Silent()))
    rounds = by_round(again)
    assert [{row.variant for row in rows} for rows in rounds.values()] == [set(ARMS)] * 3
    ordered = sorted(records(again.folder), key=lambda row: row.provenance.started)
    assert ordered[0].provenance.started > last, "none is left of those that ran without it"
    assert all(len({row.sample for row in ordered[at : at + 3]}) == 1 for at in (0, 3, 6))


def test_rounds_stay_as_they_are_for_a_candidate_that_is_given_up_again(
    tmp_path: Path, client: load_client.Client
) -> None:
    finished = carry_out(load_file(tmp_path, {"cheap": {"flaw": "dead"}}, options={"pace": {"rounds": 3}}))
    before = records(finished.folder)
    again = asyncio.run(resume(finished.folder.path, Silent()))
    assert len(records(again.folder)) == len(before) == 6
    assert sum(row not in before for row in records(again.folder)) == 2, "the round in which it fell, and no other"


def test_a_kill_before_a_round_is_filed_leaves_bytes_that_are_written_over(
    tmp_path: Path, client: load_client.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of each block are on the disk when it ends, and not in memory until the round does."""
    left: list[Path] = []
    keep = Files.keep

    def killed(self: Files, papers: Sequence[Paper]) -> None:
        left.extend(self.folder.path.glob("variants/*/load/load/*.block.arrows"))
        assert not any(isinstance(paper.attempt, LoadAttempt) for paper in papers if isinstance(paper, Ended))
        raise RunError("killed")

    monkeypatch.setattr(Files, "keep", killed)
    finished = carry_out(load_file(tmp_path, engines=1, options={"pace": {"rounds": 1}}))
    assert len(left) == 3
    assert records(finished.folder) == []
    assert "load / cheap: all 1 blocks are void, failed or unfinished" in as_others(finished.folder, "vllm")
    was = {path: path.read_bytes() for path in left}
    monkeypatch.setattr(Files, "keep", keep)
    again = asyncio.run(resume(finished.folder.path, Silent()))
    assert len(records(again.folder)) == 3
    assert all(path.read_bytes() != content for path, content in was.items())


@pytest.mark.parametrize("seed", range(4))
def test_a_reference_that_is_refused_is_not_started_again(
    tmp_path: Path, client: load_client.Client, seed: int
) -> None:
    """Whichever variant's turn comes first; the seed draws that."""
    progress = Silent()
    reference = {"weights": "toy", "expect": {"weights": "bf16"}, "args": {"says_weights": "int4"}}
    finished = carry_out(load_file(tmp_path, reference=reference, seed=seed), (), progress)
    assert starts(progress) == {REFERENCE: 1}
    assert client.sent == []
    assert finished.verdict.outcome is Outcome.INVALID


def test_load_is_repeated_by_rounds_and_not_by_epochs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"suites\.load\.epochs: 2; load is repeated by rounds, set epochs to 1"):
        carry_out(load_file(tmp_path, suite={"epochs": 2}))


def test_an_engine_without_a_route_for_load_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setattr(Toy, "capabilities", replace(Toy.capabilities, load=False))
    with pytest.raises(UsageError, match=r"suites\.load: engine `toys\.engine` cannot give a route for load"):
        carry_out(load_file(tmp_path))


def test_prompts_from_the_cache_are_not_asked_of_an_engine_that_keeps_none(tmp_path: Path) -> None:
    from dataclasses import replace

    assert not LlamaCpp.able(LlamaCppOptions()).primed, "the load client sends it `cache_prompt: false`"
    assert [Refengine.able(RefengineOptions(prefix_cache=kept)).primed for kept in (False, True)] == [False, True]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toy, "capabilities", replace(Toy.capabilities, primed=False))
        with pytest.raises(
            UsageError, match=r"suites\.load: engine `toys\.engine` cannot give prompts from its prefix"
        ):
            carry_out(load_file(tmp_path, options={"workload": "decode"}))


def test_a_rehearsal_runs_one_small_round(tmp_path: Path, client: load_client.Client) -> None:
    path = load_file(tmp_path, options={"requests": 50, "concurrency": [1, 8], "output_tokens": 500})
    small = asyncio.run(_cut(path))
    assert small["suites"]["load"]["samples"] == 1
    options = small["suites"]["load"]["options"]
    assert (options["requests"], options["output_tokens"], options["concurrency"]) == (2, 8, [1, 2])


async def _cut(path: Path) -> dict[str, Any]:
    """What a rehearsal makes of the run file; the toys stay, for its own engine needs the real client."""
    from dataclasses import asdict, replace

    from evalrig.assemble import assemble
    from evalrig.config.load import load_run
    from evalrig.config.schema import EngineConfig
    from evalrig.rehearsal import rehearsed

    config = load_run(path)
    rig = assemble(config, path, lambda _: None, here=False)
    return asdict(rehearsed(replace(config, engine=EngineConfig(kind="refengine")), rig, path))
