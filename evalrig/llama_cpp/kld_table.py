"""The table of `llama-perplexity --kl-divergence`, from two files of log-probabilities over the same text.

Names, order and formulas are the original's, so that a user of llama.cpp can check evalrig's arithmetic against it. Its
errors take every token as independent, which is too few where the tokens of a text go together: evalrig's own estimates
do not.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from evalrig.analysis.aligned import BLOCK_ENTRIES, blocks
from evalrig.analysis.arrays import BoolArray, FloatArray
from evalrig.errors import UsageError
from evalrig.llama_cpp.logits_file import LogitsFile

RULED_OUT: Final = -16.0
"""The original leaves ids at or below this log-probability of the first file out of the divergence."""
FEWEST: Final = 100
"""Tokens below which the original prints no statistics."""
KLD_LEVELS: Final = (99.9, 99.0, 95.0, 90.0, 50.0, 10.0, 5.0, 1.0, 0.1)
CHANGE_LEVELS: Final = (99.9, 99.0, 95.0, 90.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """n tokens; every array has shape [n]."""

    surprise: FloatArray
    """-ln q of the token that stands there, by the second file."""
    surprise_base: FloatArray
    """-ln p of it, by the first."""
    kld: FloatArray
    """KL(first || second), nats. Rounding to 16 bits leaves some slightly negative; they are kept."""
    change: FloatArray
    """q - p of the token that stands there."""
    same_top: BoolArray


def compare(first: LogitsFile, second: LogitsFile) -> Compared:
    """Reads both in blocks of about 16 MB. UsageError where they are not of the same text, or a row is broken."""
    _check_same_text(first, second)
    n = len(first)
    found = Compared(
        surprise=np.zeros(n),
        surprise_base=np.zeros(n),
        kld=np.zeros(n),
        change=np.zeros(n),
        same_top=np.zeros(n, dtype=np.bool_),
    )
    tokens = first.followed_by
    for block in blocks(n, first.vocabulary, BLOCK_ENTRIES):
        log_p, log_q = first.rows(block), second.rows(block)
        at = np.arange(len(log_p)), tokens[block]
        found.surprise_base[block], found.surprise[block] = -log_p[at], -log_q[at]
        found.change[block] = np.exp(log_q[at]) - np.exp(log_p[at])
        found.same_top[block] = log_p.argmax(axis=1) == log_q.argmax(axis=1)
        p = np.where(log_p > RULED_OUT, np.exp(log_p), 0.0)
        found.kld[block] = (p * (log_p - log_q)).sum(axis=1)
    return found


def _check_same_text(first: LogitsFile, second: LogitsFile) -> None:
    for name in ("vocabulary", "context"):
        ours, theirs = getattr(first, name), getattr(second, name)
        if ours != theirs:
            raise UsageError(
                f"{second.path}: {name} {theirs}, that of {first.path} is {ours}; write both over one text"
            )
    if not np.array_equal(first.tokens, second.tokens):
        raise UsageError(f"{second.path}: other tokens than {first.path}; write both over one text")


def table(found: Compared) -> str:
    """The three parts of the original's table. UsageError below 100 tokens, as it prints none there."""
    if len(found.kld) < FEWEST:
        raise UsageError(f"{len(found.kld)} tokens compared: a table takes {FEWEST}; use a longer text")
    parts = (_perplexity(found), _divergence(found.kld), _changes(found))
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _perplexity(found: Compared) -> Iterator[str]:
    n = len(found.kld)
    ours, theirs = _mean(found.surprise), _mean(found.surprise_base)
    ratio = _mean(found.surprise - found.surprise_base)
    covariance = float(np.cov(found.surprise, found.surprise_base)[0, 1]) / n
    both = ours[1] * theirs[1]
    correlation = covariance / both if both > 0 else math.nan
    q, base = (math.exp(mean) for mean, _ in (ours, theirs))
    variance = (q * ours[1]) ** 2 + (base * theirs[1]) ** 2 - 2 * q * base * covariance
    yield "====== Perplexity statistics ======"
    yield _line("Mean PPL(Q)", q, q * ours[1])
    yield _line("Mean PPL(base)", base, base * theirs[1])
    yield f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * correlation:6.2f}%"
    yield _line("Mean ln(PPL(Q)/PPL(base))", *ratio)
    yield _line("Mean PPL(Q)/PPL(base)", math.exp(ratio[0]), math.exp(ratio[0]) * ratio[1])
    yield _line("Mean PPL(Q)-PPL(base)", q - base, math.sqrt(max(variance, 0.0)))


def _divergence(kld: FloatArray) -> Iterator[str]:
    mean, error = _mean(kld)
    yield "====== KL divergence statistics ======"
    yield f"Mean    KLD: {mean:10.6f} ± {error:10.6f}"
    yield f"Maximum KLD: {kld.max():10.6f}"
    for name, value in _levels(kld, KLD_LEVELS):
        yield f"{name} KLD: {value:10.6f}"
    yield f"Minimum KLD: {kld.min():10.6f}"


def _changes(found: Compared) -> Iterator[str]:
    change, n = 100 * found.change, len(found.change)
    mean, error = _mean(change)
    square, square_error = _mean(change**2)
    rms = math.sqrt(square)
    same = float(found.same_top.mean())
    yield "====== Token probability statistics ======"
    yield f"Mean    Δp: {mean:6.3f} ± {error:5.3f} %"
    yield f"Maximum Δp: {change.max():6.3f}%"
    for name, value in _levels(change, CHANGE_LEVELS):
        yield f"{name} Δp: {value:6.3f}%"
    yield f"Minimum Δp: {change.min():6.3f}%"
    yield f"RMS Δp    : {rms:6.3f} ± {0.5 * square_error / rms if rms > 0 else 0.0:5.3f} %"
    yield f"Same top p: {100 * same:6.3f} ± {100 * math.sqrt(same * (1 - same) / (n - 1)):5.3f} %"


def _levels(values: FloatArray, levels: Sequence[float]) -> Iterator[tuple[str, float]]:
    for level, value in zip(levels, np.percentile(values, levels), strict=True):
        yield "Median " if level == 50 else f"{level:4.1f}%  ", float(value)


def _mean(values: FloatArray) -> tuple[float, float]:
    """Mean and its standard error over tokens."""
    return float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))


def _line(name: str, value: float, error: float) -> str:
    return f"{name:30}: {value:10.6f} ± {error:10.6f}"
