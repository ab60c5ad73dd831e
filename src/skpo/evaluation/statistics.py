"""pass@k, maj@k and bootstrap intervals: pure functions of counts and labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

BOOTSTRAP = 10_000
MOST_DRAWS = 20_000_000  # problems times resamples; more problems need fewer resamples


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased pass@k from n samples of which c are correct: 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374, section 2.1).

    Raises ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, found k={k}, n={n}, c={c}")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def maj_at_k(labels: Sequence[int], correct: Sequence[bool], k: int) -> float:
    """Unbiased maj@k: how often the commonest answer among k of the n samples is right (arXiv 2203.11171).

    The mean over all C(n, k) subsets, and over the ways to break a tie (t answers in front: each wins 1/t), worked out
    exactly. So it depends neither on the order of the samples nor on a random draw; maj@1 is mean@n.

    labels:  the answer of each sample, as a number; "no answer" is an answer like any other.
    correct: whether each sample is right. Where samples with the same answer disagree, their share counts.

    Raises ValueError unless 1 <= k <= n.
    """
    n = len(labels)
    if not 1 <= k <= n or len(correct) != n:
        raise ValueError(f"maj@k needs 1 <= k <= n, found k={k}, n={n}")
    sizes = Counter(labels)
    right = Counter(label for label, fine in zip(labels, correct, strict=True) if fine)
    total = 0.0
    for label, fine in right.items():
        others = [size for other, size in sizes.items() if other != label]
        total += fine / sizes[label] * _wins(sizes[label], others, k)
    return total / math.comb(n, k)


def _wins(size: int, others: Sequence[int], k: int) -> float:
    """Number of k-subsets in which an answer that `size` samples have is in front; 1/t where t are level."""
    total = 0.0
    for votes in range(1, min(size, k) + 1):
        # level[s]: ways to take s samples of the other answers, at most `votes` of each, with `level` of them level
        ways = {(0, 0): 1}
        for other in others:
            after: dict[tuple[int, int], int] = {}
            for (taken, level), count in ways.items():
                for more in range(min(other, votes, k - votes - taken) + 1):
                    key = taken + more, level + (more == votes)
                    after[key] = after.get(key, 0) + count * math.comb(other, more)
            ways = after
        share = sum(count / (1 + level) for (taken, level), count in ways.items() if taken == k - votes)
        total += math.comb(size, votes) * share
    return total


def bootstrap_interval(
    values: Sequence[float], *, level: float = 0.95, resamples: int = BOOTSTRAP, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean: problems are drawn with replacement (Efron 1979).

    values: one number per problem. The same values give the same interval. With one problem it has no width, which says
    nothing about its certainty. NaN for none.
    """
    data = np.asarray(values, dtype=np.float64)
    if not len(data):
        return math.nan, math.nan
    resamples = max(1000, min(resamples, MOST_DRAWS // len(data)))
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    step = max(1, 1_000_000 // len(data))
    for start in range(0, resamples, step):
        drawn = rng.integers(len(data), size=(min(step, resamples - start), len(data)))
        means[start : start + step] = data[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
