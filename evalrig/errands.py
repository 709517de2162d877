"""Errands composed of parts: a seeded generator for worlds whose sub-goals share nothing with each other.

Every part costs a fixed number of calls, and what it needs to know is in no other part's reach: lookups take an exact key,
every part has entities of its own, no tool acts on two parts at once. So the costs add up to the shortest way.
"""

import copy
import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, TypeAlias, TypeVar

from evalrig.errors import UsageError
from evalrig.types import Tool
from evalrig.world import Errand, Move, State, ToolError, World

T = TypeVar("T")
Schema: TypeAlias = dict[str, Any]

DIGITS = "0123456789"
HEX = "0123456789abcdef"
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 1}

RULES = """\
Do all that is asked and nothing else. Copy ids, codes and names exactly. Never guess an id: look it up.
A tool may refuse: read why, then call again or do what it says.
Each change gives a receipt; a part's receipt is that of its last change.
If any part needs a tool that you do not have, change nothing at all and answer CANNOT: tool
If any part leaves out something that you need and cannot look up, change nothing at all and answer CANNOT: detail
Else answer DONE when all is done."""
NO_TOOL, NO_DETAIL = "CANNOT: tool", "CANNOT: detail"
LACKS: Mapping[int, str] = {4: "missing_tool", 9: "missing_parameter"}
"""Of every ten errands, these cannot be done."""
DISTRACTORS = 4
LONGEST = 200
"""Calls: beyond it, names that are never given twice could run out."""


class Draw:
    """Seeded choices. Only `random()` is asked, whose stream Python promises to keep from version to version."""

    def __init__(self, seed: str) -> None:
        self._random = Random(int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big"))
        self._given: set[str] = set()

    def below(self, n: int) -> int:
        """0 .. n - 1."""
        return int(self._random.random() * n)

    def pick(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All of them in another order."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(len(left))]

    def fresh(self, make: Callable[[], str]) -> str:
        """What `make` gives, never the same twice."""
        while (text := make()) in self._given:
            pass
        self._given.add(text)
        return text

    def code(self, length: int, letters: str = DIGITS) -> str:
        """Characters that no other code of this errand has."""
        return self.fresh(lambda: "".join(self.pick(letters) for _ in range(length)))

    def sibling(self, code: str, letters: str = DIGITS) -> str:
        """The same, but for one of its characters (one of `letters`)."""
        places = [place for place, letter in enumerate(code) if letter in letters]

        def changed() -> str:
            place = self.pick(places)
            return code[:place] + self.pick([other for other in letters if other != code[place]]) + code[place + 1 :]

        return self.fresh(changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A tool and what it does."""

    name: str
    description: str
    parameters: Schema
    do: Callable[..., Any]
    """`do(state, **arguments)`: checks first, then changes `state`; returns plain JSON values."""

    @property
    def tool(self) -> Tool:
        """As the model sees it."""
        return Tool(name=self.name, description=self.description, parameters=self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One sub-goal, and the shortest way to it."""

    text: str
    """The user's words. They hold all that is needed and not found through the tools."""
    blank: str
    """The same without something that is needed."""
    moves: tuple[Move, ...]
    lost: tuple[str, ...]
    """Without these tools it cannot be done."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """A kind of part: makes one that costs `cost` calls, and puts into the state what it is about."""

    kind: str
    cost: int
    make: Callable[[Draw, State], Part]
    receipted: bool = True
    """False: its last changes may come in any order, so that no one receipt is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Script:
    parts: list[Part]
    start: State
    cluster: str
    quoted: list[int]
    """Numbers of the parts that the report at the end is on; empty: there is none."""


def move(tool: str, /, **arguments: Any) -> Move:
    """One call of a tool."""
    return Move(name=tool, arguments=arguments)


def record(optional: Sequence[str] = (), /, **properties: Schema) -> Schema:
    """JSON Schema of an object with these properties and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def several(items: Schema) -> Schema:
    """JSON Schema of a list that is not empty."""
    return {"type": "array", "items": items, "minItems": 1}


def one_of(*words: str) -> Schema:
    """JSON Schema of a choice of words."""
    return {"type": "string", "enum": list(words)}


def digest(*words: Any, length: int = 10) -> str:
    """Hex digits that nobody guesses and that the same words always give, whatever was done before."""
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:length]


def receipt(*words: Any) -> dict[str, str]:
    """What a change gives back."""
    return {"receipt": digest("receipt", *words)}


def key_of(entities: Mapping[str, Mapping[str, Any]], name: str, value: str) -> str:
    """Key of the one whose `name` is exactly this.

    Raises:
        ToolError: there is none.
    """
    found = next((key for key, entity in entities.items() if entity[name] == value), None)
    if found is None:
        raise ToolError(f"none has the {name} {value}")
    return found


def stumble(state: State, tool: str, key: str) -> None:
    """Fail once where the state says so. Counters lie under `busy`, which no comparison of states looks at."""
    if why := state["busy"].pop(f"{tool} {key}", ""):
        raise ToolError(why)


def _file_report(state: State, name: str, entries: list[dict[str, Any]]) -> Any:
    if name in state["reports"]:
        raise ToolError(f"there is a report {name} already")
    state["reports"][name] = sorted(entries, key=lambda entry: (entry["part"], entry["receipt"]))
    return {"filed": name}


REPORT = Act(
    name="file_report",
    description="File a report on parts of a request.",
    parameters=record(name=TEXT, entries=several(record(part=COUNT, receipt=TEXT))),
    do=_file_report,
)


class Composed(World):
    """A world whose errands are parts in a row, often with a report on early ones at the end."""

    acts: ClassVar[tuple[Act, ...]]
    makers: ClassVar[tuple[Maker, ...]]
    """In this order each leads an errand in turn. At least one costs a single call."""

    @abstractmethod
    def empty(self) -> State:
        """The state without anything in it, but for `busy` and `reports`."""

    def errands(self, horizon: int, count: int, seed: int) -> list[Errand]:
        """Errand i is the same for every `count`."""
        if not 1 <= horizon <= LONGEST or count < 0:
            raise UsageError(f"world {self.name}: horizon {horizon}, count {count}; give 1 to {LONGEST}, and 0 or more")
        return [self._errand(horizon, index, f"{self.name}-{horizon}-{seed}-{index:03d}") for index in range(count)]

    def call(self, state: State, move: Move) -> Any:
        """Neither arguments nor what is given back are shared with the state."""
        act = next((act for act in self.acts if act.name == move.name), None)
        if act is None:
            raise ToolError(f"there is no tool {move.name}")
        return copy.deepcopy(act.do(state, **copy.deepcopy(dict(move.arguments))))

    def alike(self, state: State, goal: State) -> bool:
        """Everything, but for what only counts failures."""
        return {**state, "busy": {}} == {**goal, "busy": {}}

    def _errand(self, horizon: int, index: int, id: str) -> Errand:
        draw = Draw(id)
        script = self._script(draw, horizon, index)
        texts, moves = [part.text for part in script.parts], [move for part in script.parts for move in part.moves]
        tags = {tag for part in script.parts for tag in part.tags}
        if script.quoted:
            text, last = self._closing(draw, script)
            texts, moves, tags = [*texts, text], [*moves, last], tags | {"carry", "nested"}
        lack, answer, lost = LACKS.get(index % 10, ""), "", ()
        if lack:
            spot = draw.below(len(script.parts))
            tags, answer = {lack}, NO_TOOL if lack == "missing_tool" else NO_DETAIL
            if lack == "missing_tool":
                lost = script.parts[spot].lost
            else:
                texts[spot] = script.parts[spot].blank
        return Errand(
            id=id,
            request=texts[0] if len(texts) == 1 else "\n".join(f"{n}. {text}" for n, text in enumerate(texts, 1)),
            start=script.start,
            tools=self._offer(draw, {move.name for move in moves}, lost),
            way=() if lack else tuple(moves),
            answer=(answer,) if answer else (),
            tags=tuple(sorted(tags)),
            cluster=f"{self.name}/{lack or script.cluster}",
        )

    def _script(self, draw: Draw, horizon: int, index: int) -> _Script:
        report = horizon >= 10 or (horizon >= 4 and draw.below(2) == 0)
        left = horizon - report
        fitting = [it for it in self.makers if it.cost <= left and (it.receipted or not report or it.cost < left)]
        chosen = [fitting[index % len(fitting)]]
        left -= chosen[0].cost
        while left:
            fitting = [maker for maker in self.makers if maker.cost <= left]
            other = [maker for maker in fitting if maker.kind != chosen[-1].kind and maker.cost > 1]
            chosen.append(draw.pick(other or fitting))
            left -= chosen[-1].cost
        lead, chosen = chosen[0], draw.shuffled(chosen)
        start = self.empty()
        parts = [maker.make(draw, start) for maker in chosen]
        first, *others = [number for number, maker in enumerate(chosen, 1) if maker.receipted] or [0]
        quoted = sorted([first, *draw.shuffled(others)[:2]]) if report else []
        return _Script(parts=parts, start=start, cluster=lead.kind, quoted=quoted)

    def _closing(self, draw: Draw, script: _Script) -> tuple[str, Move]:
        """The report at the end: on receipts that were given once, one of them as early as can be."""
        state = copy.deepcopy(script.start)
        last = [self.walk(state, part.moves)[-1] for part in script.parts]
        name = f"R-{draw.code(6)}"
        entries = [{"part": number, "receipt": last[number - 1]["receipt"]} for number in script.quoted]
        parts = f"part{'s' * (len(script.quoted) > 1)} {', '.join(map(str, script.quoted))}"
        text = f"File report `{name}` with the last receipt of {parts}."
        return text, Move(name=REPORT.name, arguments={"name": name, "entries": entries})

    def _offer(self, draw: Draw, needed: set[str], lost: Sequence[str]) -> tuple[Tool, ...]:
        """What is needed and some more, in a seeded order; of what is lost, nothing."""
        others = [act.name for act in draw.shuffled(self.acts) if act.name not in needed and act.name not in lost]
        names = (needed - set(lost)) | set(others[:DISTRACTORS])
        return tuple(act.tool for act in draw.shuffled(self.acts) if act.name in names)
