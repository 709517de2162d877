"""`/v1/completions`: prompts as text or ids to checked jobs, and jobs to answers and stream chunks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalrig.refengine.fields import (
    BadRequest,
    Fields,
    MalformedRequest,
    as_list,
    as_wholes,
    shown,
    wrong_type,
)
from evalrig.refengine.jobs import Job, JobSpec, Update
from evalrig.refengine.logprobs import LogprobWish, RowLogprobs
from evalrig.refengine.openai_call import Call, ending, read_call, usage, versions
from evalrig.refengine.requests import MOST_IN_A_BATCH, Limits, check_room, read_sampling, read_stop
from evalrig.refengine.tokenizer import Tokenizer

_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {"suffix": ("",), "best_of": (1,)}
"""Parameters of this route alone that are not applied, with the values that change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """One call of `/v1/completions`."""

    call: Call
    jobs: tuple[JobSpec, ...]
    """The answers to the first prompt, then those to the second."""
    echo: bool
    """The text begins with the prompt, and so do the logprobs."""
    logprobs: bool
    ids: bool
    """Give token ids back."""


def parse_completion(values: Mapping[str, Any], limits: Limits) -> CompletionRequest:
    """The checked request. BadRequest (or a kind of it) names the first thing that cannot be served."""
    fields = Fields(values)
    call = read_call(fields)
    for name in fields.names() & set(_UNSUPPORTED):
        if fields.raw(name) not in _UNSUPPORTED[name]:
            raise BadRequest(f"{name}={shown(fields.raw(name))} is not supported by refengine; leave it out.")
    prompts = _prompts(fields.raw("prompt"), limits.tokenizer)
    if len(prompts) * call.choices > MOST_IN_A_BATCH:
        raise BadRequest(f"a batch holds 1 to {MOST_IN_A_BATCH} answers, got {len(prompts) * call.choices}.")
    echo, top = fields.flag("echo"), None if fields.raw("logprobs") is None else fields.whole("logprobs", 0)
    if top is not None and not 0 <= top <= limits.vocabulary:
        raise BadRequest(f"logprobs must be in [0, {limits.vocabulary}] (the vocabulary), got {top}.")
    first = read_sampling(fields, seed=fields.raw("seed"))
    jobs = tuple(
        JobSpec(
            identity=call.identity,
            prompt=prompt,
            max_new_tokens=_most_tokens(fields, prompt, limits),
            sampling=read_sampling(fields, seed=first.seed, branch=branch),
            stop=read_stop(fields, limits),
            wish=None if top is None else LogprobWish(start=0 if echo else len(prompt), top=top),
            skip_special_tokens=fields.flag("skip_special_tokens", True),
            stream=call.stream,
        )
        for prompt in prompts
        for branch in range(call.choices)
    )
    return CompletionRequest(
        call=call, jobs=jobs, echo=echo, logprobs=top is not None, ids=fields.flag("return_token_ids")
    )


def _prompts(value: object, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """A text, texts, ids, or lists of ids."""
    if isinstance(value, str):
        return [tuple(tokenizer.encode(value))]
    items = as_list("prompt", value)
    if not items:
        raise BadRequest("Prompt cannot be empty")
    if isinstance(items[0], str):
        for item in items:
            if not isinstance(item, str):
                raise wrong_type("prompt", "string", item)
        return [tuple(tokenizer.encode(item)) for item in items]
    if isinstance(items[0], list):
        return [as_wholes("prompt", item) for item in items]
    return [as_wholes("prompt", items)]


def _most_tokens(fields: Fields, prompt: Sequence[int], limits: Limits) -> int:
    room = min(limits.context, limits.pages * 16) - len(prompt)
    most = fields.whole("max_tokens", max(room, 1))
    if most <= 0:
        raise MalformedRequest(
            "1 validation error:\n  {'type': 'value_error', 'loc': ('body', 'max_tokens'), "
            f"'msg': 'Value error, max_tokens must be positive', 'input': {most}}}"
        )
    check_room(prompt, most, limits)
    return most


def completion_answer(
    request: CompletionRequest, done: Sequence[tuple[Job, Update]], tokenizer: Tokenizer
) -> dict[str, Any]:
    """The answer when all choices are finished."""
    choices = [
        _choice(request, index, job, update, 0, tokenizer) | ending(update) for index, (job, update) in enumerate(done)
    ]
    for choice, (job, update) in zip(choices, done, strict=True):
        choice["text"] = _echoed(request, job, tokenizer) + update.text
    return request.call.frame("text_completion", choices) | {
        "usage": usage(request.call, [job for job, _ in done], sum(update.count for _, update in done)),
        "metadata": versions(done),
    }


def completion_usage(request: CompletionRequest, jobs: Sequence[Job]) -> dict[str, Any]:
    """Token counts at the end of a stream."""
    found = usage(request.call, jobs, sum(len(job.output_ids) for job in jobs))
    del found["completion_tokens_details"]  # the recorded server leaves it out here
    return found


def _choice(
    request: CompletionRequest, index: int, job: Job, update: Update, first: int, tokenizer: Tokenizer
) -> dict[str, Any]:
    """A choice with answer tokens `first` .. `update.count`, its text and its end still open."""
    choice: dict[str, Any] = {"index": index, "text": "", "logprobs": None, **ending(None)}
    if request.logprobs:
        choice["logprobs"] = _logprobs(job, first, update.count, tokenizer, echo=request.echo and first == 0)
    if request.ids:
        choice["token_ids"] = job.output_ids[first : update.count]
        if first == 0:
            choice["prompt_token_ids"] = list(job.spec.prompt)
    return choice


def _echoed(request: CompletionRequest, job: Job, tokenizer: Tokenizer) -> str:
    if not request.echo:
        return ""
    return tokenizer.decode(job.spec.prompt, skip_special=job.spec.skip_special_tokens)


def _logprobs(job: Job, first: int, end: int, tokenizer: Tokenizer, *, echo: bool) -> dict[str, Any]:
    """Lists over tokens. The best K of each are keyed by text, as the recorded server does: equal texts collide."""
    wish, prompt = job.spec.wish, job.spec.prompt
    assert wish is not None, "called only for jobs that asked for logprobs"
    rows: list[RowLogprobs | None] = [None, *job.input_rows] if echo else []
    tokens = [*(prompt if echo else ()), *job.output_ids[first:end]]
    rows += job.output_rows[first:end]

    def text(token: int) -> str:
        return tokenizer.decode([token], skip_special=False)

    def best(row: RowLogprobs | None) -> dict[str, float] | None:
        if row is None or row.top_ids is None or row.top_logprobs is None:
            return None
        # Best first: where texts collide, the better one stays.
        pairs = zip(row.top_ids.tolist()[::-1], row.top_logprobs.tolist()[::-1], strict=True)
        found = {text(token): value for token, value in pairs}
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    return {
        "text_offset": [-1] * len(tokens),
        "token_logprobs": [None if row is None else row.chosen for row in rows],
        "tokens": [text(token) for token in tokens],
        "top_logprobs": [best(row) for row in rows] if wish.top else [],
    }


class CompletionChunks:
    """The chunks of one choice of a stream: each brings what is new since the last."""

    def __init__(self, request: CompletionRequest, index: int, tokenizer: Tokenizer) -> None:
        self._request, self._index, self._tokenizer = request, index, tokenizer
        self._text, self._count = 0, 0

    def push(self, job: Job, update: Update) -> list[dict[str, Any]]:
        """The chunk for an update: none while its text is held back."""
        fresh = update.text[self._text :]
        if not fresh and update.finish is None:
            return []
        choice = _choice(self._request, self._index, job, update, self._count, self._tokenizer) | ending(update)
        choice["text"] = (_echoed(self._request, job, self._tokenizer) if self._count == 0 else "") + fresh
        self._text, self._count = len(update.text), update.count
        chunk = self._request.call.frame("text_completion", [choice])
        continuous = self._request.call.continuous_usage
        return [chunk | {"usage": usage(self._request.call, [job], update.count) if continuous else None}]
