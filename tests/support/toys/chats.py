"""Recorded chats of three real servers, served back to requests that match them in everything that matters; others are strangers."""

import copy
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evalrig.chat_wire import SGLANG, VLLM, Dialect
from evalrig.engine import Chat, Sampling
from evalrig.llama_cpp.wire import CHAT
from evalrig.types import Message, Tool, ToolCall
from toys.program import Exchanges, Handler

WIRE = Path(__file__).parents[2] / "contract" / "wire" / "chat"
DIALECTS: dict[str, Dialect] = {"sglang": SGLANG, "vllm": VLLM, "llamacpp": CHAT}
NEUTRAL: dict[str, dict[str, Any]] = {
    "sglang": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True},
    "vllm": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True},
    "llamacpp": {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, **CHAT.always},
}
"""What each kind must be sent beside what was recorded."""
PARAMETERS = ("max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "stop", "seed")
DEFAULTS: dict[str, Any] = {"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def recorded(kind: str, name: str) -> Any:
    """One exchange; its response is a list of lines where it was a stream."""
    return json.loads((WIRE / kind / f"{name}.json").read_text("utf-8"))


def question(kind: str, name: str) -> tuple[Chat, Sampling]:
    """What was asked there, in our nouns."""
    asked = recorded(kind, name)["request"]
    choice = asked.get("tool_choice", "auto")
    chat = Chat(
        messages=tuple(_message(message) for message in asked["messages"]),
        tools=tuple(Tool(**tool["function"]) for tool in asked.get("tools", ())),
        tool_choice=choice if isinstance(choice, str) else choice["function"]["name"],
        stream=asked.get("stream", False),
    )
    return chat, Sampling(max_tokens=asked["max_tokens"], temperature=0.0, stop=tuple(asked.get("stop", ())))


def _message(said: Any) -> Message:
    calls = tuple(ToolCall(id=call["id"], **call["function"]) for call in said.get("tool_calls", ()))
    return Message(
        role=said["role"],
        content=said["content"] or "",
        tool_calls=calls,
        tool_call_id=said.get("tool_call_id", ""),
    )


class Recordings(Exchanges):
    """`instead`: answers given before any recording, in order, as (status, content); the last one repeats."""

    def __init__(self, kind: str) -> None:
        super().__init__(WIRE / kind)
        self.RequestHandlerClass = _Listening
        self.kind = kind
        self.instead: list[tuple[int, Any]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def chats(self) -> list[Any]:
        """The bodies that were sent."""
        return [body for method, _, body in self.asked if method == "POST"]

    def find(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.asked.append((method, path, body))
        if method == "GET" and path.endswith("/models"):
            return 200, recorded(self.kind, "1-models")["response"]
        if method == "GET":
            return (200, "") if path == "/health" else (404, {"detail": "Not Found"})
        if self.instead:
            status, content = self.instead.pop(0) if len(self.instead) > 1 else self.instead[0]
            return status, lines(content)
        for exchange in self.exchanges:
            if (method, path) == (exchange["method"], exchange["path"]) and self._same(exchange["request"], body):
                return exchange["status"], lines(exchange["response"])
        self.strangers.append((method, path, body))
        return 418, {"error": {"message": f"{method} {path} was not recorded"}}

    def _same(self, recorded: Any, asked: Any) -> bool:
        """The whole body is what was recorded, with every default explicit, and nothing more."""
        wanted = {**DEFAULTS, **recorded, **NEUTRAL[self.kind]}
        if wanted.get("tools"):
            wanted.setdefault("tool_choice", "auto")
        return bool(wanted == asked)


class _Listening(Handler):
    def do_POST(self) -> None:
        self.server.headers.append({key.lower(): value for key, value in self.headers.items()})  # type: ignore[attr-defined]
        super().do_POST()

    do_GET = do_POST


def lines(content: Any) -> Any:
    """A stream as its bytes would be."""
    return "\n".join([*content, ""]) if isinstance(content, list) else content


def events(kind: str, name: str) -> list[Any]:
    """The events of a recorded stream, to be changed; `stream` makes lines of them again."""
    said = [line.removeprefix("data: ") for line in recorded(kind, name)["response"] if line.startswith("data: ")]
    return [json.loads(line) for line in said if line != "[DONE]"]


def stream(changed: list[Any], done: bool = True) -> list[str]:
    """Lines of a stream."""
    said = [line for event in changed for line in (f"data: {json.dumps(event, ensure_ascii=False)}", "")]
    return [*said, "data: [DONE]", ""] if done else said


def answer(kind: str, name: str) -> Any:
    """A recorded reply, to be changed."""
    return copy.deepcopy(recorded(kind, name)["response"])


@contextmanager
def serving(kind: str) -> Generator[Recordings]:
    """A running server; a request that matches nothing recorded fails the test."""
    with Recordings(kind) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join(10)
        assert running.strangers == []
