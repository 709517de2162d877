"""Logprobs of given tokens from a server that scores no prompts: it is made to answer exactly those tokens.

A grammar of token literals allows one token a position; the logprobs that come along are those of the untouched logits,
for the answered token whether or not it is in the top-K. The text before is prefilled anew each time, the given tokens
are decoded one by one: what is measured is the decode path.

Two kinds of tokens cannot be forced by grammar. One that ends an answer may only come last, by a bias. Of one that is a
piece of a character the server gives no row: another token is answered in its place, with the whole vocabulary listed.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalrig.engine import Sampling, Scoring
from evalrig.errors import EngineError
from evalrig.llama_cpp.wire import Answer, Client, Row, number
from evalrig.types import Completion

BIAS = 1000.0
"""Added to one logit it decides the draw; the logprobs told are those without it."""
ENTRIES = 8 * 49152
"""List entries asked for in one request at most: one is 95 bytes of JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """`ids[start:stop]` by one request."""

    start: int
    stop: int
    torn: bool = False
    """A piece of a character: scored from the whole vocabulary."""


class Forcing:
    """Scores through one client; remembers which tokens are pieces of characters."""

    def __init__(self, client: Client, ends: frozenset[int], stand_in: int) -> None:
        self._client = client
        self._ends = ends
        self._stand_in = stand_in
        """A token of whole text that the server gives rows for."""
        self._torn: dict[int, bool] = {}

    async def score(self, ids: Sequence[int], start: int, top_k: int) -> Scoring:
        """See `Engine.score`."""
        client = self._client
        if not 1 <= start < len(ids):
            raise ValueError(f"start {start} outside 1..{len(ids) - 1}")
        wanted = client.width(top_k)
        if len(ids) >= client.context:
            text = f"{len(ids)} tokens do not fit the context of {client.context}; raise `context_length`"
            raise EngineError(f"{client.name}: {text}")
        client.check_ids(ids)
        began = asyncio.get_running_loop().time()
        await self._look(ids[start:])
        width = max(1, ENTRIES // max(wanted, 1))
        found = [await self._piece(ids, piece, wanted) for piece in self._pieces(ids, start, width)]
        return Scoring(
            token_ids=np.asarray(ids[start:], np.int32),
            logprobs=np.concatenate([logprobs for logprobs, _, _, _ in found]),
            top_ids=np.concatenate([top_ids for _, top_ids, _, _ in found]),
            top_logprobs=np.concatenate([top for _, _, top, _ in found]),
            seconds=asyncio.get_running_loop().time() - began,
            retries=sum(retries for _, _, _, retries in found),
        )

    async def decode(self, ids: Sequence[int], sampling: Sampling, top_k: int) -> tuple[Completion, Scoring]:
        """See `Engine.decode`. Where the answer's own rows are not whole, or too large for one reply, the answered
        tokens are forced again: the same path, another batch."""
        client = self._client
        wanted = client.width(top_k)
        fits = max(wanted, 1) * sampling.max_tokens <= ENTRIES
        answer, rows = await client.decode(ids, sampling, max(wanted, 1) if fits else 1)
        if not fits or not rows:
            if not answer.token_ids:
                raise EngineError(f"{client.name}: no token was answered, so there is nothing to list")
            return answer, await self.score([*ids, *answer.token_ids], len(ids), top_k)
        if any(len(row.top_logprobs) != max(wanted, 1) for row in rows):
            raise EngineError(f"{client.name}: a list of other than the {max(wanted, 1)} entries asked for")
        top_ids, top = _lists(rows, max(wanted, 1))
        return answer, Scoring(
            token_ids=np.asarray(answer.token_ids, np.int32),
            logprobs=np.asarray(answer.logprobs, np.float32),
            top_ids=top_ids[:, :wanted],
            top_logprobs=top[:, :wanted],
            retries=answer.retries,
        )

    async def _look(self, ids: Sequence[int]) -> None:
        """Ask, once a token, whether it is text of its own."""
        for token in sorted(set(ids) - self._torn.keys() - self._ends):
            text = await self._client.detokenize([token])
            self._torn[token] = not text or "\N{REPLACEMENT CHARACTER}" in text or text.startswith("\0")

    def _pieces(self, ids: Sequence[int], start: int, width: int) -> Iterator[Piece]:
        """Runs of at most `width` tokens: an end only last, a torn one alone."""
        first = start
        for at in range(start, len(ids)):
            torn = self._torn.get(ids[at], False)
            if at > first and (torn or at - first == width):
                yield Piece(start=first, stop=at)
                first = at
            if torn or ids[at] in self._ends:
                yield Piece(start=first, stop=at + 1, torn=torn)
                first = at + 1
        if first < len(ids):
            yield Piece(start=first, stop=len(ids))

    async def _piece(self, ids: Sequence[int], piece: Piece, k: int) -> "_Rows":
        given = list(ids[piece.start : piece.stop])
        forced, k_sent = ([self._stand_in], self._client.vocabulary) if piece.torn else (given, max(k, 1))
        body: dict[str, Any] = {"prompt": list(ids[: piece.start]), "n_predict": len(forced), "n_probs": k_sent}
        ending = not piece.torn and given[-1] in self._ends
        if ending or piece.torn:
            body["logit_bias"] = [[forced[-1], BIAS]]
        if plain := forced[: len(forced) - ending] if not piece.torn else []:
            body["grammar"] = "root ::= " + " ".join(f"<[{token}]>" for token in plain)
        answer, retries = await self._client.complete(body)
        rows = self._rows(answer, forced, k_sent)
        ids_, top = _lists(rows, k_sent)
        if piece.torn:
            logprobs = top[ids_ == given[0]]
            if len(logprobs) != 1:
                raise EngineError(
                    f"{self._client.name}: the whole vocabulary names token {given[0]} {len(logprobs)} times"
                )
        else:
            logprobs = np.asarray([number(row.logprob) for row in rows], np.float32)
        return logprobs, ids_[:, :k], top[:, :k], retries

    def _rows(self, answer: Answer, forced: list[int], k: int) -> list[Row]:
        rows = answer.completion_probabilities
        if answer.tokens != forced or [row.id for row in rows] != forced:
            said = f"answered {len(answer.tokens)} tokens with {len(rows)} rows where {len(forced)} were forced"
            raise EngineError(f"{self._client.name}: {said}, or others; counted as a failed call")
        if any(len(row.top_logprobs) != k for row in rows):
            raise EngineError(f"{self._client.name}: a list of other than the {k} entries asked for")
        return rows


_Rows = tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32], int]


def _lists(rows: Sequence[Row], k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    ids = np.asarray([entry.id for row in rows for entry in row.top_logprobs], np.int32)
    top = np.asarray([number(entry.logprob) for row in rows for entry in row.top_logprobs], np.float32)
    return ids.reshape(len(rows), k), top.reshape(len(rows), k)
