"""The load client against the shipped mock server, whose own log of send times is the truth (load.md, section 6)."""

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toys.loaded import Mock, calls, closed_loop, mock, open_loop

from evalrig.loadgen.block import Block
from evalrig.loadgen.clock import Timer, now
from evalrig.loadgen.drive import Deadlines, run_block
from evalrig.loadgen.events import parse
from evalrig.loadgen.schedule import Address, Schedule
from evalrig.loadgen.served import Served
from evalrig.loadgen.sharded import WorkerLost


def run(server: Mock, schedule: Schedule, **deadlines: float) -> tuple[Block, Served]:
    block = asyncio.run(run_block(server.address(), schedule, Deadlines(**{"request": 20, "block": 40, **deadlines})))
    return block, parse(block)


def errors_of(block: Block, served: Served, server: Mock) -> np.ndarray:
    """Seconds by which exact events were recorded after the server handed them to the kernel."""
    log, found = server.log(), []
    for row, one in enumerate(block.exchanges):
        sent = np.array(log[str(one.sent.index)]["sent"])
        mine = served.events.request == row
        at = served.events.at[mine] * 1e9 + block.start
        assert len(at) == len(sent)
        found += list((at - sent)[served.events.exact[mine]] / 1e9)
    return np.array(found)


def test_known_gaps_and_times_of_arrival():
    """Known ITL of 20 ms. The median: this machine may be busy, and the server can be late by itself."""
    with mock(first=0.03, step=0.02) as server:
        block, served = run(server, open_loop(6, 0.01, tokens=20))
        late = errors_of(block, served, server)
    assert served.requests.ok.all()
    assert set(served.requests.tokens) == {20}
    gaps = np.diff(served.events.at)[np.diff(served.events.request) == 0]
    assert abs(np.median(gaps) - 0.02) < 0.0005
    assert np.median(late) < 0.00025
    assert (late > -1e-4).all(), "nothing arrives before it was sent"
    assert block.health.kernel


def test_a_blocked_loop_moves_no_time():
    """TTFT is right though the client did nothing for 50 ms while the first tokens came."""

    async def blocked() -> Block:
        async def block_loop() -> None:
            for _ in range(3):
                await asyncio.sleep(0.03)
                time.sleep(0.05)

        disturbing = asyncio.create_task(block_loop())
        block = await run_block(server.address(), open_loop(4, 0.005, tokens=3))
        await disturbing
        return block

    with mock(first=0.04, step=0.1) as server:
        block = asyncio.run(blocked())
        served = parse(block)
        late = errors_of(block, served, server)
    read_late = max(int(one.lag.max()) for one in block.exchanges)
    assert read_late > 20_000_000, "the loop was blocked"
    assert np.median(late) < 0.001


def test_a_starved_client_voids_its_block():
    async def starved() -> Block:
        async def starve() -> None:
            end = time.monotonic() + 0.6
            while time.monotonic() < end:
                time.sleep(0.03)
                await asyncio.sleep(0)

        starving = asyncio.create_task(starve())
        block = await run_block(server.address(), open_loop(20, 0.01, tokens=4))
        await starving
        return block

    with mock(first=0.02, step=0.01) as server:
        block = asyncio.run(starved())
    assert any("requests left up to" in why for why in block.health.void), block.health


def test_a_stall_of_the_server_shows_in_the_latency_from_due_and_delays_no_request():
    with mock(first=0.01, step=0.01, stall=(0.0, 1.0)) as server:
        block, served = run(server, open_loop(10, 0.02, tokens=3))
    requests = served.requests
    assert requests.ok.all()
    assert (requests.first - requests.due)[0] > 0.3
    assert np.median(requests.sent - requests.due) < 0.01
    assert block.schedule_sha256 == ""


@pytest.mark.parametrize(
    ("behaviour", "events"),
    [
        ({"tokens_per_event": 4}, 3),
        ({"role_first": True}, 12),
        ({"reasoning": 12}, 12),
        ({"bytewise": 1}, 12),
        ({"usage": "continuous"}, 12),
        ({"close_idle": True}, 12),
    ],
)
def test_streams_of_all_shapes(behaviour: dict[str, object], events: int):
    with mock(first=0.01, step=0.005, **behaviour) as server:
        schedule = closed_loop(3, 1, tokens=12)
        block = asyncio.run(run_block(server.address(chat=True), schedule))
        served = parse(block)
    assert served.requests.error == ("", "", "")
    assert set(served.requests.tokens) == {12}
    assert [int((served.events.request == row).sum()) for row in range(3)] == [events] * 3
    log_first = 0.01
    assert (served.requests.first - served.requests.sent > log_first * 0.9).all(), "no role counts as the first token"


def test_usage_that_is_missing_is_said():
    with mock(usage="none", first=0.005, step=0.002) as server:
        _, served = run(server, closed_loop(2, 2))
    assert set(served.requests.tokens) == {-1}


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ({"status": 503}, "status 503"),
        ({"hang_after": 2}, "no answer within 0.4 s"),
        ({"reset_after": 2}, "ConnectionResetError"),
    ],
)
def test_what_fails_is_an_error_of_that_request(behaviour: dict[str, object], why: str):
    with mock(first=0.005, step=0.005, **behaviour) as server:
        _, served = run(server, closed_loop(3, 3), request=0.4)
    assert not served.requests.ok.any()
    assert all(why in error for error in served.requests.error), served.requests.error


def test_nobody_there_is_an_error_and_no_crash():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    _, served = run(Mock(port), closed_loop(2, 2))
    assert all("ConnectionRefusedError" in error for error in served.requests.error)


def test_a_block_that_lasts_too_long_ends_with_an_error_for_each_open_request():
    with mock(first=0.01, step=0.2) as server:
        _, served = run(server, open_loop(4, 0.3, tokens=50), block=0.5)
    assert served.requests.error[:2] == ("the block ended after 0.5 s",) * 2
    assert served.requests.error[-1] == "never sent: the block ended before it was due"


def test_a_conversation_goes_on_after_its_last_answer_and_the_think_time():
    first, second, third, other = calls(4, tokens=4)
    talk = (replace(first, due=0.0), replace(second, after=0, due=0.1), replace(third, after=1, due=0.05), other)
    for loop in ("open", "closed"):
        with mock(first=0.02, step=0.01) as server:
            schedule = Schedule(calls=talk, loop=loop, concurrency=2)  # type: ignore[arg-type]
            _, served = run(server, schedule)
            log = server.log()
        assert served.requests.ok.all()
        for before, after, think in ((0, 1, 0.1), (1, 2, 0.05)):
            pause = (log[str(after)]["came"] - log[str(before)]["sent"][-1]) / 1e9
            assert pause > think
        assert log["3"]["came"] < log["1"]["came"], "nobody waits for the thinking"


def test_calls_that_prime_come_first_and_do_not_count():
    prime, *rest = calls(3, tokens=2)
    with mock(first=0.01, step=0.005) as server:
        block, served = run(server, Schedule(calls=(replace(prime, primes=True), *rest), loop="closed", concurrency=2))
        log = server.log()
    assert [one.sent.index for one in block.exchanges] == [1, 2]
    assert log["0"]["sent"][-1] < log["1"]["came"]
    assert served.requests.ok.all()


def test_lanes_of_a_ramp_come_in_one_after_the_other():
    with mock(first=0.02, step=0.02) as server:
        ramp = Schedule(calls=calls(12, tokens=5), loop="closed", concurrency=3, ramp=((0.0, 1), (0.3, 3)))
        _, served = run(server, ramp)
    begun = np.sort(served.requests.sent)
    assert (begun < 0.29).sum() <= 4
    assert served.requests.ok.all()


def test_connections_are_kept_and_closed_in_the_end():
    with mock(first=0.005, step=0.002) as server:
        before = len(open_sockets(server.port))
        run(server, closed_loop(12, 2, tokens=2))
        assert len(open_sockets(server.port)) == before == 0


def open_sockets(port: int) -> list[str]:
    import psutil

    return [
        str(c) for c in psutil.Process().net_connections("tcp") if c.raddr and c.raddr[1] == port and c.status != "NONE"
    ]


def test_the_timer_is_on_time_for_all_who_wait():
    async def waits() -> list[int]:
        timer, late = Timer(), list[int]()

        async def one(due: int) -> None:
            await timer.until(due)
            late.append(now() - due)

        start = now() + 20_000_000
        await asyncio.gather(*(one(start + n * 1_000_000) for n in (5, 1, 3, 2, 8, 0)))
        timer.close()
        return late

    late = asyncio.run(waits())
    assert len(late) == 6
    assert min(late) >= 0
    assert np.median(late) < 1_000_000


@contextlib.contextmanager
def tls_front(port: int, folder: Path) -> Iterator[tuple[int, Path]]:
    """A TLS server before a plain one, with a certificate of its own."""
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "k.pem",
        "-out",
        "c.pem",
        "-days",
        "2",
    ]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, *subject], cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "c.pem", folder / "k.pem")
    ready, place = threading.Event(), []

    async def serve() -> None:
        async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            upstream, downstream = await asyncio.open_connection("127.0.0.1", port)

            async def copy(one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
                while part := await one.read(65536):
                    other.write(part)
                    await other.drain()

            ways = [asyncio.create_task(copy(reader, downstream)), asyncio.create_task(copy(upstream, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            downstream.close()
            writer.close()

        server = await asyncio.start_server(through, "127.0.0.1", 0, ssl=context)
        place.extend([server.sockets[0].getsockname()[1], asyncio.get_running_loop(), asyncio.Event()])
        ready.set()
        async with server:
            await place[2].wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    try:
        yield place[0], folder / "c.pem"
    finally:
        place[1].call_soon_threadsafe(place[2].set)
        thread.join(20)


def test_tls_keeps_the_kernels_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert shutil.which("openssl"), "openssl makes the certificate: apt-get install -y openssl"
    with mock(first=0.02, step=0.01) as server, tls_front(server.port, tmp_path) as (port, certificate):
        address = Address(host="127.0.0.1", port=port, path="/v1/completions", tls=True, server_name="localhost")
        untrusted = parse(asyncio.run(run_block(address, closed_loop(1, 1))))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        block = asyncio.run(run_block(address, closed_loop(4, 2)))
    served = parse(block)
    assert "certificate verify failed" in untrusted.requests.error[0]
    assert served.requests.error == ("",) * 4
    assert block.health.kernel
    assert set(served.requests.tokens) == {8}


def test_a_key_is_sent_and_stays_out_of_the_block():
    with mock(first=0.005, step=0.002) as server:
        address = replace(server.address(), headers=(("Authorization", "Bearer very-secret"),))
        block = asyncio.run(run_block(address, closed_loop(1, 1)))
    assert "very-secret" not in repr(block)
    assert json.loads(block.exchanges[0].body.split(b"\n")[0][6:])["choices"]


def test_several_processes_send_the_same_as_one():
    talk = calls(9, every=0.01, tokens=4)
    talk = (*talk[:7], replace(talk[7], after=2, due=0.02), replace(talk[8], after=7, due=0.02))
    for schedule in (Schedule(calls=talk, loop="open"), Schedule(calls=talk, loop="closed", concurrency=4)):
        with mock(first=0.02, step=0.01) as server:
            block = asyncio.run(run_block(server.address(), schedule, workers=3))
            served, log = parse(block), server.log()
        assert [one.sent.index for one in block.exchanges] == list(range(9))
        assert served.requests.error == ("",) * 9
        assert block.health.workers == 3
        assert log["7"]["came"] > log["2"]["sent"][-1] + 20_000_000
        assert log["8"]["came"] > log["7"]["sent"][-1] + 20_000_000
        for one in block.exchanges:
            first = log[str(one.sent.index)]["sent"][0]
            assert -100_000 < one.at[0] - first < 50_000_000


def test_a_process_of_the_client_that_dies_ends_the_block_and_leaves_nothing():
    import psutil

    async def killed() -> None:
        block = asyncio.create_task(run_block(server.address(), open_loop(6, 0.1, tokens=40), workers=2))
        mine = psutil.Process()
        while len(workers := [p for p in mine.children() if "evalrig.loadgen.sharded" in p.cmdline()]) < 2:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)
        workers[0].kill()
        with pytest.raises(WorkerLost):
            await block
        assert not [p for p in workers if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    with mock(first=0.02, step=0.1) as server:
        asyncio.run(killed())
