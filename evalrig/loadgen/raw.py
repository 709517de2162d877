"""A block on disk: `<name>.raw`, all bytes and times as they were recorded, and `<name>.arrow`, what parsing made of them.

The first is one compressed msgpack object, the second an Arrow file of two columns of tables. Both appear whole or not at
all. zstd by pyarrow, which is here for the tokens' files anyway: streams of events shrink to a twentieth.
"""

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from evalrig.errors import UsageError
from evalrig.loadgen.block import Block, Exchange, Health, Sent
from evalrig.loadgen.served import Events, Requests, Served

SCHEMA = 1
RAW, TABLES = ".raw", ".arrow"


class _Kept(msgspec.Struct):
    sent: Sent
    body: bytes
    ends: bytes
    at: bytes
    lag: bytes
    kernel: bool


class _File(msgspec.Struct):
    schema: int
    start: int
    start_utc: str
    health: Health
    schedule_sha256: str
    flushed: bool
    notes: dict[str, Any] | None
    exchanges: list[_Kept]


def write_block(path: Path, block: Block, served: Served) -> None:
    """Both files, durably; `path` without an ending. OSError where they cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _place(path.with_name(path.name + RAW), pack(block))
    _place(path.with_name(path.name + TABLES), _tables(served))


def read_block(path: Path) -> Block:
    """What was recorded.

    Raises:
        UsageError: it is not there, or not such a file.
    """
    return unpack(_bytes(path.with_name(path.name + RAW)), path)


def read_served(path: Path) -> Served:
    """What parsing made of it. UsageError as `read_block`."""
    import pyarrow as pa
    import pyarrow.ipc

    raw = _bytes(path.with_name(path.name + TABLES))
    try:
        with pyarrow.ipc.open_file(pa.BufferReader(raw)) as file:
            table = file.read_all()
    except pa.ArrowInvalid as error:
        raise UsageError(f"{path}{TABLES}: no table of a block: {error}; run that round again") from error
    columns: dict[str, Any] = {
        name: table.column(name).chunk(0).values.to_numpy(zero_copy_only=False)
        for name in table.column_names
        if name != "seconds"
    }
    requests = {name: columns[f"r_{name}"] for name in Requests.__slots__ if name != "error"}
    return Served(
        requests=Requests(**requests, error=tuple(columns["r_error"])),
        events=Events(**{name: columns[f"e_{name}"] for name in Events.__slots__}),
        seconds=float(table.column("seconds")[0].as_py()),
    )


def pack(block: Block) -> bytes:
    """As one compressed object."""
    import pyarrow as pa

    kept = [
        _Kept(
            sent=one.sent,
            body=one.body,
            ends=one.ends.tobytes(),
            at=np.diff(one.at, prepend=block.start).tobytes(),
            lag=one.lag.tobytes(),
            kernel=one.kernel,
        )
        for one in block.exchanges
    ]
    whole = _File(
        schema=SCHEMA,
        start=block.start,
        start_utc=block.start_utc,
        health=block.health,
        schedule_sha256=block.schedule_sha256,
        flushed=block.flushed,
        notes=block.notes,
        exchanges=kept,
    )
    return pa.compress(msgspec.msgpack.encode(whole), codec="zstd", asbytes=True)


def unpack(raw: bytes, where: Path) -> Block:
    """What `pack` made."""
    import pyarrow as pa

    try:
        plain = pa.CompressedInputStream(pa.BufferReader(raw), "zstd").read()
        found = msgspec.msgpack.decode(plain, type=_File)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"{where}{RAW}: no recorded block: {error}; run that round again") from error
    if found.schema != SCHEMA:
        raise UsageError(f"{where}{RAW}: a block of schema {found.schema}, this evalrig reads {SCHEMA}; use its own")
    return Block(
        start=found.start,
        start_utc=found.start_utc,
        exchanges=tuple(_exchange(one, found.start) for one in found.exchanges),
        health=found.health,
        schedule_sha256=found.schedule_sha256,
        flushed=found.flushed,
        notes=found.notes,
    )


def _exchange(kept: _Kept, start: int) -> Exchange:
    ends, at, lag = (np.frombuffer(part, np.int64) for part in (kept.ends, kept.at, kept.lag))
    return Exchange(sent=kept.sent, body=kept.body, ends=ends, at=start + np.cumsum(at), lag=lag, kernel=kept.kernel)


def _tables(served: Served) -> bytes:
    import pyarrow as pa
    import pyarrow.ipc

    def column(values: Any) -> Any:
        held = pa.array(values, pa.string() if isinstance(values, tuple) else None)
        return pa.ListArray.from_arrays([0, len(held)], held)

    rows = {f"r_{name}": column(getattr(served.requests, name)) for name in Requests.__slots__}
    rows |= {f"e_{name}": column(getattr(served.events, name)) for name in Events.__slots__}
    table = pa.table({**rows, "seconds": [served.seconds]})
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, table.schema, options=pyarrow.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(table)
    return sink.getvalue().to_pybytes()


def _place(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot read the block: {error.strerror}; is it a run with rounds of load?"
        ) from error
