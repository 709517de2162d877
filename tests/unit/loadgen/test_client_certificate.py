"""The client's certificate, and how a schedule is dealt out."""

import asyncio
import errno
import os

import numpy as np
import pytest

from evalrig.loadgen.block import OVER, Exchange, Sent
from evalrig.loadgen.drive import Stop, run_block, spare
from evalrig.loadgen.health import Effort, certify
from evalrig.loadgen.schedule import Address, Call, Schedule
from evalrig.loadgen.sharded import jobs_of, workers_for

MS = 1_000_000
ADDRESS = Address(host="127.0.0.1", port=1)


def exchange(
    index: int = 0, *, late: int = 0, first: int = 100 * MS, reads: tuple[bytes, ...] = (b"data: 1\n\n",)
) -> Exchange:
    return Exchange(
        sent=Sent(index=index, due=0, sent=late or 1, ended=first, status=200),
        body=b"".join(reads),
        ends=np.cumsum([len(read) for read in reads]),
        at=np.array([first + 20 * MS * i for i in range(len(reads))]),
        lag=np.array([1000] * len(reads)),
    )


def effort(
    cpu: float = 0.1, moved: float = 0.0, troubles: tuple[str, ...] = (), waits: tuple[float, ...] = ()
) -> Effort:
    return Effort(seconds=1.0, cpu_seconds=cpu, clock_moved=moved, troubles=troubles, waits=waits)


def test_a_client_at_ease_is_trusted():
    health = certify([exchange(late=1 * MS)], [effort()])
    assert health.void == ()
    assert health.kernel
    assert health.read_lag_p99 == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("late", "made", "said"),
    [
        (0, effort(cpu=0.51), "51% of a core, above 50%"),
        (3 * MS, effort(), "p99 3 ms after they were due, above 2% of the median time to the first bytes (100 ms)"),
        (3 * MS, effort(waits=(0.001, 0.0025)), "; 2 waited for a connection, up to 2.5 ms"),
        (0, effort(moved=2e-4), "moved 0.2 ms"),
        (0, effort(troubles=("priming call 0: HTTP 500",)), "priming call 0"),
    ],
)
def test_each_doubt_voids_the_block_and_says_its_numbers(late: int, made: Effort, said: str):
    (reason,) = certify([exchange(late=late)], [effort(), made]).void
    assert said in reason


def test_the_busiest_process_counts_and_the_cost_is_of_all():
    health = certify([exchange(reads=(b"data: 1\n\n", b"data: 2\n\n"))], [effort(cpu=0.1), effort(cpu=0.3)])
    assert (health.cpu_share, health.workers) == (pytest.approx(0.3), 2)
    assert health.cpu_per_event == pytest.approx(0.2)


def test_reads_of_several_events_are_counted_and_the_end_of_a_stream_is_none():
    reads = (b"data: 1\n\n", b"data: 2\n\ndata: 3\n\ndata: 4", b"\n\n", b"data: 5\n\ndata: [DONE]\n\n")
    health = certify([exchange(reads=reads)], [effort(cpu=0.5)])
    assert health.coalesced == pytest.approx(1 / 4)
    assert health.cpu_per_event == pytest.approx(0.5 / 5)


def test_a_block_in_which_nothing_was_answered_claims_no_kernel_time():
    nothing = np.empty(0, np.int64)
    failed = Exchange(
        sent=Sent(index=0, due=0, sent=0, ended=1, status=0, error="x"), body=b"", ends=nothing, at=nothing, lag=nothing
    )
    health = certify([failed], [effort()])
    assert not health.kernel
    assert (health.cpu_per_event, health.coalesced) == (0.0, 0.0)


def failed(error: str = "", status: int = 0, first: int = 0) -> Exchange:
    some = np.array([first] if first else [], np.int64)
    sent = Sent(index=0, due=0, sent=1 * MS if first else 0, ended=1, status=status, error=error)
    return Exchange(sent=sent, body=b"x" if first else b"", ends=some * 0 + 1, at=some, lag=some * 0)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL])
def test_a_client_without_descriptors_or_ports_is_in_doubt_and_not_the_engine(code: int):
    (reason,) = certify([exchange(), failed(os.strerror(code))], [effort()]).void
    assert f"1 of 2 requests could not be sent: {os.strerror(code)}; raise `ulimit -n`" in reason


@pytest.mark.parametrize("bad", [failed("Connection refused"), failed(status=503, first=2 * MS), failed(f"x: {OVER}")])
def test_an_engine_that_only_fails_puts_the_client_in_no_doubt(bad: Exchange):
    """Refusals come fast: the client is then as busy as it can be, and late against their time."""
    assert certify([bad] * 3, [effort(cpu=0.9)]).void == ()


def test_a_block_is_not_cut_before_its_last_request_was_due():
    trace = Schedule(calls=(Call(body=b""), Call(body=b"", due=7200.0), Call(body=b"", due=50.0, after=1)), loop="open")
    assert Stop.of(trace, 600.0) == Stop(request=600.0, block=7250.0 + 3600.0)
    closed = Schedule(calls=(Call(body=b""),), loop="closed", concurrency=1)
    assert Stop.of(closed, 600.0).block == 3600.0
    assert Stop.of(closed, 4000.0).block == 8000.0, "two requests may take their time"


@pytest.mark.parametrize(
    ("due", "idle"),
    [([], 2), ([0.0], 2), ([i / 1024 for i in range(1000)], 52), ([0.0] * 1000, 256), ([0, 1.0, 1.01, 1.02, 1.2], 3)],
)
def test_an_open_loop_keeps_connections_for_what_comes_in_a_twentieth_of_a_second(due: list[float], idle: int):
    assert spare(Schedule(calls=tuple(Call(body=b"", due=at) for at in due), loop="open")) == idle


def test_one_process_until_eight_thousand_events_a_second():
    assert [workers_for(rate) for rate in (0.0, 7_999.0, 8_001.0, 39_000.0)] == [1, 1, 2, 5]


def test_conversations_lanes_and_ramps_are_dealt_out_whole():
    afters = (None, None, None, 0, 1, 3, None)
    calls = tuple(Call(body=str(i).encode(), after=after) for i, after in enumerate(afters))
    schedule = Schedule(calls=calls, loop="closed", concurrency=5, ramp=((0.0, 1), (1.0, 5)))
    first, second = jobs_of(ADDRESS, schedule, 2, Stop())
    assert (first.indices, second.indices) == ((0, 2, 3, 5), (1, 4, 6))
    assert [call.after for call in first.schedule.calls] == [None, None, 0, 2]
    assert [call.after for call in second.schedule.calls] == [None, 0, None]
    assert (first.schedule.concurrency, second.schedule.concurrency) == (3, 2)
    assert (first.schedule.ramp, second.schedule.ramp) == (((0.0, 1), (1.0, 3)), ((0.0, 0), (1.0, 2)))


def test_more_workers_than_there_is_to_send_are_not_started():
    assert len(jobs_of(ADDRESS, Schedule(calls=(Call(body=b""),), loop="open"), 4, Stop())) == 1
    many = Schedule(calls=tuple(Call(body=b"") for _ in range(9)), loop="closed", concurrency=2)
    jobs = jobs_of(ADDRESS, many, 4, Stop())
    assert sum(len(job.indices) for job in jobs) == 9


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (Schedule(calls=(), loop="closed"), "at least one lane"),
        (Schedule(calls=(Call(body=b"", after=0),), loop="open"), "does not stand before it"),
        (
            Schedule(calls=(Call(body=b""), Call(body=b"", after=0, primes=True)), loop="open"),
            "priming calls have no order",
        ),
    ],
)
def test_a_schedule_that_cannot_be_carried_out_is_refused(schedule: Schedule, said: str):
    with pytest.raises(ValueError, match=said):
        asyncio.run(run_block(ADDRESS, schedule))
