"""Orders, stock and refunds in the back office of a shop, under a written policy that the tools do not enforce."""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from evalrig.errands import (
    COUNT,
    HEX,
    REPORT,
    RULES,
    TEXT,
    Act,
    Composed,
    Draw,
    Maker,
    Part,
    digest,
    key_of,
    move,
    one_of,
    receipt,
    record,
    several,
    stumble,
)
from evalrig.world import Move, State, ToolError

TODAY = date(2026, 3, 31)
DAYS = 30
FEES = {"A": 0, "B": 10, "C": 25}
"""Per cent of the price that the shop keeps, by class of goods."""
APPROVED_ABOVE = 50_000
"""Cents."""
AGES = (2, 11, 29, 30, 31, 32, 75)
"""Days since delivery that are drawn: most lie close to the rule's edge."""
GOODS = ("LAMP", "DESK", "KETTLE", "TENT", "DRILL", "SCALE")
SITES = ("leeds", "turin", "gdansk", "porto")
CARRIERS = ("north", "polar", "swift")
NAMES = ("abel", "bruno", "clara", "doris", "emil", "frida")


def _order(state: State, order_id: str) -> dict[str, Any]:
    if order_id not in state["orders"]:
        raise ToolError(f"no order {order_id}")
    return state["orders"][order_id]


def _open(state: State, order_id: str) -> dict[str, Any]:
    order = _order(state, order_id)
    if order["status"] in ("cancelled", "shipped", "refused"):
        raise ToolError(f"order {order_id} is {order['status']} already")
    return order


def _line(state: State, order_id: str, line_id: str) -> dict[str, Any]:
    for line in _order(state, order_id)["lines"]:
        if line["line_id"] == line_id:
            if line["refund"]:
                raise ToolError(f"line {line_id} was settled already")
            return line
    raise ToolError(f"order {order_id} has no line {line_id}")


def _find_order(state: State, number: str) -> Any:
    return {"order_id": key_of(state["orders"], "number", number)}


def _find_orders(state: State, email: str) -> Any:
    found = {key: [line["sku"] for line in it["lines"]] for key, it in state["orders"].items() if it["email"] == email}
    return {"orders": [{"order_id": key, "skus": found[key]} for key in sorted(found)]}


def _get_order(state: State, order_id: str) -> Any:
    return {name: value for name, value in _order(state, order_id).items() if value}


def _check_address(state: State, address_id: str) -> Any:
    if address_id not in state["addresses"]:
        raise ToolError(f"no address {address_id}")
    return {**state["addresses"][address_id], "check_id": digest("check", address_id, length=12)}


def _add_note(state: State, order_id: str, note: str) -> Any:
    order = _order(state, order_id)
    order["notes"] = sorted([*order["notes"], note])
    return receipt("note", order_id, note)


def _cancel_order(state: State, order_id: str) -> Any:
    order = _open(state, order_id)
    stumble(state, "cancel_order", order_id)
    order["status"] = "cancelled"
    return receipt("cancel", order_id)


def _hold_order(state: State, order_id: str, reason: str) -> Any:
    _open(state, order_id)["status"] = f"held: {reason}"
    return receipt("hold", order_id, reason)


def _ship_order(state: State, order_id: str, shipment: dict[str, Any]) -> Any:
    order = _open(state, order_id)
    if shipment["address_id"] != order["address_id"]:
        raise ToolError(f"order {order_id} does not go to {shipment['address_id']}")
    order["status"], order["shipment"] = "shipped", shipment
    return receipt("ship", order_id, shipment)


def _refuse_shipment(state: State, order_id: str, check_id: str) -> Any:
    order = _open(state, order_id)
    order["status"], order["shipment"] = "refused", {"check_id": check_id}
    return receipt("refuse", order_id, check_id)


def _request_approval(state: State, order_id: str, cents: int) -> Any:
    _order(state, order_id)
    state["approvals"][order_id] = cents
    return {"approval": digest("approval", order_id, cents, length=14), **receipt("approval", order_id, cents)}


def _refund_order(state: State, order_id: str, refund: dict[str, Any]) -> Any:
    order = _order(state, order_id)
    if refund["payment_id"] != order["payment_id"]:
        raise ToolError(f"payment {refund['payment_id']} does not belong to order {order_id}")
    lines = [(_line(state, order_id, given["line_id"]), given["cents"]) for given in refund["lines"]]
    if len({line["line_id"] for line, _ in lines}) < len(lines):
        raise ToolError("a line is given twice")
    stumble(state, "refund_order", order_id)
    for line, cents in lines:
        line["refund"] = {"cents": cents, "approval": refund.get("approval", "")}
    return receipt("refund", order_id, sorted((line["line_id"], cents) for line, cents in lines))


def _decline_refund(state: State, order_id: str, line_id: str, reason: str) -> Any:
    _line(state, order_id, line_id)["refund"] = {"declined": reason}
    return receipt("decline", order_id, line_id, reason)


def _reserve_stock(state: State, order_id: str, sku: str, site: str, pieces: int) -> Any:
    order, there = _open(state, order_id), state["stock"].get(f"{sku} {site}", 0)
    if there < pieces:
        spare = [key.split()[1] for key in sorted(state["stock"]) if key.split()[0] == sku and key != f"{sku} {site}"]
        short = (
            f"{pieces - there} short in {site}, nothing was done; shortage {state['shortages'].get(f'{sku} {site}')}"
        )
        raise ToolError(f"{short}; transfer them from {', '.join(spare)}")
    state["stock"][f"{sku} {site}"] = there - pieces
    order["reserved"][f"{sku} {site}"] = pieces
    return receipt("reserve", order_id, sku, site, pieces)


def _transfer_stock(state: State, shortage_id: str, source: str, target: str, pieces: int) -> Any:
    sku = next((key.split()[0] for key, id in state["shortages"].items() if id == shortage_id), "")
    there = state["stock"].get(f"{sku} {source}", 0)
    if there < pieces or source == target:
        raise ToolError(f"{source} has {there} to give to {target} for shortage {shortage_id}")
    state["stock"][f"{sku} {source}"] = there - pieces
    state["stock"][f"{sku} {target}"] = state["stock"].get(f"{sku} {target}", 0) + pieces
    return receipt("transfer", sku, source, target, pieces)


_ORDER = {"order_id": TEXT}
_SITE = one_of(*SITES)
_RESERVE = record(**_ORDER, sku=TEXT, site=_SITE, pieces=COUNT)
_BRING = record(shortage_id=TEXT, source=_SITE, target=_SITE, pieces=COUNT)
_REASON = one_of("late", "damaged", "other")
_SHIPMENT = record(address_id=TEXT, check_id=TEXT, carrier=one_of(*CARRIERS))
_REFUND = record(
    ("approval",), payment_id=TEXT, lines=several(record(line_id=TEXT, cents={"type": "integer"})), approval=TEXT
)
_ACTS = (
    ("find_order", "Id of the order with this number.", record(number=TEXT), _find_order),
    ("find_orders", "Ids and goods of a customer's orders.", record(email=TEXT), _find_orders),
    ("get_order", "All about an order.", record(**_ORDER), _get_order),
    ("check_address", "Is an address blocked? Gives the check's id.", record(address_id=TEXT), _check_address),
    ("add_note", "Add a note to an order.", record(**_ORDER, note=TEXT), _add_note),
    ("cancel_order", "Cancel an order.", record(**_ORDER), _cancel_order),
    ("hold_order", "Hold an order back.", record(**_ORDER, reason=one_of("credit", "customs", "fraud")), _hold_order),
    ("ship_order", "Ship an order.", record(**_ORDER, shipment=_SHIPMENT), _ship_order),
    ("refuse_shipment", "Refuse to ship an order.", record(**_ORDER, check_id=TEXT), _refuse_shipment),
    ("request_approval", "Ask for a refund's approval.", record(**_ORDER, cents=COUNT), _request_approval),
    ("refund_order", "Refund lines of an order.", record(**_ORDER, refund=_REFUND), _refund_order),
    ("decline_refund", "Decline a line's refund.", record(**_ORDER, line_id=TEXT, reason=_REASON), _decline_refund),
    ("reserve_stock", "Reserve pieces for an order.", _RESERVE, _reserve_stock),
    ("transfer_stock", "Bring pieces to a site that is short of them.", _BRING, _transfer_stock),
)


def _new_order(draw: Draw, state: State, ages: Sequence[int] = AGES) -> str:
    """An order of two lines beside one whose id, number and mail address differ in one character. Gives its id."""
    key, number, name = f"ord_{draw.code(12, HEX)}", draw.code(8), f"{draw.pick(NAMES)}{draw.code(4)}@example.org"
    delivered = TODAY - timedelta(days=draw.pick(ages))
    twins = (draw.sibling(key[4:], HEX), draw.sibling(number), draw.sibling(name))
    for id, digits, email in ((key, number, name), (f"ord_{twins[0]}", twins[1], twins[2])):
        address = f"adr_{draw.code(10, HEX)}"
        state["addresses"][address] = {"blocked": draw.below(3) == 0}
        facts = {"number": digits, "email": email, "delivered": str(delivered), "address_id": address}
        state["orders"][id] = {**facts, "payment_id": f"pay_{draw.code(14)}", "lines": [_bought(draw), _bought(draw)]}
        state["orders"][id] |= {"status": "open", "notes": [], "reserved": {}, "shipment": {}}
    return key


def _bought(draw: Draw) -> dict[str, Any]:
    sku, cents = f"{draw.pick(GOODS)}-{draw.code(5)}", 100 * (20 + draw.below(230))
    return {"line_id": draw.code(7), "sku": sku, "class": draw.pick("ABC"), "cents": cents, "refund": {}}


def _settle(state: State, key: str, places: tuple[int, ...]) -> tuple[Move, ...]:
    """What the policy asks for when these lines of one delivery are to be refunded."""
    order = state["orders"][key]
    lines = [order["lines"][place] for place in places]
    if date.fromisoformat(order["delivered"]) < TODAY - timedelta(days=DAYS):
        return tuple(move("decline_refund", order_id=key, line_id=line["line_id"], reason="late") for line in lines)
    given = [
        {"line_id": line["line_id"], "cents": line["cents"] * (100 - FEES[line["class"]]) // 100} for line in lines
    ]
    total, refund = sum(line["cents"] for line in given), {"payment_id": order["payment_id"], "lines": given}
    if total <= APPROVED_ABOVE:
        return (move("refund_order", order_id=key, refund=refund),)
    approval = digest("approval", key, total, length=14)
    return (
        move("request_approval", order_id=key, cents=total),
        move("refund_order", order_id=key, refund={**refund, "approval": approval}),
    )


def _noting(draw: Draw, state: State) -> Part:
    key, note = _new_order(draw, state), f"Ask for {draw.code(7)}"
    return Part(
        text=f"Add to order id `{key}` the note `{note}`.",
        blank=f"Add to order id `{key}` the note that I dictated on the phone.",
        moves=(move("add_note", order_id=key, note=note),),
        lost=("add_note",),
        tags=("ids",),
    )


def _holding(draw: Draw, state: State) -> Part:
    key, reason = _new_order(draw, state), draw.pick(("credit", "customs", "fraud"))
    number = state["orders"][key]["number"]
    return Part(
        text=f"Hold order number {number} back for {reason}.",
        blank="Hold the order back that I talked about, for fraud.",
        moves=(
            move("find_order", number=number),
            move("hold_order", order_id=key, reason=reason),
        ),
        lost=("hold_order",),
        tags=("ids",),
    )


def _refunding(draw: Draw, state: State) -> Part:
    key, place = _new_order(draw, state), draw.below(2)
    number, line = state["orders"][key]["number"], state["orders"][key]["lines"][place]
    if draw.below(3) == 0:  # the price is above what needs an approval, the refund is not
        line |= {"class": "C", "cents": 100 * (520 + draw.below(140))}
    sku = line["sku"]
    return Part(
        text=f"The customer of order number {number} wants {sku} refunded: settle it by the rules.",
        blank=f"A customer wants {sku} refunded: settle it by the rules.",
        moves=(
            move("find_order", number=number),
            move("get_order", order_id=key),
            *_settle(state, key, (place,)),
        ),
        lost=("refund_order", "decline_refund"),
        tags=("ids", "nested", "policy"),
    )


def _repaying(draw: Draw, state: State) -> Part:
    key, place = _new_order(draw, state, AGES[:4]), draw.below(2)
    *_, twin = state["orders"]  # the same customer's
    state["orders"][twin]["email"] = state["orders"][key]["email"]
    email, line = state["orders"][key]["email"], state["orders"][key]["lines"][place]
    line["cents"] = 100 * (700 + draw.below(600))
    return Part(
        text=f"Customer {email} wants {line['sku']} refunded, of whichever order it is: settle it by the rules.",
        blank="A customer called and wants an item refunded, of whichever order it is: settle it by the rules.",
        moves=(
            move("find_orders", email=email),
            move("get_order", order_id=key),
            *_settle(state, key, (place,)),
        ),
        lost=("refund_order", "decline_refund"),
        tags=("ids", "nested", "policy"),
    )


def _shipping(draw: Draw, state: State) -> Part:
    key, carrier = _new_order(draw, state), draw.pick(CARRIERS)
    address = state["orders"][key]["address_id"]
    check = digest("check", address, length=12)
    if state["addresses"][address]["blocked"]:
        last = move("refuse_shipment", order_id=key, check_id=check)
    else:
        shipment = {"address_id": address, "check_id": check, "carrier": carrier}
        last = move("ship_order", order_id=key, shipment=shipment)
    return Part(
        text=f"Ship order id `{key}` with carrier {carrier}, if the rules allow it.",
        blank=f"Ship order id `{key}` with the carrier that they chose, if the rules allow it.",
        moves=(
            move("get_order", order_id=key),
            move("check_address", address_id=address),
            last,
        ),
        lost=("ship_order", "refuse_shipment"),
        tags=("ids", "nested", "policy"),
    )


def _retrying(draw: Draw, state: State) -> Part:
    key = _new_order(draw, state)
    state["busy"][f"cancel_order {key}"] = "time-out, nothing was done; call again"
    again = move("cancel_order", order_id=key)
    return Part(
        text=f"Cancel order id `{key}`.",
        blank="Cancel the order that the customer regrets.",
        moves=(again, again),
        lost=("cancel_order",),
        tags=("ids", "recovery"),
    )


def _returning(draw: Draw, state: State) -> Part:
    key = _new_order(draw, state, AGES[:4])
    number = state["orders"][key]["number"]
    return Part(
        text=f"Both lines of order number {number} came back. Settle them by the rules, in one refund.",
        blank="Both lines of an order came back. Settle them by the rules, in one refund.",
        moves=(
            move("find_order", number=number),
            move("get_order", order_id=key),
            *_settle(state, key, (0, 1)),
        ),
        lost=("refund_order", "decline_refund"),
        tags=("ids", "nested", "policy"),
    )


def _reserving(draw: Draw, state: State) -> Part:
    key, (site, other) = _new_order(draw, state), draw.shuffled(SITES)[:2]
    sku, there, short = state["orders"][key]["lines"][0]["sku"], draw.below(5), 1 + draw.below(4)
    state["stock"] |= {f"{sku} {site}": there, f"{sku} {other}": short + draw.below(9)}
    state["shortages"][f"{sku} {site}"] = shortage = f"sh_{draw.code(10, HEX)}"
    reserve = move("reserve_stock", order_id=key, sku=sku, site=site, pieces=there + short)
    bring = move("transfer_stock", shortage_id=shortage, source=other, target=site, pieces=short)
    ask = f"Reserve {there + short} of {sku} for order id `{key}`"
    return Part(
        text=f"{ask} in {site}. Bring from another site what is short there, and no more.",
        blank=f"{ask} at the site that they named. Bring from another site what is short there, and no more.",
        moves=(reserve, bring, reserve),
        lost=("reserve_stock",),
        tags=("ids", "recovery"),
    )


class Orders(Composed):
    """Orders, stock and refunds under a policy."""

    name = "orders"
    policy = f"""\
You work in the back office of a shop. Today is {TODAY}. Its rules:
- A line is refunded if its order was delivered on {TODAY - timedelta(days=DAYS)} or later. Else decline it with reason late.
- The refund is the line's price less a fee by class: {", ".join(f"{key} {fee} %" for key, fee in FEES.items())}.
- A refund above {APPROVED_ABOVE} cents in all needs an approval of that amount first; no other has one.
- Before shipping, check the order's address. Never ship to one that is blocked: refuse the shipment.
{RULES}"""
    acts = (*(Act(name=n, description=d, parameters=p, do=do) for n, d, p, do in _ACTS), REPORT)
    makers = (
        Maker(kind="noting", cost=1, make=_noting),
        Maker(kind="holding", cost=2, make=_holding),
        Maker(kind="refunding", cost=3, make=_refunding),
        Maker(kind="repaying", cost=4, make=_repaying),
        Maker(kind="shipping", cost=3, make=_shipping),
        Maker(kind="retrying", cost=2, make=_retrying),
        Maker(kind="returning", cost=3, make=_returning),
        Maker(kind="reserving", cost=3, make=_reserving),
    )

    def empty(self) -> State:
        """`orders` and `addresses` by id, `stock` and `shortages` by goods and site, `approvals` by order."""
        return {"orders": {}, "addresses": {}, "stock": {}, "approvals": {}, "shortages": {}, "busy": {}, "reports": {}}
