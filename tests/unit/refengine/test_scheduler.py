"""Jobs join and leave; pages come back; one broken step does not take the engine down."""

import queue
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from evalrig.refengine.cache import PagedCache
from evalrig.refengine.formats import KV_FORMATS
from evalrig.refengine.jobs import Job, JobSpec, StopRules, Update
from evalrig.refengine.logprobs import LogprobWish
from evalrig.refengine.model import Model
from evalrig.refengine.sampling import Sampling
from evalrig.refengine.scheduler import Scheduler
from evalrig.refengine.step import Stepper
from evalrig.refengine.tokenizer import Tokenizer

GREEDY = Sampling(temperature=0.0)
RNG = np.random.default_rng(3)


class Rig:
    """A scheduler over a small cache, with a queue of what it reports."""

    def __init__(self, model: Model, tokenizer: Tokenizer, *, pages: int = 48, chunk: int = 128) -> None:
        self.cache = PagedCache(model.architecture, KV_FORMATS["f32"], pages=pages, rows=8, context=512)
        self.stepper = Stepper(model, self.cache, context=512, exact=True)
        self.scheduler = Scheduler(self.stepper, self.cache, tokenizer, chunk=chunk)
        self.scheduler.start()
        self.news: queue.Queue[tuple[Job, Update]] = queue.Queue()

    def submit(self, spec: JobSpec) -> Job:
        box: list[Job] = []
        ready = threading.Event()

        def notify(update: Update) -> None:
            ready.wait(5)
            self.news.put((box[0], update))

        box.append(self.scheduler.submit(spec, notify))
        ready.set()
        return box[0]

    def ends(self, count: int) -> dict[str, Update]:
        found: dict[str, Update] = {}
        while len(found) < count:
            job, update = self.news.get(timeout=60)
            if update.finish is not None or update.error is not None:
                found[job.spec.identity] = update
        return found

    def settle(self, condition: Callable[[], bool]) -> None:
        waiting = threading.Event()
        for _ in range(500):
            if condition():
                return
            waiting.wait(0.02)
        pytest.fail("the scheduler did not come to rest")

    def rests(self) -> bool:
        load = self.scheduler.load()
        return load.running + load.waiting == 0 and self.cache.used_pages == 0 and self.cache.reserved_pages == 0


@pytest.fixture
def rig(model: Model, tokenizer: Tokenizer) -> Iterator[Rig]:
    made = Rig(model, tokenizer)
    yield made
    made.scheduler.stop(10)


def spec(name: str, prompt: int, new: int, *, stream: bool = False, wish: LogprobWish | None = None) -> JobSpec:
    return JobSpec(
        identity=name,
        prompt=tuple(RNG.integers(0, 49152, prompt).tolist()),
        max_new_tokens=new,
        sampling=GREEDY,
        stop=StopRules(),
        wish=wish,
        stream=stream,
    )


def test_together_gives_the_tokens_of_alone(rig: Rig) -> None:
    specs = [spec(f"job-{index}", prompt, 4) for index, prompt in enumerate((5, 30, 64, 130, 12))]
    alone: dict[str, list[int]] = {}
    for one in specs:
        job = rig.submit(one)
        rig.ends(1)
        alone[one.identity] = job.output_ids
    together = {job.spec.identity: job for job in [rig.submit(one) for one in specs]}
    rig.ends(len(specs))
    # Greedy choices over random prompts are far from ties compared with noise of 1e-4; bit-equality is the process
    # test's.
    assert {name: job.output_ids for name, job in together.items()} == alone
    assert rig.rests()


def test_more_work_than_pages_waits_its_turn(rig: Rig) -> None:
    jobs = [rig.submit(spec(f"job-{index}", 250, 4)) for index in range(4)]
    assert all(update.finish is not None for update in rig.ends(4).values())
    assert all(len(job.output_ids) == 4 for job in jobs)
    assert rig.rests()


def test_scoring_gives_a_row_for_each_position_after_the_start(rig: Rig) -> None:
    wish = LogprobWish(start=3, top=4, ids=(1, 2))
    job = rig.submit(spec("scored", 150, 0, wish=wish))
    assert rig.ends(1)["scored"].count == 0
    assert len(job.input_rows) == 150 - 4
    assert len(job.output_rows) == 1
    assert np.isnan(job.output_rows[0].chosen)


def test_aborted_jobs_give_their_pages_back(rig: Rig) -> None:
    running = [rig.submit(spec(f"run-{index}", 40, 150, stream=True)) for index in range(3)]
    rig.news.get(timeout=60)
    waiting = [rig.submit(spec(f"wait-{index}", 300, 100)) for index in range(3)]
    for job in [*running, *waiting]:
        rig.scheduler.abort(job)
    rig.settle(rig.rests)
    assert rig.scheduler.counters.aborted == 6
    rig.submit(spec("after", 5, 2))
    assert rig.ends(1)["after"].error is None


def test_aborting_what_is_over_changes_nothing(rig: Rig) -> None:
    job = rig.submit(spec("short", 5, 1))
    rig.ends(1)
    rig.scheduler.abort(job)
    rig.submit(spec("after", 5, 1))
    rig.ends(1)
    assert rig.scheduler.counters.aborted == 0


@pytest.mark.parametrize("where", ["run", "logits"])
def test_a_broken_step_fails_its_requests_and_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("seeded")

    with monkeypatch.context() as patched:
        patched.setattr(rig.stepper, where, broken)
        rig.submit(spec("broken", 20, 4))
        assert "ZeroDivisionError: seeded" in str(rig.ends(1)["broken"].error)
    assert "Traceback" in caplog.text
    assert rig.rests()
    rig.submit(spec("after", 20, 4))
    assert rig.ends(1)["after"].error is None


def test_a_changed_page_owner_fails_the_request(rig: Rig) -> None:
    rig.submit(spec("robbed", 20, 300, stream=True))
    rig.news.get(timeout=60)
    rig.cache.owner_and_generation[: rig.cache.pages, 0] += 1
    assert "PageTagError" in str(rig.ends(1)["robbed"].error)
    assert rig.rests()


def test_stopping_tells_those_who_wait(model: Model, tokenizer: Tokenizer) -> None:
    rig = Rig(model, tokenizer)
    rig.submit(spec("long", 20, 400))
    rig.scheduler.stop(10)
    assert "shutting down" in str(rig.ends(1)["long"].error)


def test_decoding_jobs_cannot_starve_a_prompt(model: Model, tokenizer: Tokenizer) -> None:
    rig = Rig(model, tokenizer, chunk=64)
    for index in range(4):
        rig.submit(spec(f"decode-{index}", 5, 120, stream=True))
    rig.news.get(timeout=60)
    rig.submit(spec("prompt", 200, 1))
    assert rig.ends(1).keys() == {"prompt"}
    rig.scheduler.stop(10)
