"""BFCL's files as questions: entries with their known answers, and its functions as tools with JSON Schema."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evalrig.types import Message, Tool

MULTI_TURN: Final = tuple(f"multi_turn_{kind}" for kind in ("base", "long_context", "miss_func", "miss_param"))
ANSWERED: Final = (
    *("simple_python", "multiple", "parallel", "parallel_multiple"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
)
"""One turn, whose calls are held against a known answer."""
WITHOUT: Final = ("irrelevance", "live_irrelevance")
"""One turn that no tool fits."""
WITH: Final = ("live_relevance",)
"""One turn that some tool fits; which is left open."""
CATEGORIES: Final = (*MULTI_TURN, *ANSWERED, *WITHOUT, *WITH)

_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array"}
_KEPT: Final = ("description", "enum", "default", "required", "format", "maximum", "minimum", "minItems", "maxItems")
_DOCS: Final = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry as it stands in the file, and what is right."""

    category: str
    raw: Mapping[str, Any]
    truth: Any
    """Of several turns: calls as text, turn by turn; of one: the values allowed for each argument, call by call; else None."""
    functions: tuple[Mapping[str, Any], ...]
    """In BFCL's own words: of several turns all that its services have, of one those on offer."""

    @property
    def id(self) -> str:
        """BFCL's own."""
        return self.raw["id"]

    @property
    def held_back(self) -> Mapping[int, Sequence[str]]:
        """Turn -> functions that are on offer from then on."""
        return {int(turn): names for turn, names in self.raw.get("missed_function", {}).items()}

    def tools(self, turn: int = 0) -> tuple[Tool, ...]:
        """On offer in a turn."""
        late = {name for begin, names in self.held_back.items() if turn < begin for name in names}
        return tuple(_tool(function) for function in self.functions if function["name"] not in late)

    def messages(self, turn: int = 0) -> tuple[Message, ...]:
        """What is said at the beginning of a turn; none where only functions are added."""
        return tuple(Message(role=said["role"], content=said["content"]) for said in self.raw["question"][turn])


def entries(folder: Path, category: str) -> list[Entry]:
    """All entries of a category, in the order of the file."""
    place = folder / "bfcl_eval" / "data"
    rows = _lines(place / f"BFCL_v4_{category}.json")
    answers = [None] * len(rows)
    if category not in (*WITHOUT, *WITH):
        answers = [row["ground_truth"] for row in _lines(place / "possible_answer" / f"BFCL_v4_{category}.json")]
    if category not in MULTI_TURN:
        pairs = zip(rows, answers, strict=True)
        return [Entry(category=category, raw=r, truth=a, functions=tuple(r["function"])) for r, a in pairs]
    docs = {name: _lines(place / "multi_turn_func_doc" / f"{file}.json") for name, file in _DOCS.items()}
    return [
        Entry(
            category=category,
            raw=row,
            truth=truth,
            functions=tuple(function for name in row["involved_classes"] for function in docs[name]),
        )
        for row, truth in zip(rows, answers, strict=True)
    ]


def tool_name(name: str) -> str:
    """As chat routes take it: without dots."""
    return name.replace(".", "_")


def schema(own: Mapping[str, Any]) -> dict[str, Any]:
    """BFCL's description of a value as JSON Schema; `any` is no restriction."""
    kind = own.get("type", "any")
    found: dict[str, Any] = {} if kind == "any" else {"type": _TYPES.get(kind, kind)}
    found |= {key: own[key] for key in _KEPT if key in own}
    if "properties" in own:
        found["properties"] = {name: schema(value) for name, value in own["properties"].items()}
    if "items" in own:
        found["items"] = schema(own["items"])
    return found


def _tool(function: Mapping[str, Any]) -> Tool:
    return Tool(
        name=tool_name(function["name"]),
        description=function["description"],
        parameters=schema(function["parameters"]),
    )


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
