"""`/v1/chat/completions`: jobs to answers and stream chunks, in the shape that the recorded server gives them."""

import uuid
from collections.abc import Sequence
from typing import Any

from evalrig.refengine.answers import meta_info
from evalrig.refengine.chat import ChatRequest
from evalrig.refengine.jobs import Job, Update
from evalrig.refengine.logprobs import RowLogprobs
from evalrig.refengine.openai_call import ending, usage, versions
from evalrig.refengine.parsing import AnswerStream, parse, reasoning_tokens
from evalrig.refengine.requests import AnswerForm
from evalrig.refengine.tokenizer import TextStream, Tokenizer
from evalrig.refengine.tool_calls import Piece, PieceKind


def chat_answer(request: ChatRequest, done: Sequence[tuple[Job, Update]], tokenizer: Tokenizer) -> dict[str, Any]:
    """The answer when all choices are finished."""
    choices = [_choice(request, index, job, update, tokenizer) for index, (job, update) in enumerate(done)]
    return request.call.frame("chat.completion", choices) | {
        "usage": chat_usage(request, [job for job, _ in done], tokenizer),
        "metadata": versions(done),
    }


def chat_usage(request: ChatRequest, jobs: Sequence[Job], tokenizer: Tokenizer) -> dict[str, Any]:
    """Token counts of jobs that have ended."""
    thinking = sum(
        reasoning_tokens(
            job.output_ids, TextStream(tokenizer, skip_special=job.spec.skip_special_tokens), request.parsing
        )
        for job in jobs
    )
    return usage(request.call, jobs, sum(len(job.output_ids) for job in jobs), reasoning=thinking)


def _choice(request: ChatRequest, index: int, job: Job, update: Update, tokenizer: Tokenizer) -> dict[str, Any]:
    parts = parse(update.text, request.parsing)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": parts.content,
        "reasoning_content": parts.reasoning or None,
    }
    if parts.calls:
        message["tool_calls"] = [_call(place, call.name, call.arguments) for place, call in enumerate(parts.calls)]
    choice: dict[str, Any] = {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(job, 0, update.count, tokenizer) if request.logprobs else None,
        **ending(update),
    }
    if parts.calls and choice["finish_reason"] == "stop":
        choice |= {"finish_reason": "tool_calls", "matched_stop": None}
    if request.prompt_ids:
        choice["prompt_token_ids"] = list(job.spec.prompt)
    if request.answer_ids:
        choice["response_token_ids"] = job.output_ids[: update.count]
    if request.meta:
        choice["meta_info"] = meta_info(job, update, AnswerForm(text=True), tokenizer)
    return choice


def _call(index: int, name: str | None, arguments: str) -> dict[str, Any]:
    """A tool call, or with no name a further piece of its arguments."""
    return {
        "id": None if name is None else f"call_{uuid.uuid4().hex[:24]}",
        "index": index,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def chat_logprobs(job: Job, first: int, end: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """The OpenAI form for answer tokens first .. end."""

    def entry(token: int, value: float) -> dict[str, Any]:
        piece = tokenizer.token_bytes(token)
        return {"token": piece.decode(errors="replace"), "bytes": list(piece), "logprob": value}

    def best(row: RowLogprobs) -> list[dict[str, Any]]:
        if row.top_ids is None or row.top_logprobs is None:
            return []
        return [entry(i, value) for i, value in zip(row.top_ids.tolist(), row.top_logprobs.tolist(), strict=True)]

    pairs = zip(job.output_ids[first:end], job.output_rows[first:end], strict=True)
    return {"content": [entry(token, row.chosen) | {"top_logprobs": best(row)} for token, row in pairs]}


class ChatChunks:
    """The chunks of one choice of a stream: each brings what is new since the last."""

    def __init__(self, request: ChatRequest, index: int, tokenizer: Tokenizer) -> None:
        self._request, self._index, self._tokenizer = request, index, tokenizer
        self._answer = AnswerStream(request.parsing)
        self._text, self._count, self._calls = 0, 0, 0

    def opening(self) -> dict[str, Any]:
        """The chunk that names the role."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def push(self, job: Job, update: Update) -> list[dict[str, Any]]:
        """Chunks for an update: one for each new piece of the answer, and one that ends the choice, if it ended."""
        pieces = self._answer.push(update.text[self._text :])
        self._text = len(update.text)
        if update.finish is not None:
            pieces += self._answer.finish()
        # With tools the recorded server writes nulls that it leaves out without them.
        usage_null = {"usage": None} if self._request.parsing.tools else {}
        chunks = [self._chunk(self._delta(piece), self._new_logprobs(job, update)) | usage_null for piece in pieces]
        if pieces and self._request.call.continuous_usage:
            chunks[-1]["usage"] = usage(self._request.call, [job], update.count)
        if update.finish is not None:
            last = self._chunk({}, self._new_logprobs(job, update))
            last["choices"][0] |= ending(update)
            if self._answer.called and update.finish.kind == "stop":
                last["choices"][0]["finish_reason"] = "tool_calls"
            chunks.append(last)
        return chunks

    def _new_logprobs(self, job: Job, update: Update) -> dict[str, Any] | None:
        """Of the tokens that no chunk has brought yet."""
        if not self._request.logprobs or self._count == update.count:
            return None
        first, self._count = self._count, update.count
        return chat_logprobs(job, first, update.count, self._tokenizer)

    def _delta(self, piece: Piece) -> dict[str, Any]:
        nulls = {"role": None, "content": None} if self._request.parsing.tools else {}
        if piece.kind is PieceKind.CONTENT:
            return nulls | {"content": piece.text}
        if piece.kind is PieceKind.REASONING:
            return nulls | {"reasoning_content": piece.text}
        begins = piece.kind is PieceKind.CALL
        self._calls += begins
        call = _call(self._calls - 1, piece.text if begins else None, "" if begins else piece.text)
        return nulls | {"tool_calls": [call]}

    def _chunk(self, delta: dict[str, Any], logprobs: Any) -> dict[str, Any]:
        choice = {
            "index": self._index,
            "delta": {"reasoning_content": None, **delta},
            "logprobs": logprobs,
            **ending(None),
        }
        return self._request.call.frame("chat.completion.chunk", [choice])
