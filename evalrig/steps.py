"""What is wrong with one step of a conversation with tools. Pure; what a model wrote is parsed, never evaluated."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, Final, NoReturn

from evalrig.types import Step, Tool, ToolCall

ERRORS = (
    "truncated",
    "parser_lost",
    "bad_json",
    "unknown_tool",
    "schema",
    "went_on",
    "gave_up",
    "wrong_tool",
    "wrong_arguments",
    "wrong_id",
    "wrong_order",
    "loop",
    "refused_call",
)
"""In this order of precedence. `parser_lost`: the text holds a call that the engine's parser did not give. `went_on`: calls where
words are due; `gave_up`: words where calls are due, or nothing at all. `wrong_id`: only arguments that are copied ids differ.
`wrong_order`: a call that is due later on the way. `refused_call`: the tool said no."""

BLANK_CALL: Final = "{}"
"""What a server means that gives a call without arguments no text at all."""

_LOST = re.compile(
    r"<tool_call>|<\|tool_calls?(?:_section)?_begin\|>|<｜tool▁calls?▁begin｜>|\[TOOL_CALLS\]|<function[=_]|<\|python_tag\|>"
    r"|<minimax:tool_call>|<invoke name=|<\|channel\|>commentary to=functions"
)
"""How model families begin a call. A parser takes these out of the text; one that is left is a call that it lost."""
_HALF = re.compile("[\ud800-\udfff]")
_DATE = re.compile(r"\d{4}-\d\d(-\d\d)?([T ]\d\d:\d\d.*)?")
_LARGEST = 300
"""Digits of a number: beyond, it is no argument but a model that repeats itself."""
_DEEPEST = 64
"""Objects and lists in one another: so, too; what copies and compares values goes no deeper than the stack."""


def canonical(arguments: str) -> dict[str, Any] | None:
    """A call's arguments as an object with sorted keys and numbers by value (1.0 is 1); None: no JSON object, or a key twice.

    No text at all is the empty object: so do servers write a call without arguments. Half of a surrogate pair, which no file
    can hold, is no JSON here.
    """
    try:
        found = json.loads(
            arguments if arguments.strip() else BLANK_CALL,
            parse_float=_number,
            parse_int=_number,
            parse_constant=_no_number,
            object_pairs_hook=_sorted,
        )
    except (ValueError, RecursionError, InvalidOperation):
        return None
    return found if isinstance(found, dict) and _sane(found) else None


def plain(value: Any) -> Any:
    """A JSON value in the same form as what `canonical` gives."""
    return json.loads(json.dumps(value), parse_float=_number, object_pairs_hook=_sorted)


def complaint(call: ToolCall, tools: Sequence[Tool]) -> tuple[str, str]:
    """What is wrong with one call by itself: a word of `ERRORS` and a line for the model; both empty: nothing."""
    arguments = canonical(call.arguments)
    if arguments is None:
        return (
            "bad_json",
            "the arguments are no JSON object, or hold a key twice, or nest too deep; write one JSON object",
        )
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        known = ", ".join(sorted(tool.name for tool in tools))
        return "unknown_tool", f"there is no tool {call.name!r}; the tools are: {known or 'none'}"
    try:
        unfit = next(_validator(_schema(tool)).iter_errors(arguments), None)
    except RecursionError:  # a schema that is a tree, and arguments about as deep as they may be
        return "schema", "the arguments nest too deep for the tool's schema"
    if unfit:
        at = ".".join(str(part) for part in unfit.absolute_path)
        where = f"argument `{at}`: " if at else "the arguments do not fit the tool's schema: "
        return "schema", f"{where}{unfit.message}"
    return "", ""


def fault(calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:
    """What is wrong with calls by themselves: `bad_json`, `unknown_tool`, `schema`, or nothing."""
    return min((complaint(call, tools)[0] for call in calls), key=_rank, default="")


def lost(text: str, tools: Sequence[Tool]) -> bool:
    """Does a text hold a call that no parser gave? Asked only where no call came back."""
    return bool(_LOST.search(text)) or any(_is_call(value, tools) for value in objects(text))


def objects(text: str) -> Iterator[Any]:
    """The JSON objects in a text that begin with a member `name`, as models write calls."""
    decoder = json.JSONDecoder()
    for begin in re.finditer(r'\{\s*"name"\s*:', text):
        try:
            yield decoder.raw_decode(text, begin.start())[0]
        except (ValueError, RecursionError):
            continue


def compared(
    calls: Sequence[ToolCall],
    text: str,
    due: Sequence[tuple[str, Mapping[str, Any]]],
    tools: Sequence[Tool],
    promised: bool = False,
) -> Step:
    """One teacher-forced step against what is due (empty: an answer in words). Parallel calls may come in any order."""
    wanted = [(name, plain(dict(arguments))) for name, arguments in due]
    step = replace(taken(calls, text, tools, promised), due=_text(wanted))
    named = Counter(name for name, _ in wanted) == Counter(call.name for call in calls)
    return replace(step, named=named, error=step.error or _departure(calls, text, wanted, named))


def taken(calls: Sequence[ToolCall], text: str, tools: Sequence[Tool], promised: bool = False) -> Step:
    """One free step: only what is wrong by itself shows. `promised`: the server says that it ended with calls."""
    error = shown = fault(calls, tools)
    if not calls and (promised or lost(text, tools)):
        shown = "parser_lost"
    elif not calls and not text.strip():
        shown = "gave_up"
    return Step(said=_said(calls), error=shown, valid=not error, stopped=not calls)


def _departure(calls: Sequence[ToolCall], text: str, due: list[tuple[str, Any]], named: bool) -> str:
    """How sound calls, or words, differ from what is due; empty: they do not."""
    if not due or not calls:
        return "went_on" if calls else "gave_up" if due else ""
    if not named:
        return "wrong_tool"
    made = [(call.name, canonical(call.arguments)) for call in calls]
    left = Counter(_text([call]) for call in due) - Counter(_text([call]) for call in made)
    open_ = [call for call in due if _text([call]) in left]
    others = [call for call in made if _text([call]) not in Counter(_text([each]) for each in due)]
    if not open_:
        return ""
    pairs = [(arguments, _first(others, name)) for name, arguments in open_]
    return "wrong_id" if all(_only_ids(wanted, said) for wanted, said in pairs) else "wrong_arguments"


def _first(calls: list[tuple[str, Any]], name: str) -> Any:
    """The arguments of the next call of that tool, taken out; None: there is none left."""
    for place, (called, arguments) in enumerate(calls):
        if called == name:
            del calls[place]
            return arguments
    return None


def _only_ids(wanted: Any, said: Any) -> bool:
    """Two arguments' trees have one shape, and differ in leaves alone that are ids where they are wanted."""
    ours, theirs = dict(_leaves(wanted)), dict(_leaves(said))
    if ours.keys() != theirs.keys():
        return False
    unlike = [at for at, leaf in ours.items() if json.dumps(leaf) != json.dumps(theirs[at])]
    return bool(unlike) and all(is_id(ours[at]) and isinstance(theirs[at], str | int) for at in unlike)


def is_id(leaf: Any) -> bool:
    """Looks like something that is copied and never made up: at least six characters, digits among them, no date, no spaces."""
    text = str(leaf) if isinstance(leaf, str | int) and not isinstance(leaf, bool) else ""
    return (
        len(text) >= 6 and any(c.isdigit() for c in text) and not re.search(r"\s", text) and not _DATE.fullmatch(text)
    )


def _leaves(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    match value:
        case dict():
            members: Any = value.items()
        case list():
            members = enumerate(value)
        case _:
            yield at, value
            return
    yield (*at, "#"), len(value)
    for key, one in members:
        yield from _leaves(one, (*at, key))


def _is_call(value: Any, tools: Sequence[Tool]) -> bool:
    names = {tool.name for tool in tools}
    return value.get("name") in names and ("arguments" in value or "parameters" in value)


def _said(calls: Sequence[ToolCall]) -> str:
    return _text([(call.name, canonical(call.arguments)) for call in calls], [call.arguments for call in calls])


def _text(calls: Sequence[tuple[str, Any]], written: Sequence[str] = ()) -> str:
    """Calls as canonical JSON; arguments that are none as they were written."""
    shown = [
        {"arguments": written[place] if arguments is None and written else arguments, "name": name}
        for place, (name, arguments) in enumerate(calls)
    ]
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def _rank(error: str) -> int:
    return ERRORS.index(error) if error else len(ERRORS)


def _schema(tool: Tool) -> str:
    return json.dumps(tool.parameters, sort_keys=True)


@cache
def _validator(schema: str) -> Any:
    """Of one schema, made once; nothing is fetched that a `$ref` names."""
    import jsonschema  # with the first call
    from referencing import Registry

    return jsonschema.Draft202012Validator(json.loads(schema), registry=Registry())


def unfit(tools: Sequence[Tool]) -> str:
    """What is wrong with tools on offer; empty: nothing."""
    for name, count in Counter(tool.name for tool in tools).items():
        if count > 1:
            return f"two tools are called {name!r}"
    for tool in tools:
        if wrong := _wrong_schema(_schema(tool)):
            return f"the parameters of tool {tool.name!r} are no JSON schema: {wrong}"
    return ""


@cache
def _wrong_schema(schema: str) -> str:
    import jsonschema

    try:
        read = json.loads(schema)
        jsonschema.Draft202012Validator.check_schema(read)
        return _nowhere(read) or _endless(read)
    except jsonschema.SchemaError as error:
        return str(error.message)
    except RecursionError:
        return "it nests too deep"


def _nowhere(schema: Any) -> str:
    """A `$ref` of a schema that leads nowhere, which shows only when a call comes to it."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for at, leaf in _leaves(schema):
        if at[-1:] == ("$ref",) and isinstance(leaf, str):
            try:
                resolver.lookup(leaf)
            except Unresolvable:
                return f"its `$ref` {leaf!r} leads nowhere"
    return ""


def _endless(schema: Any) -> str:
    """A `$ref` that comes back to itself over one and the same value: no call could ever be checked. A tree is none."""
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    done, open_ = set[int](), set[int]()

    def comes_back(part: Any, by: str) -> str:
        if not isinstance(part, dict) or id(part) in done:
            return ""
        if id(part) in open_:
            return f"its `$ref` {by!r} comes back to itself"
        open_.add(id(part))
        refs = (part.get(key) for key in ("$ref", "$dynamicRef"))
        targets = [(resolver.lookup(ref).contents, ref) for ref in refs if isinstance(ref, str)]
        found = next(
            filter(None, (comes_back(*each) for each in (*targets, *((one, by) for one in _beside(part))))), ""
        )
        open_.remove(id(part))
        done.add(id(part))
        return found

    return next(filter(None, (comes_back(part, "#") for part in _objects(schema))), "")


def _beside(part: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas inside one that are about the very same value."""
    for key in ("allOf", "anyOf", "oneOf"):
        yield from part.get(key, ())
    yield from (part[key] for key in ("not", "if", "then", "else") if key in part)
    yield from part.get("dependentSchemas", {}).values()


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(one)


def _sorted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return dict(sorted(found.items()))


def _sane(value: Any) -> bool:
    """Not too deep, and text that can be written to a file. Level by level: depth costs no stack."""
    level = [value]
    for _ in range(_DEEPEST):
        if not level:
            return True
        objects_ = [each for each in level if isinstance(each, dict)]
        words = [each for each in level if isinstance(each, str)] + [key for each in objects_ for key in each]
        if any(_HALF.search(text) for text in words):
            return False
        level = [one for each in objects_ for one in each.values()] + [
            one for each in level if isinstance(each, list) for one in each
        ]
    return not level


def _number(text: str) -> int | float:
    value = Decimal(text)
    if value.adjusted() > _LARGEST or len(text) > _LARGEST:
        raise ValueError("no number that an argument could be")
    whole = value == value.to_integral_value() and value.adjusted() < 30
    return int(value) if whole else float(value)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
