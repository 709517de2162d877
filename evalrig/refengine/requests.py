"""`/generate`: a JSON object in SGLang's dialect to checked jobs. Errors carry the words of the recorded server where
it has any."""

import math
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalrig.refengine.cache import pages_for
from evalrig.refengine.fields import BadRequest, Fields, UnknownField, as_whole, as_wholes, shown, wrong_type
from evalrig.refengine.jobs import JobSpec, StopRules
from evalrig.refengine.logprobs import LogprobWish
from evalrig.refengine.sampling import Penalties, Sampling
from evalrig.refengine.tokenizer import Tokenizer

DEFAULT_MAX_NEW_TOKENS = 128
MOST_IN_A_BATCH = 4096

_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "stop_regex": (),
    "min_new_tokens": (0,),
    "n": (1,),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "logit_bias": (),
    "custom_params": (),
    "beam_width": (0, 1),
    "watermark": (),
    "choice": (),
}
"""Sampling parameters that SGLang knows and this engine does not apply, with the values that change nothing."""
_IGNORED = ("spaces_between_special_tokens", "stream_interval")
"""Parameters that could change no token and no number."""
_APPLIED = (
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "ignore_eos",
    "skip_special_tokens",
    "no_stop_trim",
    "sampling_seed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What requests are checked against."""

    tokenizer: Tokenizer
    context: int
    """Longest sequence, prompt and answer, in tokens."""
    pages: int
    """Pages of the whole pool."""

    @property
    def vocabulary(self) -> int:
        """Token ids are 0 .. this - 1."""
        return self.tokenizer.size


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """How logprobs are written into the answer."""

    text: bool = False
    """The third element of an entry is the token's text, not null."""
    flat_input: bool = False
    """The prompt's top logprobs as two flat lists."""
    flat_output: bool = False
    base64: bool = False
    """The flat lists as base64 of little-endian float32 and int32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One call of `/generate`."""

    jobs: tuple[JobSpec, ...]
    batch: bool
    """Answered by a list."""
    stream: bool
    form: AnswerForm


def parse_generate(values: Mapping[str, Any], limits: Limits) -> GenerateRequest:
    """The checked request. BadRequest (or a kind of it) names the first thing that cannot be served."""
    fields = Fields(values)
    prompts, batch = _prompts(fields, limits.tokenizer)
    stream = fields.flag("stream")
    form = AnswerForm(
        text=fields.flag("return_text_in_logprobs"),
        flat_input=fields.flag("return_flat_raw_top_logprobs"),
        flat_output=fields.flag("return_flat_raw_output_top_logprobs"),
        base64=fields.flag("return_flat_raw_top_logprobs_b64"),
    )
    if stream and form.flat_output:
        raise BadRequest(
            "return_flat_raw_output_top_logprobs is only set on the finished response and does not support stream=True."
        )
    jobs = tuple(_job(_item(fields, index, batch), prompt, stream, limits) for index, prompt in enumerate(prompts))
    return GenerateRequest(jobs=jobs, batch=batch, stream=stream, form=form)


def _prompts(fields: Fields, tokenizer: Tokenizer) -> tuple[list[tuple[int, ...]], bool]:
    text, ids = fields.raw("text"), fields.raw("input_ids")
    if text is None and ids is None:
        raise BadRequest("Either text, input_ids or input_embeds should be provided.")
    if text is not None and ids is not None:
        raise BadRequest("Either text or input_ids should be provided, not both.")
    if text is not None:
        batch = isinstance(text, list)
        return [tuple(tokenizer.encode(one)) for one in fields.texts("text")], batch
    if not isinstance(ids, list):
        raise wrong_type("input_ids", "list", ids)
    batch = bool(ids) and isinstance(ids[0], list)
    return ([as_wholes("input_ids", one) for one in ids] if batch else [as_wholes("input_ids", ids)]), batch


_PER_ITEM = ("sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "rid")
"""In a batch each may be one value for all, or a list with one an item."""


def _item(fields: Fields, index: int, batch: bool) -> Fields:
    """The fields of item `index` of a batch, as a single request would have them."""
    mine = {name: fields.raw(name) for name in (*_PER_ITEM, "token_ids_logprob")}
    if not batch:
        return Fields(mine)
    for name in _PER_ITEM:
        if isinstance(mine[name], list):
            mine[name] = _element(name, mine[name], index)
    wanted = mine["token_ids_logprob"]
    if isinstance(wanted, list) and any(isinstance(one, list) or one is None for one in wanted):
        mine["token_ids_logprob"] = _element("token_ids_logprob", wanted, index)
    if isinstance(mine["rid"], str):
        mine["rid"] = f"{mine['rid']}_{index}"
    return Fields(mine)


def _element(name: str, values: Sequence[Any], index: int) -> Any:
    if index >= len(values):
        raise BadRequest(f"{name} has {len(values)} elements, fewer than the batch has prompts.")
    return values[index]


def _job(fields: Fields, prompt: tuple[int, ...], stream: bool, limits: Limits) -> JobSpec:
    sampling = fields.mapping("sampling_params")
    for name in sampling.names() - set(_APPLIED) - set(_IGNORED) - set(_UNSUPPORTED):
        known = ", ".join(f"`{one}`" for one in (*_APPLIED, *_UNSUPPORTED, *_IGNORED))
        raise UnknownField(f"unknown field `{name}`, expected one of {known}")
    refuse_unsupported(sampling)
    most = sampling.whole("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    check_room(prompt, most, limits)
    return JobSpec(
        identity=fields.text("rid", "") or uuid.uuid4().hex,
        prompt=prompt,
        max_new_tokens=most,
        sampling=read_sampling(sampling, seed=sampling.raw("sampling_seed")),
        stop=read_stop(sampling, limits),
        wish=_wish(fields, len(prompt), limits) if fields.flag("return_logprob") else None,
        skip_special_tokens=sampling.flag("skip_special_tokens", True),
        stream=stream,
    )


def refuse_unsupported(sampling: Fields) -> None:
    """BadRequest when a parameter is set that would change the answer and is not applied here."""
    for name in sampling.names() & set(_UNSUPPORTED):
        value = sampling.raw(name)
        if isinstance(value, bool) or value not in (*_UNSUPPORTED[name], [], {}):
            raise BadRequest(f"{name}={shown(value)} is not supported by refengine; leave it out.")


def read_sampling(fields: Fields, *, seed: Any, branch: int = 0) -> Sampling:
    """How to draw, from `fields`; a seed that is None is drawn now."""
    temperature, top_p, top_k = fields.real("temperature", 1.0), fields.real("top_p", 1.0), fields.whole("top_k", -1)
    if temperature < 0:
        raise BadRequest(f"temperature must be a non-negative finite number, got {temperature}.")
    if not 0 < top_p <= 1:
        raise BadRequest(f"top_p must be in (0, 1], got {top_p}.")
    if top_k < 1 and top_k not in (-1, 0):
        raise BadRequest(f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    min_p = fields.real("min_p", 0.0)
    if not 0 <= min_p <= 1:
        raise BadRequest(f"min_p must be in [0, 1], got {min_p}.")
    number = secrets.randbits(64) if seed is None else as_whole("seed", seed) & (1 << 64) - 1
    # Below this the scaled logits overflow float32; SGLang, too, takes such a temperature for greedy.
    small = not math.isfinite(temperature) or temperature < 1e-6
    return Sampling(
        temperature=0.0 if small else temperature,
        top_p=top_p,
        top_k=max(0, top_k),
        min_p=min_p,
        penalties=_penalties(fields),
        seed=number,
        branch=branch,
    )


def _penalties(fields: Fields) -> Penalties:
    found: dict[str, float] = {}
    for kind, least in (("presence", -2.0), ("frequency", -2.0), ("repetition", 0.0)):
        name = f"{kind}_penalty"
        value = found[kind] = fields.real(name, 1.0 if kind == "repetition" else 0.0)
        if not least <= value <= 2 or (kind == "repetition" and value == 0):
            raise BadRequest(f"{name} must be in {'(0' if least == 0 else '[-2'}, 2], got {value}.")
    return Penalties(**found)


def read_stop(fields: Fields, limits: Limits) -> StopRules:
    """Stop strings and ids; `ignore_eos` switches all ids off, as SGLang does."""
    texts = tuple(text for text in fields.texts("stop") if text)
    ids = fields.wholes("stop_token_ids") or ()
    ignore = fields.flag("ignore_eos")
    return StopRules(
        texts=texts,
        ids=frozenset() if ignore else frozenset((*ids, *limits.tokenizer.end_ids)),
        keep=fields.flag("no_stop_trim"),
    )


def check_room(prompt: Sequence[int], most: int, limits: Limits) -> None:
    """BadRequest unless the prompt is not empty, inside the vocabulary, and fits with its answer into context and
    pool."""
    if most < 0:
        raise BadRequest(f"max_new_tokens must be at least 0, got {most}.")
    if not prompt:
        raise BadRequest("Prompt cannot be empty")
    if len(prompt) > limits.context:
        raise BadRequest(
            f"The input ({len(prompt)} tokens) is longer than the model's context length ({limits.context} tokens)."
        )
    check_ids("input_ids", prompt, limits.vocabulary)
    if len(prompt) + most > limits.context:
        raise BadRequest(
            f"Requested token count exceeds the model's maximum context length of {limits.context} tokens. You requested a total "
            f"of {len(prompt) + most} tokens: {len(prompt)} tokens from the input messages and {most} tokens for the completion. "
            "Please reduce the number of tokens in the input messages or the completion to fit within the limit."
        )
    if pages_for(len(prompt) + max(0, most - 1)) > limits.pages:
        allowed = limits.pages * 16
        raise BadRequest(
            f"Input length ({len(prompt)} tokens) with {most} new tokens exceeds the maximum allowed length ({allowed} tokens: "
            "the whole KV pool). Use a shorter input or a larger pool."
        )


def check_ids(name: str, ids: Sequence[int], vocabulary: int) -> None:
    """BadRequest when an id lies outside the vocabulary."""
    for token in ids:
        if not 0 <= token < vocabulary:
            raise BadRequest(f"{name} contains out-of-vocabulary token id {token}; valid range is [0, {vocabulary}).")


def _wish(fields: Fields, prompt: int, limits: Limits) -> LogprobWish:
    start, top = fields.whole("logprob_start_len", -1), fields.whole("top_logprobs_num", 0)
    ids = fields.wholes("token_ids_logprob")
    if start > prompt:
        raise BadRequest(
            f"req.logprob_start_len={start} is higher than the number of input tokens len(req.origin_input_ids)={prompt}. "
            "Please use a smaller logprob_start_len."
        )
    if start < -1:
        raise BadRequest(f"logprob_start_len must be -1 (outputs only) or at least 0, got {start}.")
    if not 0 <= top <= limits.vocabulary:
        raise BadRequest(f"top_logprobs_num must be in [0, {limits.vocabulary}] (the vocabulary), got {top}.")
    check_ids("token_ids_logprob", ids or (), limits.vocabulary)
    return LogprobWish(start=prompt if start == -1 else start, top=top, ids=ids)
