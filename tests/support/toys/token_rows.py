"""Token files of a run folder as a fault would have left them: rewritten attempt by attempt."""

from collections.abc import Callable

import numpy as np

from evalrig.records import ROWS, RunFolder
from evalrig.tokens import Key, TokenWriter

Rewrite = Callable[[Key, dict[str, np.ndarray]], None]


def rewrite(folder: RunFolder, variant: str, suite: str, change: Rewrite, kind: str = ROWS) -> None:
    """Every attempt of a file written anew, its columns changed in place."""
    file = folder.tokens(variant, suite, kind)
    found = {key: {name: values.copy() for name, values in file.read(key).items()} for key in file.places}
    file.path.unlink()
    writer = TokenWriter(file.path)
    for key, columns in found.items():
        change(key, columns)
        writer.append(key, columns)
    writer.close()


def rewrite_one(folder: RunFolder, variant: str, suite: str, sample: str, change: Rewrite, kind: str = ROWS) -> None:
    """As `rewrite`, of one sample alone; the first of the file if it is empty."""
    wanted = sample or next(iter(folder.tokens(variant, suite, kind).places)).sample

    def one(key: Key, columns: dict[str, np.ndarray]) -> None:
        if key.sample == wanted:
            change(key, columns)

    rewrite(folder, variant, suite, one, kind)
