"""One step after another gives what one step gives: chunks, company and order change at most the last bits."""

import numpy as np
import pytest

from evalrig.refengine.arrays import F32
from evalrig.refengine.cache import PagedCache, PageTagError
from evalrig.refengine.formats import KV_FORMATS
from evalrig.refengine.model import Model
from evalrig.refengine.step import Slice, Stepper, chunk_length

RNG = np.random.default_rng(5)
TEXT = RNG.integers(0, 49152, 150).tolist()
CROWD = [RNG.integers(0, 49152, size).tolist() for size in (3, 17, 40, 64, 5, 33, 90)]


def bench(model: Model, *, kv: str = "f32", exact: bool = True) -> tuple[Stepper, PagedCache]:
    cache = PagedCache(model.architecture, KV_FORMATS[kv], pages=64, rows=9, context=320)
    return Stepper(model, cache, context=320, exact=exact), cache


def scored(model: Model, chunks: list[int], *, crowd: list[list[int]] | None = None, kv: str = "f32") -> F32:
    """Log-probabilities [len(TEXT), vocabulary], TEXT cut into `chunks`, others sharing the first step."""
    stepper, cache = bench(model, kv=kv)
    sequence = cache.open(len(TEXT))
    company = [Slice(sequence=cache.open(len(tokens)), tokens=tokens) for tokens in crowd or []]
    rows: list[F32] = []
    for length in chunks:
        done = sequence.length
        hidden = stepper.run([*company, Slice(sequence=sequence, tokens=TEXT[done : done + length])])
        rows.append(stepper.logits(hidden[-length:]).copy())
        company = []
    logits = np.concatenate(rows)
    highest = logits.max(axis=1, keepdims=True)
    return logits - highest - np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))


@pytest.fixture(scope="module")
def whole(model: Model) -> F32:
    return scored(model, [150])


def test_repeats_are_bit_equal(model: Model, whole: F32) -> None:
    assert np.array_equal(scored(model, [150]), whole)


@pytest.mark.parametrize("chunks", [[64, 86], [128, 22], [64, 64, 22]])
def test_chunks_equal_the_whole(model: Model, whole: F32, chunks: list[int]) -> None:
    assert np.abs(scored(model, chunks) - whole).max() <= 1e-4


def test_token_by_token_equals_the_whole(model: Model, whole: F32) -> None:
    chunks = [128, *[1] * 22]
    assert np.abs(scored(model, chunks) - whole).max() <= 1e-4


def test_alone_equals_in_a_batch_of_eight(model: Model, whole: F32) -> None:
    assert np.abs(scored(model, [150], crowd=CROWD) - whole).max() <= 1e-4


def test_fp8_cache_in_chunks_stays_within_the_noise_that_rounding_amplifies(model: Model) -> None:
    difference = np.abs(scored(model, [64, 86], kv="fp8_e4m3") - scored(model, [150], kv="fp8_e4m3"))
    assert np.median(difference) < 0.05


def test_decoding_together_equals_decoding_alone(model: Model) -> None:
    prompts = [*CROWD[:5], TEXT[:70]]

    def last_logits(batch: list[list[int]]) -> F32:
        stepper, cache = bench(model)
        work = [Slice(sequence=cache.open(len(tokens) + 1), tokens=tokens) for tokens in batch]
        stepper.run(work)
        return stepper.logits(stepper.run([Slice(sequence=item.sequence, tokens=[7]) for item in work])).copy()

    together = last_logits(prompts)
    for index, prompt in enumerate(prompts):
        assert np.abs(last_logits([prompt])[0] - together[index]).max() <= 5e-4


def test_a_foreign_page_stops_the_step_before_it_computes(model: Model) -> None:
    stepper, cache = bench(model)
    sequence = cache.open(40)
    stepper.run([Slice(sequence=sequence, tokens=TEXT[:20])])
    cache.owner_and_generation[cache._table[sequence.row, 0], 0] += 1
    with pytest.raises(PageTagError):
        stepper.run([Slice(sequence=sequence, tokens=[1])])
    assert sequence.length == 20


@pytest.mark.parametrize(
    ("left", "done", "end", "expected"),
    [(256, 0, 40, 40), (256, 0, 300, 256), (100, 0, 300, 64), (63, 0, 300, 0), (63, 256, 300, 44), (10, 0, 40, 0)],
)
def test_chunks_end_on_blocks_or_at_the_end(left: int, done: int, end: int, expected: int) -> None:
    assert chunk_length(left, done, end) == expected
