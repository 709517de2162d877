"""Answers from a file: for tests, demonstrations, and scoring recorded answers again.

One JSON object a line. The first describes the engine, every other is a question with its answer; the key is
the question alone, so order does not matter and a question asked twice gets the same answer.

    {"fingerprint": {...}, "capacity": {...}}
    {"ask": ["tokenize", "some text"], "answer": [1, 2]}
    {"ask": ["generate", [1, 2], 64, 7], "answer": {"text": "...", "token_ids": [3], "finish": "stop"}}      max tokens, seed
    {"ask": ["chat", [["user", "Hi", "", [], ""]], [], "auto", false, 64, 7, []], "answer": {"text": "...", "finish": "stop"}}
    {"ask": ["score", [1, 2, 3], 1, 50], "answer": {"logprobs": [...], "top_ids": [[...]], "top_logprobs": [[...]]}}    start, K
    {"ask": ["decode", [1, 2], 64, 7, 50], "answer": {... as of generate, with logprobs, top_ids, top_logprobs}}    max tokens, seed, K

`score_cached` is asked as `score` is.
A chat is asked by its messages (role, content, reasoning, calls as [id, name, arguments], id of the call answered), names of
tools, choice of tool, stream or not, max tokens, seed and stop strings; its answer has a `message` where calls came back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from evalrig.engine import Capabilities, Chat, Engine, Launch, Sampling, Scoring
from evalrig.errors import EngineError, UsageError
from evalrig.types import Capacity, Completion, Fingerprint, Message, Tool, Variant


@dataclass(kw_only=True)
class ReplayOptions:
    """Keys of a variant's `args`."""

    answers: str = ""
    """Path of the answers; default: the variant's `weights`."""
    chat: bool = False
    """The file holds chats."""
    tools: bool = False
    """Chats with tools, too."""


class _Line(msgspec.Struct):
    ask: list[Any] = []
    answer: Any = None
    fingerprint: Fingerprint | None = None
    capacity: Capacity | None = None


class Replay(Engine):
    """No process: a dictionary of answers."""

    Options = ReplayOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        prompt_logprobs=True, top_logprobs=-1, seed=True, cached_prefix=True, decode_logprobs=-1
    )

    def __init__(self, variant: Variant, options: ReplayOptions, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self._answers: dict[bytes, Any] | None = None
        self._fingerprint: Fingerprint | None = None
        self._capacity = Capacity()

    @classmethod
    def able(cls, options: ReplayOptions) -> Capabilities:
        """What its file is said to hold."""
        return replace(cls.capabilities, chat=options.chat, tools=options.tools)

    @classmethod
    def resolve(cls, variant: Variant, options: ReplayOptions, where: str) -> None:
        """The file is there."""
        if not _path(variant, options).is_file():
            raise UsageError(
                f"{where}.weights: no answers at {str(_path(variant, options))!r}; give a file of recorded answers"
            )

    async def start(self) -> None:
        """Read the answers."""
        path = _path(self.variant, self.options)
        answers: dict[bytes, Any] = {}
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                row = msgspec.json.decode(line, type=_Line)
            except msgspec.MsgspecError as error:
                raise EngineError(f"{path}: line {number}: {error}; repair or record again") from error
            if row.fingerprint is not None:
                self._fingerprint, self._capacity = row.fingerprint, row.capacity or Capacity()
            else:
                answers[msgspec.json.encode(row.ask)] = row.answer
        if self._fingerprint is None:
            raise EngineError(f"{path}: no line with a `fingerprint`; say which engine these answers come from")
        self._answers = answers

    async def stop(self) -> None:
        """Nothing runs."""
        self._answers = None

    def alive(self) -> bool:
        """True between start and stop."""
        return self._answers is not None

    async def fingerprint(self) -> Fingerprint:
        """As recorded."""
        if self._fingerprint is None:
            raise EngineError(f"{self.variant.name}: not started")
        return self._fingerprint

    async def capacity(self) -> Capacity:
        """As recorded."""
        return self._capacity

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        """As recorded, by text or by list of [role, content]: no tools, calls or reasoning are written down."""
        said = () if isinstance(prompt, str) else prompt
        if tools or not answer or any(message.tool_calls or message.reasoning for message in said):
            raise EngineError(f"{self.variant.name}: a file of answers holds no token ids of conversations with tools")
        ask = prompt if isinstance(prompt, str) else [[message.role, message.content] for message in prompt]
        return tuple(self._answer("tokenize", ask))

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """As recorded, by prompt, length and seed."""
        return self._completion(self._answer("generate", list(ids), sampling.max_tokens, sampling.seed), ids)

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """As recorded, by tokens, start and K."""
        return self._scoring(self._answer("score", list(ids), start, top_k), ids[start:], top_k)

    async def score_cached(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        """As recorded, by tokens, start and K."""
        return self._scoring(self._answer("score_cached", list(ids), start, top_k), ids[start:], top_k)

    async def decode(self, ids: Sequence[int], sampling: Sampling, top_k: int) -> tuple[Completion, Scoring]:
        """As recorded, by prompt, length, seed and K."""
        answer = self._answer("decode", list(ids), sampling.max_tokens, sampling.seed, top_k)
        completion = self._completion(answer, ids)
        return completion, self._scoring(answer, completion.token_ids, top_k)

    def _completion(self, answer: Any, ids: Sequence[int]) -> Completion:
        if not isinstance(answer, dict) or "finish" not in answer:
            raise EngineError(f"{self.variant.name}: a recorded answer does not say how it ended; record again")
        counts = {"prompt_tokens": len(ids), "completion_tokens": len(answer.get("token_ids", ()))}
        return msgspec.convert({**counts, **answer}, Completion)

    def _scoring(self, answer: Any, tokens: Sequence[int], top_k: int) -> Scoring:
        """Logprobs of these tokens, all of them, with lists of that length."""
        rows = len(tokens)
        if not isinstance(answer, dict) or len(answer.get("logprobs") or ()) != rows:
            raise EngineError(f"{self.variant.name}: a recorded scoring lacks rows: {rows} tokens were asked for")
        lists = [answer.get(name) or [[]] * rows for name in ("top_ids", "top_logprobs")]
        widths = {len(row) for half in lists for row in half}
        if [len(half) for half in lists] != [rows, rows] or len(widths) != 1 or not (min(widths) == top_k or top_k < 0):
            raise EngineError(
                f"{self.variant.name}: a recorded scoring lacks top lists: {top_k} a token were asked for"
            )
        return Scoring(
            token_ids=np.asarray(tokens, np.int32),
            logprobs=np.asarray([np.nan if x is None else x for x in answer["logprobs"]], np.float32),
            top_ids=np.asarray(lists[0], np.int32),
            top_logprobs=np.asarray(lists[1], np.float32),
        )

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        """As recorded, by conversation, tools, length, seed and stop strings."""
        answer = self._answer(*asked(chat, sampling))
        if not isinstance(answer, dict) or "finish" not in answer:
            raise EngineError(f"{self.variant.name}: a recorded answer does not say how it ended; record again")
        plain = {"message": {"role": "assistant", "content": answer.get("text", "")}}
        return msgspec.convert({**plain, **answer}, Completion)

    def _answer(self, *ask: Any) -> Any:
        key = msgspec.json.encode(ask)
        if self._answers is None or key not in self._answers:
            raise EngineError(f"{self.variant.name}: no recorded answer to {key[:120].decode(errors='replace')}")
        return self._answers[key]


def asked(chat: Chat, sampling: Sampling) -> list[Any]:
    """The question of a chat, as it is written in a file of answers."""
    messages = [
        [
            m.role,
            m.content,
            m.reasoning,
            [[call.id, call.name, call.arguments] for call in m.tool_calls],
            m.tool_call_id,
        ]
        for m in chat.messages
    ]
    tools = [tool.name for tool in chat.tools]
    limits = [sampling.max_tokens, sampling.seed, list(sampling.stop)]
    return ["chat", messages, tools, chat.tool_choice, chat.stream, *limits]


def _path(variant: Variant, options: ReplayOptions) -> Path:
    return Path(options.answers or variant.weights).expanduser()
