"""What is sent and when: drawn once from a seed, the same for both arms of a round."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where requests go and how they are framed."""

    host: str
    port: int
    path: str = "/v1/completions"
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Beyond Host, Content-Type and Content-Length; a key stands here and is never written to disk."""
    tls: bool = False
    server_name: str = ""
    """For TLS; empty: `host`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request."""

    body: bytes
    """JSON as sent."""
    due: float = 0.0
    """Seconds after the block's start (open loop); of a call with `after`: after the end of that one (think time)."""
    prompt_tokens: int = 0
    """Known when it was drawn; 0: it is not."""
    max_tokens: int = 0
    after: int | None = None
    """Index of the call of the same conversation that must have ended first. What it answered is not sent on: both arms
    are sent the same."""
    primes: bool = False
    """Sent before the block and not counted: it fills the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All requests of one block. `sha256` names it: both arms of a round must have had the same."""

    calls: tuple[Call, ...]
    loop: Literal["open", "closed"]
    """`open`: each call at its due time, however late the others are. `closed`: `concurrency` lanes, each takes the next call
    when its last one has ended."""
    concurrency: int = 0
    """Lanes of a closed loop."""
    ramp: tuple[tuple[float, int], ...] = field(default=())
    """Of a closed loop: (seconds after the start, lanes from then on); empty: all at once."""
    sha256: str = ""
    """Digest of bodies and due times."""

    def conversations(self) -> list[int]:
        """Of every counted call, in their order, the first call of its conversation."""
        roots: list[int] = []
        for index, call in enumerate(self.calls):
            roots.append(index if call.after is None else roots[call.after])
        return [root for root, call in zip(roots, self.calls, strict=True) if not call.primes]
