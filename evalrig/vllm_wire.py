"""vLLM's HTTP dialect (`/v1/completions` with `prompt_logprobs`, `/tokenize`, `/metrics`), as recorded from vLLM 0.32.0.

A reply that lacks a row, scores other tokens than asked, or ends without a reason is an `EngineError`, never an answer.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evalrig.conversation import conversation
from evalrig.engine import Sampling, Scoring
from evalrig.errors import EngineError
from evalrig.exposition import page
from evalrig.loadgen.target import Gauges
from evalrig.serving import phases_of
from evalrig.types import Completion, Message, Tool
from evalrig.wire import Wire, characters

LONGEST_LIST = 1000
"""Largest K of a scoring: 184 tokens over the whole vocabulary grew a server to 9.5 GB, and the kernel ended it."""
FULL_ROWS = 16
"""Rows over the whole vocabulary at most, one request each."""

PHASES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "queue": ("vllm:request_queue_time_seconds", {}),
    "prefill": ("vllm:request_prefill_time_seconds", {}),
    "decode": ("vllm:request_decode_time_seconds", {}),
    "first_token": ("vllm:time_to_first_token_seconds", {}),
    "request": ("vllm:e2e_request_latency_seconds", {}),
}


class Client(Wire):
    """Calls to one server. `max_logprobs` is the server's own limit (-1: the vocabulary): more is not sent."""

    model = ""
    max_logprobs = 20

    async def ready(self) -> bool:
        """True once the server takes requests; before, the connection is refused."""
        return await self.status("/health") == 200

    async def served(self) -> dict[str, Any]:
        """The card of the model that is served: its name is needed on every request, another is a 404."""
        found = await self.info("/v1/models")
        with self.shape("/v1/models"):
            cards = [card for card in found["data"] if self.model in ("", card["id"])]
            if not cards:
                raise EngineError(f"{self.name}: it does not serve {self.model!r}; name one of /v1/models")
            self.model = str(cards[0]["id"])
            return dict(cards[0])

    async def cache_info(self) -> dict[str, str]:
        """Labels of the KV cache's metric; empty where the server shows none."""
        return page(await self.text("/metrics")).labels("vllm:cache_config_info")

    async def flush(self) -> bool:
        """Empty the prefix cache; False: requests run, or the server has no such route (VLLM_SERVER_DEV_MODE=1 opens it)."""
        reply = await self.posted("/reset_prefix_cache")
        return reply.status_code == 200 and '"success":false' not in reply.text.replace(" ", "")

    async def gauges(self) -> Gauges | None:
        """From `/metrics`; None: the server shows none. The usage of its KV cache is a fraction, whatever the name says."""
        told = page(await self.text("/metrics"))
        if not told.samples:
            return None
        return Gauges(
            at=time.monotonic(),
            running=told.total("vllm:num_requests_running"),
            waiting=told.total("vllm:num_requests_waiting"),
            kv_usage=told.most("vllm:kv_cache_usage_perc"),
            preemptions=told.total("vllm:num_preemptions_total"),
            prompt_tokens=told.total("vllm:prompt_tokens_total"),
            generated_tokens=told.total("vllm:generation_tokens_total"),
            phases=phases_of(told, PHASES),
        )

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        """Ids of a text without special tokens, or of a conversation through the chat template."""
        body: dict[str, Any] = {"model": self.model}
        if isinstance(prompt, str):
            body |= {"prompt": prompt, "add_special_tokens": False}
        else:
            body |= conversation(prompt, tools, "reasoning", answer)
        reply, _ = await self.call("POST", "/tokenize", body)
        with self.shape("/tokenize"):
            return tuple(int(i) for i in reply["tokens"])

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `ids`; the logprob of each new token comes along."""
        return (await self._generated(ids, sampling, {"logprobs": 0}, float))[0]

    async def decode(self, ids: Sequence[int], sampling: Sampling, top_k: int) -> tuple[Completion, Scoring]:
        """As `generate`, with the top-K list that each new token was drawn from; whole vocabularies for a few tokens only."""
        wanted = self.width(top_k)
        if top_k < 0:
            self._check_whole(sampling.max_tokens)
        else:
            self._check_list(wanted)
        lists = {"logprobs": wanted, "return_tokens_as_token_ids": True}
        answer, rows = await self._generated(ids, sampling, lists, _number)
        with self.shape("/v1/completions"):
            read = [
                _row(_entries(row), token, wanted, self.name) for row, token in zip(rows, answer.token_ids, strict=True)
            ]
        return answer, _scoring(answer.token_ids, read, answer.seconds, answer.retries)

    async def _generated(
        self, ids: Sequence[int], sampling: Sampling, lists: Mapping[str, Any], number: Callable[[Any], float]
    ) -> tuple[Completion, list[Any]]:
        """The answer, and the list of each token in the server's form."""
        self.check_ids(ids)
        began = time.monotonic()
        choice, retries = await self._complete(ids, {**_params(sampling), "return_token_ids": True, **lists})
        with self.shape("/v1/completions"):
            finish = str(choice.get("finish_reason"))
            if finish not in ("stop", "length"):
                raise EngineError(
                    f"{self.name}: an answer ended with {choice.get('finish_reason') or 'no'} finish reason; counted as a failed call"
                )
            tokens = tuple(int(i) for i in choice["token_ids"])
            logprobs = tuple(number(value) for value in choice["logprobs"]["token_logprobs"])
            if len(tokens) != len(logprobs) or list(choice["prompt_token_ids"]) != list(ids):
                raise EngineError(
                    f"{self.name}: {len(logprobs)} logprobs do not belong to the {len(tokens)} tokens answered to {len(ids)} given"
                )
            answer = Completion(
                text=characters(choice["text"]),
                token_ids=tokens,
                logprobs=logprobs,
                prompt_tokens=len(ids),
                completion_tokens=len(tokens),
                finish=finish,
                seconds=time.monotonic() - began,
                retries=retries,
            )
            return answer, list(choice["logprobs"]["top_logprobs"])

    async def score(self, ids: Sequence[int], start: int, top_k: int) -> Scoring:
        """Logprobs of `ids[start:]`; the whole vocabulary (-1) row by row, for a few rows only."""
        self.check_ids(ids)
        if not 1 <= start < len(ids):
            raise ValueError(f"start {start} outside 1..{len(ids) - 1}")
        wanted = self.width(top_k)
        if top_k < 0:
            return await self._whole(ids, start, wanted)
        self._check_list(wanted)
        began = time.monotonic()
        choice, retries = await self._complete(ids, {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": wanted})
        with self.shape("/v1/completions"):
            rows = choice["prompt_logprobs"]
            if len(rows) != len(ids) or rows[0] is not None:
                raise EngineError(f"{self.name}: {len(rows)} rows of prompt logprobs for {len(ids)} tokens")
            read = [_row(row, token, wanted, self.name) for row, token in zip(rows[start:], ids[start:], strict=True)]
        return _scoring(ids[start:], read, time.monotonic() - began, retries)

    async def _whole(self, ids: Sequence[int], start: int, wanted: int) -> Scoring:
        """The next-token distribution after each prefix: what a prompt's logprobs would cost grows with its length."""
        self._check_whole(len(ids) - start)
        began, retries = time.monotonic(), 0
        read: list[tuple[float, list[tuple[int, float]]]] = []
        for place in range(start, len(ids)):
            more = {"max_tokens": 1, "temperature": 0.0, "logprobs": wanted, "return_tokens_as_token_ids": True}
            choice, again = await self._complete(ids[:place], more)
            retries += again
            with self.shape("/v1/completions"):
                read.append(_row(_entries(choice["logprobs"]["top_logprobs"][0]), ids[place], wanted, self.name))
        return _scoring(ids[start:], read, time.monotonic() - began, retries)

    def _check_list(self, k: int) -> None:
        limit = LONGEST_LIST if self.max_logprobs < 0 else min(LONGEST_LIST, self.max_logprobs)
        if k > limit:
            raise EngineError(f"{self.name}: top-K {k} is above the {limit} that this server gives; lower it")

    def _check_whole(self, rows: int) -> None:
        if self.max_logprobs >= 0:
            raise EngineError(f"{self.name}: the server gives no whole vocabulary; start it with max_logprobs -1")
        if rows > FULL_ROWS:
            raise EngineError(
                f"{self.name}: {rows} rows over the whole vocabulary were asked for; {FULL_ROWS} at most, or the server dies"
            )

    async def _complete(self, ids: Sequence[int], more: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """The one choice of a completion of `ids`."""
        body = {"model": self.model, "prompt": list(ids), **more}
        reply, retries = await self.call("POST", "/v1/completions", body)
        with self.shape("/v1/completions"):
            given = int(reply["usage"]["prompt_tokens"])
            if len(reply["choices"]) != 1 or given != len(ids):
                raise EngineError(
                    f"{self.name}: {len(reply['choices'])} answers to {given} tokens; {len(ids)} were given"
                )
            return dict(reply["choices"][0]), retries


def _params(sampling: Sampling) -> dict[str, Any]:
    """Every parameter explicit: what is not sent the checkpoint's generation_config may decide."""
    params: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.penalties.presence,
        "frequency_penalty": sampling.penalties.frequency,
        "repetition_penalty": sampling.penalties.repetition,
    }
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        params["seed"] = sampling.seed
    return params


def _entries(row: Mapping[str, Any]) -> dict[str, Any]:
    """A list of a generated token, `token_id:N` to logprob, in the form of a prompt's row."""
    return {name.removeprefix("token_id:"): {"logprob": x} for name, x in row.items()}


def _row(row: Mapping[str, Any], token: int, k: int, name: str) -> tuple[float, list[tuple[int, float]]]:
    """Logprob of the actual token, and the K best: with K+1 entries the actual one is the one too many."""
    entries = {int(key): _number(entry["logprob"]) for key, entry in row.items()}
    if token not in entries or len(entries) not in (k, k + 1):
        raise EngineError(
            f"{name}: a row of {len(entries)} entries where {k} or {k + 1} with the token itself were due"
        )
    best = sorted(((x, i) for i, x in entries.items() if len(entries) == k or i != token), key=lambda e: (-e[0], e[1]))
    return entries[token], [(i, x) for x, i in best]


def _number(value: Any) -> float:
    """A logprob; null is no number."""
    return float("nan") if value is None else float(value)


def _scoring(
    ids: Sequence[int], rows: Sequence[tuple[float, list[tuple[int, float]]]], seconds: float, retries: int
) -> Scoring:
    made = Scoring(
        token_ids=np.asarray(ids, np.int32),
        logprobs=np.asarray([own for own, _ in rows], np.float32),
        top_ids=np.asarray([[i for i, _ in top] for _, top in rows], np.int32).reshape(len(rows), -1),
        top_logprobs=np.asarray([[x for _, x in top] for _, top in rows], np.float32).reshape(len(rows), -1),
    )
    return replace(made, seconds=seconds, retries=retries)
