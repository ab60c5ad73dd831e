"""How often Monte-Carlo advantage signs are right (SKPO, arXiv 2604.08690, figures 5 and 6, appendix A).

G prefixes with success probabilities p_i; N continuations of each, c_i of them correct. The estimated advantage of prefix i
has the sign of c_i / N - mean(c) / N, so of the integer G c_i - sum(c); the true one has the sign of G p_i - sum(p). An
estimate of exactly 0 is right only where the true one is 0. No sign is ever decided on rounded numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from skpo.errors import ConfigError

EPSILON = 1e-6  #: as in `skpo.credit`, which needs torch
MOST_WORK = 1e10  #: multiplications that an exact answer may take: a few seconds
BLOCK = 2_000_000  #: numbers drawn at a time


@dataclass(frozen=True)
class SignAccuracy:
    """all_right: probability that all G signs are right. per_prefix [G]: that of each; share_right: their mean.

    Standard errors are None where the probabilities are exact. repetitions: 0 for exact.
    """

    all_right: float
    per_prefix: tuple[float, ...]
    repetitions: int = 0

    @property
    def share_right(self) -> float:
        return math.fsum(self.per_prefix) / len(self.per_prefix)

    def error(self, value: float) -> float | None:
        """Standard error of a simulated probability, sqrt(p (1 - p) / repetitions); None for an exact one."""
        return math.sqrt(value * (1 - value) / self.repetitions) if self.repetitions else None

    def to_dict(self) -> dict[str, Any]:
        """What the command prints. `share_right_stderr` is an upper bound: signs of one group depend on each other."""
        found: dict[str, Any] = {"all_right": self.all_right, "share_right": self.share_right}
        if self.repetitions:
            found["all_right_stderr"] = self.error(self.all_right)
            found["share_right_stderr"] = self.error(self.share_right)
        found["per_prefix"] = list(self.per_prefix)
        if self.repetitions:
            found["per_prefix_stderr"] = [self.error(p) for p in self.per_prefix]
        return found


def parse_probabilities(words: Sequence[str]) -> list[Fraction]:
    """Success probabilities as written, without rounding: "0.4", "2/5". Raises ConfigError outside [0, 1]."""
    found = []
    for word in words:
        try:
            value = Fraction(word.strip())
        except (ValueError, ZeroDivisionError):
            raise ConfigError(f'p "{word}": expected numbers such as 0.4,0.5,0.6') from None
        if not 0 <= value <= 1:
            raise ConfigError(f"p {word}: a probability lies between 0 and 1")
        found.append(value)
    if len(found) < 2:
        raise ConfigError(f"a group needs at least 2 prefixes; found {len(found)}")
    return found


def spread_probabilities(group: int, spread: Fraction, centre: Fraction = Fraction(1, 2)) -> list[Fraction]:
    """`group` probabilities, evenly spaced from centre - spread / 2 to centre + spread / 2, ends included.

    Raises ConfigError for fewer than 2, and where the ends leave [0, 1].
    """
    low, high = centre - spread / 2, centre + spread / 2
    if group < 2 or not (0 <= low <= high <= 1):
        raise ConfigError(f"group {group}, spread {float(spread):g}: need at least 2 prefixes, and a spread of 0 to 1")
    return [low + spread * i / (group - 1) for i in range(group)]


def true_signs(p: Sequence[Fraction]) -> list[int]:
    """Sign (-1, 0, 1) of each true advantage, from exact fractions."""
    total = sum(p)
    return [(len(p) * x > total) - (len(p) * x < total) for x in p]


def binomial(n: int, p: float) -> np.ndarray:
    """Probabilities of 0 ... n successes, float64 [n + 1]."""
    if p in (0.0, 1.0):
        return np.eye(n + 1)[n if p == 1.0 else 0]
    k = np.arange(n + 1)
    logs = np.array([math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(n + 1)])
    return np.asarray(np.exp(logs + k * math.log(p) + (n - k) * math.log1p(-p)))


def exact_signs(p: Sequence[Fraction], n: int) -> SignAccuracy:
    """Exact sign accuracy, by summing over every total S = sum(c): given S, each count's sign follows from it alone.

    Equal to enumerating all (n + 1)^G counts, in about G^3 n^3 steps. Raises ConfigError where that takes too long.
    """
    group = len(p)
    work = group * (group * n + 1) ** 2 * (n + 1) / 2
    if n < 1 or work > MOST_WORK:
        raise ConfigError(f"{group} prefixes with {n} continuations are too many (or too few) for exact; leave it out")
    signs, mass = true_signs(p), [binomial(n, float(x)) for x in p]
    counts = np.arange(n + 1)
    others = [_convolve([m for j, m in enumerate(mass) if j != i]) for i in range(group)]
    per_prefix, everything = [0.0] * group, []
    for total in range(group * n + 1):
        estimated = np.sign(group * counts - total)
        right = [np.where(estimated == sign, m, 0.0) for sign, m in zip(signs, mass, strict=True)]
        for i in range(group):
            rest = total - counts
            fits = (rest >= 0) & (rest < len(others[i]))
            per_prefix[i] += float(right[i][fits] @ others[i][rest[fits]])
        everything.append(float(_convolve(right, total)[total]) if all(r.any() for r in right) else 0.0)
    return SignAccuracy(math.fsum(everything), tuple(per_prefix))


def _convolve(masses: Sequence[np.ndarray], most: int | None = None) -> np.ndarray:
    """Distribution of a sum; nothing above `most` is kept."""
    result = np.ones(1)
    for mass in masses:
        result = np.convolve(result, mass)[: None if most is None else most + 1]
    return result


def draw_counts(p: Sequence[float], n: int, repetitions: int, rng: np.random.Generator) -> np.ndarray:
    """Correct continuations of each prefix, int64 [repetitions, G]."""
    return rng.binomial(n, np.asarray(p, dtype=np.float64), size=(repetitions, len(p)))


def estimated_signs(counts: np.ndarray) -> np.ndarray:
    """Signs (-1, 0, 1) of G c_i - sum(c) along the last axis; integers throughout."""
    return np.asarray(np.sign(counts.shape[-1] * counts - counts.sum(-1, keepdims=True)))


def simulated_signs(p: Sequence[Fraction], n: int, repetitions: int = 100_000, seed: int = 0) -> SignAccuracy:
    """Sign accuracy over `repetitions` drawn groups, in blocks; binomials, so the time hardly depends on n."""
    if n < 1 or repetitions < 1:
        raise ConfigError(f"continuations and repetitions must be at least 1; found {n} and {repetitions}")
    rng, truth = np.random.default_rng(seed), np.array(true_signs(p))
    probabilities, block = [float(x) for x in p], max(1, BLOCK // len(p))
    everything, each = 0, np.zeros(len(p), dtype=np.int64)
    for start in range(0, repetitions, block):
        counts = draw_counts(probabilities, n, min(block, repetitions - start), rng)
        right = estimated_signs(counts) == truth
        everything += int(right.all(-1).sum())
        each += right.sum(0)
    return SignAccuracy(everything / repetitions, tuple((each / repetitions).tolist()), repetitions)


def normalised(values: np.ndarray) -> np.ndarray:
    """Group-normalised advantages along the last axis: (x - mean) / (sd + 1e-6), sample deviation, 0 where all are equal.

    values: counts (integers) or rewards; counts give the advantages of rates up to the weight of epsilon.
    """
    centred = values - values.mean(-1, keepdims=True)
    scaled = centred / (values.std(-1, ddof=1, keepdims=True) + EPSILON)
    return np.where(values.max(-1, keepdims=True) == values.min(-1, keepdims=True), 0.0, scaled)
