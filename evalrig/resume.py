"""What a stopped run still owes, and whether it may go on."""

from collections.abc import Mapping
from typing import Any

import msgspec

from evalrig.errors import UsageError
from evalrig.plan import Cell, Plan
from evalrig.records import RunFolder


def pending(folder: RunFolder, plan: Plan) -> dict[Cell, tuple[str, ...]]:
    """Cells with samples that have no record yet, in the order of the plan."""
    left: dict[Cell, tuple[str, ...]] = {}
    for cell in plan.cells:
        rows = folder.traces(cell.suite) if cell.stage == "trace" else folder.records(*cell.filed)
        done = {row.sample for row in rows if row.epoch == cell.epoch}
        if rest := tuple(sample for sample in cell.samples if sample not in done):
            left[cell] = rest
    return left


def refuse_if_changed(folder: RunFolder, plan: Plan) -> None:
    """A resumed run must be the same run.

    Raises:
        UsageError: names the first keys that differ.
    """
    before = msgspec.to_builtins(folder.plan())
    after = msgspec.to_builtins(plan)
    differ = list(_differences(before, after, ""))
    if differ:
        keys = ", ".join(f"`{key}`" for key in differ[:3]) + (f" and {len(differ) - 3} more" if len(differ) > 3 else "")
        raise UsageError(f"{folder.path}: cannot go on: {keys} changed since the start; start a new run")


def refuse_if_marked_elsewhere(folder: RunFolder, sandbox: str) -> None:
    """Programs must be run as they were: another sandbox, version or Python can mark the same program otherwise.

    Raises:
        UsageError: names both.
    """
    before = str(folder.environment().get("sandbox", ""))
    if before != sandbox:
        was, now = before or "none", sandbox or "none"
        raise UsageError(
            f"{folder.path}: cannot go on: programs ran in `{was}`, and now would in `{now}`; start a new run"
        )


def _differences(before: Any, after: Any, path: str) -> list[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = [*before, *(key for key in after if key not in before)]
        return [
            d
            for key in keys
            for d in _differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
        ]
    if isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        return [
            d for i, (a, b) in enumerate(zip(before, after, strict=True)) for d in _differences(a, b, f"{path}[{i}]")
        ]
    return [] if before == after else [path]
