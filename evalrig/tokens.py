"""Per-token logprobs on disk: an Arrow IPC stream, one record batch an attempt, float32, only ever appended to.

`pyarrow.ipc.open_stream` reads such a file. What names the attempt stands in its batch's metadata, so that batches are
found by reading their headers alone. Batches are read, not mapped: a mapped page counts as memory used.
"""

import contextlib
import os
import struct
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evalrig.errors import RunError, UsageError
from evalrig.types import Record

Columns = Mapping[str, NDArray[Any]]
SUFFIX = ".arrows"
"""The usual ending of an Arrow stream."""
_SCHEMA, _BATCH = 1, 3
"""Kinds of message (Arrow's Message.fbs)."""
_LONGEST_HEADER = 1 << 20
"""Bytes; a longer one is no header."""


class Key(NamedTuple):
    """Which attempt a batch belongs to. An attempt made again after a kill has another start, and its record says which."""

    sample: str
    epoch: int
    started: str
    """As in the record's provenance."""


def key_of(record: Record) -> Key:
    """The batch that a record speaks of."""
    return Key(record.sample, record.epoch, record.provenance.started)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """Where one message lies in the file, bytes."""

    kind: int
    start: int
    stop: int
    key: Key


class TokenFile:
    """One file to read: the whole batches it holds. A file that is not there holds none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: dict[Key, tuple[int, int]] = {}
        """First byte and the one after the last, in the order of the file; of equal keys the last batch counts."""
        self.whole = 0
        """Bytes up to the end of the last whole message."""
        size = 0
        self.schema = b""
        with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            for message in _messages(file, size):
                self._take(file, message)
        self.torn = self.whole < size
        """Something follows that is no whole batch: what a kill left."""

    def _take(self, file: BinaryIO, message: _Message) -> None:
        if message.kind == _SCHEMA:
            self.schema = _part(file, message.start, message.stop)
        else:
            self.places.pop(message.key, None)
            self.places[message.key] = (message.start, message.stop)
        self.whole = message.stop

    def read(self, key: Key) -> dict[str, NDArray[Any]]:
        """The arrays of an attempt as written.

        Raises:
            UsageError: a record points at token logprobs that are not there or not readable.
        """
        import pyarrow as pa

        try:
            start, stop = self.places[key]
            stream = bytearray(len(self.schema) + stop - start)
            stream[: len(self.schema)] = self.schema
            with self.path.open("rb", buffering=0) as file:
                file.seek(start)
                file.readinto(memoryview(stream)[len(self.schema) :])
            one_thread = pa.ipc.IpcReadOptions(use_threads=False)  # an attempt is too small to share out
            batch = pa.ipc.open_stream(pa.py_buffer(stream), options=one_thread).read_next_batch()
            return {name: _values(batch.column(name)) for name in batch.schema.names}
        except (KeyError, ValueError, OSError, StopIteration) as error:
            why = "no such batch" if isinstance(error, KeyError) else error or "it is cut"
            raise UsageError(
                f"{self.path}: token logprobs of a record ({key.sample}, epoch {key.epoch}) cannot be read ({why}); "
                "restore the run folder"
            ) from error


class TokenWriter:
    """One file to append to. What a kill left of a last batch is cut off first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            before = TokenFile(path)
            self.end = self._durable = before.whole
            self._schema = before.schema
            self._file: BufferedWriter = path.open("ab")
            self._file.truncate(self.end)
        except OSError as error:
            raise self._failed(error) from error

    def append(self, key: Key, columns: Columns, sync: bool = True) -> None:
        """Add arrays of n rows, 1-d or 2-d; int32 and float32 on disk. Durable when this returns, or after `sync`."""
        head, batch = _encoded(key, columns)
        written = batch if self.end else head + batch
        self._schema = self._schema or head
        if not _same_schema(self._schema, head):
            raise RunError(f"{self.path}: holds other columns than {', '.join(columns)}; start a new run")
        with self._or_back():
            self._file.write(written)
            self._file.flush()
        self.end += len(written)
        if sync:
            self.sync()

    def sync(self) -> None:
        """All that was appended is durable when this returns."""
        if self._durable < self.end:
            with self._or_back():
                os.fsync(self._file.fileno())
            self._durable = self.end

    @contextlib.contextmanager
    def _or_back(self) -> Generator[None, None, None]:
        """What may not be on the disk is cut off after a failure: no record speaks of it."""
        try:
            yield
        except OSError as error:
            self.end = self._durable
            with contextlib.suppress(OSError, ValueError):  # the reason why it could not be written is the one to tell
                self._file.truncate(self.end)
            raise self._failed(error) from error

    def close(self) -> None:
        """Nothing is written at the end: a stream may end after any batch."""
        with contextlib.suppress(OSError):  # a full disk was told when it was met
            self._file.close()

    def _failed(self, error: OSError) -> RunError:
        return RunError(f"{self.path}: cannot write: {error.strerror}; free space, then resume")


def _same_schema(left: bytes, right: bytes) -> bool:
    import pyarrow as pa

    return left == right or pa.ipc.read_schema(pa.py_buffer(left)).equals(pa.ipc.read_schema(pa.py_buffer(right)))


def _encoded(key: Key, columns: Columns) -> tuple[bytes, bytes]:
    """The messages that begin a file and that hold this batch."""
    import pyarrow as pa

    batch = pa.record_batch({name: _column(values) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        named = {"sample": key.sample, "epoch": str(key.epoch), "started": key.started}
        writer.write_batch(batch, custom_metadata=named)
        stop = int(sink.tell())  # what closing the stream adds is left out
    content = sink.getvalue().to_pybytes()[:stop]
    head = 8 + int.from_bytes(content[4:8], "little")
    return content[:head], content[head:]


def _column(values: NDArray[Any]) -> Any:
    """Lists may differ in width from attempt to attempt, so their width is not part of the schema."""
    import pyarrow as pa

    stored = np.ascontiguousarray(values, np.float32 if values.dtype.kind == "f" else np.int32)
    if stored.ndim == 1:
        return pa.array(stored)
    rows, width = stored.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(stored.reshape(-1)))


def _values(column: Any) -> NDArray[Any]:
    import pyarrow as pa

    if not pa.types.is_list(column.type):
        return column.to_numpy()
    return column.values.to_numpy().reshape(len(column), -1) if len(column) else np.zeros((0, 0), np.float32)


def _messages(file: BinaryIO, size: int) -> Iterator[_Message]:
    """Whole messages from the start of the file, up to the first that is not one."""
    at = 0
    while at + 8 <= size:
        mark, length = struct.unpack("<Ii", _part(file, at, at + 8))
        if mark != 0xFFFFFFFF or not 0 < length <= _LONGEST_HEADER or at + 8 + length > size:
            return
        try:
            kind, body, named = _header(_part(file, at + 8, at + 8 + length))
            key = Key(named.get("sample", ""), int(named.get("epoch", "0")), named.get("started", ""))
        except (struct.error, ValueError):
            return
        stop = at + 8 + length + body
        if kind != (_BATCH if at else _SCHEMA) or body < 0 or stop > size:
            return
        yield _Message(kind=kind, start=at, stop=stop, key=key)
        at = stop


def _header(table: bytes) -> tuple[int, int, dict[str, str]]:
    """Kind, length of the body, and metadata of a message (a FlatBuffer: Arrow's Message.fbs)."""
    root = _at("<I", table, 0)
    kind, body, pairs = (_field(table, root, number) for number in (1, 3, 4))
    named: dict[str, str] = {}
    if pairs:
        vector = pairs + _at("<I", table, pairs)
        for number in range(_at("<I", table, vector)):
            place = vector + 4 + 4 * number
            pair = place + _at("<I", table, place)
            named[_text(table, pair, 0)] = _text(table, pair, 1)
    return _at("<B", table, kind) if kind else 0, _at("<q", table, body) if body else 0, named


def _field(table: bytes, start: int, number: int) -> int:
    """Where a field of the table at `start` lies; 0: it has its default."""
    known = start - _at("<i", table, start)
    place = 4 + 2 * number
    offset = _at("<H", table, known + place) if place < _at("<H", table, known) else 0
    return start + offset if offset else 0


def _text(table: bytes, start: int, number: int) -> str:
    place = _field(table, start, number)
    if not place:
        return ""
    text = place + _at("<I", table, place)
    return table[text + 4 : text + 4 + _at("<I", table, text)].decode()


def _at(kind: str, table: bytes, place: int) -> int:
    if place < 0:
        raise ValueError("an offset that points before the start")
    return struct.unpack_from(kind, table, place)[0]


def _part(file: BinaryIO, start: int, stop: int) -> bytes:
    file.seek(start)
    return file.read(stop - start)
