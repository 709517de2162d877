"""What the tools of the store of tables do to its state."""

from collections.abc import Callable, Mapping, Sequence
from operator import eq, gt, lt, ne
from typing import Any, TypeAlias

from evalrig.errands import TEXT, digest, one_of, receipt, record, several, stumble
from evalrig.world import State, ToolError

Row: TypeAlias = dict[str, Any]
Where: TypeAlias = Mapping[str, Any]

TYPES: Mapping[str, type] = {"text": str, "number": int, "flag": bool}
TESTS: Mapping[str, Callable[[Any, Any], bool]] = {"equal": eq, "unequal": ne, "above": gt, "below": lt}
VALUE = {"type": ["string", "integer", "boolean"]}
CELLS = several(record(column=TEXT, value=VALUE))
CONDITION = record(column=TEXT, test=one_of(*TESTS), value=VALUE)
WHERE = record(match=one_of("all", "any"), conditions=several(CONDITION))
COLUMN = record(("unique", "refers_to"), name=TEXT, type=one_of(*TYPES), unique={"type": "boolean"}, refers_to=TEXT)


def transaction_of(table: str) -> str:
    """The id of a table's transaction; it has one at a time."""
    return f"tx-{digest('transaction', table, length=12)}"


def free_instead(table: str, column: str, value: Any) -> str:
    """What the store proposes where a value that must be unique is taken."""
    return f"{value}-{digest('free', table, column, value, length=6)}"


def _table(state: State, table: str) -> Any:
    if table not in state["tables"]:
        raise ToolError(f"there is no table {table}")
    return state["tables"][table]


def _row(state: State, table: str, id: str) -> Row:
    if id not in _table(state, table)["rows"]:
        raise ToolError(f"{table} has no row {id}")
    return state["tables"][table]["rows"][id]


def _rows(state: State, table: str, where: Where | None) -> list[Row]:
    """Those that meet the conditions, with their ids, by id."""
    found = _table(state, table)
    rows = [{"id": id, **row} for id, row in sorted(found["rows"].items())]
    if where is None:
        return rows
    for condition in where["conditions"]:
        _typed(table, found["columns"], condition["column"], condition["value"])
        if condition["test"] in {"above", "below"} and not _is(condition["value"], "number"):
            raise ToolError(f"only numbers are above or below, not {condition['value']!r}")
    every = all if where["match"] == "all" else any
    return [row for row in rows if every(_meets(row, condition) for condition in where["conditions"])]


def _meets(row: Row, condition: Where) -> bool:
    value, wanted = row.get(condition["column"]), condition["value"]
    if value is None:
        return False
    return TESTS[condition["test"]](value, wanted)


def _is(value: Any, type: str) -> bool:
    return isinstance(value, TYPES[type]) and (type == "flag" or not isinstance(value, bool))


def _typed(table: str, columns: Mapping[str, Any], column: str, value: Any) -> None:
    type = "text" if column == "id" else columns.get(column, {}).get("type")
    if type is None:
        raise ToolError(f"{table} has no column {column}")
    if not _is(value, type):
        raise ToolError(f"column {column} of {table} takes a {type}, not {value!r}")


def _cells(state: State, table: str, cells: Sequence[Where]) -> Row:
    """Checked against the columns, and that what they refer to is there."""
    columns, row = _table(state, table)["columns"], Row()
    for cell in cells:
        column, value = cell["column"], cell["value"]
        if column == "id" or column in row:
            raise ToolError(f"column {column} is given twice, or is the id; the id of a row does not change")
        _typed(table, columns, column, value)
        if (other := columns[column]["refers_to"]) and value not in _table(state, other)["rows"]:
            raise ToolError(f"{table}.{column} refers to {other}, which has no row {value}")
        row[column] = value
    return row


def _distinct(state: State, table: str, rows: Mapping[str, Row]) -> None:
    """With these rows, what is unique still is."""
    merged = {**state["tables"][table]["rows"], **rows}
    for column, facts in state["tables"][table]["columns"].items():
        values = [row[column] for id, row in merged.items() if id not in rows and column in row]
        for row in rows.values() if facts["unique"] else ():
            if column in row and row[column] in values:
                free = free_instead(table, column, row[column])
                raise ToolError(f"{column} {row[column]} is taken; the store proposes {free}")
            values += [row[column]] if column in row else []


def _writable(state: State, table: str) -> None:
    """The last check before a write: it may use up a failure."""
    if state["tables"][table]["guarded"] and transaction_of(table) not in state["transactions"]:
        raise ToolError(f"{table} is written only in a transaction")
    stumble(state, "write", table)


def _unreferred(state: State, table: str, id: str) -> None:
    for other, facts in sorted(state["tables"].items()):
        for name in [name for name, about in facts["columns"].items() if about["refers_to"] == table]:
            for row in sorted(facts["rows"]):
                if facts["rows"][row].get(name) == id:
                    raise ToolError(f"row {row} of {other} refers to row {id} of {table}: delete that one first")


def _list_tables(state: State) -> Any:
    return {"tables": sorted(state["tables"])}


def _describe_table(state: State, table: str) -> Any:
    return {"columns": [{"name": name, **facts} for name, facts in sorted(_table(state, table)["columns"].items())]}


def _get_row(state: State, table: str, id: str) -> Any:
    return {"id": id, **_row(state, table, id)}


def _select_rows(state: State, table: str, where: Where | None = None) -> Any:
    return {"rows": _rows(state, table, where)}


def _sum_column(state: State, table: str, column: str, where: Where | None = None) -> Any:
    if _table(state, table)["columns"].get(column, {}).get("type") != "number":
        raise ToolError(f"{table} has no column {column} of numbers")
    return {"sum": sum(row.get(column, 0) for row in _rows(state, table, where))}


def _join_tables(state: State, left: str, right: str, on: Where, where: Where | None = None) -> Any:
    for table, side in ((left, "left"), (right, "right")):
        if on[side] not in {"id", *_table(state, table)["columns"]}:
            raise ToolError(f"{table} has no column {on[side]}")
    pairs = [(one, two) for one in _rows(state, left, where) for two in _rows(state, right, None)]
    met = [(one, two) for one, two in pairs if on["left"] in one and one[on["left"]] == two.get(on["right"])]
    return {"rows": [{"left": one, "right": two} for one, two in met]}


def _insert_rows(state: State, table: str, rows: Sequence[Where]) -> Any:
    new = {row["id"]: _cells(state, table, row["cells"]) for row in rows}
    there = sorted(new.keys() & _table(state, table)["rows"].keys())
    if there or len(new) < len(rows):
        raise ToolError(f"a row is there already or given twice: {', '.join(there or new)}")
    _distinct(state, table, new)
    _writable(state, table)
    state["tables"][table]["rows"].update(new)
    return receipt("write", table, new)


def _insert_row(state: State, table: str, id: str, cells: Sequence[Where]) -> Any:
    return _insert_rows(state, table, [{"id": id, "cells": cells}])


def _update(state: State, table: str, ids: Sequence[str], cells: Sequence[Where]) -> Any:
    new = _cells(state, table, cells)
    _distinct(state, table, {id: {**state["tables"][table]["rows"][id], **new} for id in ids})
    _writable(state, table)
    for id in ids:
        state["tables"][table]["rows"][id].update(new)
    written = {id: state["tables"][table]["rows"][id] for id in ids}
    return {"rows": len(ids), **receipt("write", table, written)}


def _update_row(state: State, table: str, id: str, cells: Sequence[Where]) -> Any:
    _row(state, table, id)
    return _update(state, table, [id], cells)


def _update_rows(state: State, table: str, where: Where, cells: Sequence[Where]) -> Any:
    return _update(state, table, [row["id"] for row in _rows(state, table, where)], cells)


def _delete(state: State, table: str, ids: Sequence[str]) -> Any:
    for id in ids:
        _unreferred(state, table, id)
    _writable(state, table)
    for id in ids:
        del state["tables"][table]["rows"][id]
    return {"rows": len(ids), **receipt("delete", table, sorted(ids))}


def _delete_row(state: State, table: str, id: str) -> Any:
    _row(state, table, id)
    return _delete(state, table, [id])


def _delete_rows(state: State, table: str, where: Where) -> Any:
    return _delete(state, table, [row["id"] for row in _rows(state, table, where)])


def _create_table(state: State, table: str, columns: Sequence[Where]) -> Any:
    if table in state["tables"]:
        raise ToolError(f"there is a table {table} already")
    facts = {
        one["name"]: column(one["type"], one.get("refers_to", ""), unique=one.get("unique", False)) for one in columns
    }
    for other in (about["refers_to"] for about in facts.values() if about["refers_to"]):
        _table(state, other)
    if len(facts) < len(columns) or "id" in facts:
        raise ToolError("a column is given twice, or is called id, which every table has")
    state["tables"][table] = {"columns": facts, "rows": {}, "guarded": False}
    return receipt("create", table, facts)


def column(type: str, refers_to: str = "", *, unique: bool = False, note: str = "") -> dict[str, Any]:
    """What is kept of a column; `refers_to`: its values are ids of that table."""
    return {"type": type, "refers_to": refers_to, "unique": unique, "note": note}


def _begin(state: State, table: str) -> Any:
    rows, id = _table(state, table)["rows"], transaction_of(table)
    if id in state["transactions"]:
        raise ToolError(f"{table} is in a transaction already")
    state["transactions"][id] = {"table": table, "before": {key: dict(row) for key, row in rows.items()}}
    return {"transaction": id}


def _open(state: State, transaction: str) -> Any:
    if transaction not in state["transactions"]:
        raise ToolError(f"no transaction {transaction} is open")
    return state["transactions"][transaction]


def _commit(state: State, transaction: str) -> Any:
    _open(state, transaction)
    del state["transactions"][transaction]
    return receipt("commit", transaction)


def _roll_back(state: State, transaction: str) -> Any:
    table, before = _open(state, transaction)["table"], state["transactions"][transaction]["before"]
    for id in sorted(state["tables"][table]["rows"].keys() - before.keys()):
        _unreferred(state, table, id)
    for row in before.values():
        _cells(state, table, [{"column": name, "value": value} for name, value in row.items()])
    state["tables"][table]["rows"] = before
    del state["transactions"][transaction]
    return receipt("roll_back", transaction)


_ROW, _SOME = record(table=TEXT, id=TEXT), record(("where",), table=TEXT, where=WHERE)
ACTS = (
    ("list_tables", "Names of all tables.", record(), _list_tables),
    ("describe_table", "Columns of a table.", record(table=TEXT), _describe_table),
    ("get_row", "One row by id.", _ROW, _get_row),
    ("select_rows", "Rows that meet conditions.", _SOME, _select_rows),
    (
        "sum_column",
        "Sum of a column over rows that meet conditions.",
        record(("where",), table=TEXT, column=TEXT, where=WHERE),
        _sum_column,
    ),
    (
        "join_tables",
        "Pairs of rows whose columns `on` are equal; `where` is on the left one.",
        record(("where",), left=TEXT, right=TEXT, on=record(left=TEXT, right=TEXT), where=WHERE),
        _join_tables,
    ),
    ("insert_row", "Insert one row.", record(table=TEXT, id=TEXT, cells=CELLS), _insert_row),
    (
        "insert_rows",
        "Insert several rows at once.",
        record(table=TEXT, rows=several(record(id=TEXT, cells=CELLS))),
        _insert_rows,
    ),
    ("update_row", "Set cells of one row.", record(table=TEXT, id=TEXT, cells=CELLS), _update_row),
    (
        "update_rows",
        "Set the same cells in all rows that meet conditions.",
        record(table=TEXT, where=WHERE, cells=CELLS),
        _update_rows,
    ),
    ("delete_row", "Delete one row.", _ROW, _delete_row),
    ("delete_rows", "Delete all rows that meet conditions.", record(table=TEXT, where=WHERE), _delete_rows),
    ("create_table", "Create a table.", record(table=TEXT, columns=several(COLUMN)), _create_table),
    ("begin", "Open a transaction on a table.", record(table=TEXT), _begin),
    ("commit", "Keep a transaction's changes.", record(transaction=TEXT), _commit),
    ("roll_back", "Undo a transaction's changes.", record(transaction=TEXT), _roll_back),
)
