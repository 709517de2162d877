"""Calls to one server: identical retries in every arm, and whatever is no clean answer becomes an `EngineError`."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from evalrig.errors import EngineError

RETRIES = 2
"""Identical in every arm: transport faults, 429 and 5xx only."""
PAUSES = (0.2, 1.0)
T = TypeVar("T")


class Fault(Exception):
    """A try without an answer. `again`: another may mend it; `lost`: no server was met."""

    def __init__(self, reason: str, *, again: bool = True, lost: bool = False) -> None:
        super().__init__(reason)
        self.again, self.lost = again, lost

    @classmethod
    def of_status(cls, status: int, text: str) -> "Fault":
        """Of a reply that is none of success: 429 and 5xx may pass, the rest would only be refused again."""
        return cls(f"HTTP {status} {' '.join(text.split())}".strip(), again=status == 429 or status >= 500)

    @classmethod
    def of_transport(cls, error: Exception) -> "Fault":
        """Of a connection that was refused, cut or silent for too long."""
        return cls(f"{type(error).__name__} {error}".strip(), lost=True)


class Wire:
    """The connection to one server. `vocabulary` (0: not known) bounds ids and top-K before they are sent."""

    def __init__(self, name: str, base_url: str, seconds: float, connections: int = 64, key: str = "") -> None:
        self.name = name
        self.key = key
        self.seconds = seconds
        self.vocabulary = 0
        self.lost = 0
        """Calls in a row that met no server."""
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        timeout = httpx.Timeout(seconds, connect=10.0)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # trust_env off: a proxy from the environment would stand between us and a loopback engine
        self.http = httpx.AsyncClient(
            base_url=base_url, timeout=timeout, limits=limits, trust_env=False, headers=headers
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    async def status(self, path: str, seconds: float = 5.0) -> int:
        """HTTP status of a GET; 0 where no server answers."""
        try:
            return (await self.http.get(path, timeout=seconds)).status_code
        except httpx.RequestError:
            return 0

    async def posted(self, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """What a POST answers, whatever its status: where a refusal is an answer and another try would change it."""
        try:
            return await self.http.post(path, json=body)
        except httpx.RequestError as error:
            raise self.failure(f"{path} failed: {type(error).__name__} {error}") from error

    async def info(self, path: str) -> Any:
        """What a GET answers, as JSON."""
        return (await self.call("GET", path, None))[0]

    async def text(self, path: str) -> str:
        """What a GET answers, as it is; empty where the server has no such page."""
        try:
            reply = await self.http.get(path)
        except httpx.RequestError as error:
            raise self.failure(f"{path} failed: {type(error).__name__} {error}") from error
        return reply.text if reply.status_code == 200 else ""

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[Any, int]:
        """Reply and number of retries."""
        reply, retries = await self.fetch(method, path, body)
        return self._json(reply, path), retries

    async def fetch(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[httpx.Response, int]:
        """A reply of status 200, unread, and number of retries."""

        async def once() -> httpx.Response:
            try:
                reply = await self.http.request(method, path, json=body)
            except httpx.RequestError as error:
                raise Fault.of_transport(error) from error
            if reply.status_code != 200:
                raise Fault.of_status(reply.status_code, self.complaint(reply))
            return reply

        return await self.tried(once, path)

    async def tried(self, once: Callable[[], Awaitable[T]], path: str) -> tuple[T, int]:
        """What `once` gives, and the number of retries; a `Fault` that may pass is tried again."""
        reason = ""
        for attempt in range(RETRIES + 1):
            try:
                answer = await once()
            except Fault as fault:
                reason = str(fault)
                self.lost = self.lost + (attempt == RETRIES) if fault.lost else 0
                if not fault.again:
                    break
            else:
                self.lost = 0
                return answer, attempt
            if attempt < RETRIES:
                await asyncio.sleep(PAUSES[attempt])
        raise self.failure(f"{path} failed: {reason}")

    def failure(self, words: str) -> EngineError:
        """An error that names the engine, short and without our key, which a server may quote."""
        return EngineError(f"{self.name}: {self._keyless(words)[:300]}")

    def _keyless(self, words: str) -> str:
        """Before anything is cut off: half a key is a secret too."""
        return words.replace(self.key, "(key)") if self.key else words

    def complaint(self, reply: httpx.Response) -> str:
        """What a refusal says, in one line."""
        return " ".join(self._keyless(reply.text)[:200].split())

    @contextmanager
    def shape(self, path: str) -> Generator[None]:
        """A reply of another shape is the engine's fault, not a crash of ours and not an answer."""
        try:
            yield
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise self.failure(f"{path} answered in an unknown shape: {error!r}") from error

    def check_ids(self, ids: Sequence[int]) -> None:
        """Ids outside the vocabulary are not sent: SGLang dies of them (wire/INDEX.md)."""
        if self.vocabulary and ids and not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise EngineError(
                f"{self.name}: a token id lies outside the vocabulary of {self.vocabulary}; it was not sent"
            )

    def width(self, top_k: int) -> int:
        """How many entries a row shall have; -1 is the whole vocabulary, and more than that is not sent."""
        if top_k < 0 and not self.vocabulary:
            raise EngineError(f"{self.name}: the whole vocabulary was asked for, and its size is not known")
        wanted = self.vocabulary if top_k < 0 else top_k
        if self.vocabulary and wanted > self.vocabulary:
            raise EngineError(f"{self.name}: top-K {wanted} is above the vocabulary of {self.vocabulary}; lower it")
        return wanted

    def _json(self, reply: httpx.Response, path: str) -> Any:
        try:
            content = reply.json()
        except ValueError as error:
            raise self.failure(f"{path} did not answer JSON: {self._keyless(reply.text)[:80]!r}") from error
        if isinstance(content, dict) and "error" in content:
            raise self.failure(f"{path} answered 200 with an error: {content['error']}")
        return content


def characters(text: str) -> str:
    """JSON can carry half of a surrogate pair, which no file can: it becomes the sign for a broken character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
