"""Estimates of distance on rows that an engine served: drawn tokens against the exact KL, and the excess of a noisy
reference over itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from toys.engine_rows import Served, started
from toys.gguf_model import tiny_model

from evalrig.analysis.full_vocabulary import full_distances
from evalrig.analysis.kl_excess import excess
from evalrig.analysis.monte_carlo import Drawn, monte_carlo
from evalrig.refengine.faults import LogitNoise

F64 = NDArray[np.float64]
PLAIN = Drawn(temperature=1.0, truncated=False, raw=True)
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(3, 260, size=8).tolist() for _ in range(80)]
TEXTS = [RNG.integers(3, 260, size=17).tolist() for _ in range(80)]
STUDIES = 200
CLUSTERS = 60


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def reference(tiny: Path) -> Iterator[Served]:
    with started(tiny) as served:
        yield served


# ---- k3 against the exact KL


def texts_and_logprobs(served: Served, temperature: float) -> tuple[list[list[int]], F64, NDArray[np.int64]]:
    """Prompts with their continuations; the log-probability of each drawn token, and its prompt."""
    drawn = served.draw(PROMPTS, tokens=40, seed=1, temperature=temperature)
    prompt = np.repeat(np.arange(len(PROMPTS)), [len(ids) for ids, _ in drawn])
    texts = [prompt_ids + ids for prompt_ids, (ids, _) in zip(PROMPTS, drawn, strict=True)]
    return texts, np.concatenate([logprobs for _, logprobs in drawn]), prompt


@pytest.fixture(scope="module")
def drawn(reference: Served) -> tuple[list[list[int]], F64, NDArray[np.int64], NDArray[np.float32]]:
    """As above, at temperature 1, and the reference's whole rows."""
    texts, logprobs, prompt = texts_and_logprobs(reference, temperature=1.0)
    return texts, logprobs, prompt, np.concatenate([rows[7:] for rows in reference.rows(texts)])


@pytest.mark.parametrize("other", [{"kv_cache": "fp8_e4m3"}, {"weights": "int4"}], ids=["fp8kv", "int4"])
def test_k3_of_tokens_that_the_reference_drew_holds_the_exact_kl(
    tiny: Path, drawn: tuple[list[list[int]], F64, NDArray[np.int64], NDArray[np.float32]], other: dict[str, Any]
) -> None:
    texts, log_p, prompt, p = drawn
    with started(tiny, **other) as candidate:
        q = np.concatenate([rows[7:] for rows in candidate.rows(texts)])
        log_q = np.concatenate(candidate.chosen(texts, start=8))
    exact = full_distances(p, q).kl.mean()
    found = monte_carlo(log_p, log_q, prompt, PLAIN)
    assert found.tokens == len(p) > 3000
    assert found.k3.low < exact < found.k3.high
    assert found.k3.high - found.k3.low < 0.25 * exact, "an interval that holds everything would prove nothing"
    assert found.consistent


def test_tokens_drawn_colder_would_miss_the_exact_kl_and_are_refused(tiny: Path, reference: Served) -> None:
    texts, log_p, prompt = texts_and_logprobs(reference, temperature=0.4)
    p = np.concatenate([rows[7:] for rows in reference.rows(texts)])
    with started(tiny, weights="int4") as candidate:
        q = np.concatenate([rows[7:] for rows in candidate.rows(texts)])
        log_q = np.concatenate(candidate.chosen(texts, start=8))
    unseen = monte_carlo(log_p, log_q, prompt, PLAIN)
    assert not unseen.consistent, "the mean of q/p tells that the tokens were not drawn at 1"
    assert not unseen.k3.low < full_distances(p, q).kl.mean() < unseen.k3.high
    with pytest.raises(ValueError, match=r"drawn at temperature 0\.4"):
        monte_carlo(log_p, log_q, prompt, Drawn(temperature=0.4, truncated=False, raw=True))


# ---- the excess of a noisy reference over itself


def distances(tiny: Path, reference: NDArray[np.float32], noise: LogitNoise) -> F64:
    """KL of every position [texts, tokens] to a run of the same engine with other noise."""
    with started(tiny, fault=noise) as served:
        rows = np.stack(served.rows(TEXTS))
    vocabulary = rows.shape[-1]
    kl = full_distances(reference.reshape(-1, vocabulary), rows.reshape(-1, vocabulary)).kl
    return kl.reshape(rows.shape[:2])


@pytest.fixture(scope="module")
def noisy(tiny: Path) -> NDArray[np.float32]:
    """The reference's rows: noisy, as those of an engine whose digits depend on the batch."""
    with started(tiny, fault=LogitNoise(sigma=0.1, seed=0)) as served:
        return np.stack(served.rows(TEXTS))


@pytest.fixture(scope="module")
def again(tiny: Path, noisy: NDArray[np.float32]) -> F64:
    """Four runs of the reference again, [runs, texts, tokens]."""
    return np.stack([distances(tiny, noisy, LogitNoise(sigma=0.1, seed=seed)) for seed in range(1, 5)])


def coverage(candidate: F64 | None, again: F64) -> float:
    """Share of studies whose 90 % interval of the excess holds 0. A study draws prompts, and for each a run as the floor
    and, without a candidate, another run in its place: so the true excess is 0."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(STUDIES):
        drawn = rng.integers(0, len(TEXTS), CLUSTERS)
        runs = np.argsort(rng.random((CLUSTERS, len(again))), axis=1)
        kl = again[runs[:, 0], drawn] if candidate is None else candidate[drawn]
        floor = again[runs[:, 1], drawn]
        prompt = np.repeat(np.arange(CLUSTERS), kl.shape[1])
        found = excess(kl.ravel(), prompt, floor.ravel(), prompt, alpha=0.05, limit=0.0)
        held += found.low <= 0 <= found.high
    return held / STUDIES


def test_the_interval_of_the_excess_covers_0_where_only_noise_differs(again: F64) -> None:
    assert again.mean() == pytest.approx(0.01, rel=0.2), "two draws of sigma 0.1: about their variance"
    assert 0.84 <= coverage(None, again) <= 0.96


def test_a_candidate_with_a_tenth_more_noise_is_seen(tiny: Path, noisy: NDArray[np.float32], again: F64) -> None:
    more = distances(tiny, noisy, LogitNoise(sigma=0.11, seed=9))
    assert coverage(more, again) < 0.1
