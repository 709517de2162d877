"""What the load client costs and how exact it is, beside other ways to read a stream, against the shipped mock server.

    python benchmarks/load.py [STREAMS ...]

Every stream gets a token each 20 ms, all in the same step, as from a real engine. Server and client have a core of their own
where there are two. CPU is that of the client's process, connections included; late is the recorded arrival of an event less the
moment at which the server handed it to the kernel, over events that came alone. Other clients run in the same way, in a process
of their own.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

import numpy as np

STEP, TOKENS = 0.02, 150
CLIENTS = ("evalrig", "httpx", "httpx, every event parsed twice")


def main() -> None:
    """Print a table."""
    if len(sys.argv) > 2 and sys.argv[1] == "--client":
        run_client(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    streams = [int(word) for word in sys.argv[1:]] or [64, 256]
    print(
        f"{'client':34}{'streams':>8}{'events/s':>10}{'CPU us/event':>14}{'late p50':>10}{'p99 ms':>9}{'alone':>8}  void"
    )
    for client in CLIENTS:
        for count in streams:
            row = measured(client, count)
            print(
                f"{client:34}{count:>8}{row['rate']:>10.0f}{row['cpu']:>14.1f}{row['late50']:>10.3f}{row['late99']:>9.3f}"
                f"{row['alone']:>8.1%}  {row['void']}"
            )


def pinned(core: int, command: list[str]) -> list[str]:
    """A command on a core of its own, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[core]), *command] if len(cores) > 1 else command


def measured(client: str, streams: int) -> dict[str, Any]:
    """One run: server, client, and the server's own log."""
    behaviour = json.dumps({"first": 0.02, "step": STEP, "aligned": True, "usage": "final", "seconds": 120})
    serving = pinned(0, [sys.executable, "-m", "evalrig.loadgen.mock_server", behaviour])
    server = subprocess.Popen(serving, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdin is not None
    port = int(server.stdout.readline())
    try:
        asking = pinned(1, [sys.executable, __file__, "--client", client, str(streams), str(port)])
        told = json.loads(subprocess.run(asking, check=True, capture_output=True, timeout=110).stdout)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/log", timeout=60) as answer:
            log = json.loads(answer.read())
    finally:
        server.stdin.close()
        server.wait(20)
    late: list[float] = []
    for name, events in told["events"].items():
        sent = log[name]["sent"]
        late += [(at - t) / 1e6 for (at, alone), t in zip(events, sent, strict=True) if alone]
    count = sum(len(events) for events in told["events"].values())
    return {
        "rate": count / told["seconds"],
        "cpu": 1e6 * told["cpu"] / count,
        "late50": float(np.quantile(late, 0.5)),
        "late99": float(np.quantile(late, 0.99)),
        "alone": len(late) / count,
        "void": "; ".join(told["void"]) or "-",
    }


# ---- the client's process


def bodies(streams: int) -> list[bytes]:
    """One request a stream."""
    messages = [{"role": "user", "content": "hi"}]
    return [
        json.dumps({"user": str(n), "messages": messages, "max_tokens": TOKENS, "stream": True}).encode()
        for n in range(streams)
    ]


def run_client(client: str, streams: int, port: int) -> None:
    """Ask, and print what was seen: for each stream (arrival in ns, did it come alone) of each event."""
    asked = bodies(streams)
    if client == "evalrig":
        events, void, cpu, seconds = asyncio.run(evalrig(asked, port))
    else:
        events, void, cpu, seconds = asyncio.run(through_httpx(asked, port, twice="twice" in client))
    print(json.dumps({"events": events, "void": void, "cpu": cpu, "seconds": seconds}))


def cpu_now() -> float:
    """Seconds of processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def evalrig(asked: Sequence[bytes], port: int) -> tuple[dict[str, Any], Sequence[str], float, float]:
    """The load client; parsing comes after, and is not counted."""
    from evalrig.loadgen.drive import run_block
    from evalrig.loadgen.events import parse
    from evalrig.loadgen.schedule import Address, Call, Schedule

    calls = tuple(Call(body=body, due=0.002 * n) for n, body in enumerate(asked))
    address = Address(host="127.0.0.1", port=port, path="/v1/chat/completions")
    before, began = cpu_now(), time.monotonic()
    block = await run_block(address, Schedule(calls=calls, loop="open"))
    cpu, seconds = cpu_now() - before, time.monotonic() - began
    served = parse(block)
    at = (served.events.at * 1e9 + block.start).astype(np.int64)
    events: dict[str, Any] = {}
    for request, when, alone in zip(served.events.request, at, served.events.exact, strict=True):
        events.setdefault(str(request), []).append((int(when), bool(alone)))
    return events, block.health.void, cpu, seconds


async def through_httpx(
    asked: Sequence[bytes], port: int, twice: bool
) -> tuple[dict[str, Any], Sequence[str], float, float]:
    """Lines of an httpx stream, JSON at once, the user's clock; `twice`: as a client that first tries whether JSON is whole."""
    import httpx

    events: dict[str, Any] = {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)

    async def one(client: httpx.AsyncClient, n: int, body: bytes) -> None:
        await asyncio.sleep(0.002 * n)
        seen: list[tuple[int, bool]] = []
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        headers = {"content-type": "application/json"}
        async with client.stream("POST", url, content=body, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                at = time.monotonic_ns()
                event = json.loads(line[6:])
                if twice:
                    event = json.loads(line[6:])
                if event["choices"] and event["choices"][0]["delta"].get("content"):
                    seen.append((at, True))
        events[str(n)] = seen

    before, began = cpu_now(), time.monotonic()
    async with httpx.AsyncClient(limits=limits, timeout=100, trust_env=False) as client:
        await asyncio.gather(*(one(client, n, body) for n, body in enumerate(asked)))
    return events, (), cpu_now() - before, time.monotonic() - began


if __name__ == "__main__":
    main()
