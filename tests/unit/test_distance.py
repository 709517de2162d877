"""One pass over both arms: the numbers of all tokens at once, nothing kept by token, every byte read as seldom as can be."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toys.runs import carry_out, run_file

from evalrig import distance
from evalrig.analysis.kl import delta_p, excess, merged_bucket
from evalrig.analysis.kl_excess import excess_of
from evalrig.distance import Joined, chunks, measured
from evalrig.records import AUDIT, RunFolder
from evalrig.report.distances import _audited
from evalrig.run import conclude
from evalrig.tokens import Columns, Key, TokenFile
from evalrig.types import REFERENCE


def side(rng: np.random.Generator, n: int, width: int, noise: float) -> dict[str, np.ndarray]:
    logits = np.random.default_rng(n).standard_normal((n, 64)) * 2 + noise * rng.standard_normal((n, 64))
    rows = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
    ids = np.argsort(-rows, axis=1, kind="stable")[:, :width].astype(np.int32)
    top = np.take_along_axis(rows, ids, 1)
    return {"token": np.full(n, 5, np.int32), "logprob": rows[:, 5].copy(), "top_ids": ids, "top_logprobs": top}


def joined(seed: int = 0, noise: float = 0.1, width: int = 20) -> list[Joined]:
    rng = np.random.default_rng(seed)
    return [
        Joined(
            sample=f"s{at:02d}",
            epoch=0,
            cluster=f"c{at // 2:02d}",
            reference=side(rng, 3 + at, width, 0.0),
            candidate=side(rng, 3 + at, width, noise),
        )
        for at in range(60)
    ]


PROMPTS = {f"c{at:02d}": at for at in range(30)}


def arrays(rows: list[Joined]) -> tuple[np.ndarray, np.ndarray]:
    names = ("top_ids", "top_logprobs")
    lists = [
        np.concatenate([getattr(both, arm)[n] for both in rows]) for arm in ("reference", "candidate") for n in names
    ]
    sizes = [len(both.reference["token"]) for both in rows]
    return merged_bucket(*lists).kl, np.repeat([PROMPTS[both.cluster] for both in rows], sizes)


@pytest.mark.parametrize("size", [1, 100, 16_384])
def test_one_pass_gives_the_numbers_of_all_tokens_at_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "CHUNK", size)
    rows, floors = joined(), joined(seed=9, noise=0.02)
    found, floor = measured(rows, PROMPTS, 0.05), measured(floors, PROMPTS, 0.05)
    assert found is not None
    assert floor is not None
    assert found.found is not None
    kl, prompt = arrays(rows)
    assert (found.tokens, found.broken, found.same) == (len(kl), 0, False)
    assert found.found.summary.mean == pytest.approx(kl.mean(), rel=1e-12)
    assert found.by_prompt.sums == pytest.approx(np.bincount(prompt, kl), rel=1e-12)
    whole = excess(kl, prompt, *arrays(floors), 0.05, 0.01)
    parts = excess_of(found.by_prompt, floor.by_prompt, 0.05, 0.01)
    for name in ("excess", "low", "high", "p_above", "p_below"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-9)
    means = {row.name: row.mean for row in found.found.means}
    given = [np.concatenate([getattr(both, arm)["logprob"] for both in rows]) for arm in ("reference", "candidate")]
    assert means["delta_p"] == pytest.approx(delta_p(*given)[0], rel=1e-6)


def test_lists_of_another_width_go_into_a_chunk_of_their_own() -> None:
    rows = [*joined()[:3], *joined(width=10)[3:5], *joined()[5:6]]
    assert [chunk.reference.width for chunk in chunks(rows, PROMPTS)] == [20, 10, 20]


@pytest.mark.parametrize(
    ("column", "value"),
    [("logprob", np.nan), ("logprob", 0.5), ("top_logprobs", np.inf), ("top_ids", 7), ("top_ids", -1)],
)
@pytest.mark.parametrize("arm", ["reference", "candidate"])
def test_a_position_without_a_number_is_counted_and_costs_no_other(column: str, value: float, arm: str) -> None:
    rows = joined()
    columns = {name: values.copy() for name, values in getattr(rows[4], arm).items()}
    columns[column][2] = value
    spoiled = [replace(both, **{arm: columns}) if at == 4 else both for at, both in enumerate(rows)]
    found, whole = measured(spoiled, PROMPTS, 0.05), measured(rows, PROMPTS, 0.05)
    assert found is not None
    assert whole is not None
    assert (found.tokens, found.broken) == (whole.tokens, 1)
    changed = np.flatnonzero(found.by_prompt.sums != whole.by_prompt.sums)
    assert changed.tolist() == [PROMPTS[rows[4].cluster]]


def test_nothing_to_compare_and_nothing_readable_are_no_distance_of_0() -> None:
    assert measured([], PROMPTS, 0.05) is None
    rows = joined()[:1]
    rows[0].candidate["top_logprobs"][:] = np.nan  # type: ignore[index]
    found = measured(rows, PROMPTS, 0.05)
    assert found is not None
    assert found.found is None
    assert found.broken == found.tokens == 3


def test_attempts_are_let_go_as_the_pass_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with the number of attempts: those held at a time fit into four chunks."""
    monkeypatch.setattr(distance, "CHUNK", 64)
    alive: Counter[str] = Counter()
    most = [0]

    class Held(dict[str, np.ndarray]):
        def __init__(self, columns: Columns) -> None:
            super().__init__(columns)
            alive["now"] += 1
            most[0] = max(most[0], alive["now"])

        def __del__(self) -> None:
            alive["now"] -= 1

    def endless() -> Iterator[Joined]:
        for both in joined() * 5:
            yield replace(both, reference=Held(both.reference), candidate=Held(both.candidate))

    assert measured(endless(), PROMPTS, 0.05) is not None
    assert most[0] <= 2 * (64 // 3 + 2), "attempts of one chunk, and the next one"


def test_judging_and_reporting_read_an_arm_alone_once_and_against_the_reference_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.open(
        carry_out(run_file(tmp_path, {"cheap": {"noise": 0.02}, "other": {"noise": 0.03}})).folder.path
    )
    seen: Counter[tuple[str, Key]] = Counter()
    read = TokenFile.read

    def counted(self: TokenFile, key: Key) -> dict[str, np.ndarray]:
        seen[f"{self.path.parent.parent.parent.name}/{self.path.stem}", key] += 1
        return read(self, key)

    monkeypatch.setattr(TokenFile, "read", counted)
    conclude(folder)
    most = {file: max(count for (name, _), count in seen.items() if name == file) for file, _ in seen}
    width = 4  # looks at one attempt for the width of the lists
    worst = 1  # and the report at those that hold a worst token, once an arm
    assert most["reference_again/rows"] == 2
    assert most["cheap/rows"] == most["other/rows"] == 2 + worst
    assert 4 <= most[f"{REFERENCE}/rows"] <= 4 + width + 2 * worst
    assert most[f"cheap/{AUDIT}"] == 2 + 1, "one attempt is looked at for the size of the vocabulary"


# ---- the upper bound


def whole(rows: int, noise: float, seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    logits = np.random.default_rng(rows).standard_normal((rows, 64)) * 2 + noise * rng.standard_normal((rows, 64))
    return {"vocabulary": (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)}


def test_few_audited_rows_support_no_upper_bound() -> None:
    """The assumed largest ratio is learned from them: from a handful it is small by luck, and the bound would not hold."""
    parts = [(whole(33, 0.0, 1), whole(33, 0.3, 2), 10)] * 3
    few = distance.audited(parts)
    enough = distance.audited([*parts, (whole(1, 0.0, 1), whole(1, 0.3, 2), 10)])
    assert few is not None
    assert enough is not None
    assert (few.audit.rows, few.high) == (99, None)
    assert enough.audit.rows == distance.LEAST_AUDITED
    assert enough.high is not None
    assert enough.dual <= enough.audit.kl_full_mean + 1e-9 <= enough.high + 2e-9
    assert "too few audited rows for an upper one" in _audited(few)
    assert "at most " in _audited(enough)
