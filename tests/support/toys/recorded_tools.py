"""The conversation with tools that the three real servers were asked to tokenise, in our nouns."""

from collections.abc import Mapping
from typing import Any

from evalrig.types import Message, Tool, ToolCall


def conversation_of(request: Mapping[str, Any]) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
    """Messages and tools of a recorded request."""
    return tuple(map(_message, request["messages"])), tuple(Tool(**one["function"]) for one in request["tools"])


def _message(told: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(id=one["id"], **one["function"]) for one in told.get("tool_calls", ()))
    content, answers = told["content"] or "", told.get("tool_call_id", "")
    return Message(role=told["role"], content=content, tool_calls=calls, tool_call_id=answers)
