"""What is wrong with one step of a conversation with tools. Pure; what a model wrote is parsed, never evaluated."""

from collections.abc import Mapping, Sequence
from typing import Any

from evalrig.types import Step, Tool, ToolCall

ERRORS = (
    "bad_json",
    "unknown_tool",
    "schema",
    "wrong_tool",
    "wrong_arguments",
    "wrong_id",
    "wrong_order",
    "gave_up",
    "went_on",
    "loop",
    "parser_lost",
    "truncated",
    "refused_call",
)
"""In this order of precedence. `wrong_id`: only arguments that are copied ids differ. `gave_up`: words where calls are due;
`went_on`: calls where words are due. `parser_lost`: the text holds a call that the engine's parser did not give. `refused_call`:
the tool said no."""


def canonical(arguments: str) -> dict[str, Any] | None:
    """A call's arguments as an object with sorted keys and numbers by value; None: no JSON object, or a key twice."""
    raise NotImplementedError


def fault(calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:
    """What is wrong with calls by themselves: `bad_json`, `unknown_tool`, `schema`, or nothing."""
    raise NotImplementedError


def compared(
    calls: Sequence[ToolCall], text: str, due: Sequence[tuple[str, Mapping[str, Any]]], tools: Sequence[Tool]
) -> Step:
    """One teacher-forced step against what is due (empty: an answer in words). Parallel calls may come in any order."""
    raise NotImplementedError


def taken(calls: Sequence[ToolCall], text: str, tools: Sequence[Tool]) -> Step:
    """One free step: only what is wrong by itself shows."""
    raise NotImplementedError
