"""What the OpenAI routes share: the frame of a call, its answers' number, its token counts."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evalrig.refengine.fields import BadRequest, Fields, shown
from evalrig.refengine.jobs import Job, Update
from evalrig.refengine.requests import refuse_unsupported

MOST_CHOICES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to an OpenAI route, apart from what it asks."""

    identity: str
    model: str
    created: int
    """Seconds since the epoch."""
    choices: int
    """Answers to each prompt."""
    stream: bool
    include_usage: bool
    continuous_usage: bool

    def frame(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        """An answer of `kind`, or a chunk of one, around its choices."""
        return {
            "id": self.identity,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def read_call(fields: Fields) -> Call:
    """The frame. BadRequest for a parameter that would change the answer and is not applied."""
    refuse_unsupported(Fields({name: fields.raw(name) for name in fields.names() - {"n"}}))
    if fields.whole("min_tokens", 0) != 0:
        raise BadRequest(f"min_tokens={shown(fields.raw('min_tokens'))} is not supported by refengine; leave it out.")
    kind = fields.mapping("response_format").text("type", "text")
    if kind != "text":
        raise BadRequest(
            "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not supported by refengine "
            f"(response_format {shown(kind)})."
        )
    choices, options = fields.whole("n", 1), fields.mapping("stream_options")
    if not 1 <= choices <= MOST_CHOICES:
        raise BadRequest(f"n must be in [1, {MOST_CHOICES}], got {choices}.")
    return Call(
        identity=uuid.uuid4().hex,
        model=fields.text("model", "default"),
        created=int(time.time()),
        choices=choices,
        stream=fields.flag("stream"),
        include_usage=options.flag("include_usage"),
        continuous_usage=options.flag("continuous_usage_stats"),
    )


def ending(update: Update | None) -> dict[str, Any]:
    """Why a choice ended; nulls while it goes on."""
    finish = None if update is None else update.finish
    return {
        "finish_reason": None if finish is None else finish.kind,
        "matched_stop": None if finish is None else finish.matched,
    }


def usage(call: Call, jobs: Sequence[Job], completion: int, *, reasoning: int = 0) -> dict[str, Any]:
    """Token counts; each prompt counts once, however many answers it has."""
    firsts = jobs[:: call.choices]
    prompt = sum(len(job.spec.prompt) for job in firsts)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": sum(job.cached for job in firsts)},
        "reasoning_tokens": reasoning,
        "completion_tokens_details": None,
    }


def versions(done: Sequence[tuple[Job, Update]]) -> dict[str, Any]:
    """The `metadata` of a finished answer."""
    longest = max(update.count for _, update in done)
    return {"weight_version": "default", "weight_versions": [{"version": "default", "start": 0, "end": longest}]}
