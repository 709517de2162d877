"""A store of tables: rows to find by conditions and joins, and to write under constraints, some only in a transaction."""

from functools import partial
from typing import Any

from evalrig.errands import HEX, REPORT, RULES, Act, Composed, Draw, Maker, Part, move
from evalrig.world import Move, State
from evalrig.worlds.tables.acts import ACTS, column, free_instead, transaction_of

REGIONS = ("east", "north", "south", "west")
NAMES = ("Adler", "Brandt", "Castel", "Dumont", "Evers", "Falk", "Grimm", "Holm")
UPDATING = ("update_row", "update_rows", "insert_row", "insert_rows")
"""A row can also be deleted and inserted as it should be."""
INSERTING = ("insert_row", "insert_rows")


def _table(draw: Draw, state: State, word: str, columns: dict[str, Any], rows: dict[str, Any], **kept: Any) -> str:
    """A table beside one with the same columns whose name differs in one digit."""
    name = f"{word}_{draw.code(4)}"
    for each, filled in ((draw.sibling(name), {}), (name, rows)):
        state["tables"][each] = {"columns": columns, "rows": filled, "guarded": False, **kept}
    return name


def _ids(draw: Draw, count: int) -> list[str]:
    """Ids in pairs that differ in one digit."""
    ids: list[str] = []
    while len(ids) < count:
        ids.append(draw.code(9))
        ids.append(draw.sibling(ids[-1]))
    return ids[:count]


def _cells(**cells: Any) -> list[dict[str, Any]]:
    return [{"column": name, "value": value} for name, value in cells.items()]


def _where(match: str, *conditions: tuple[str, str, Any]) -> dict[str, Any]:
    return {
        "match": match,
        "conditions": [{"column": name, "test": test, "value": value} for name, test, value in conditions],
    }


def _amounts(draw: Draw, state: State) -> str:
    """Eight rows with a region and an amount; every region has one on either side of 500."""
    rows = {
        id: {"region": REGIONS[at % 4], "amount": 101 + draw.below(399) + 500 * (at < 4)}
        for at, id in enumerate(_ids(draw, 8))
    }
    columns = {"region": column("text"), "amount": column("number"), "state": column("text")}
    return _table(draw, state, "sales", columns, rows)


def _targets(draw: Draw, state: State, count: int = 2, **kept: Any) -> tuple[str, list[str]]:
    """A table whose rows have a code and a level to be set, and their ids."""
    ids = _ids(draw, count)
    rows = {id: {"code": draw.code(8), "level": draw.below(90)} for id in ids}
    return _table(draw, state, "slots", {"code": column("text"), "level": column("number")}, rows, **kept), ids


def _marking(draw: Draw, state: State) -> Part:
    table, region, label = _amounts(draw, state), draw.pick(REGIONS), f"held-{draw.code(4)}"
    where = _where("all", ("region", "equal", region), ("amount", "above", 500))
    ask = f"In table {table}, for all rows with region {region} and an amount above 500, set state to"
    return Part(
        text=f"{ask} `{label}`.",
        blank=f"{ask} the word that accounting chose.",
        moves=(move("update_rows", table=table, where=where, cells=_cells(state=label)),),
        lost=UPDATING,
        tags=("nested",),
    )


def _listing(draw: Draw, state: State) -> Part:
    table, _ = _targets(draw, state)
    rows = [(id, draw.code(8), 10 + draw.below(80)) for id in _ids(draw, 2)]
    listed = " and ".join(f"row {id} with code `{code}` and level {level}" for id, code, level in rows)
    new = [{"id": id, "cells": _cells(code=code, level=level)} for id, code, level in rows]
    return Part(
        text=f"Insert into table {table}: {listed}.",
        blank=f"Insert into table {table} the two rows that I wrote down at home.",
        moves=(move("insert_rows", table=table, rows=new),),
        lost=INSERTING,
        tags=("ids", "nested"),
    )


def _creating(draw: Draw, state: State) -> Part:
    other, _ = _targets(draw, state)
    name = f"plan_{draw.code(5)}"
    columns = [{"name": "slot", "type": "text", "refers_to": other}, {"name": "token", "type": "text", "unique": True}]
    ask = f"Create table {name} with two columns of text: `slot`, which refers to"
    return Part(
        text=f"{ask} table {other}, and `token`, which is unique.",
        blank=f"{ask} the table that I have in mind, and `token`, which is unique.",
        moves=(move("create_table", table=name, columns=columns),),
        lost=("create_table",),
        tags=("nested",),
    )


def _registering(draw: Draw, state: State) -> Part:
    notes = draw.shuffled(("number of the customer", "number of the contract"))
    names = [f"n{draw.code(4)}" for _ in notes]
    columns = {name: column("text", note=note) for name, note in zip(names, notes, strict=True)}
    table, (id, *_), values = _table(draw, state, "deals", columns, {}), _ids(draw, 2), [draw.code(12) for _ in notes]
    said = ", ".join(f"{note} {value}" for note, value in sorted(zip(notes, values, strict=True)))
    ask = f"Insert into table {table}, whose description says which column is which, row {id}:"
    return Part(
        text=f"{ask} {said}.",
        blank=f"{ask} {sorted(notes)[0]} as on the paper, {sorted(notes)[1]} likewise.",
        moves=(
            move("describe_table", table=table),
            move("insert_row", table=table, id=id, cells=_cells(**dict(zip(names, values, strict=True)))),
        ),
        lost=INSERTING,
        tags=("ids", "nested"),
    )


def _joining(draw: Draw, state: State) -> Part:
    owners, cards = _ids(draw, 4), _ids(draw, 4)
    names = draw.shuffled(NAMES)[:4]
    people = dict(zip(owners, ({"name": name} for name in names), strict=True))
    left = _table(draw, state, "people", {"name": column("text")}, people)
    serials = [draw.code(14) for _ in cards]
    held = {card: {"owner": owners[at], "serial": serials[at]} for at, card in enumerate(cards)}
    right = _table(draw, state, "cards", {"owner": column("text", left), "serial": column("text")}, held)
    table, (id, *_) = _targets(draw, state)
    where = _where("all", ("name", "equal", names[0]))
    ask = f"In table {table} set `code` of row {id} to the `serial` in table {right} of the card whose `owner` is"
    return Part(
        text=f"{ask} the row of table {left} with the name {names[0]}.",
        blank=f"{ask} the person in table {left} whom I met yesterday.",
        moves=(
            move("join_tables", left=left, right=right, on={"left": "id", "right": "owner"}, where=where),
            move("update_row", table=table, id=id, cells=_cells(code=serials[0])),
        ),
        lost=UPDATING,
        tags=("ids", "nested"),
    )


def _summing(draw: Draw, state: State) -> Part:
    sales, (table, (id, *_)) = _amounts(draw, state), _targets(draw, state)
    regions = sorted(draw.shuffled(REGIONS)[:2])
    where = _where("any", *(("region", "equal", region) for region in regions))
    rows = state["tables"][sales]["rows"].values()
    total = sum(row["amount"] for row in rows if row["region"] in regions)
    ask = f"In table {table} set `level` of row {id} to the sum of `amount` in table {sales} over the regions"
    return Part(
        text=f"{ask} {' and '.join(regions)}.",
        blank=f"{ask} that the board chose.",
        moves=(
            move("sum_column", table=sales, column="amount", where=where),
            move("update_row", table=table, id=id, cells=_cells(level=total)),
        ),
        lost=UPDATING,
        tags=("ids", "nested"),
    )


def _naming(draw: Draw, state: State) -> Part:
    taken, (old, new) = f"tok-{draw.code(6)}", _ids(draw, 2)
    table = _table(draw, state, "tokens", {"token": column("text", unique=True)}, {old: {"token": taken}})
    ask = f"Insert into table {table} row {new} with token"
    return Part(
        text=f"{ask} `{taken}`; if that is taken, with the one that the store proposes.",
        blank=f"{ask} as agreed on the phone.",
        moves=tuple(
            move("insert_row", table=table, id=new, cells=_cells(token=token))
            for token in (taken, free_instead(table, "token", taken))
        ),
        lost=INSERTING,
        tags=("ids", "nested", "recovery"),
    )


def _retrying(draw: Draw, state: State) -> Part:
    (table, (id, *_)), code = _targets(draw, state), draw.code(12, HEX)
    state["busy"][f"write {table}"] = f"{table} was locked for a moment, nothing was done; call again"
    again = move("update_row", table=table, id=id, cells=_cells(code=code))
    return Part(
        text=f"In table {table} set `code` of row {id} to `{code}`.",
        blank=f"In table {table} set `code` of row {id} to the new code from the letter.",
        moves=(again, again),
        lost=UPDATING,
        tags=("ids", "nested", "recovery"),
    )


def _moving(draw: Draw, state: State) -> Part:
    (source, (id, *_)), (target, _) = _targets(draw, state), _targets(draw, state)
    row = state["tables"][source]["rows"][id]
    row["code"] = draw.code(16)
    return Part(
        text=f"Move row {id} from table {source} to table {target}: same id, same values.",
        blank=f"Move row {id} from table {source} to the other table, same id, same values.",
        moves=(
            move("get_row", table=source, id=id),
            move("insert_row", table=target, id=id, cells=_cells(**row)),
            move("delete_row", table=source, id=id),
        ),
        lost=INSERTING,
        tags=("ids", "nested"),
    )


def _clearing(draw: Draw, state: State) -> Part:
    table, (id, twin) = _targets(draw, state)
    below, near = _ids(draw, 2)
    rows = {below: {"slot": id}, near: {"slot": twin}}
    other = _table(draw, state, f"uses_{draw.code(3)}", {"slot": column("text", table)}, rows)
    again = move("delete_row", table=table, id=id)
    return Part(
        text=f"Delete row {id} of table {table}, and before it what refers to it.",
        blank=f"Delete the row of table {table} that we spoke of, and before it what refers to it.",
        moves=(again, move("delete_row", table=other, id=below), again),
        lost=("delete_row", "delete_rows"),
        tags=("ids", "recovery"),
    )


def _spread(draw: Draw, state: State, count: int, **kept: Any) -> tuple[str, str, list[Move]]:
    """Orders that name rows and their new codes; the rows cannot be replaced as a whole, for something refers to them."""
    table, ids = _targets(draw, state, 2 * count, **kept)
    chosen = dict(zip(ids[::2], (draw.code(12) for _ in range(count)), strict=True))
    uses = {use: {"slot": id} for use, id in zip(_ids(draw, len(ids)), ids, strict=True)}
    _table(draw, state, "uses", {"slot": column("text", table)}, uses)
    orders = {
        key: {"target": id, "code": code, "state": "open"}
        for key, (id, code) in zip(_ids(draw, count), chosen.items(), strict=True)
    }
    columns = {"target": column("text", table), "code": column("text"), "state": column("text")}
    done = {draw.code(9): {"target": ids[1], "code": draw.code(12), "state": "done"}}
    source = _table(draw, state, "orders", columns, {**orders, **done})
    look = move("select_rows", table=source, where=_where("all", ("state", "equal", "open")))
    writes = (move("update_row", table=table, id=id, cells=_cells(code=code)) for id, code in sorted(chosen.items()))
    return table, source, [look, *writes]


def _spreading(count: int, draw: Draw, state: State) -> Part:
    table, source, way = _spread(draw, state, count)
    return Part(
        text=f"For every row of table {source} with state open, set `code` of the row in {table} that `target` names "
        "to that row's `code`. Leave the orders as they are.",
        blank=f"For some rows of table {source} that I will pick later, set `code` of the row in {table} that `target` "
        "names to that row's `code`.",
        moves=tuple(way),
        lost=UPDATING,
        tags=("ids", "nested"),
    )


def _transacting(count: int, draw: Draw, state: State) -> Part:
    table, source, (look, *writes) = _spread(draw, state, count, guarded=True)
    ask = f"In one transaction on table {table}, which is then committed: for every row of table {source} with state"
    then = "set `code` of the row that `target` names to that row's `code`. Leave the orders as they are."
    return Part(
        text=f"{ask} open, {then}",
        blank=f"{ask} as I told you, {then}",
        moves=(
            look,
            move("begin", table=table),
            *writes,
            move("commit", transaction=transaction_of(table)),
        ),
        lost=("begin",),
        tags=("ids", "nested"),
    )


class Tables(Composed):
    """A small store of tables with constraints and transactions."""

    name = "tables"
    policy = f"You keep a store of tables. Every row has an id of text beside its columns.\n{RULES}"
    acts = (*(Act(name=n, description=d, parameters=p, do=do) for n, d, p, do in ACTS), REPORT)
    makers = (
        Maker(kind="marking", cost=1, make=_marking),
        Maker(kind="joining", cost=2, make=_joining),
        Maker(kind="spreading", cost=3, make=partial(_spreading, 2), receipted=False),
        Maker(kind="transacting", cost=5, make=partial(_transacting, 2)),
        Maker(kind="naming", cost=2, make=_naming),
        Maker(kind="listing", cost=1, make=_listing),
        Maker(kind="clearing", cost=3, make=_clearing),
        Maker(kind="summing", cost=2, make=_summing),
        Maker(kind="registering", cost=2, make=_registering),
        Maker(kind="creating", cost=1, make=_creating),
        Maker(kind="moving", cost=3, make=_moving, receipted=False),
        Maker(kind="retrying", cost=2, make=_retrying),
        Maker(kind="spreading", cost=6, make=partial(_spreading, 5), receipted=False),
        Maker(kind="transacting", cost=8, make=partial(_transacting, 5)),
    )

    def empty(self) -> State:
        """`tables` by name; `transactions` that are open, with the rows as they were before."""
        return {"tables": {}, "transactions": {}, "busy": {}, "reports": {}}
