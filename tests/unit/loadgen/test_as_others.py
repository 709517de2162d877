"""What other tools would have printed of bytes whose truth is known."""

import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toys import sse
from toys.nouns import record
from toys.sse import DONE, chat, exchange, text, usage

from evalrig.cli import main
from evalrig.errors import UsageError
from evalrig.loadgen.block import Block, Exchange
from evalrig.loadgen.events import parse
from evalrig.loadgen.raw import write_block
from evalrig.plan import Header, Plan, SuitePlan
from evalrig.records import RunFolder
from evalrig.report.as_others import as_others, table
from evalrig.report.other_tools import TOOLS, Counted, stream
from evalrig.types import REFERENCE, Metric, Variant


def counted(tool: str, one: Exchange) -> Counted:
    seen = stream(replace(one, lag=np.zeros_like(one.lag)))
    assert seen is not None
    return TOOLS[tool].count(seen)


ANSWER = exchange(
    [
        (20, chat(role="assistant", content="")),
        (100, chat(content="a b")),
        (140, chat(content="c") + chat(content="d")),
        (150, usage(4)),
        (160, DONE),
    ],
    due=0.0,
    sent=10.0,
)
"""Due at 0, sent at 10 ms; four tokens in three events, two of them in one read; the truth: TTFT 100 ms, TPOT 40/3 ms."""


def test_vllm_counts_the_role_event_and_the_event_with_usage() -> None:
    found = counted("vllm", ANSWER)
    assert found.ttft == pytest.approx(0.010), "from the send to the empty event"
    assert found.tpot == pytest.approx((0.150 - 0.020) / 3)
    assert found.itl == pytest.approx([0.08, 0.04, 0.0])
    assert found.tokens == 4


def test_sglang_lasts_until_done() -> None:
    found = counted("sglang", ANSWER)
    assert found.ttft == pytest.approx(0.09)
    assert found.tpot == pytest.approx((0.160 - 0.100) / 3)
    assert found.itl == pytest.approx([0.04, 0.0])


def test_guidellm_has_the_first_token_in_tpot_and_one_itl_a_request() -> None:
    found = counted("guidellm", ANSWER)
    assert found.tpot == pytest.approx(0.130 / 4)
    assert found.itl == pytest.approx([0.04 / 3])
    without = counted("guidellm", exchange([(10, text("a b c")), (20, text("d")), (21, DONE)], sent=1.0))
    assert without.tokens == 2, "without usage it counts events"


def test_aiperf_takes_the_tokens_of_the_first_event_off() -> None:
    assert counted("aiperf", ANSWER).itl == pytest.approx([0.04 / 3])
    told = [text("x", usage={"completion_tokens": n}) for n in (3, 5)]
    found = counted("aiperf", exchange([(10, told[0]), (30, told[1]), (31, usage(5)), (32, DONE)], sent=1.0))
    assert found.itl == pytest.approx([0.02 / 2])
    assert found.tpot is None


@pytest.mark.parametrize("tool", ["vllm", "sglang", "aiperf"])
def test_missing_usage_has_no_tokens(tool: str) -> None:
    found = counted(tool, exchange([(10, text("a")), (20, text("b")), (21, DONE)], sent=1.0))
    assert (found.tokens, found.tpot) == (None, None)


@pytest.mark.parametrize("tool", TOOLS)
def test_an_answer_without_content_is_no_crash(tool: str) -> None:
    empty = exchange([(10, chat(role="assistant")), (20, usage(0)), (21, DONE)], sent=1.0)
    assert counted(tool, empty).tpot is None


def test_failed_answers_are_left_out() -> None:
    assert stream(exchange([(1, b"no")], status=500)) is None
    assert stream(exchange([], status=0, error="refused")) is None
    assert stream(exchange([(1, b"data: {\n\n")])) is None
    assert stream(exchange([(1, b"")])) is None


def block(n: int, due: float = 0.0) -> Block:
    return sse.block(*(sse.steady_stream(100, 20, 6, index=i, due=due, sent=due + 30) for i in range(n)))


def file(folder: Path, name: str, one: Block) -> Path:
    write_block(folder / name, one, parse(one))
    return folder / name


def cells(said: str, row: str) -> list[str]:
    line = next(line for line in said.splitlines() if line.strip().startswith(row))
    return line.strip().removeprefix(row).split(maxsplit=2)


def test_rounds_are_pooled_and_void_ones_left_out(tmp_path: Path) -> None:
    void = replace(block(6), health=replace(sse.HEALTH, void=("starved",)))
    paths = [file(tmp_path, f"r{k}", one) for k, one in enumerate([block(6), block(6), void])]
    said = table(paths, "vllm")
    assert said.startswith("rounds 2; 1 void, left out; 12 of 12 requests answered, by vLLM bench serve\n")
    assert cells(said, "TTFT p50, ms")[:2] == ["70.001", "100.000"]
    assert cells(said, "ITL p50, ms") == ["20.000", "20.000", "same here"]
    assert cells(said, "TTFT p99, ms")[1:] == ["12", f"of 662 needed   {TOOLS['vllm'].why['ttft']}"]
    assert table(paths[2:], "vllm") == "all 1 blocks are void\n"


def test_ramp_and_drain_are_in_their_throughput_and_not_in_ours(tmp_path: Path) -> None:
    ramp = sse.block(*(sse.steady_stream(10, 10, 400 - 40 * i, index=i, due=200.0 * i) for i in range(10)))
    theirs, ours, _ = cells(table([file(tmp_path, "r", ramp)], "vllm"), "output tokens/s")
    assert float(theirs) == pytest.approx(2200 / 4.0, rel=0.01)
    assert float(ours) > 1.3 * float(theirs)


def run(tmp_path: Path, kind: str) -> RunFolder:
    metric = (
        Metric(name="ttft_p50", kind="ratio", units="s")
        if kind == "load"
        else Metric(name="a", kind="binary", units="points")
    )
    suite = SuitePlan(
        name="busy",
        kind=kind,
        family="load",
        epochs=1,
        metrics=(metric,),
        traced=False,
        samples=("r1",),
        again=(),
        sha256="x",
    )
    plan = Plan(
        header=Header(run="toy", question="?", seed=1, alpha=0.05, model="m", max_context=64, note=""),
        config={},
        config_sha256="x",
        variants=(Variant(name=REFERENCE, role="reference", engine="replay", weights="w"),),
        suites=(suite,),
        gates=(),
        unused_gates=(),
        cells=(),
    )
    return RunFolder.create(tmp_path, plan, "name: toy\n", {}, {})


def filed(folder: RunFolder, name: str) -> None:
    file(folder.variant_path(REFERENCE) / "load" / "busy", name, block(12))
    folder.append(record(name, REFERENCE, "busy"))
    folder.close()


def test_bytes_of_a_round_that_was_cut_short_are_left_out(tmp_path: Path) -> None:
    folder = run(tmp_path, "load")
    filed(folder, "r1")
    file(folder.variant_path(REFERENCE) / "load" / "busy", "r2", block(12))
    assert "rounds 1;" in as_others(folder, "vllm")


@pytest.mark.parametrize("tool", TOOLS)
def test_a_run_folder_says_it_suite_by_suite(tmp_path: Path, tool: str) -> None:
    folder = run(tmp_path, "load")
    filed(folder, "r1")
    said = as_others(folder, tool)
    assert said.startswith("busy / reference: rounds 1; 12 of 12 requests answered")
    assert len(said.splitlines()) == 8


def test_a_run_without_blocks_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no blocks of load"):
        as_others(run(tmp_path, "piqa"), "vllm")


def test_the_verb_prints_it_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tmp_path, "load")
    filed(folder, "r1")
    before = sorted(folder.path.rglob("*"))
    assert main(["report", str(folder.path), "--as", "aiperf"]) == 0
    assert capsys.readouterr().out == as_others(folder, "aiperf")
    assert sorted(folder.path.rglob("*")) == before
    assert main(["report", str(run(tmp_path, "piqa").path), "--as", "aiperf"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert set(re.findall(r"\w+", usage_of("report"))) >= set(TOOLS)


def usage_of(verb: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        main([verb, "--help"])
    return said.getvalue()
