"""`/v1/chat/completions`: messages to checked jobs, and jobs to answers and stream chunks."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalrig.refengine.answers import meta_info
from evalrig.refengine.chat_template import ChatTemplate, ChatTemplateError
from evalrig.refengine.fields import BadRequest, Fields, as_list, shown, wrong_type
from evalrig.refengine.jobs import Job, JobSpec, Update
from evalrig.refengine.logprobs import LogprobWish, RowLogprobs
from evalrig.refengine.requests import AnswerForm, Limits, check_room, read_sampling, read_stop, refuse_unsupported
from evalrig.refengine.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant", "tool", "function", "developer")
MOST_CHOICES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One call of `/v1/chat/completions`."""

    jobs: tuple[JobSpec, ...]
    """One a choice."""
    identity: str
    model: str
    created: int
    """Seconds since the epoch."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: bool
    prompt_ids: bool
    """Give the prompt's token ids back."""
    answer_ids: bool
    meta: bool
    """Give the native `meta_info` back."""


def parse_chat(values: Mapping[str, Any], limits: Limits, template: ChatTemplate) -> ChatRequest:
    """The checked request. BadRequest (or a kind of it) names the first thing that cannot be served."""
    fields = Fields(values)
    _refuse(fields)
    prompt = tuple(chat_prompt(fields, limits.tokenizer, template))
    most = _most_tokens(fields, prompt, limits)
    choices = fields.whole("n", 1)
    if not 1 <= choices <= MOST_CHOICES:
        raise BadRequest(f"n must be in [1, {MOST_CHOICES}], got {choices}.")
    logprobs, identity = fields.flag("logprobs"), uuid.uuid4().hex
    stream, options = fields.flag("stream"), fields.mapping("stream_options")
    first = read_sampling(fields, seed=fields.raw("seed"))
    jobs = tuple(
        JobSpec(
            identity=identity,
            prompt=prompt,
            max_new_tokens=most,
            sampling=read_sampling(fields, seed=first.seed, branch=branch),
            stop=read_stop(fields, limits),
            wish=LogprobWish(start=len(prompt), top=_top(fields, limits)) if logprobs else None,
            skip_special_tokens=fields.flag("skip_special_tokens", True),
            stream=stream,
        )
        for branch in range(choices)
    )
    return ChatRequest(
        jobs=jobs,
        identity=identity,
        model=fields.text("model", "default"),
        created=int(time.time()),
        stream=stream,
        include_usage=options.flag("include_usage"),
        continuous_usage=options.flag("continuous_usage_stats"),
        logprobs=logprobs,
        prompt_ids=fields.flag("return_prompt_token_ids"),
        answer_ids=fields.flag("return_token_ids"),
        meta=fields.flag("return_meta_info"),
    )


def chat_prompt(fields: Fields, tokenizer: Tokenizer, template: ChatTemplate) -> list[int]:
    """Token ids of the messages, rendered by the template; `continue_final_message` leaves the last answer open."""
    raw = fields.raw("messages")
    messages = [_message(index, one) for index, one in enumerate(as_list("messages", raw))] if raw is not None else []
    if not messages:
        raise BadRequest("Messages cannot be empty.")
    tools = fields.raw("tools")
    prefix = ""
    going_on = fields.flag("continue_final_message")
    if going_on:
        if messages[-1]["role"] != "assistant":
            raise BadRequest("continue_final_message needs an assistant message at the end.")
        prefix = messages.pop()["content"]
        if not messages:
            raise BadRequest("continue_final_message needs a message before the last.")
    generate = going_on or fields.flag("add_generation_prompt", True)
    try:
        text = template.render(
            messages, add_generation_prompt=generate, tools=None if tools is None else as_list("tools", tools)
        )
    except ChatTemplateError as error:
        raise BadRequest(str(error)) from error
    return tokenizer.encode(text + prefix, add_special=False)


def _message(index: int, value: object) -> dict[str, Any]:
    """A message with plain text content; parts of type text are joined."""
    if not isinstance(value, dict):
        raise wrong_type(f"messages[{index}]", "dictionary", value)
    message = Fields(value)
    role, content = message.text("role", ""), message.raw("content")
    if role not in ROLES:
        raise BadRequest(f"messages[{index}]: 'role' must be one of {', '.join(map(repr, ROLES))}, got {shown(role)}.")
    if isinstance(content, list):
        content = "".join(_part(index, part) for part in as_list("content", content))
    if content is not None and not isinstance(content, str):
        raise wrong_type(f"messages[{index}].content", "string", content)
    return {**value, "role": role, "content": content or ""}


def _part(index: int, value: object) -> str:
    if not isinstance(value, dict):
        raise wrong_type(f"messages[{index}].content", "dictionary", value)
    part = Fields(value)
    if part.text("type", "") != "text":
        raise BadRequest(f"messages[{index}]: only content of type 'text' is supported, got {shown(part.raw('type'))}.")
    return part.text("text", "")


def _refuse(fields: Fields) -> None:
    kind = fields.mapping("response_format").text("type", "text")
    if kind != "text":
        raise BadRequest(
            "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not supported by refengine "
            f"(response_format {shown(kind)})."
        )
    if fields.raw("tool_choice") not in (None, "none", "auto"):
        raise BadRequest(
            f"tool_choice={shown(fields.raw('tool_choice'))} is not supported by refengine: it has no tool parser."
        )
    refuse_unsupported(Fields({name: fields.raw(name) for name in fields.names() - {"n", "regex"}}))


def _most_tokens(fields: Fields, prompt: Sequence[int], limits: Limits) -> int:
    room = min(limits.context, limits.pages * 16) - len(prompt)
    most = fields.whole("max_completion_tokens", fields.whole("max_tokens", max(room, 0)))
    if most > limits.context:
        raise BadRequest(
            f"max_completion_tokens is too large: {most}.This model supports at most {limits.context} completion tokens."
        )
    check_room(prompt, most, limits)
    return most


def _top(fields: Fields, limits: Limits) -> int:
    top = fields.whole("top_logprobs", 0)
    if not 0 <= top <= limits.vocabulary:
        raise BadRequest(f"top_logprobs must be in [0, {limits.vocabulary}] (the vocabulary), got {top}.")
    return top


def chat_answer(request: ChatRequest, done: Sequence[tuple[Job, Update]], tokenizer: Tokenizer) -> dict[str, Any]:
    """The answer when all choices are finished."""
    counts = [update.count for _, update in done]
    return {
        "id": request.identity,
        "object": "chat.completion",
        "created": request.created,
        "model": request.model,
        "choices": [_choice(request, index, job, update, tokenizer) for index, (job, update) in enumerate(done)],
        "usage": usage(request, sum(counts)),
        "metadata": {
            "weight_version": "default",
            "weight_versions": [{"version": "default", "start": 0, "end": max(counts)}],
        },
    }


def _choice(request: ChatRequest, index: int, job: Job, update: Update, tokenizer: Tokenizer) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": update.text, "reasoning_content": None},
        "logprobs": chat_logprobs(job, 0, update.count, tokenizer) if request.logprobs else None,
        **_ending(update),
    }
    if request.prompt_ids:
        choice["prompt_token_ids"] = list(job.spec.prompt)
    if request.answer_ids:
        choice["response_token_ids"] = job.output_ids[: update.count]
    if request.meta:
        choice["meta_info"] = meta_info(job, update, AnswerForm(text=True), tokenizer)
    return choice


def _ending(update: Update | None) -> dict[str, Any]:
    finish = None if update is None else update.finish
    return {
        "finish_reason": None if finish is None else finish.kind,
        "matched_stop": None if finish is None else finish.matched,
    }


def usage(request: ChatRequest, completion: int) -> dict[str, Any]:
    """Token counts; `completion` over all choices."""
    prompt = len(request.jobs[0].prompt)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
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
        self._text, self._count = 0, 0

    def opening(self) -> dict[str, Any]:
        """The chunk that names the role."""
        return self._chunk({"role": "assistant", "content": ""}, None, None)

    def push(self, job: Job, update: Update) -> list[dict[str, Any]]:
        """Chunks for an update: one with the new text, if any, and one that ends the choice, if it ended."""
        chunks: list[dict[str, Any]] = []
        fresh = update.text[self._text :]
        if fresh:
            logprobs = (
                chat_logprobs(job, self._count, update.count, self._tokenizer) if self._request.logprobs else None
            )
            chunk = self._chunk({"content": fresh}, logprobs, None)
            if self._request.continuous_usage:
                chunk["usage"] = usage(self._request, update.count)
            chunks.append(chunk)
            self._text, self._count = len(update.text), update.count
        if update.finish is not None:
            chunks.append(self._chunk({}, None, update))
        return chunks

    def _chunk(self, delta: dict[str, Any], logprobs: Any, update: Update | None) -> dict[str, Any]:
        choice = {
            "index": self._index,
            "delta": {"reasoning_content": None, **delta},
            "logprobs": logprobs,
            **_ending(update),
        }
        return chunk_frame(self._request, [choice])


def chunk_frame(request: ChatRequest, choices: list[Any]) -> dict[str, Any]:
    """A stream chunk around `choices`."""
    return {
        "id": request.identity,
        "object": "chat.completion.chunk",
        "created": request.created,
        "model": request.model,
        "choices": choices,
    }
