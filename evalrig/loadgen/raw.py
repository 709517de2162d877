"""A block on disk: the bytes as they came, and beside them the tables that were made of them.

Both are Arrow IPC streams, packed by zstd: pyarrow brings it, it is several times faster than zlib, and these bytes repeat
themselves. Headers are not part of a block, so that no key can be in a file.
"""

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from evalrig.errors import RunError
from evalrig.loadgen.block import Block, Exchange, Health, Sent
from evalrig.loadgen.served import Events, Requests, Served

VERSION = "1"
"""Of the layout; another one is refused."""
BLOCK, REQUESTS, EVENTS = ".block.arrows", ".requests.arrows", ".events.arrows"
"""What is added to a block's path. The block is written last: where it is, the tables are whole."""
_AT_ONCE = 256
"""Exchanges in one record batch: a long block is never twice in memory."""
_SENT = ("index", "due", "sent", "ended", "status")
_STEPS = ("ends", "at")
"""Kept as differences, which pack well; `lag` is small as it is."""


class _Head(msgspec.Struct):
    """What a block has beside its exchanges."""

    version: str
    exchanges: int
    start: int
    start_utc: str
    health: Health
    schedule_sha256: str
    flushed: bool
    notes: dict[str, Any] | None


def write_block(path: Path, block: Block, served: Served) -> None:
    """Three files, each whole or not there. `path` has no ending: the round's name in its suite's folder."""
    requests: dict[str, Any] = {one.name: getattr(served.requests, one.name) for one in fields(Requests)}
    requests["error"] = list(served.requests.error)
    events: dict[str, Any] = {one.name: getattr(served.events, one.name) for one in fields(Events)}
    head = {"version": VERSION, "seconds": repr(float(served.seconds))}
    _write(_file(path, REQUESTS), iter([requests]), head)
    _write(_file(path, EVENTS), iter([events]), head)
    raw = _Head(
        version=VERSION,
        exchanges=len(block.exchanges),
        **{one.name: getattr(block, one.name) for one in fields(Block) if one.name != "exchanges"},
    )
    _write(_file(path, BLOCK), _rows(block), {"version": VERSION, "block": msgspec.json.encode(raw).decode()})


def read_block(path: Path) -> Block:
    """The block that was written under this path. RunError: it is not there, cut off, or of another version."""
    file = _file(path, BLOCK)
    exchanges: list[Exchange] = []
    with _opened(file) as (metadata, batches):
        head = msgspec.json.decode(metadata["block"], type=_Head)
        for batch in batches:
            exchanges += [_exchange(batch, row) for row in range(batch.num_rows)]
    if len(exchanges) != head.exchanges:
        raise RunError(f"{file}: {len(exchanges)} of {head.exchanges} requests are there; take the file from a copy")
    return Block(
        exchanges=tuple(exchanges),
        **{one.name: getattr(head, one.name) for one in fields(Block) if one.name != "exchanges"},
    )


def read_served(path: Path) -> Served:
    """The tables that were written beside a block. RunError as in `read_block`."""
    events, seconds = _table(_file(path, EVENTS))
    return Served(requests=read_requests(path), events=Events(**events), seconds=seconds)


def read_requests(path: Path) -> Requests:
    """Of these tables the smaller one. RunError as in `read_block`."""
    requests, _ = _table(_file(path, REQUESTS))
    requests["error"] = tuple(requests["error"].tolist())
    return Requests(**requests)


def blocks_in(folder: Path) -> tuple[Path, ...]:
    """Paths of the blocks in a suite's folder, sorted, without their endings."""
    return tuple(sorted(file.with_name(file.name.removesuffix(BLOCK)) for file in folder.glob(f"[!.]*{BLOCK}")))


def _file(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)  # a round's name may have dots


# ---- rows


def _rows(block: Block) -> Iterator[dict[str, Any]]:
    """Columns of a batch of exchanges."""
    for first in range(0, max(len(block.exchanges), 1), _AT_ONCE):
        some = block.exchanges[first : first + _AT_ONCE]
        columns: dict[str, Any] = {name: np.array([getattr(x.sent, name) for x in some], np.int64) for name in _SENT}
        columns["error"] = [x.sent.error for x in some]
        columns["kernel"] = np.array([x.kernel for x in some], bool)
        columns["body"] = [x.body for x in some]
        columns |= {name: [np.diff(getattr(x, name), prepend=np.int64(0)) for x in some] for name in _STEPS}
        columns["lag"] = [x.lag for x in some]
        yield columns


def _exchange(batch: Any, row: int) -> Exchange:
    def said(name: str) -> Any:
        return batch.column(name)[row].as_py()

    def column(name: str) -> NDArray[np.int64]:
        return batch.column(name)[row].values.to_numpy()

    return Exchange(
        sent=Sent(error=said("error"), **{name: said(name) for name in _SENT}),
        body=said("body"),
        kernel=said("kernel"),
        lag=column("lag"),
        **{name: np.cumsum(column(name)) for name in _STEPS},
    )


# ---- files


def _write(path: Path, batches: Iterator[Mapping[str, Any]], metadata: Mapping[str, str]) -> None:
    """A whole file or none: written under another name, made durable, then renamed."""
    import pyarrow as pa

    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            _stream(pa, file, batches, metadata)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _settle(path.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise RunError(f"{path}: cannot write: {error.strerror}; free space, then `evalrig resume` it") from error


def _stream(pa: Any, file: Any, batches: Iterator[Mapping[str, Any]], metadata: Mapping[str, str]) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    writer = None
    for columns in batches:
        arrays = {name: pa.array(column, _type(pa, name, column)) for name, column in columns.items()}
        batch = pa.RecordBatch.from_pydict(arrays, metadata=dict(metadata))
        writer = writer or pa.ipc.new_stream(file, batch.schema, options=options)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()


def _type(pa: Any, name: str, column: Any) -> Any:
    """None: as numpy has it."""
    if name == "body":
        return pa.large_binary()
    if name == "error":
        return pa.string()
    return None if isinstance(column, np.ndarray) else pa.list_(pa.int64())


def _settle(folder: Path) -> None:
    """Make the new name durable too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def _opened(path: Path) -> Generator[tuple[Mapping[str, str], Iterator[Any]], None, None]:
    import pyarrow as pa

    try:
        with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            metadata = {key.decode(): value.decode() for key, value in (stream.schema.metadata or {}).items()}
            if metadata.get("version") != VERSION:
                said = metadata.get("version", "unknown")
                raise RunError(
                    f"{path}: has layout {said}, and this evalrig reads {VERSION}; use the one that wrote it"
                )
            yield metadata, iter(stream)
    except FileNotFoundError as error:
        raise RunError(f"{path}: not there; the block was never filed") from error
    except (OSError, pa.ArrowException, msgspec.MsgspecError, KeyError, ValueError) as error:
        raise RunError(f"{path}: cannot read: {error}; take the file from a copy") from error


def _table(path: Path) -> tuple[dict[str, Any], float]:
    """Columns, and the block's seconds."""
    with _opened(path) as (metadata, batches):
        batch = next(batches, None)
        if batch is None:
            raise ValueError("it has columns and no rows")
        columns = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}
        return columns, float(metadata["seconds"])
