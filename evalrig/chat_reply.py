"""What `/v1/chat/completions` answers, whole or as a stream of events, put together into one `Completion`.

Both forms take one way: a whole reply is a stream of one chunk, so that the same answer gives the same `Completion`.
"""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from evalrig.types import Completion, Message, ToolCall
from evalrig.wire import Fault, characters

ENDS: Final[Mapping[str, str]] = {"stop": "stop", "length": "length", "tool_calls": "stop", "function_call": "stop"}
"""`finish_reason` -> how the text ended; whether calls came is seen from the calls."""


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream, up to its `[DONE]`.

    Lines end at line feeds alone: a text may hold other separators (U+2028), at which `splitlines` would cut the JSON.

    Raises:
        Fault: an error came as an event, or the stream ended without `[DONE]`: a server that dies leaves no other trace.
        ValueError: an event is no JSON.
    """
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # blank lines, comments that keep a connection alive, event names
            said = line.removeprefix(b"data:").strip()
            if said == b"[DONE]":
                return
            event = json.loads(said)
            if error := event.get("error"):
                raise _fault(error)
            yield event
    raise Fault("the stream broke off before [DONE]", lost=True)


def _fault(error: Any) -> Fault:
    """`{"message", "code", ...}` or a text, in a reply of status 200; without a code it is taken for the server's fault."""
    told: Mapping[str, Any] = error if isinstance(error, dict) else {"message": error}
    code = told.get("code")
    words = f"an error in a reply of status 200: {told.get('message', told)}"
    return Fault(words, again=not isinstance(code, int) or code == 429 or code >= 500)


def _unfit(words: str) -> Fault:
    """No answer, and asked again it would come again."""
    return Fault(f"{words}; counted as a failed call", again=False)


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])


class Assembly:
    """One answer as it comes in."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._after: list[str] = []
        """Text behind the first call."""
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._ids: list[int] = []
        self._finish = ""
        self._usage: Mapping[str, Any] | None = None

    def take(self, chunk: Mapping[str, Any], part: str) -> None:
        """One chunk; `part` is `delta` in a stream, `message` in a whole reply. Null is as good as absent everywhere."""
        if error := chunk.get("error"):
            raise _fault(error)
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:  # none in the chunk that brings the usage
            if choice.get("index", 0) != 0:
                raise _unfit("several answers came where one was asked for")
            said: Mapping[str, Any] = choice.get(part) or {}
            if text := said.get("content"):
                (self._after if self._calls else self._content).append(text)
            if thought := said.get("reasoning_content") or said.get("reasoning"):
                self._reasoning.append(thought)
            for place, call in enumerate(said.get("tool_calls") or ()):
                self._call(place if call.get("index") is None else int(call["index"]), call)
            self._ids += _token_ids(choice)
            self._finish = choice.get("finish_reason") or self._finish

    def _call(self, place: int, said: Mapping[str, Any]) -> None:
        """A call or a piece of one: id and name come once, the arguments in pieces."""
        call = self._calls.setdefault(place, _Call())
        if call.id and (said.get("id") or call.id) != call.id:
            raise _unfit("two tool calls came under one index")
        function: Mapping[str, Any] = said.get("function") or {}
        call.id = said.get("id") or call.id
        call.name = function.get("name") or call.name
        call.arguments.append(function.get("arguments") or "")

    def completion(self) -> Completion:
        """The whole answer.

        `finish` is `tool_calls` where calls came back and nothing was cut, or where the server says so and gave none: it lost
        them. Of an answer that was cut no call is kept:
        vLLM's stream gives a cut call the arguments `{}`, and nothing tells it from a whole one. Text behind a call is left
        out, as whole replies leave it out. Token ids are kept where there are as many as the server counted.

        Raises:
            Fault: it does not say how it ended, or how many tokens it took, or a call has no name.
        """
        if self._finish not in ENDS:
            raise _unfit(f"an answer ended with {self._finish or 'no'} finish reason")
        if self._usage is None:
            raise _unfit("an answer came without token counts")
        finish = ENDS[self._finish]
        calls = self._whole_calls() if finish != "length" else ()
        text = characters("".join(self._content + ([] if calls else self._after)))
        tokens = int(self._usage["completion_tokens"])
        return Completion(
            text=text,
            token_ids=tuple(self._ids) if len(self._ids) == tokens else (),
            prompt_tokens=int(self._usage["prompt_tokens"]),
            completion_tokens=tokens,
            finish="tool_calls" if calls or self._finish in ("tool_calls", "function_call") else finish,
            message=Message(
                role="assistant", content=text, reasoning=characters("".join(self._reasoning)), tool_calls=calls
            ),
        )

    def _whole_calls(self) -> tuple[ToolCall, ...]:
        if any(not call.name for call in self._calls.values()):
            raise _unfit("a tool call without a name came back")
        return tuple(
            ToolCall(id=call.id, name=characters(call.name), arguments=characters("".join(call.arguments)))
            for _, call in sorted(self._calls.items())
        )


def _token_ids(choice: Mapping[str, Any]) -> list[int]:
    """vLLM's key, SGLang's, or llama.cpp's entries of logprobs."""
    for key in ("token_ids", "response_token_ids"):
        if choice.get(key):
            return [int(i) for i in choice[key]]
    entries = (choice.get("logprobs") or {}).get("content") or ()
    return [int(entry["id"]) for entry in entries if "id" in entry]
