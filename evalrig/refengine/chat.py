"""`/v1/chat/completions`: a conversation to checked jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalrig.refengine import reasoning, tool_calls
from evalrig.refengine.fields import BadRequest, Fields
from evalrig.refengine.jobs import JobSpec
from evalrig.refengine.logprobs import LogprobWish
from evalrig.refengine.messages import ChatFormat, read_parsing, read_tools, render
from evalrig.refengine.openai_call import Call, read_call
from evalrig.refengine.parsing import Parsing
from evalrig.refengine.requests import Limits, check_room, read_sampling, read_stop
from evalrig.refengine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One call of `/v1/chat/completions`."""

    call: Call
    jobs: tuple[JobSpec, ...]
    """One a choice."""
    parsing: Parsing
    logprobs: bool
    prompt_ids: bool
    """Give the prompt's token ids back."""
    answer_ids: bool
    meta: bool
    """Give the native `meta_info` back."""


def parse_chat(values: Mapping[str, Any], limits: Limits, form: ChatFormat) -> ChatRequest:
    """The checked request. BadRequest (or a kind of it) names the first thing that cannot be served."""
    fields = Fields(values)
    call, tools = read_call(fields), read_tools(fields)
    text = render(fields, form.template, tools)
    parsing = read_parsing(fields, form, tools, text)
    prompt = tuple(limits.tokenizer.encode(text + parsing.opening, add_special=False))
    most = _most_tokens(fields, prompt, limits)
    logprobs = fields.flag("logprobs")
    first = read_sampling(fields, seed=fields.raw("seed"))
    jobs = tuple(
        JobSpec(
            identity=call.identity,
            prompt=prompt,
            max_new_tokens=most,
            sampling=read_sampling(fields, seed=first.seed, branch=branch),
            stop=read_stop(fields, limits),
            wish=LogprobWish(start=len(prompt), top=_top(fields, limits)) if logprobs else None,
            skip_special_tokens=fields.flag("skip_special_tokens", True)
            and not _tags_are_special(parsing, limits.tokenizer),
            stream=call.stream,
        )
        for branch in range(call.choices)
    )
    return ChatRequest(
        call=call,
        jobs=jobs,
        parsing=parsing,
        logprobs=logprobs,
        prompt_ids=fields.flag("return_prompt_token_ids") or fields.flag("return_token_ids"),
        answer_ids=fields.flag("return_token_ids"),
        meta=fields.flag("return_meta_info"),
    )


def chat_prompt(fields: Fields, form: ChatFormat, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a conversation, ready for an answer."""
    return tokenizer.encode(render(fields, form.template, read_tools(fields)), add_special=False)


def _tags_are_special(parsing: Parsing, tokenizer: Tokenizer) -> bool:
    """A tag to be looked for is a control token of this vocabulary: it must not be left out of the text."""
    tags = (tool_calls.OPEN,) if parsing.tools else ()
    tags += (reasoning.OPEN, reasoning.CLOSE) if parsing.reasoning else ()
    return any(tokenizer.special.intersection(tokenizer.encode(tag, add_special=False)) for tag in tags)


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
