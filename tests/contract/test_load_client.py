"""The load client against a mock engine that logs when it sent what. Its log is the truth: this machine may be busy, and both
clocks are the same one."""

import asyncio
import contextlib
import errno
import gc
import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from toys.mocked import call, mocked

from evalrig.errors import ClientError, EngineError
from evalrig.loadgen import drive
from evalrig.loadgen.block import Block, Exchange
from evalrig.loadgen.clock import now, offset
from evalrig.loadgen.drive import Driver, Stop, run_block
from evalrig.loadgen.pool import Pool, Wish
from evalrig.loadgen.schedule import Address, Call, Schedule
from evalrig.loadgen.sharded import run_load, run_sharded

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's time of arrival is Linux's")
CERTIFICATE = Path(__file__).parents[1] / "support" / "tls" / "localhost.pem"
NOWHERE = Address(host="nowhere.invalid", port=1)
PATIENT = Stop(request=20.0, block=40.0)


def send(address: Address, *calls: Call, stop: Stop = PATIENT, **schedule: object) -> Block:
    whole = Schedule(calls=calls, **{"loop": "open", "sha256": "abc", **schedule})  # type: ignore[arg-type]
    return asyncio.run(run_block(address, whole, stop=stop))


def events(exchange: Exchange) -> list[tuple[int, bool, bytes]]:
    """(arrival, exact, event): exact when it was the last of its read."""
    found: list[tuple[int, bool, bytes]] = []
    begin, end = 0, exchange.body.find(b"\n\n")
    while end >= 0:
        stop = end + 2
        read = int(np.searchsorted(exchange.ends, stop))
        following = exchange.body.find(b"\n\n", stop)
        exact = following < 0 or following + 2 > exchange.ends[read]
        found.append((int(exchange.at[read]), exact, exchange.body[begin:stop]))
        begin, end = stop, following
    return found


def content(exchange: Exchange) -> list[tuple[int, bool]]:
    """Arrivals of the events that hold a token."""
    return [(at, exact) for at, exact, event in events(exchange) if b'"text"' in event or b'"delta"' in event]


def milliseconds(values: list[int] | list[float]) -> float:
    assert values
    return float(np.median(values)) / 1e6


@linux
def test_gaps_between_tokens_are_known_to_a_twentieth_of_a_millisecond():
    with mocked("--step", "0.02") as server:
        block = send(server.address, *(call(f"r{i}", 0.01 * i, tokens=40) for i in range(8)))
        log = server.log()
    errors: list[int] = []
    gaps: list[int] = []
    ways: list[int] = []
    for exchange in block.exchanges:
        sent = log[f"r{exchange.sent.index}"]["sent"]
        got = content(exchange)
        assert len(got) == len(sent) == 40
        assert exchange.kernel
        ways += [at - was for (at, exact), was in zip(got, sent, strict=True) if exact]
        for (a, exact_a), (b, exact_b), was in zip(got, got[1:], np.diff(sent), strict=False):
            if exact_a and exact_b:
                errors.append(abs(b - a - int(was)))
                gaps.append(b - a)
    assert len(gaps) > 100
    assert milliseconds(errors) < 0.05
    assert np.quantile(errors, 0.95) < 0.1e6, "nineteen of twenty too, on a busy machine as well"
    assert min(ways) > -0.02e6, "nothing comes before it was sent"
    assert abs(milliseconds(gaps) - 20.0) < 0.5  # the mock's own steps shake when the machine is busy
    assert block.health.kernel


@linux
def test_time_to_first_token_is_right_though_the_clients_loop_is_blocked_for_50_ms():
    async def blocked(address: Address) -> Block:
        schedule = Schedule(calls=tuple(call(f"r{i}", 0.03 * i) for i in range(12)), loop="open")
        running = asyncio.create_task(run_block(address, schedule, stop=PATIENT))
        while not running.done():
            await asyncio.sleep(0.002)
            time.sleep(0.05)
        return await running

    with mocked("--step", "0.1") as server:
        block = asyncio.run(blocked(server.address))
        log = server.log()
    firsts = [exchange.at[0] - log[f"r{exchange.sent.index}"]["sent"][0] for exchange in block.exchanges]
    assert milliseconds(firsts) < 0.1
    assert np.quantile(firsts, 0.9) < 0.3e6
    assert min(firsts) > -0.02e6
    assert max(int(exchange.lag.max()) for exchange in block.exchanges) > 20e6, (
        "the loop was not late: nothing was tested"
    )


def test_a_client_that_is_kept_from_sending_voids_its_block():
    async def blocked(address: Address) -> Block:
        schedule = Schedule(calls=tuple(call(f"r{i}", 0.02 * i) for i in range(8)), loop="open")
        running = asyncio.create_task(run_block(address, schedule, stop=PATIENT))
        while not running.done():
            await asyncio.sleep(0)
            time.sleep(0.03)
        return await running

    with mocked("--step", "0.05") as server:
        block = asyncio.run(blocked(server.address))
    assert block.health.send_lag_p99 > 0.005
    assert any("requests left late" in line for line in block.health.void)


def test_an_event_that_comes_byte_by_byte_is_kept_whole():
    with mocked("--split", "--step", "0.01") as server:
        (split,) = send(server.address, call("r0")).exchanges
    with mocked("--step", "0.01") as server:
        (whole,) = send(server.address, call("r0")).exchanges
    assert split.body == whole.body
    assert split.body.endswith(b"data: [DONE]\n\n")
    assert split.ends[-1] == len(split.body)
    assert (np.diff(split.ends) > 0).all()
    assert (np.diff(split.at) >= 0).all()


def test_a_stall_of_the_server_shows_in_the_latency_from_the_due_time_and_delays_no_request():
    with mocked("--step", "0.01", "--stall-at", "0.15", "--stall", "0.6") as server:
        block = send(server.address, *(call(f"r{i}", 0.05 * i, tokens=1) for i in range(26)))
        log = server.log()
    began = log["r0"]["received"]
    stalled = [one for one in block.exchanges if 0.15e9 < log[f"r{one.sent.index}"]["received"] - began < 0.65e9]
    assert len(stalled) > 3, "sent only when the stall was over"
    for exchange in stalled:
        assert exchange.at[0] >= began + 0.75e9
    assert max(exchange.at[0] - exchange.sent.due for exchange in stalled) > 0.3e9


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        ("500", 500, ""),
        ("reset", 200, "reset"),
        ("cut", 200, "closed the connection"),
        ("hang", 0, "no end of the answer"),
    ],
)
def test_what_fails_is_told_by_its_own_request_alone(kind: str, status: int, said: str):
    with mocked("--kind", kind, "--every", "2", "--step", "0.01") as server:
        block = send(server.address, *(call(f"r{i}", 0.1 * i) for i in range(4)), stop=Stop(request=1.0))
        order = {name: entry["order"] for name, entry in server.log().items()}
    for exchange in block.exchanges:
        bad = order[f"r{exchange.sent.index}"] % 2 == 0
        assert exchange.sent.status == (status if bad else 200)
        assert (said in exchange.sent.error) if bad else (exchange.sent.error == "")
        assert exchange.sent.ended >= exchange.sent.sent > 0
        assert exchange.body.endswith(b"[DONE]\n\n") == (not bad)


def test_a_server_that_is_not_there_is_an_error_of_each_request():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    block = send(Address(host="127.0.0.1", port=port), call("r0"), call("r1", 0.01))
    assert [exchange.sent.error for exchange in block.exchanges] == ["Connection refused"] * 2
    assert [exchange.sent.sent for exchange in block.exchanges] == [0, 0]


def test_a_server_that_refuses_is_not_excused_by_another_address_that_this_machine_cannot_reach():
    """As of `localhost` where IPv6 is switched off: the client would be taken for short of ports."""

    async def said(*codes: int) -> str:
        async def connect(_: socket.socket, place: tuple[str, int]) -> None:
            raise OSError(place[1], os.strerror(place[1]))

        asyncio.get_running_loop().sock_connect = connect  # type: ignore[method-assign]
        pool = Pool(NOWHERE, [(socket.AF_INET, ("127.0.0.1", code)) for code in codes])
        try:
            return (await pool.launch(Wish(index=0, body=b"", due=now(), until=now() + 20_000_000_000))).sent.error
        finally:
            await pool.close()

    refused, unreachable = errno.ECONNREFUSED, errno.EADDRNOTAVAIL
    assert asyncio.run(said(refused, unreachable)) == asyncio.run(said(unreachable, refused)) == "Connection refused"
    assert asyncio.run(said(unreachable, unreachable)) == "Cannot assign requested address"


def test_a_host_without_an_address_is_said_in_one_line():
    schedule = Schedule(calls=(call("r0"), call("r1")), loop="open")
    for sends in (run_block(NOWHERE, schedule), run_sharded(NOWHERE, schedule, 2)):
        with pytest.raises(EngineError, match=r"load: nowhere\.invalid: cannot be resolved"):
            asyncio.run(sends)


@contextlib.contextmanager
def few_descriptors(more: int) -> Generator[None]:
    """As from `ulimit -n`: hardly more than are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(fd.name) for fd in Path("/proc/self/fd").iterdir()) + more, hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@linux
def test_a_client_without_descriptors_says_so_and_takes_those_that_it_may_have():
    schedule = Schedule(calls=tuple(call(f"r{i}") for i in range(100)), loop="closed", concurrency=100)
    with mocked("--step", "0.05") as server:
        with few_descriptors(20):
            starved = asyncio.run(run_block(server.address, schedule, stop=PATIENT))
        with few_descriptors(20):
            fed = asyncio.run(run_load(server.address, schedule, stop=PATIENT))
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 100, "as it was before"
    assert "Too many open files" in {one.sent.error for one in starved.exchanges}
    assert any("short of descriptors" in line for line in starved.health.void)
    assert {one.sent.error for one in fed.exchanges} == {""}


def test_a_block_ends_at_its_bound_and_tells_what_was_not_sent():
    with mocked("--kind", "hang") as server:
        began = time.monotonic()
        calls = (call("r0"), call("r1", 0.1), call("r2", 9.0), call("r3", 0.1, after=2))
        block = send(server.address, *calls, stop=Stop(block=0.6))
    assert time.monotonic() - began < 8.0
    assert [exchange.sent.index for exchange in block.exchanges] == [0, 1, 2, 3]
    assert ["not sent" in exchange.sent.error for exchange in block.exchanges] == [False, False, True, True]
    assert all("no end of the answer" in exchange.sent.error for exchange in block.exchanges[:2])
    assert block.exchanges[2].sent.sent == 0


def test_a_closed_loop_of_a_fixed_time_leaves_out_what_it_did_not_begin():
    with mocked("--step", "0.02") as server:
        block = send(
            server.address,
            *(call(f"r{i}") for i in range(500)),
            loop="closed",
            concurrency=2,
            stop=Stop(begin=0.5, block=30.0),
        )
    assert 2 <= len(block.exchanges) < 100
    assert all(exchange.sent.error == "" for exchange in block.exchanges)


@pytest.mark.parametrize("loop", ["open", "closed"])
def test_a_conversation_is_sent_in_order_after_the_time_to_think(loop: str):
    calls = (call("a0"), call("b0"), call("a1", 0.15, after=0), call("b1", 0.05, after=1), call("a2", 0.02, after=2))
    with mocked("--step", "0.01") as server:
        block = send(server.address, *calls, loop=loop, concurrency=2)
        log = server.log()
    for before, after, think in (("a0", "a1", 0.15), ("b0", "b1", 0.05), ("a1", "a2", 0.02)):
        assert log[after]["received"] - log[before]["ended"] >= think * 1e9
    for exchange in block.exchanges[2:]:
        ended = block.exchanges[calls[exchange.sent.index].after or 0].sent.ended
        assert exchange.sent.due - ended == int(calls[exchange.sent.index].due * 1e9)
        assert exchange.sent.sent >= exchange.sent.due


def test_a_closed_loop_keeps_to_its_lanes_and_their_ramp():
    with mocked("--step", "0.01") as server:
        calls = [call(f"r{i}") for i in range(30)]
        block = send(server.address, *calls, loop="closed", concurrency=3, ramp=((0.0, 1), (0.3, 3)))
        log = server.log()

    def in_flight(at: int) -> int:
        return sum(entry["received"] <= at < entry["ended"] for entry in log.values())

    counts = {entry["received"]: in_flight(entry["received"]) for entry in log.values()}
    assert len(block.exchanges) == 30
    assert max(counts.values()) <= 3
    early = [count for at, count in counts.items() if at < block.start + 0.29e9]
    assert max(early, default=1) == 1, "none, where this machine was too busy to begin"
    assert max(count for at, count in counts.items() if at > block.start + 0.3e9) > 1


def test_priming_calls_go_first_and_are_not_counted():
    with mocked("--step", "0.01") as server:
        block = send(server.address, call("p0", primes=True), call("r0"), call("r1", 0.01))
        log = server.log()
    assert [exchange.sent.index for exchange in block.exchanges] == [1, 2]
    assert log["p0"]["ended"] < min(log["r0"]["received"], block.start)
    assert not [line for line in block.health.void if "priming" in line]
    with mocked("--kind", "500", "--every", "9", "--step", "0.01") as server:
        block = send(server.address, call("p0", primes=True), call("r0"))
    assert "priming call 0: HTTP 500" in block.health.void


def test_priming_that_hangs_ends_with_the_bound_of_a_block():
    with mocked("--kind", "hang") as server:
        block = send(server.address, call("p0", primes=True), call("r0"), stop=Stop(request=300.0, block=0.3))
    assert any("priming call 0: no end of the answer" in line for line in block.health.void)


def test_a_clock_that_was_set_while_prompts_were_primed_voids_the_block(monkeypatch: pytest.MonkeyPatch):
    """Arrivals are reckoned with the distance of the clocks as it was before."""
    monkeypatch.setattr("evalrig.loadgen.pool.offset", lambda: offset() - 2_000_000)
    with mocked("--step", "0.01") as server:
        block = send(server.address, call("p0", primes=True), call("r0"))
    assert block.health.clock_moved == pytest.approx(2e-3, rel=0.05)
    assert any("the wall clock was set during the block: it moved 2 ms" in line for line in block.health.void)


def test_requests_that_come_at_once_find_connections_that_are_open():
    async def waits(address: Address) -> list[float]:
        calls = tuple(call(f"r{i}", 0.2 * (i // 20), tokens=20) for i in range(60))
        driver = Driver(address, Schedule(calls=calls, loop="open"), PATIENT)
        try:
            await driver.prime()
            return list((await driver.run(now() + 50_000_000)).effort.waits)
        finally:
            await driver.close()

    with mocked("--step", "0.05") as server:
        found = asyncio.run(waits(server.address))
    assert len(found) <= 40, "the first twenty find theirs, and on a machine at ease the others too"


def test_a_connection_that_the_server_closed_between_requests_is_replaced():
    with mocked("--kind", "silent close", "--step", "0.01") as server:
        block = send(server.address, *(call(f"r{i}") for i in range(6)), loop="closed", concurrency=1)
    assert [exchange.sent.error for exchange in block.exchanges] == [""] * 6


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket, int], None], host: str = "127.0.0.1") -> Generator[Address]:
    """A server of connections: `serve(connection, number)` in a thread, one after the other."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        server.settimeout(20)

        def accept() -> None:
            with contextlib.suppress(OSError):
                for number in range(1000):
                    with server.accept()[0] as connection:
                        connection.settimeout(20)
                        serve(connection, number)

        thread = threading.Thread(target=accept)
        thread.start()
        yield Address(host=host, port=server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join(20)
        assert not thread.is_alive()


def read_request(connection: socket.socket) -> bytes:
    got = b""
    while b'"request_id"' not in got and (came := connection.recv(65536)):
        got += came
    return got


def test_a_request_that_met_a_closing_connection_is_sent_once_more_on_a_new_one():
    def serve(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(ANSWER)
        if number == 0:
            read_request(connection)  # and no answer: as if it had come a moment too late
        else:
            connection.recv(1)

    with listening(serve) as address:
        block = send(address, call("r0"), call("r1"), loop="closed", concurrency=1)
    assert [(exchange.sent.error, exchange.body) for exchange in block.exchanges] == [("", b"good")] * 2


def test_a_request_whose_new_connection_is_closed_too_has_failed():
    def serve(connection: socket.socket, number: int) -> None:
        read_request(connection)

    with listening(serve) as address:
        block = send(address, call("r0"), loop="closed", concurrency=1)
    assert "closed the connection" in block.exchanges[0].sent.error


def test_words_that_are_no_http_are_an_error():
    def serve(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    with listening(serve) as address:
        block = send(address, call("r0"))
    assert "no HTTP answer" in block.exchanges[0].sent.error


def test_an_address_of_ipv6():
    def serve(connection: socket.socket, number: int) -> None:
        asked.append(read_request(connection))
        connection.sendall(ANSWER)

    asked: list[bytes] = []
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 on its loopback")
    with listening(serve, "::1") as address:
        block = send(
            replace(address, headers=(("Authorization", "Bearer k"),)), call("r0"), loop="closed", concurrency=1
        )
    assert block.exchanges[0].body == b"good"
    assert f"\r\nHost: [::1]:{address.port}\r\n".encode() in asked[0]
    assert b"\r\nAuthorization: Bearer k\r\n" in asked[0]


def test_a_request_larger_than_a_sockets_buffer_is_sent_whole():
    body = json.dumps({"prompt": [7] * 1_500_000, "max_tokens": 1, "request_id": "long"}).encode()
    with mocked("--step", "0.01") as server:
        (exchange,) = send(server.address, Call(body=body)).exchanges
    assert b'"prompt_tokens": 1500000' in exchange.body


@linux
def test_tls_keeps_the_kernels_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with mocked("--step", "0.03", certificate=str(CERTIFICATE)) as server:
        block = send(replace(server.address, tls=True), *(call(f"r{i}", 0.02 * i) for i in range(6)))
        log = server.log()
    assert [exchange.sent.error for exchange in block.exchanges] == [""] * 6
    assert block.health.kernel
    firsts = [exchange.at[0] - log[f"r{exchange.sent.index}"]["sent"][0] for exchange in block.exchanges]
    assert milliseconds(firsts) < 0.3  # the mock encrypts between its log and the kernel


def test_a_certificate_that_nobody_signed_is_an_error_of_the_request():
    with mocked("--step", "0.01", certificate=str(CERTIFICATE)) as server:
        (exchange,) = send(replace(server.address, tls=True), call("r0")).exchanges
    assert "certificate verify failed" in exchange.sent.error


def test_a_server_that_never_answers_the_tls_greeting_holds_up_nothing():
    def serve(connection: socket.socket, number: int) -> None:
        while connection.recv(65536):
            pass

    began = time.monotonic()
    with listening(serve) as address:
        (exchange,) = send(replace(address, tls=True), call("r0"), stop=Stop(request=0.3)).exchanges
    assert "no connection in" in exchange.sent.error
    assert exchange.sent.sent == 0
    assert time.monotonic() - began < 15.0


@pytest.mark.parametrize(
    ("options", "path", "expected"),
    [
        (("--per-event", "4"), "/v1/completions", [4, 8, 10]),
        (("--usage", "none"), "/v1/completions", [1] * 10),
        (("--tokens", "2", "--usage", "continuous"), "/v1/completions", [1, 2]),
        (("--role-first", "--reasoning", "--tokens", "3"), "/v1/chat/completions", [0, 1, 2, 3]),
    ],
)
def test_the_mock_streams_what_it_is_told(options: tuple[str, ...], path: str, expected: list[int]):
    with mocked("--step", "0.005", *options) as server:
        block = send(replace(server.address, path=path), call("r0", tokens=10))
        sent = server.log()["r0"]["sent"]
    told = [json.loads(event[6:]) for _, _, event in events(block.exchanges[0]) if event != b"data: [DONE]\n\n"]
    pieces = [one["choices"][0] for one in told if one["choices"]]
    assert len(pieces) == len(expected)
    assert len(sent) == len(expected) - ("--role-first" in options)
    assert pieces[-1]["finish_reason"] == "length"
    usages = [one["usage"]["completion_tokens"] for one in told if "usage" in one]
    if "none" in options:
        assert usages == []
    elif "continuous" in options:
        assert usages == [*expected, expected[-1]]
    else:
        assert usages == [expected[-1]]
    if "--role-first" in options:
        assert pieces[0]["delta"] == {"role": "assistant", "content": ""}
        assert [set(piece["delta"]) for piece in pieces[1:]] == [{"reasoning_content"}] * 3


@pytest.mark.parametrize("options", [("--kind", "hang"), ("--step", "0.02")])
def test_a_silent_server_is_told_from_one_that_answers(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    """Silence while answers are waited for is a hang; between requests it is none."""
    monkeypatch.setattr(drive, "LISTEN_SECONDS", 0.01)
    seen: list[float] = []

    async def listened(address: Address) -> Block:
        schedule = Schedule(calls=(call("r0", tokens=20), call("r1", 0.3, after=0)), loop="closed", concurrency=1)
        stop = Stop(request=1.0, block=5.0)
        return await run_block(address, schedule, stop=stop, heard=seen.append)

    with mocked(*options) as server:
        block = asyncio.run(listened(server.address))
    answers = "hang" not in options
    assert all((one.sent.error == "") is answers for one in block.exchanges)
    paused = sum(seconds for seconds in seen if math.isfinite(seconds))
    waited = sum(one.sent.ended - one.sent.sent for one in block.exchanges) / 1e9
    assert paused > 0.1, "the time to think"
    assert (seen.count(math.inf) >= 2) is (math.inf in seen) is answers
    assert answers or paused < waited


def test_a_worker_passes_on_that_the_server_answers():
    heard: list[float] = []
    calls = (call("r0", tokens=60), call("r1", 1.5, tokens=60))
    with mocked("--step", "0.02") as server:
        whole = Schedule(calls=calls, loop="open")
        block = asyncio.run(run_sharded(server.address, whole, 2, stop=PATIENT, heard=heard.append))
    assert [one.sent.error for one in block.exchanges] == ["", ""]
    assert heard.count(math.inf) >= 2 * 2, "of each worker, whose stream takes 1.2 s"
    assert any(map(math.isfinite, heard)), "the second has nothing to wait for at first"


def test_a_block_in_parts_is_the_same_block():
    calls = (
        call("p0", primes=True),
        *(call(f"r{i}", 0.04 * i) for i in range(6)),
        call("f1", 0.02, after=1),
        call("f2", 0.02, after=2),
        call("g1", 0.01, after=7),
    )
    schedule = Schedule(calls=calls, loop="open", sha256="abc")
    with mocked("--step", "0.01") as server:
        one = asyncio.run(run_block(server.address, schedule, stop=PATIENT))
        two = asyncio.run(run_sharded(server.address, schedule, 2, stop=PATIENT))
    assert two.health.workers == 2
    assert two.schedule_sha256 == "abc"
    assert [exchange.sent.index for exchange in two.exchanges] == list(range(1, 10))
    for a, b in zip(one.exchanges, two.exchanges, strict=True):
        assert (a.sent.index, a.sent.status, a.sent.error, a.body) == (
            b.sent.index,
            b.sent.status,
            b.sent.error,
            b.body,
        )
        if calls[a.sent.index].after is None:
            assert a.sent.due - one.start == b.sent.due - two.start
        assert (b.ends[-1], b.kernel) == (len(b.body), a.kernel)


def test_a_worker_that_dies_ends_the_block_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch):
    async def killed(address: Address) -> None:
        schedule = Schedule(calls=(call("r0"), call("r1")), loop="open")
        running = asyncio.create_task(run_sharded(address, schedule, 2, stop=Stop(request=30.0, block=30.0)))
        while not server.log():
            await asyncio.sleep(0.05)
        victim = next(child for child in psutil.Process().children() if "evalrig.loadgen.worker" in child.cmdline())
        victim.kill()
        await running

    with mocked("--kind", "hang") as server:
        with pytest.raises(ClientError, match=r"load worker \d of 2: ended in the middle of the block"):
            asyncio.run(killed(server.address))
        assert not [child for child in psutil.Process().children() if "evalrig.loadgen.worker" in child.cmdline()]


SHARDED = """
import asyncio, sys
from evalrig.loadgen.schedule import Address, Call, Schedule
from evalrig.loadgen.sharded import run_sharded
calls = tuple(Call(body=b'{"request_id": "%d"}' % i) for i in range(2))
asyncio.run(run_sharded(Address(host="127.0.0.1", port=int(sys.argv[1])), Schedule(calls=calls, loop="open"), 2))
"""


def test_workers_end_when_their_parent_is_killed():
    with mocked("--kind", "hang") as server:
        with subprocess.Popen([sys.executable, "-c", SHARDED, str(server.port)]) as parent:
            end = time.monotonic() + 30
            while len(server.log()) < 2 and time.monotonic() < end:
                time.sleep(0.05)
            workers = psutil.Process(parent.pid).children()
            assert len(workers) == 2
            os.kill(parent.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert [worker for worker in alive if worker.status() != psutil.STATUS_ZOMBIE] == []


def test_a_block_leaves_no_socket_and_the_memory_as_it_was():
    def open_files() -> list[str]:
        folder = Path("/proc/self/fd") if sys.platform == "linux" else Path("/dev/fd")
        return sorted(os.listdir(folder))  # noqa: PTH208

    with mocked("--kind", "hang", "--every", "2") as server:
        before, was, frozen = open_files(), gc.isenabled(), gc.get_freeze_count()
        block = send(server.address, *(call(f"r{i}", 0.01 * i) for i in range(6)), stop=Stop(request=0.5))
        assert open_files() == before
        assert (gc.isenabled(), gc.get_freeze_count()) == (was, frozen)
    assert sum(exchange.sent.error != "" for exchange in block.exchanges) == 3
