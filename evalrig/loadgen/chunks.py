"""What one event of an OpenAI stream says: content or none, usage, the end, an error."""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
"""Tokens. More is no count, and would not fit a column."""
DONE = b"[DONE]"


class Delta(msgspec.Struct, gc=False):
    """Of a chat."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: msgspec.Raw = msgspec.Raw()


class Choice(msgspec.Struct, gc=False):
    """`text` of a completion, `delta` of a chat."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class Details(msgspec.Struct, gc=False):
    """Of the prompt."""

    cached_tokens: Count | None = None


class Usage(msgspec.Struct, gc=False):
    """With every event, or once at the end."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: Details | None = None


class Chunk(msgspec.Struct, gc=False):
    """One event. Fields that say nothing of time or tokens are skipped unread."""

    choices: list[Choice] = []
    usage: Usage | None = None
    object: str | None = None
    message: str | None = None
    """Of an error that SGLang's routes send."""
    error: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(Chunk)


def read(data: bytes) -> Chunk | str:
    """The event; a text says why it is none."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"an event that is no completion: {error}: {shown(data)}"


def has_content(chunk: Chunk) -> bool:
    """Text, reasoning, a refusal or a part of a call: what the model generated. Not a role, and not an empty text."""
    for choice in chunk.choices:
        if choice.text:
            return True
        delta = choice.delta
        if delta is not None and (delta.content or _beyond_content(delta)):
            return True
    return False


def _beyond_content(delta: Delta) -> bool:
    if delta.reasoning_content or delta.reasoning or delta.refusal or delta.tool_calls:
        return True
    return bytes(delta.function_call) not in (b"", b"null")


def finishes(chunk: Chunk) -> bool:
    """It says why the answer ended."""
    return any(choice.finish_reason for choice in chunk.choices)


def failure(chunk: Chunk) -> str:
    """What an error event says; empty: it is none."""
    said = bytes(chunk.error)
    if said not in (b"", b"null"):
        return f"the engine sent an error: {shown(said)}"
    return f"the engine sent an error: {chunk.message or 'no text'}" if chunk.object == "error" else ""


def shown(data: bytes) -> str:
    """The beginning of bytes that may hold anything, on one line."""
    return " ".join(data[:200].decode("utf-8", "replace").split())
