"""Per-token logprobs on disk: one Parquet file an attempt, float32, whole or absent."""

import contextlib
import os
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from evalrig.errors import RunError, UsageError


def write_tokens(path: Path, columns: dict[str, NDArray[Any]]) -> None:
    """Write arrays of n rows (1-d, or 2-d as fixed-size lists) to `path`; durable when this returns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: _column(values) for name, values in columns.items()}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            pq.write_table(pa.table(arrays), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the reason why it could not be written is the one to tell
            draft.unlink(missing_ok=True)
        raise RunError(f"{path}: cannot write: {error.strerror}; free space, then resume") from error


def read_tokens(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays as written.

    Raises:
        UsageError: a record points at token logprobs that are not there or not readable.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:  # `pq.read_table` would import half of pandas for one small file
            table = file.read(use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        raise UsageError(
            f"{path}: token logprobs of a record cannot be read ({error}); restore the run folder"
        ) from error
    columns: dict[str, NDArray[Any]] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if pa.types.is_fixed_size_list(column.type):
            columns[name] = column.values.to_numpy().reshape(len(column), column.type.list_size)
        else:
            columns[name] = column.to_numpy()
    return columns


def _column(values: NDArray[Any]) -> object:
    import pyarrow as pa

    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
