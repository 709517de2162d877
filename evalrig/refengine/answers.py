"""`/generate`: what a job brought, in the shape that the recorded server gives it."""

import base64
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from evalrig.refengine.jobs import Job, Update
from evalrig.refengine.logprobs import RowLogprobs
from evalrig.refengine.requests import AnswerForm
from evalrig.refengine.tokenizer import Tokenizer

_Entry = list[Any]


def generate_answer(job: Job, update: Update, form: AnswerForm, tokenizer: Tokenizer) -> dict[str, Any]:
    """The answer to one prompt, finished or (in a stream) so far."""
    return {
        "text": update.text,
        "output_ids": job.output_ids[: update.count],
        "meta_info": meta_info(job, update, form, tokenizer),
    }


def meta_info(job: Job, update: Update, form: AnswerForm, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything besides text and ids. Keys whose machinery does not exist here have the value of doing nothing."""
    clock, spec = job.clock, job.spec
    found: dict[str, Any] = {
        "id": spec.identity,
        "finish_reason": None if update.finish is None else update.finish.wire(),
        "prompt_tokens": len(spec.prompt),
        "weight_version": "default",
        "num_retractions": 0,
        "storage_prefetch_wait": 0.0,
        "storage_staging_wait": 0.0,
        "forward_entry_time": clock.received + clock.queued,
        "prefill_finished_time": clock.received + clock.prefilled,
        "queue_time": clock.queued,
    }
    if spec.wish is not None:
        found |= _logprobs(job, update, form, tokenizer)
    found |= {
        "reasoning_tokens": 0,
        "completion_tokens": update.count,
        "cached_tokens": job.cached,
        "cached_tokens_details": {"device": job.cached, "host": 0} if job.cached else None,
        "dp_rank": None,
        "response_sent_to_client_ts": time.time(),
    }
    if update.finish is not None:
        found |= _finished(job, update)
    return found


def _finished(job: Job, update: Update) -> dict[str, Any]:
    clock, count = job.clock, update.count
    found: dict[str, Any] = {
        "weight_versions": [{"version": "default", "start": 0, "end": count}],
        "e2e_latency": clock.finished,
        "request_received_ts": clock.received,
        "first_token_latency": clock.prefilled,
        "api_server_dispatch_finish_ts": clock.received,
        "request_finished_ts": clock.received + clock.finished,
    }
    if count > 1:
        found["decode_throughput"] = (count - 1) / max(clock.finished - clock.prefilled, 1e-9)
    return found


def _logprobs(job: Job, update: Update, form: AnswerForm, tokenizer: Tokenizer) -> dict[str, Any]:
    spec, wish = job.spec, job.spec.wish
    assert wish is not None, "called only for jobs that asked for logprobs"
    scored, inputs = spec.prompt[wish.start :], job.input_rows
    # A prompt that is only scored has one row more than output tokens: what would have come next.
    outputs = job.output_rows[: max(update.count, int(spec.max_new_tokens == 0))]
    written = _Writer(tokenizer if form.text else None)
    first = [[None, scored[0], written.text(scored[0])]] if scored else []
    found: dict[str, Any] = {
        "input_token_logprobs": first + written.entries([row.chosen for row in inputs], scored[1:]),
        "output_token_logprobs": written.entries([row.chosen for row in outputs], job.output_ids[: update.count]),
        "output_token_logprobs_length": update.count,
    }
    nulls = [None] if scored else []
    if wish.top:
        found |= _top("input", inputs, nulls, form.flat_input, form, written)
        found |= _top("output", outputs, [], form.flat_output, form, written)
    if wish.ids is not None:
        found["input_token_ids_logprobs"] = [*nulls, *(written.wanted(row, wish.ids) for row in inputs)]
        found["output_token_ids_logprobs"] = [written.wanted(row, wish.ids) for row in outputs]
    return found


def _top(
    side: str, rows: Sequence[RowLogprobs], nulls: list[None], flat: bool, form: AnswerForm, written: "_Writer"
) -> dict[str, Any]:
    if not flat:
        return {f"{side}_top_logprobs": [*nulls, *(written.top(row) for row in rows)]}
    width = 0 if not rows or rows[0].top_ids is None else len(rows[0].top_ids)
    values = np.array([row.top_logprobs for row in rows], dtype="<f4").reshape(len(rows), width)
    ids = np.array([row.top_ids for row in rows], dtype="<i4").reshape(len(rows), width)
    name, suffix = f"{side}_top_logprobs", "_b64" if form.base64 else ""
    found: dict[str, Any] = {
        f"{name}_val_flat{suffix}": _flat(values, form.base64),
        f"{name}_idx_flat{suffix}": _flat(ids, form.base64),
        f"{name}_shape": [len(rows), width],
        f"{name}_null_prefix": len(nulls),
    }
    if form.base64:
        found |= {f"{name}_val_flat_b64_dtype": "float32", f"{name}_idx_flat_b64_dtype": "int32"}
    return found


def _flat(values: np.ndarray[Any, Any], as_base64: bool) -> Any:
    return base64.b64encode(values.tobytes()).decode() if as_base64 else values.ravel().tolist()


class _Writer:
    """Entries [logprob, id, text or null]."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def text(self, token: int) -> str | None:
        return None if self._tokenizer is None else self._tokenizer.decode([token], skip_special=False)

    def entries(self, logprobs: Sequence[float], ids: Sequence[int]) -> list[_Entry]:
        return [[value, token, self.text(token)] for value, token in zip(logprobs, ids, strict=False)]

    def top(self, row: RowLogprobs) -> list[_Entry]:
        assert row.top_logprobs is not None, "asked for with the wish"
        assert row.top_ids is not None, "asked for with the wish"
        return self.entries(row.top_logprobs.tolist(), row.top_ids.tolist())

    def wanted(self, row: RowLogprobs, ids: Sequence[int]) -> list[_Entry]:
        assert row.wanted is not None, "asked for with the wish"
        return self.entries(row.wanted.tolist(), ids)
