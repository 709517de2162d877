"""SGLang's native HTTP dialect (`/generate` with logprobs, `/tokenize`, `/server_info`), as recorded from SGLang 0.5.23.

Spoken by SGLang and by refengine. Everything an engine sends is checked here: a reply that lacks a row,
scores other tokens than asked, or ends without a reason is an `EngineError`, never an answer.
"""

import base64
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalrig.conversation import conversation
from evalrig.engine import Sampling, Scoring
from evalrig.errors import EngineError
from evalrig.exposition import page
from evalrig.loadgen.target import Gauges
from evalrig.serving import phases_of
from evalrig.types import Completion, Message, Tool
from evalrig.wire import Wire, characters

KV_NAMES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "float32": "f32",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}
"""Dtype of the KV cache in its words -> ours."""
_STAGE = "sglang:per_stage_req_latency_seconds"
PHASES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "queue": ("sglang:queue_time_seconds", {}),
    "prefill": (_STAGE, {"stage": "prefill_forward"}),
    "decode": (_STAGE, {"stage": "decode_forward"}),
    "first_token": ("sglang:time_to_first_token_seconds", {}),
    "request": ("sglang:e2e_request_latency_seconds", {}),
}


class Client(Wire):
    """Calls to one server. `vocabulary` bounds ids and top-K before sending: SGLang dies of either (wire/INDEX.md)."""

    page = 1
    """Tokens that the prefix cache holds together."""
    longest_list = 0
    """Largest K of lists that come with generated tokens; 0: the vocabulary."""
    keyed = True
    """The server keeps prefixes of different `extra_key` apart, as far as was seen."""

    loads = True
    """The server has `/v1/loads`, as far as was seen."""

    async def ready(self) -> bool:
        """True once the server takes requests; older versions have no `/ready`, and a `/health` that generates a token."""
        status = await self.status("/ready")
        return (await self.status("/health", 30.0) if status == 404 else status) == 200

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        """Ids of a text without special tokens, or of a conversation through the chat template."""
        if isinstance(prompt, str):
            body: dict[str, Any] = {"prompt": prompt, "add_special_tokens": False}
        else:
            body = conversation(prompt, tools, "reasoning_content", answer)
        reply, _ = await self.call("POST", "/tokenize", body)
        with self.shape("/tokenize"):
            return tuple(int(i) for i in reply["tokens"])

    async def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Text of each token by itself: a part of a character is shown as U+FFFD."""
        if not ids:
            return ()
        body = {"tokens": [[i] for i in ids], "skip_special_tokens": False}
        reply, _ = await self.call("POST", "/detokenize", body)
        with self.shape("/detokenize"):
            told = reply["text"]
            texts = tuple(characters(text) for text in told)
        if isinstance(told, str) or len(texts) != len(ids):
            raise EngineError(f"{self.name}: {len(texts)} texts for {len(ids)} tokens")
        return texts

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `ids`; the logprob of each new token comes along."""
        self.check_ids(ids)
        began = time.monotonic()
        body = {"input_ids": list(ids), "sampling_params": _params(sampling), "return_logprob": True}
        reply, retries = await self.call("POST", "/generate", body)
        with self.shape("/generate"):
            return self._answer(reply, ids, time.monotonic() - began, retries)

    async def decode(self, ids: Sequence[int], sampling: Sampling, top_k: int) -> tuple[Completion, Scoring]:
        """As `generate`, with the top-K list that each new token was drawn from: row i belongs to new token i."""
        self.check_ids(ids)
        if sampling.max_tokens < 1:  # 0 would answer no token and one list
            raise ValueError(f"max_tokens {sampling.max_tokens}: at least 1")
        wanted = self.width(top_k)
        if 0 < self.longest_list < wanted:
            raise EngineError(f"{self.name}: top-K {wanted} is above the {self.longest_list} that it gives; lower it")
        began = time.monotonic()
        body = {
            "input_ids": list(ids),
            "sampling_params": _params(sampling),
            "return_logprob": True,
            "top_logprobs_num": wanted,
            "return_flat_raw_top_logprobs": wanted > 0,
            "return_flat_raw_output_top_logprobs": wanted > 0,
            "return_flat_raw_top_logprobs_b64": wanted > 0,
        }
        reply, retries = await self.call("POST", "/generate", body)
        with self.shape("/generate"):
            seconds = time.monotonic() - began
            answer = self._answer(reply, ids, seconds, retries, _number)
            rows = len(answer.token_ids)
            top_ids, top = _top(reply["meta_info"], "output", rows, wanted, self.name) if wanted else _no_top(rows)
            return answer, Scoring(
                token_ids=np.asarray(answer.token_ids, np.int32),
                logprobs=np.asarray(answer.logprobs, np.float32),
                top_ids=top_ids,
                top_logprobs=top,
                seconds=seconds,
                retries=retries,
            )

    def _answer(
        self, reply: Any, ids: Sequence[int], seconds: float, retries: int, number: Callable[[Any], float] = float
    ) -> Completion:
        """What was generated after `ids`, with an end, and the logprob of each token of it."""
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
            logprobs=tuple(number(entry[0]) for entry in entries),
            prompt_tokens=int(meta["prompt_tokens"]),
            completion_tokens=len(tokens),
            finish=finish,
            seconds=seconds,
            retries=retries,
        )

    async def prefill(self, ids: Sequence[int]) -> None:
        """Leave `ids` in the prefix cache."""
        self.check_ids(ids)
        body = {"input_ids": list(ids), "sampling_params": {"temperature": 0.0, "max_new_tokens": 0}}
        await self.call("POST", "/generate", body)

    async def score(self, ids: Sequence[int], start: int, top_k: int) -> Scoring:
        """Logprobs of `ids[start:]` from a cold prefill: nothing is read from the prefix cache.

        A server that keeps prefixes would otherwise read `ids[:start]` from there, or not, by what was asked before.
        Under a key of its own a request finds nothing; a server that knows no keys is asked for all positions.
        """
        spent: list[Scoring] = []
        if start > 1 and self.keyed:
            found, cached = await self._score(ids, start, start - 1, top_k, {"extra_key": f"cold-{uuid.uuid4().hex}"})
            if not cached:
                return found
            self.keyed = False
            spent.append(found)
        found, cached = await self._score(ids, start, 0, top_k, {})
        if cached:
            raise EngineError(
                f"{self.name}: {cached} tokens came from the prefix cache although all were to be computed"
            )
        return replace(
            found,
            seconds=found.seconds + sum(one.seconds for one in spent),
            retries=found.retries + sum(one.retries for one in spent),
        )

    async def score_cached(self, ids: Sequence[int], start: int, top_k: int) -> Scoring:
        """Logprobs of `ids[start:]` over a prefix that was put into the cache first and must have been read from there.

        What has less than a page before it is scored cold.
        """
        self._check_start(ids, start)
        half = max(start, min(2 * self.page, len(ids) // 2))
        if half > 1:
            await self.prefill(ids[: half - 1])
        cold = [await self.score(ids[:half], start, top_k)] if half > start else []
        wanted = max(0, half - 1 - self.page)
        warm, cached = await self._score(ids, half, half - 1, top_k, {})
        if cached < wanted:
            raise EngineError(f"{self.name}: {cached} tokens came from the prefix cache where {wanted} should have")
        return joined([*cold, warm])

    async def _score(
        self, ids: Sequence[int], start: int, first: int, top_k: int, more: Mapping[str, Any]
    ) -> tuple[Scoring, int]:
        """Logprobs of `ids[start:]`, and how many tokens came from the prefix cache. Rows come from `first` on, which is
        `logprob_start_len`: that row is always null, so it is `start - 1` at most."""
        self.check_ids(ids)
        self._check_start(ids, start)
        wanted, skip = self.width(top_k), start - first - 1
        began = time.monotonic()
        body = {
            "input_ids": list(ids),
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": first,
            "top_logprobs_num": wanted,
            "return_flat_raw_top_logprobs": wanted > 0,
            "return_flat_raw_top_logprobs_b64": wanted > 0,
            **more,
        }
        reply, retries = await self.call("POST", "/generate", body)
        with self.shape("/generate"):
            meta = reply["meta_info"]
            if (meta.get("finish_reason") or {}).get("type") == "abort":
                raise EngineError(f"{self.name}: a scoring was aborted; counted as a failed call")
            entries = meta["input_token_logprobs"][1:]
            given = np.asarray([entry[1] for entry in entries], np.int32)
            logprobs = np.asarray([_number(entry[0]) for entry in entries], np.float32)
            asked = np.asarray(ids[first + 1 :], np.int32)
            if not np.array_equal(asked, given) or int(meta["prompt_tokens"]) != len(ids):
                raise EngineError(f"{self.name}: scored other tokens than given ({len(given)} rows for {len(asked)})")
            lists = _top(meta, "input", len(asked), wanted, self.name) if wanted else _no_top(len(asked))
            cached = int(meta["cached_tokens"])
        scoring = Scoring(
            token_ids=asked[skip:],
            logprobs=logprobs[skip:],
            top_ids=lists[0][skip:],
            top_logprobs=lists[1][skip:],
            seconds=time.monotonic() - began,
            retries=retries,
        )
        return scoring, cached

    async def flush(self) -> bool:
        """Empty the prefix cache; False: requests run, or it is not ours to empty."""
        return (await self.posted("/flush_cache")).status_code == 200

    async def gauges(self) -> Gauges | None:
        """From `/metrics`; None: the server was started without.

        What runs and waits comes from `/v1/loads` where there is one: the gauges of `/metrics` are set every few steps, and
        stand still when the last request ends.
        """
        told = page(await self.text("/metrics"))
        if not told.samples:
            return None
        running, waiting, usage = await self._loads() or (
            told.total("sglang:num_running_reqs"),
            told.total("sglang:num_queue_reqs"),
            told.most("sglang:token_usage"),
        )
        retracted = told.total("sglang:num_retracted_requests_total")
        if np.isnan(retracted) and "sglang:num_retracted_reqs" in told.samples:
            retracted = 0.0  # the counter appears with the first
        return Gauges(
            at=time.monotonic(),
            running=running,
            waiting=waiting,
            kv_usage=usage,
            preemptions=retracted,
            prompt_tokens=told.total("sglang:prompt_tokens_total"),
            generated_tokens=told.total("sglang:generation_tokens_total"),
            phases=phases_of(told, PHASES),
        )

    async def _loads(self) -> tuple[float, float, float] | None:
        """Running, waiting and KV usage of now; None: the server does not tell."""
        if not self.loads or not (text := await self.text("/v1/loads")):
            self.loads = False
            return None
        with self.shape("/v1/loads"):
            ranks = json.loads(text)["loads"]
            return (
                float(sum(rank["num_running_reqs"] for rank in ranks)),
                float(sum(rank["num_waiting_reqs"] for rank in ranks)),
                float(max(rank["token_usage"] for rank in ranks)),
            )

    def _check_start(self, ids: Sequence[int], start: int) -> None:
        if not 1 <= start < len(ids):
            raise ValueError(f"start {start} outside 1..{len(ids) - 1}")


def joined(parts: Sequence[Scoring]) -> Scoring:
    """Scorings of one stream, end to end."""
    return Scoring(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        top_ids=np.concatenate([part.top_ids for part in parts]),
        top_logprobs=np.concatenate([part.top_logprobs for part in parts]),
        seconds=sum(part.seconds for part in parts),
        retries=sum(part.retries for part in parts),
    )


def _params(sampling: Sampling) -> dict[str, Any]:
    """Every parameter explicit: what is not sent a server of somebody else's may decide."""
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.penalties.presence,
        "frequency_penalty": sampling.penalties.frequency,
        "repetition_penalty": sampling.penalties.repetition,
        "max_new_tokens": sampling.max_tokens,
    }
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    return params


def _number(logprob: Any) -> float:
    """A logprob; null is no number."""
    return float("nan") if logprob is None else float(logprob)


def _top(
    meta: Mapping[str, Any], side: str, rows: int, k: int, name: str
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The lists of one side, `input` or `output`; of the given tokens the first has none."""
    key, nulls = f"{side}_top_logprobs", int(side == "input")
    if f"{key}_shape" not in meta:  # servers before the flat form of this side
        nested = [[(int(entry[1]), _number(entry[0])) for entry in row] for row in meta[key][nulls:]]
        if [len(row) for row in nested] != [k] * rows:
            raise EngineError(f"{name}: {len(nested)} top-K rows, or of another length, where {rows} of {k} were due")
        ids = np.asarray([[i for i, _ in row] for row in nested], np.int32)
        return ids, np.asarray([[x for _, x in row] for row in nested], np.float32)
    shape = tuple(meta[f"{key}_shape"])
    if shape != (rows, k) or int(meta[f"{key}_null_prefix"]) != nulls:
        raise EngineError(f"{name}: top-K rows of shape {shape}, expected {(rows, k)} after {nulls} null rows")
    ids = np.frombuffer(base64.b64decode(meta[f"{key}_idx_flat_b64"]), "<i4")
    values = np.frombuffer(base64.b64decode(meta[f"{key}_val_flat_b64"]), "<f4")
    return ids.reshape(shape).astype(np.int32), values.reshape(shape).astype(np.float32)


def _no_top(rows: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    return np.zeros((rows, 0), np.int32), np.zeros((rows, 0), np.float32)
