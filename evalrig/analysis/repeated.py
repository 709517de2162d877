"""Several answers to one question: the chance that any, or that all, of k drawn answers are right, from n that were given.

Both are unbiased: the mean over all ways to draw k of the n. A rate raised to a power, rate**k or 1 - (1 - rate)**k, is not: it
draws with replacement, and so counts one right answer several times.
"""

import math


def chance_of_any(right: int, n: int, k: int) -> float:
    """pass@k: 1 - C(n - right, k) / C(n, k), in 0..1.

    Source: Chen et al. 2021, arXiv 2107.03374.
    """
    _check(right, n, k)
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def chance_of_all(right: int, n: int, k: int) -> float:
    """pass^k: C(right, k) / C(n, k), in 0..1.

    Source: Yao et al. 2024, arXiv 2406.12045.
    """
    _check(right, n, k)
    return math.comb(right, k) / math.comb(n, k)


def _check(right: int, n: int, k: int) -> None:
    if not 0 <= right <= n or not 1 <= k <= n:
        raise ValueError(f"{right} of {n} right, {k} drawn: 0 <= right <= n and 1 <= k <= n")
