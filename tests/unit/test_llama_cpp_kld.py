"""llama.cpp's files of log-probabilities: read to the bit, its table by hand, and one line for what is no such file."""

import math
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from toys.logits_files import write_logits

from evalrig.analysis.full_vocabulary import full_distances
from evalrig.errors import UsageError
from evalrig.llama_cpp.kld_table import Compared, compare, table
from evalrig.llama_cpp.logits_file import open_logits

RNG = np.random.default_rng(0)
CHUNKS, CONTEXT, VOCABULARY = 4, 64, 301
TOKENS = RNG.integers(0, VOCABULARY, (CHUNKS, CONTEXT))
LOGITS = RNG.normal(0, 3, (CHUNKS, CONTEXT, VOCABULARY))
OTHER = LOGITS + RNG.normal(0, 0.2, LOGITS.shape)


def by_hand(path: Path, rows: list[tuple[float, float, list[int]]], tokens: list[int]) -> Path:
    """One chunk of 6 tokens over 3 ids: rows for the tokens at positions 4 and 5. Each row is padded to 4 numbers."""
    body = b"".join(struct.pack("<ff4H", step, least, *numbers, 0) for step, least, numbers in rows)
    path.write_bytes(b"_logits_" + struct.pack("<3i", 6, 3, 1) + struct.pack("<6i", *tokens) + body)
    return path


def log(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities))


def test_a_file_is_read_as_written_by_hand(tmp_path: Path) -> None:
    # (0.25, 0.25, 0.5): least ln 0.25, and ln 2 above it in one step of ln 2
    rows = [(math.log(2), math.log(0.25), [0, 0, 1]), (0.0, math.log(1 / 3), [0, 0, 0])]
    found = open_logits(by_hand(tmp_path / "a", rows, [0, 1, 2, 0, 1, 2]))
    assert (len(found), found.context, found.vocabulary) == (2, 6, 3)
    assert found.tokens.tolist() == [[0, 1, 2, 0, 1, 2]]
    assert found.followed_by.tolist() == [1, 2]
    assert found.rows(slice(0, 2)) == pytest.approx(
        np.stack([log(0.25, 0.25, 0.5), log(1 / 3, 1 / 3, 1 / 3)]), abs=1e-7
    )
    assert found.rows(slice(1, 2)) == pytest.approx(log(1 / 3, 1 / 3, 1 / 3)[None], abs=1e-7)


def test_each_token_is_compared_as_by_hand(tmp_path: Path) -> None:
    tokens = [0, 1, 2, 0, 1, 2]
    two = math.log(2)
    base = by_hand(tmp_path / "a", [(two, math.log(0.25), [0, 0, 1]), (0.0, math.log(1 / 3), [0, 0, 0])], tokens)
    other = by_hand(tmp_path / "b", [(two, math.log(0.25), [1, 0, 0]), (0.0, math.log(1 / 3), [0, 0, 0])], tokens)
    found = compare(open_logits(base), open_logits(other))
    # sum p ln(p/q) = 0.25 ln(0.25/0.5) + 0 + 0.5 ln(0.5/0.25) = 0.25 ln 2
    assert found.kld == pytest.approx([0.25 * two, 0.0], abs=1e-7)
    assert found.surprise_base == pytest.approx([math.log(4), math.log(3)])
    assert found.surprise == pytest.approx([math.log(4), math.log(3)])
    assert found.change == pytest.approx([0.0, 0.0], abs=1e-9)
    assert found.same_top.tolist() == [False, True]


def test_what_lies_16_below_is_left_out_of_the_divergence_only(tmp_path: Path) -> None:
    """p of the last id is e^-16.5, so it weighs nothing; q says 0.25 of it."""
    tokens, nearly = [0, 1, 2, 0, 1, 2], (8.25, -16.5, [2, 0, 0])
    base = by_hand(tmp_path / "a", [nearly, nearly], tokens)
    even = (math.log(2), math.log(0.25), [1, 0, 0])
    found = compare(open_logits(base), open_logits(by_hand(tmp_path / "b", [even, even], tokens)))
    assert found.kld == pytest.approx([math.log(2)] * 2)
    assert found.surprise_base == pytest.approx([16.5] * 2)


def test_the_table_by_hand() -> None:
    """99 tokens alike, and two that are not: every mean and error has a short formula."""
    n = 101
    kld, change = np.zeros(n), np.zeros(n)
    kld[0], kld[1], change[0], change[1] = 1.01, -1e-5, 0.101, -0.202
    surprise, base = np.full(n, 2.0), np.full(n, 2.0)
    surprise[0], base[0], base[1] = 3.01, 2.0, 1.0
    same = np.ones(n, dtype=np.bool_)
    same[0] = False
    said = table(Compared(surprise=surprise, surprise_base=base, kld=kld, change=change, same_top=same))
    lines = {line.split(":")[0].strip(): line.split(":")[1].strip() for line in said.splitlines() if ":" in line}

    def error(*values: float) -> float:
        """Of the mean of n values, all 0 but these."""
        mean = sum(values) / n
        return math.sqrt((sum(v * v for v in values) / n - mean * mean) / (n - 1))

    q, p = math.exp(2.01), math.exp(2 - 1 / n)
    assert lines["Mean PPL(Q)"] == f"{q:.6f} ± {q * error(1.01):10.6f}"
    assert lines["Mean PPL(base)"] == f"{p:.6f} ± {p * error(-1.0):10.6f}"
    covariance = (0 - (1.01 / n) * (-1 / n)) / (n - 1)
    assert lines["Cor(ln(PPL(Q)), ln(PPL(base)))"] == f"{100 * covariance / (error(1.01) * error(-1.0)):.2f}%"
    ratio = 2.01 / n
    assert lines["Mean ln(PPL(Q)/PPL(base))"] == f"{ratio:.6f} ± {error(1.01, 1.0):10.6f}"
    assert lines["Mean PPL(Q)/PPL(base)"] == f"{math.exp(ratio):.6f} ± {math.exp(ratio) * error(1.01, 1.0):10.6f}"
    apart = math.sqrt((q * error(1.01)) ** 2 + (p * error(-1.0)) ** 2 - 2 * q * p * covariance)
    assert lines["Mean PPL(Q)-PPL(base)"] == f"{q - p:.6f} ± {apart:10.6f}"
    assert lines["Mean    KLD"] == f"{(1.01 - 1e-5) / n:.6f} ± {error(1.01, -1e-5):10.6f}"
    assert (lines["Maximum KLD"], lines["Minimum KLD"], lines["Median  KLD"]) == ("1.010000", "-0.000010", "0.000000")
    # 101 values: the 99.9th percentile lies 0.9 of the way from the second largest to the largest
    assert lines["99.9%   KLD"] == f"{0.9 * 1.01:.6f}"
    assert lines["99.0%   KLD"] == "0.000000"
    assert lines["Mean    Δp"] == f"{-0.1:.3f} ± {100 * error(0.101, -0.202):5.3f} %"
    assert (lines["Maximum Δp"], lines["Minimum Δp"], lines["75.0%   Δp"]) == ("10.100%", "-20.200%", "0.000%")
    assert lines["0.1%   Δp"] == f"{-0.9 * 20.2:.3f}%"
    square = (10.1**2 + 20.2**2) / n
    rms = math.sqrt(square)
    assert lines["RMS Δp"] == f"{rms:.3f} ± {0.5 / rms * error(10.1**2, 20.2**2):5.3f} %"
    assert lines["Same top p"] == f"{100 * 100 / n:.3f} ± {100 * math.sqrt((100 / n) * (1 / n) / (n - 1)):5.3f} %"


def test_names_and_their_order_are_the_original_s() -> None:
    n = 100
    flat = Compared(
        surprise=np.ones(n),
        surprise_base=np.ones(n),
        kld=np.zeros(n),
        change=np.zeros(n),
        same_top=np.ones(n, np.bool_),
    )
    names = [line.split(":")[0].rstrip() for line in table(flat).splitlines() if ":" in line]
    assert names == [
        *("Mean PPL(Q)", "Mean PPL(base)", "Cor(ln(PPL(Q)), ln(PPL(base)))", "Mean ln(PPL(Q)/PPL(base))"),
        *("Mean PPL(Q)/PPL(base)", "Mean PPL(Q)-PPL(base)"),
        *("Mean    KLD", "Maximum KLD", "99.9%   KLD", "99.0%   KLD", "95.0%   KLD", "90.0%   KLD", "Median  KLD"),
        *("10.0%   KLD", " 5.0%   KLD", " 1.0%   KLD", " 0.1%   KLD", "Minimum KLD"),
        *("Mean    Δp", "Maximum Δp", "99.9%   Δp", "99.0%   Δp", "95.0%   Δp", "90.0%   Δp", "75.0%   Δp"),
        *("Median  Δp", "25.0%   Δp", "10.0%   Δp", " 5.0%   Δp", " 1.0%   Δp", " 0.1%   Δp", "Minimum Δp"),
        *("RMS Δp", "Same top p"),
    ]


def test_files_agree_with_evalrig_s_own_distances_but_for_16_bits(tmp_path: Path) -> None:
    first = open_logits(write_logits(tmp_path / "a", TOKENS, LOGITS))
    second = open_logits(write_logits(tmp_path / "b", TOKENS, OTHER))
    found = compare(first, second)
    used = [x[:, CONTEXT // 2 : -1].reshape(-1, VOCABULARY) for x in (LOGITS, OTHER)]
    p, q = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in used)
    truth = full_distances(p, q)
    assert len(found.kld) == CHUNKS * 31
    assert np.abs(found.kld - truth.kl).max() < 1.5e-4
    assert found.kld.mean() == pytest.approx(truth.kl.mean(), abs=1e-5)
    rows, given = np.arange(len(p)), TOKENS[:, CONTEXT // 2 + 1 :].reshape(-1)
    shown = p.max(axis=1) - p[rows, given] < 16
    assert shown.mean() > 0.9
    assert found.surprise_base[shown] == pytest.approx(-p[rows, given][shown], abs=1.3e-4)
    assert found.change == pytest.approx(np.exp(q[rows, given]) - np.exp(p[rows, given]), abs=2e-4)
    assert (found.same_top == truth.top1_same).mean() > 0.98
    same = compare(first, first)
    assert not same.kld.any()
    assert not same.change.any()
    assert same.same_top.all()


def test_a_range_of_16_is_cut_as_the_original_cuts_it(tmp_path: Path) -> None:
    """An id 30 below the top is lifted to 16 below."""
    logits = np.zeros((1, 6, 3))
    logits[..., 2] = -30.0
    row = open_logits(write_logits(tmp_path / "a", [[0, 1, 0, 1, 0, 1]], logits)).rows(slice(0, 1))[0]
    assert row == pytest.approx([math.log(0.5), math.log(0.5), math.log(0.5) - 16], abs=1e-5)


# ---- what is no such file


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda whole: b"GGUF" + whole[4:], "no file of log-probabilities"),
        (lambda whole: whole[:12], "no file of log-probabilities"),
        (lambda whole: b"", "no file of log-probabilities"),
        (lambda whole: whole[:-1], "cut short"),
        (lambda whole: whole + b"\0", "cut short, or of another format"),
        (lambda whole: whole[:8] + struct.pack("<3i", 2, 3, 1) + whole[20:], "nothing to read"),
        (lambda whole: whole[:8] + struct.pack("<3i", 6, 3, -1) + whole[20:], "nothing to read"),
        (lambda whole: whole[:20] + struct.pack("<i", 3) + whole[24:], "token ids outside its vocabulary of 3"),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path: Path, change, words: str) -> None:
    path = by_hand(tmp_path / "a", [(0.0, math.log(1 / 3), [0, 0, 0])] * 2, [0, 1, 2, 0, 1, 2])
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        open_logits(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        open_logits(tmp_path / "none")


@pytest.mark.parametrize("least", [math.nan, math.inf, -math.inf, 0.0])
def test_rows_that_are_no_distribution_are_refused(tmp_path: Path, least: float) -> None:
    rows = [(0.0, math.log(1 / 3), [0, 0, 0]), (0.0, least, [0, 0, 0])]
    found = open_logits(by_hand(tmp_path / "a", rows, [0, 1, 2, 0, 1, 2]))
    with pytest.raises(UsageError, match="row 1 is no distribution"):
        compare(found, found)


@pytest.mark.parametrize(
    ("tokens", "logits", "words"),
    [
        (TOKENS[:, ::-1], LOGITS, "other tokens than"),
        (TOKENS[:2], LOGITS[:2], "other tokens than"),
        (TOKENS % 300, LOGITS[..., :300], "vocabulary 300, that of"),
        (TOKENS.reshape(2, 128), LOGITS.reshape(2, 128, -1), "context 128, that of"),
    ],
)
def test_files_of_another_text_are_refused(tmp_path: Path, tokens, logits, words: str) -> None:
    first = open_logits(write_logits(tmp_path / "a", TOKENS, LOGITS))
    second = open_logits(write_logits(tmp_path / "b", tokens, logits))
    with pytest.raises(UsageError, match=re.escape(words)):
        compare(first, second)


def test_too_few_tokens_are_no_table(tmp_path: Path) -> None:
    found = open_logits(write_logits(tmp_path / "a", TOKENS[:1], LOGITS[:1]))
    with pytest.raises(UsageError, match="31 tokens compared: a table takes 100"):
        table(compare(found, found))
