"""Means and 95 % intervals over seeds, and the numbers of a finished run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skpo.trainer.metrics import read_metrics

#: Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond the table the normal one is within 2 %.
T95 = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
    10: 2.228,
    15: 2.131,
    20: 2.086,
    30: 2.042,
}


@dataclass(frozen=True)
class Interval:
    """Mean over seeds and half the width of its 95 % interval (Student's t); NaN half-width for a single seed."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if math.isnan(self.half) else f"{self.mean:.3f} ± {self.half:.3f}"


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % half-width of a few independent values."""
    n = len(values)
    if n == 0:
        return Interval(math.nan, math.nan)
    mean = sum(values) / n
    if n == 1:
        return Interval(mean, math.nan)
    variance = sum((v - mean) ** 2 for v in values) / (n - 1)
    return Interval(mean, t95(n - 1) * math.sqrt(variance / n))


def t95(degrees: int) -> float:
    """The quantile for these degrees of freedom, or for the next smaller ones in the table (a slightly wider interval)."""
    return T95[max(d for d in T95 if d <= degrees)] if degrees <= 30 else 1.96


@dataclass(frozen=True)
class Outcome:
    """What one finished run gave."""

    variant: str
    seed: int
    accuracy: float
    pass_at_k: float
    k: int
    tokens: int
    trained: int
    steps: int
    seconds: float
    curve: tuple[dict[str, Any], ...]


def outcome(variant: str, seed: int, run: Path) -> Outcome:
    """Read a run's folder: its last evaluation, totals and curve."""
    records = read_metrics(run)
    last = [r for r in records if "eval_pass_at_1" in r][-1]
    steps = [r for r in records if "tokens_generated" in r]
    return Outcome(
        variant=variant,
        seed=seed,
        accuracy=last["eval_pass_at_1"],
        pass_at_k=last["eval_pass_at_k"],
        k=int(last["eval_k"]),
        tokens=int(steps[-1]["tokens_generated_total"]) if steps else 0,
        trained=int(steps[-1].get("tokens_trained_total", 0)) if steps else 0,
        steps=len(steps),
        seconds=sum(r["seconds"] for r in steps),
        curve=tuple(records),
    )
