"""A block goes to disk and comes back as it was, or says why not."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from toys import sse

from evalrig.errors import RunError
from evalrig.loadgen.block import Block, Exchange, Sent
from evalrig.loadgen.events import parse
from evalrig.loadgen.raw import BLOCK, EVENTS, REQUESTS, blocks_in, read_block, read_served, write_block
from evalrig.loadgen.served import Served

NUMBERS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    reads = draw(st.integers(0, 4))
    column = arrays.arrays(np.int64, reads, elements=NUMBERS)
    return Exchange(
        sent=Sent(
            index=draw(NUMBERS),
            due=draw(NUMBERS),
            sent=draw(NUMBERS),
            ended=draw(NUMBERS),
            status=draw(st.integers(0, 599)),
            error=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
        ),
        body=draw(st.binary(max_size=40)),
        ends=draw(column),
        at=draw(column),
        lag=draw(column),
        kernel=draw(st.booleans()),
    )


def same(one: Block, other: Block) -> bool:
    plain = [
        (x.sent, x.body, x.kernel, x.ends.tolist(), x.at.tolist(), x.lag.tolist())
        for part in (one, other)
        for x in part.exchanges
    ]
    half = len(plain) // 2
    heads = [(b.start, b.start_utc, b.health, b.schedule_sha256, b.flushed, b.notes) for b in (one, other)]
    return plain[:half] == plain[half:] and heads[0] == heads[1]


def tables(served: Served) -> list[object]:
    columns: list[Any] = [getattr(part, name) for part in (served.requests, served.events) for name in part.__slots__]
    return [*(repr(c.tolist()) if isinstance(c, np.ndarray) else c for c in columns), served.seconds]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(exchanges(), max_size=4))
def test_any_block_comes_back_as_it_was(tmp_path: Path, some: list[Exchange]) -> None:
    block = sse.block(*some)
    served = parse(sse.block(sse.steady_stream(5, 2, 3)))
    write_block(tmp_path / "round-1", block, served)
    assert same(read_block(tmp_path / "round-1"), block)
    assert tables(read_served(tmp_path / "round-1")) == tables(served)


def test_more_exchanges_than_one_batch_and_a_name_with_dots(tmp_path: Path) -> None:
    block = sse.block(*(sse.steady_stream(5, 2, 1, index=i) for i in range(300)))
    write_block(tmp_path / "load" / "r.1", block, parse(block))
    assert same(read_block(tmp_path / "load" / "r.1"), block)
    assert blocks_in(tmp_path / "load") == (tmp_path / "load" / "r.1",)
    assert not list((tmp_path / "load").glob(".*")), "a draft was left"


def test_a_stream_packs_to_a_tenth(tmp_path: Path) -> None:
    block = sse.block(*(sse.steady_stream(5, 2, 200, index=i) for i in range(20)))
    write_block(tmp_path / "r", block, parse(block))
    assert (tmp_path / f"r{BLOCK}").stat().st_size < 0.1 * sum(len(x.body) for x in block.exchanges)


def test_a_file_cut_off_is_refused(tmp_path: Path) -> None:
    block = sse.block(*(sse.steady_stream(5, 2, 20, index=i) for i in range(600)))
    write_block(tmp_path / "r", block, parse(block))
    file = tmp_path / f"r{BLOCK}"
    whole = file.read_bytes()
    for share in (0.01, 0.3, 0.6, 0.95):
        file.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(RunError, match=str(file)):
            read_block(tmp_path / "r")


@pytest.mark.parametrize("content", [b"", b"not arrow", b"\xff" * 64])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"r{BLOCK}").write_bytes(content)
    with pytest.raises(RunError, match="cannot read"):
        read_block(tmp_path / "r")


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    block = sse.block(sse.steady_stream(5, 2, 2))
    write_block(tmp_path / "r", block, parse(block))
    for ending in (REQUESTS, EVENTS):
        file = tmp_path / f"r{ending}"
        with file.open("rb") as source, pa.ipc.open_stream(source) as stream:
            schema = stream.schema
        with pa.ipc.new_stream(file, schema):
            pass
        with pytest.raises(RunError, match=f"r{ending}: cannot read: it has columns and no rows"):
            read_served(tmp_path / "r")


def test_a_block_that_was_never_filed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="never filed"):
        read_served(tmp_path / "r")


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = sse.block(sse.steady_stream(5, 2, 2))
    monkeypatch.setattr("evalrig.loadgen.raw.VERSION", "2")
    write_block(tmp_path / "r", block, parse(block))
    monkeypatch.undo()
    with pytest.raises(RunError, match="has layout 2"):
        read_block(tmp_path / "r")


def test_no_space_is_one_line_and_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = sse.block(sse.steady_stream(5, 2, 2))
    write_block(tmp_path / "r", block, parse(block))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("evalrig.loadgen.raw.os.fsync", full)
    with pytest.raises(RunError, match="No space left"):
        write_block(tmp_path / "r", sse.block(), parse(sse.block()))
    monkeypatch.undo()
    assert same(read_block(tmp_path / "r"), block)
    assert not list(tmp_path.glob(".*"))
