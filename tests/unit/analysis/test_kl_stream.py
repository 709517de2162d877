"""The streaming pass gives what the functions over all positions give, whatever the chunks; and counts what is broken."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evalrig.analysis.aligned import TopK
from evalrig.analysis.growth import octave_ratio, position_growth
from evalrig.analysis.histogram import LogHistogram
from evalrig.analysis.kl import by_octave, delta_p, merged_bucket, summary, truncate
from evalrig.analysis.kl_map import by_group
from evalrig.analysis.kl_stream import MEASURES, Chunk, analyse
from evalrig.analysis.kl_summary import quantiles
from evalrig.analysis.topk_bounds import bounds, list_entropy

NAMES = ("structure", "digits", "prose")
RELATIVE_ERROR = 2.0**-7
"""A bin of the histogram: seven bits of the mantissa."""


def drawn(seed=0, n=6000, prompts=60):
    """Positions of `prompts` prompts, in order, in lists of 20 of a vocabulary of 80."""
    rng = np.random.default_rng(seed)
    prompt = np.sort(rng.integers(0, prompts, n))
    logits = rng.normal(0, 1, (n, 80)) * rng.uniform(0.2, 6, (n, 1))
    other = logits + rng.normal(0, 0.1, logits.shape) * np.exp(rng.normal(0, 1, (n, 1)))
    log_p, log_q = ((x - np.log(np.exp(x).sum(axis=1, keepdims=True))).astype(np.float32) for x in (logits, other))
    (ids_p, p), (ids_q, q) = truncate(log_p, 20), truncate(log_q, 20)
    return Chunk(
        reference=TopK(ids=ids_p.astype(np.int32), logprobs=p),
        candidate=TopK(ids=ids_q.astype(np.int32), logprobs=q),
        prompt=prompt,
        position=rng.integers(1, 5000, n),
        token_class=rng.integers(-1, 3, n),
        reference_logprob=log_p[:, 3],
        candidate_logprob=log_q[:, 3],
    )


def labels(chunk):
    """Class and given logprobs, which `drawn` always sets."""
    parts = chunk.token_class, chunk.reference_logprob, chunk.candidate_logprob
    assert all(part is not None for part in parts)
    return tuple(np.asarray(part) for part in parts)


def cut(chunk, sizes):
    """The same positions in several chunks."""
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        names = ("prompt", "position", "token_class", "reference_logprob", "candidate_logprob")
        yield replace(
            chunk,
            reference=chunk.reference.block(rows),
            candidate=chunk.candidate.block(rows),
            **{name: getattr(chunk, name)[rows] for name in names},
        )
        start += size


def all_at_once(chunk):
    left, right = chunk.reference, chunk.candidate
    return merged_bucket(left.ids, left.logprobs, right.ids, right.logprobs).kl


def test_the_pass_agrees_with_all_at_once():
    chunk = drawn()
    kl = all_at_once(chunk)
    found, whole = analyse(cut(chunk, [1, 999, 2500, 0, 2500]), 60, NAMES), summary(kl, chunk.prompt)
    for name in ("tokens", "prompts", "infinite"):
        assert getattr(found.summary, name) == getattr(whole, name)
    for name in ("mean", "low", "high", "minimum"):
        assert getattr(found.summary, name) == pytest.approx(getattr(whole, name), rel=1e-9)
    for here, there in zip(found.quantiles, quantiles(kl, chunk.prompt), strict=True):
        assert there.value <= here.value * (1 + 1e-6) <= there.value * (1 + 1.01 * RELATIVE_ERROR) + 1e-30
        assert here.owners <= there.owners
    assert found.summary.tail.maximum == whole.tail.maximum
    assert found.summary.tail.winsorised_mean == pytest.approx(whole.tail.winsorised_mean, rel=1e-3)
    assert found.summary.tail.top_share == pytest.approx(whole.tail.top_share, rel=0.01)
    assert found.broken == 0


def test_maps_agree_with_all_at_once():
    chunk = drawn(1)
    kl = all_at_once(chunk)
    found = analyse(cut(chunk, [3000, 3000]), 60, NAMES)
    assert found.by_position.growth == _near(position_growth(kl, chunk.position, chunk.prompt))
    assert found.by_position.ratio == _near(octave_ratio(kl, chunk.position, chunk.prompt))
    for here, there in zip(found.by_position.octaves, by_octave(kl, chunk.position, chunk.prompt), strict=True):
        assert here == _near(there)
    for here, there in zip(found.classes, by_group(kl, labels(chunk)[0], NAMES, chunk.prompt), strict=True):
        assert here == _near(there)
    assert [row.name for row in found.classes] == list(NAMES)


class _near:
    """Equal to a dataclass whose numbers are the same to nine digits."""

    def __init__(self, expected):
        self.expected = expected

    def __eq__(self, other):
        return type(other) is type(self.expected) and all(
            getattr(other, name) == pytest.approx(getattr(self.expected, name), rel=1e-9)
            if isinstance(getattr(other, name), float)
            else getattr(other, name) == getattr(self.expected, name)
            for name in type(other).__slots__
        )

    def __hash__(self):
        return 0


def test_means_of_all_measures():
    chunk = drawn(2)
    found = {row.name: row for row in analyse([chunk], 60, NAMES).means}
    each = bounds(chunk.reference, chunk.candidate)
    assert list(found) == list(MEASURES)
    for name in MEASURES[:8]:
        assert found[name].mean == pytest.approx(float(getattr(each, name).mean()), rel=1e-9)
    mean, rms = delta_p(*labels(chunk)[1:])
    assert found["delta_p"].mean == pytest.approx(mean, rel=1e-6)
    assert math.sqrt(found["delta_p_square"].mean) == pytest.approx(rms, rel=1e-6)
    assert found["entropy_low"].mean == pytest.approx(float(list_entropy(chunk.reference).mean()))
    assert 0.5 < found["top1_same"].mean < 1
    bare = replace(chunk, reference_logprob=None, candidate_logprob=None)
    assert [row.name for row in analyse([bare], 60, NAMES).means] == list(MEASURES[:10])  # unknown is not 0


def test_quartiles_of_entropy_part_the_tokens_about_evenly():
    found = analyse([drawn(3)], 60, NAMES).entropies
    assert len(found) == 4
    assert sum(row.tokens for row in found) == 6000
    assert all(1000 < row.tokens < 2000 for row in found)
    assert all("listed entropy" in row.name for row in found)


def test_chunks_and_workers_do_not_change_the_numbers():
    chunk = drawn(4)
    one = analyse([chunk], 60, NAMES, workers=1)
    many = analyse(cut(chunk, [100] * 60), 60, NAMES, workers=3)
    assert one.summary == _near(many.summary) or one.summary.mean == pytest.approx(many.summary.mean, rel=1e-12)
    assert one.worst_tokens == many.worst_tokens
    assert [row.prompt for row in one.worst_prompts] == [row.prompt for row in many.worst_prompts]
    assert one.quantiles == many.quantiles


def test_the_worst_are_found_exactly():
    chunk = drawn(5)
    kl = all_at_once(chunk)
    found = analyse(cut(chunk, [2000, 2000, 2000]), 60, NAMES)
    order = np.argsort(-kl, kind="stable")[:10]
    assert [token.row for token in found.worst_tokens] == order.tolist()
    assert [token.kl for token in found.worst_tokens] == pytest.approx(kl[order].tolist())
    assert [token.position for token in found.worst_tokens] == chunk.position[order].tolist()
    means = [kl[chunk.prompt == g].mean() for g in range(60)]
    assert [row.prompt for row in found.worst_prompts] == np.argsort(means)[::-1][:10].tolist()


def test_broken_positions_are_left_out_and_counted():
    chunk = drawn(6)
    broken = chunk.reference.logprobs.copy()
    broken[5, 3], broken[4000, 0], broken[4001] = math.nan, math.inf, -math.inf
    given = labels(chunk)[2].copy()
    given[17] = math.nan
    found = analyse(
        cut(replace(chunk, reference=replace(chunk.reference, logprobs=broken), candidate_logprob=given), [3000, 3000]),
        60,
        NAMES,
    )
    assert (found.broken, found.summary.tokens) == (4, 5996)
    kept = np.delete(np.arange(6000), [5, 17, 4000, 4001])
    kl = all_at_once(chunk)
    assert found.summary.mean == pytest.approx(kl[kept].mean(), rel=1e-9)
    order = kept[np.argsort(-kl[kept], kind="stable")[:10]]
    assert [token.row for token in found.worst_tokens] == order.tolist()


def test_infinite_values_are_kept():
    chunk = drawn(7)
    lost = chunk.candidate.logprobs.copy()
    lost[[50, 3100], 0] = -math.inf
    chunk = replace(chunk, candidate=replace(chunk.candidate, logprobs=lost))
    kl = all_at_once(chunk)
    assert np.isposinf(kl).sum() == 2
    found, whole = analyse(cut(chunk, [3000, 3000]), 60, NAMES), summary(kl, chunk.prompt)
    assert (found.summary.mean, found.summary.infinite) == (math.inf, 2)
    assert found.summary.low == pytest.approx(whole.low, rel=1e-9)
    assert {token.row for token in found.worst_tokens[:2]} == {50, 3100}
    assert found.by_position.growth == _near(position_growth(kl, chunk.position, chunk.prompt))
    assert found.by_position.ratio is None
    for here, there in zip(found.classes, by_group(kl, labels(chunk)[0], NAMES, chunk.prompt), strict=True):
        assert here == _near(there)
    for here, there in zip(found.by_position.octaves, by_octave(kl, chunk.position, chunk.prompt), strict=True):
        assert (here.mean, here.high) == pytest.approx((there.mean, there.high), rel=1e-9)


def test_the_same_lists_are_at_exactly_zero():
    chunk = drawn(8)
    found = analyse([replace(chunk, candidate=chunk.reference, candidate_logprob=chunk.reference_logprob)], 60, NAMES)
    assert (found.summary.mean, found.summary.tail.maximum, found.summary.minimum) == (0.0, 0.0, 0.0)
    assert {row.p for row in found.classes} == {1.0}
    assert {row.name: row.mean for row in found.means}["top1_same"] == 1.0


def test_malformed_chunks_are_refused():
    chunk = drawn(9, n=100)
    with pytest.raises(ValueError, match="prompt"):
        analyse([chunk], 3)
    with pytest.raises(ValueError, match="token_class"):
        analyse([chunk], 60, ("only",))
    with pytest.raises(ValueError, match="position"):
        analyse([replace(chunk, position=chunk.position[:-1])], 60)
    with pytest.raises(ValueError, match="no readable"):
        analyse([], 60)


def test_histogram_quantiles_are_never_low_and_little_high():
    rng = np.random.default_rng(10)
    values = np.exp(rng.normal(-8, 3, 20000))
    found = LogHistogram()
    for part in np.array_split(values, 7):
        found.add(part)
    for level in (0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = float(np.quantile(values, level, method="higher"))
        assert exact * (1 - 1e-6) <= found.quantile(level) <= exact * (1 + RELATIVE_ERROR)
    cut_at = found.quantile(0.999)
    assert found.winsorised_mean(0.999) == pytest.approx(float(np.minimum(values, cut_at).mean()))
    top = np.sort(values)[-20:].sum() / values.sum()
    assert found.top_share(0.001) == pytest.approx(float(top), rel=RELATIVE_ERROR)


def test_histogram_of_zeros_negatives_and_infinities():
    found = LogHistogram()
    found.add(np.array([-1e-9, 0.0, 0.0, math.inf]))
    assert (found.quantile(0.5), found.quantile(1.0), found.top_share(0.001)) == (0.0, math.inf, 1.0)
    zeros = LogHistogram()
    zeros.add(np.zeros(5))
    assert (zeros.quantile(1.0), zeros.winsorised_mean(0.999), zeros.top_share(0.5)) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="no values"):
        LogHistogram().quantile(0.5)


def test_calls_are_shared_out_by_step_and_held_against_the_calls_of_other_steps():
    chunk = drawn(12)
    lost = chunk.candidate.logprobs.copy()
    lost[[50, 3100], 0] = -math.inf
    step = np.random.default_rng(3).integers(0, 30, 6000)
    step[[50, 3100]] = (7, 0)
    whole = replace(chunk, candidate=replace(chunk.candidate, logprobs=lost))
    kl, called = all_at_once(whole), step > 0
    parts = (
        replace(part, call_step=step[at : at + 3000])
        for at, part in zip((0, 3000), cut(whole, [3000, 3000]), strict=True)
    )
    found = analyse(parts, 60, NAMES).by_position.calls
    group = np.select([step <= 2, step <= 5, step <= 10, step <= 20], [0, 1, 2, 3], 4)
    kl[np.isposinf(kl)] = kl[np.isfinite(kl)].max()
    names = ("steps 1–2", "steps 3–5", "steps 6–10", "steps 11–20", "steps 21 and later")
    for here, there in zip(found, by_group(kl[called], group[called], names, whole.prompt[called]), strict=True):
        assert here == _near(there)
    assert sum(row.tokens for row in found) == called.sum()
    assert analyse([chunk], 60, NAMES).by_position.calls == ()
    with pytest.raises(ValueError, match="call_step"):
        analyse([replace(chunk, call_step=step - 1)], 60, NAMES)
