"""What the load client costs and how right its times are, against the mock engine's own log of when it sent what.

    python benchmarks/load.py                          all clients, 64 and 256 streams
    python benchmarks/load.py --streams 64 --tokens 50

Clients: `floor`, an epoll loop that reads, takes the kernel's time and does nothing else: what this machine asks of any client in
Python; `evalrig`; `httpx`, lines and one JSON parse an event; `httpx twice`, the same with each event parsed twice, as some
generators do to see whether it is whole. Each runs in a process of its own, on one core if there are two, with the mock on the
other. "late" is the time that a client gives an event minus the time at which the mock handed it to the kernel; an event that
shares its read with a later one has only an upper bound, and counts. "arrival" is how far from its due time a request was at the
mock, in an open loop of 100 a second.
"""

import argparse
import asyncio
import json
import math
import os
import random
import resource
import select
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from evalrig.loadgen.block import Block
from evalrig.loadgen.connection import READ_BYTES, ROOM, STAMP, stamp
from evalrig.loadgen.drive import Stop, run_block
from evalrig.loadgen.schedule import Address, Call, Schedule

CLIENTS = ("floor", "evalrig", "httpx", "httpx twice")
STEP = 0.02
RATE = 100.0


def body(name: str, tokens: int) -> bytes:
    return json.dumps({"prompt": [1, 2, 3], "max_tokens": tokens, "stream": True, "request_id": name}).encode()


def pin(core: int) -> None:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[core]})


@contextmanager
def mock() -> Generator[int]:
    """A mock on the first core; its port."""
    argv = [sys.executable, "-m", "evalrig.loadgen.mock_server", "--step", str(STEP), "--seconds", "120"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: pin(0)) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def log_of(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/log", timeout=60) as answer:
        return {entry["request"]: entry for entry in json.load(answer)}


def arrivals(block: Block) -> dict[str, list[int]]:
    """Times of the events with tokens, by request."""
    times: dict[str, list[int]] = {}
    for exchange in block.exchanges:
        found, end = [], exchange.body.find(b"\n\n")
        while end >= 0:
            found.append(int(exchange.at[np.searchsorted(exchange.ends, end + 2)]))
            end = exchange.body.find(b"\n\n", end + 2)
        times[f"r{exchange.sent.index}"] = found[:-2]  # usage, and the end
    return times


def ours(port: int, streams: int, tokens: int) -> Block:
    calls = tuple(Call(body=body(f"r{i}", tokens)) for i in range(streams))
    schedule = Schedule(calls=calls, loop="closed", concurrency=streams)
    return asyncio.run(run_block(Address(host="127.0.0.1", port=port), schedule, stop=Stop(block=100)))


def floor(port: int, streams: int, tokens: int) -> None:
    """Reads until every answer's last chunk has come."""
    waiting, told = select.epoll(), {}
    for i in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.SOL_SOCKET, STAMP, 1)
        asked = body(f"r{i}", tokens)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(asked) + asked)
        sock.setblocking(False)
        told[sock.fileno()] = sock, [], []
        waiting.register(sock.fileno(), select.EPOLLIN)
    left = streams
    while left:
        for fd, _ in waiting.poll():
            sock, times, pieces = told[fd]
            came, stamps, _, _ = sock.recvmsg(READ_BYTES, ROOM)
            times.append(stamp(stamps, 0))
            pieces.append(came)
            left -= came.endswith(b"\r\n0\r\n\r\n")


async def lines(port: int, streams: int, tokens: int, parses: int) -> dict[str, list[int]]:
    import httpx

    times: dict[str, list[int]] = {f"r{i}": [] for i in range(streams)}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=100, limits=limits, trust_env=False) as client:

        async def one(name: str) -> None:
            url = f"http://127.0.0.1:{port}/v1/completions"
            async with client.stream("POST", url, content=body(name, tokens)) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        at = time.monotonic_ns()
                        told = [json.loads(line[6:]) for _ in range(parses)][-1]
                        if told["choices"]:
                            times[name].append(at)

        await asyncio.gather(*(one(name) for name in times))
    return times


async def open_loop(port: int) -> list[float]:
    """Milliseconds from the due time to the mock, for each request."""
    rng, due, calls = random.Random(0), 0.0, []
    while (due := due + rng.expovariate(RATE)) < 5.0:
        calls.append(Call(body=body(f"r{len(calls)}", 5), due=due))
    address = Address(host="127.0.0.1", port=port)
    block = await run_block(address, Schedule(calls=tuple(calls), loop="open"), stop=Stop(block=100))
    log = log_of(port)
    return [(log[f"r{one.sent.index}"]["received"] - one.sent.due) / 1e6 for one in block.exchanges]


def measure(client: str, port: int, streams: int, tokens: int) -> list[float]:
    """[CPU microseconds an event, late p50, late p99 (milliseconds), events a second]."""
    pin(1)
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    done: Block | dict[str, list[int]] | None = None
    if client == "floor":
        floor(port, streams, tokens)
    elif client == "evalrig":
        done = ours(port, streams, tokens)
    else:
        done = asyncio.run(lines(port, streams, tokens, 2 if client.endswith("twice") else 1))
    after, seconds = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    log = log_of(port)
    events = sum(len(entry["sent"]) for entry in log.values())
    late = [math.nan, math.nan]
    if done is not None:
        times = arrivals(done) if isinstance(done, Block) else done
        each = np.concatenate([np.subtract(times[name], log[name]["sent"]) for name in times]) / 1e6
        late = [float(np.quantile(each, 0.5)), float(np.quantile(each, 0.99))]
    return [cpu / events * 1e6, *late, events / seconds]


def shown(milliseconds: float) -> str:
    return "-" if math.isnan(milliseconds) else f"{milliseconds:.3f}"


def child(*words: str) -> list[float]:
    """This program again, in a process of its own, against a fresh mock."""
    with mock() as port:
        argv = [sys.executable, str(Path(__file__)), "--port", str(port), *words]
        return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.port and args.client:
        print(json.dumps(measure(args.client, args.port, args.streams[0], args.tokens)))
        return
    if args.port:
        pin(1)
        print(json.dumps(asyncio.run(open_loop(args.port))))
        return
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; one event per stream each {STEP * 1e3:.0f} ms"
    )
    print(f"{'client':<12} {'streams':>7} {'µs CPU/event':>12} {'late p50 ms':>11} {'late p99 ms':>11} {'events/s':>9}")
    for streams in args.streams:
        for client in CLIENTS:
            row = child("--client", client, "--streams", str(streams), "--tokens", str(args.tokens))
            print(f"{client:<12} {streams:>7} {row[0]:>12.1f} {shown(row[1]):>11} {shown(row[2]):>11} {row[3]:>9.0f}")
    errors = np.array(child())
    print(
        f"arrival, open loop, {len(errors)} requests: p50 {np.quantile(errors, 0.5):.3f} ms, p99 {np.quantile(errors, 0.99):.3f} ms"
    )


if __name__ == "__main__":
    main()
