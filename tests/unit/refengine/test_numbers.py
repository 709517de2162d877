"""The engine's numbers against llama.cpp's and against itself in other formats, on a text of 578 tokens."""

from pathlib import Path

import numpy as np
import pytest

from evalrig.refengine.arrays import F32, F64
from evalrig.refengine.cache import PagedCache
from evalrig.refengine.formats import KV_FORMATS, WEIGHT_FORMATS
from evalrig.refengine.kv_scales import per_head_scales
from evalrig.refengine.model import Model, load_model
from evalrig.refengine.source import Source
from evalrig.refengine.step import Slice, Stepper
from evalrig.refengine.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data"
STORED = np.load(DATA / "kl_text_logprobs.npz")
IDS = [int(i) for i in STORED["ids"]]


def logprobs(model: Model, kv_cache: str, scales: F32 | None = None) -> F64:
    """[tokens, vocabulary] of the whole text in one step."""
    cache = PagedCache(model.architecture, KV_FORMATS[kv_cache], pages=40, rows=2, context=640)
    if scales is not None:
        cache.scales[:] = scales
    stepper = Stepper(model, cache, context=640, exact=False)
    hidden = stepper.run([Slice(sequence=cache.open(len(IDS)), tokens=IDS)])
    logits = stepper.logits(hidden)
    rows = logits - logits.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True, dtype=np.float64))


def kl(reference: F64, other: F64) -> float:
    return float((np.exp(reference) * (reference - other)).sum(axis=1).mean())


@pytest.fixture(scope="module")
def reference(model: Model) -> F64:
    """BF16 weights, exact cache."""
    return logprobs(model, "f32")


def test_the_text_has_the_ids_that_two_other_engines_saw(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode((DATA / "kl_text.txt").read_text()) == IDS


@pytest.mark.parametrize("engine_name", ["llama_cpp_bf16", "numpy_f32"])
def test_kl_to_another_engine_is_below_2e_4_on_its_top_50_and_the_rest(reference: F64, engine_name: str) -> None:
    ids, theirs = STORED[f"{engine_name}_top_ids"], STORED[f"{engine_name}_top_logprobs"].astype(np.float64)
    mine = np.take_along_axis(reference, ids.astype(np.int64), axis=1)
    rest_theirs, rest_mine = 1 - np.exp(theirs).sum(axis=1), 1 - np.exp(mine).sum(axis=1)
    rest = rest_theirs * (np.log(rest_theirs) - np.log(rest_mine))
    distance = (np.exp(theirs) * (theirs - mine)).sum(axis=1) + rest
    assert -1e-6 < distance.mean() <= 2e-4


def test_perplexity_is_that_of_the_other_engines(reference: F64) -> None:
    perplexity = np.exp(-reference[np.arange(len(IDS) - 1), IDS[1:]].mean())
    assert perplexity == pytest.approx(10.54, abs=0.02)


def test_bf16_cache_is_nearly_harmless(model: Model, reference: F64) -> None:
    assert 0 < kl(reference, logprobs(model, "bf16")) < 2e-4


def test_fp8_cache_moves_the_distribution_by_4e_3_to_9e_3(model: Model, reference: F64) -> None:
    assert 4e-3 < kl(reference, logprobs(model, "fp8_e4m3")) < 9e-3


def test_measured_scales_keep_the_fp8_cache_as_near(model: Model, tokenizer: Tokenizer, reference: F64) -> None:
    scales = per_head_scales(model, tokenizer)
    assert scales.shape == (30, 2, 3, 1)
    assert kl(reference, logprobs(model, "fp8_e4m3", scales)) < 9e-3


def test_a_scale_far_too_large_is_seen(model: Model, reference: F64) -> None:
    """At 4096 most values fall below the smallest step of e4m3."""
    wrong = np.full((30, 2, 3, 1), 4096, np.float32)
    assert kl(reference, logprobs(model, "fp8_e4m3", wrong)) > 0.5


@pytest.mark.parametrize(
    ("weights", "low", "high"), [("fp8", 8e-3, 2.5e-2), ("int4", 0.25, 0.45), ("int4-asym", 0.0, 1e-3)]
)
def test_weight_formats(source: Source, reference: F64, weights: str, low: float, high: float) -> None:
    assert low < kl(reference, logprobs(load_model(source, WEIGHT_FORMATS[weights]), "f32")) < high
