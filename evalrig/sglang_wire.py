"""SGLang's native HTTP dialect (`/generate` with logprobs, `/tokenize`, `/server_info`), as recorded from SGLang 0.5.23.

Spoken by SGLang and by refengine. Everything an engine sends is checked here: a reply that lacks a row,
scores other tokens than asked, or ends without a reason is an `EngineError`, never an answer.
"""

import asyncio
import base64
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from evalrig.engine import Sampling, Scoring
from evalrig.errors import EngineError
from evalrig.types import Completion, Message

RETRIES = 2
"""Identical in every arm: transport faults, 429 and 5xx only."""
PAUSES = (0.2, 1.0)


class Client:
    """Calls to one server. `vocabulary` bounds ids and top-K before sending: SGLang dies of either (wire/INDEX.md)."""

    def __init__(self, name: str, base_url: str, seconds: float, connections: int = 64) -> None:
        self.name = name
        self.vocabulary = 0
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        timeout = httpx.Timeout(seconds, connect=10.0)
        # trust_env off: a proxy from the environment would stand between us and a loopback engine
        self._http = httpx.AsyncClient(base_url=base_url, timeout=timeout, limits=limits, trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ready(self) -> bool:
        """True once the server takes requests."""
        try:
            return (await self._http.get("/ready", timeout=5.0)).status_code == 200
        except httpx.TransportError:
            return False

    async def info(self, path: str) -> dict[str, Any]:
        """`/server_info` or `/model_info`."""
        return (await self._call("GET", path, None))[0]

    async def tokenize(self, prompt: str | Sequence[Message]) -> tuple[int, ...]:
        """Ids of a text without special tokens, or of a conversation through the chat template."""
        if isinstance(prompt, str):
            body: dict[str, Any] = {"prompt": prompt, "add_special_tokens": False}
        else:
            body = {"messages": [{"role": m.role, "content": m.content} for m in prompt]}
        reply, _ = await self._call("POST", "/tokenize", body)
        with self._shape("/tokenize"):
            return tuple(int(i) for i in reply["tokens"])

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `ids`; the logprob of each new token comes along."""
        self._check_ids(ids)
        began = time.monotonic()
        body = {"input_ids": list(ids), "sampling_params": _params(sampling), "return_logprob": True}
        reply, retries = await self._call("POST", "/generate", body)
        with self._shape("/generate"):
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
                text=_characters(reply["text"]),
                token_ids=tokens,
                logprobs=tuple(float(entry[0]) for entry in entries),
                prompt_tokens=int(meta["prompt_tokens"]),
                completion_tokens=len(tokens),
                finish=finish,
                seconds=time.monotonic() - began,
                retries=retries,
            )

    async def score(self, ids: Sequence[int], start: int, top_k: int) -> Scoring:
        """Logprobs of `ids[start:]`. The row at `logprob_start_len` is always null, so that one is `start - 1`."""
        self._check_ids(ids)
        if not 1 <= start < len(ids):
            raise ValueError(f"start {start} outside 1..{len(ids) - 1}")
        if top_k < 0 and not self.vocabulary:
            raise EngineError(f"{self.name}: the whole vocabulary was asked for, and its size is not known")
        wanted = self.vocabulary if top_k < 0 else top_k
        if self.vocabulary and wanted > self.vocabulary:
            raise EngineError(f"{self.name}: top-K {wanted} is above the vocabulary of {self.vocabulary}; lower it")
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
        reply, retries = await self._call("POST", "/generate", body)
        with self._shape("/generate"):
            meta = reply["meta_info"]
            if (meta.get("finish_reason") or {}).get("type") == "abort":
                raise EngineError(f"{self.name}: a scoring was aborted; counted as a failed call")
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

    @contextmanager
    def _shape(self, path: str) -> Generator[None]:
        """A reply of another shape is the engine's fault, not a crash of ours and not an answer."""
        try:
            yield
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"{self.name}: {path} answered in an unknown shape: {error!r}"[:300]) from error

    def _check_ids(self, ids: Sequence[int]) -> None:
        if self.vocabulary and ids and not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise EngineError(
                f"{self.name}: a token id lies outside the vocabulary of {self.vocabulary}; it was not sent"
            )

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[Any, int]:
        """Reply and number of retries."""
        reason = ""
        for attempt in range(RETRIES + 1):
            try:
                reply = await self._http.request(method, path, json=body)
            except httpx.RequestError as error:
                reason = f"{type(error).__name__} {error}".strip()
            else:
                if reply.status_code == 200:
                    return self._json(reply, path), attempt
                reason = f"HTTP {reply.status_code} {' '.join(reply.text[:200].split())}".strip()
                if reply.status_code != 429 and reply.status_code < 500:
                    break
            if attempt < RETRIES:
                await asyncio.sleep(PAUSES[attempt])
        raise EngineError(f"{self.name}: {path} failed: {reason}")

    def _json(self, reply: httpx.Response, path: str) -> Any:
        try:
            content = reply.json()
        except ValueError as error:
            raise EngineError(f"{self.name}: {path} did not answer JSON: {reply.text[:80]!r}") from error
        if isinstance(content, dict) and "error" in content:
            raise EngineError(f"{self.name}: {path} answered 200 with an error: {str(content['error'])[:200]}")
        return content


def _characters(text: str) -> str:
    """JSON can carry half of a surrogate pair, which no file can: it becomes the sign for a broken character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
