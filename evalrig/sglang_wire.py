"""SGLang's native HTTP dialect (`/generate` with logprobs, `/tokenize`, `/server_info`), as recorded from SGLang 0.5.23.

Spoken by SGLang and by refengine. Everything an engine sends is checked here: a reply that lacks a row,
scores other tokens than asked, or ends without a reason is an `EngineError`, never an answer.
"""

import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalrig.engine import Sampling, Scoring
from evalrig.errors import EngineError
from evalrig.types import Completion, Message
from evalrig.wire import Wire, characters


class Client(Wire):
    """Calls to one server. `vocabulary` bounds ids and top-K before sending: SGLang dies of either (wire/INDEX.md)."""

    async def ready(self) -> bool:
        """True once the server takes requests; older versions have no `/ready`, and a `/health` that generates a token."""
        status = await self.status("/ready")
        return (await self.status("/health", 30.0) if status == 404 else status) == 200

    async def tokenize(self, prompt: str | Sequence[Message]) -> tuple[int, ...]:
        """Ids of a text without special tokens, or of a conversation through the chat template."""
        if isinstance(prompt, str):
            body: dict[str, Any] = {"prompt": prompt, "add_special_tokens": False}
        else:
            body = {"messages": [{"role": m.role, "content": m.content} for m in prompt]}
        reply, _ = await self.call("POST", "/tokenize", body)
        with self.shape("/tokenize"):
            return tuple(int(i) for i in reply["tokens"])

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `ids`; the logprob of each new token comes along."""
        self.check_ids(ids)
        began = time.monotonic()
        body = {"input_ids": list(ids), "sampling_params": _params(sampling), "return_logprob": True}
        reply, retries = await self.call("POST", "/generate", body)
        with self.shape("/generate"):
            meta = reply["meta_info"]
            finish = (meta.get("finish_reason") or {}).get("type", "")
            if finish not in ("stop", "length"):
                raise EngineError(
                    f"{self.name}: an answer ended with {finish or 'no'} finish reason; counted as a failed call"
                )
            tokens = tuple(int(i) for i in reply["output_ids"])
            entries = meta["output_token_logprobs"]
            if tokens != tuple(int(entry[1]) for entry in entries) or int(meta["prompt_tokens"]) != len(ids):
                raise EngineError(
                    f"{self.name}: {len(entries)} logprobs do not belong to the {len(tokens)} tokens answered to {len(ids)} given"
                )
            return Completion(
                text=characters(reply["text"]),
                token_ids=tokens,
                logprobs=tuple(float(entry[0]) for entry in entries),
                prompt_tokens=int(meta["prompt_tokens"]),
                completion_tokens=len(tokens),
                finish=finish,
                seconds=time.monotonic() - began,
                retries=retries,
            )

    async def prefill(self, ids: Sequence[int]) -> None:
        """Leave `ids` in the prefix cache."""
        self.check_ids(ids)
        body = {"input_ids": list(ids), "sampling_params": {"temperature": 0.0, "max_new_tokens": 0}}
        await self.call("POST", "/generate", body)

    async def score(self, ids: Sequence[int], start: int, top_k: int, cached: int = 0) -> Scoring:
        """Logprobs of `ids[start:]`. The row at `logprob_start_len` is always null, so that one is `start - 1`.

        `cached`: so many tokens at least must have been read from the prefix cache, or it is another measurement.
        """
        self.check_ids(ids)
        if not 1 <= start < len(ids):
            raise ValueError(f"start {start} outside 1..{len(ids) - 1}")
        wanted = self.width(top_k)
        began = time.monotonic()
        body = {
            "input_ids": list(ids),
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": start - 1,
            "top_logprobs_num": wanted,
            "return_flat_raw_top_logprobs": wanted > 0,
            "return_flat_raw_top_logprobs_b64": wanted > 0,
        }
        reply, retries = await self.call("POST", "/generate", body)
        with self.shape("/generate"):
            meta = reply["meta_info"]
            if (meta.get("finish_reason") or {}).get("type") == "abort":
                raise EngineError(f"{self.name}: a scoring was aborted; counted as a failed call")
            if cached and int(meta["cached_tokens"]) < cached:
                raise EngineError(
                    f"{self.name}: {meta['cached_tokens']} tokens came from the prefix cache where {cached} should have"
                )
            entries = meta["input_token_logprobs"][1:]
            given = np.asarray([entry[1] for entry in entries], np.int32)
            logprobs = np.asarray([np.nan if entry[0] is None else entry[0] for entry in entries], np.float32)
            asked = np.asarray(ids[start:], np.int32)
            if not np.array_equal(asked, given) or int(meta["prompt_tokens"]) != len(ids):
                raise EngineError(f"{self.name}: scored other tokens than given ({len(given)} rows for {len(asked)})")
            top_ids, top = _top(meta, len(asked), wanted, self.name) if wanted else _no_top(len(asked))
        return Scoring(
            token_ids=asked,
            logprobs=logprobs,
            top_ids=top_ids,
            top_logprobs=top,
            seconds=time.monotonic() - began,
            retries=retries,
        )


def _params(sampling: Sampling) -> dict[str, Any]:
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_new_tokens": sampling.max_tokens,
    }
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    return params


def _top(meta: Mapping[str, Any], rows: int, k: int, name: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    shape = tuple(meta["input_top_logprobs_shape"])
    if shape != (rows, k) or int(meta["input_top_logprobs_null_prefix"]) != 1:
        raise EngineError(f"{name}: top-K rows of shape {shape}, expected {(rows, k)} after one null row")
    ids = np.frombuffer(base64.b64decode(meta["input_top_logprobs_idx_flat_b64"]), "<i4")
    values = np.frombuffer(base64.b64decode(meta["input_top_logprobs_val_flat_b64"]), "<f4")
    return ids.reshape(shape).astype(np.int32), values.reshape(shape).astype(np.float32)


def _no_top(rows: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    return np.zeros((rows, 0), np.int32), np.zeros((rows, 0), np.float32)
