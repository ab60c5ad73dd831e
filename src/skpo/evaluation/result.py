"""What an evaluation found: scores per problem, figures with intervals, and tables for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from skpo.evaluation.statistics import bootstrap_interval, maj_at_k, pass_at_k

if TYPE_CHECKING:
    from rich.table import Table

FULL = 1.0 - 1e-9


@dataclass
class Evaluation:
    """Result of an evaluation on one problem source.

    scores: problem id -> the samples' scores in [0, 1] (None counted as 0); correct: how many of them are fully correct.
    labels: problem id -> the samples' answers as numbers, for maj@k; no entry where answers can't be compared.
    cut:    samples that the token budget ended; failures: answers whose verifier failed, by kind.
    """

    name: str
    samples: int
    ks: tuple[int, ...]
    scores: dict[str, list[float]]
    correct: dict[str, int]
    lengths: list[int]
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    generated_tokens: int = 0
    labels: dict[str, list[int]] = field(default_factory=dict)
    cut: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """mean@k: accuracy over all samples, averaged within and then over problems; pass@1."""
        return _mean(self._shares)

    @property
    def stderr(self) -> float:
        """Standard error of `mean` over problems (sample deviation / sqrt P)."""
        values = self._shares
        return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of `mean`, over problems."""
        return bootstrap_interval(self._shares)

    @property
    def length(self) -> float:
        """Mean tokens of a sample."""
        return _mean(self.lengths)

    def pass_at(self, k: int) -> float:
        """Unbiased pass@k, averaged over problems."""
        return _mean(self._passes(k))

    def maj_at(self, k: int) -> float | None:
        """Unbiased maj@k, averaged over problems; None where answers can't be compared."""
        values = self._majorities(k)
        return None if values is None else _mean(values)

    @property
    def _shares(self) -> list[float]:
        return [c / self.samples for c in self.correct.values()]

    def _passes(self, k: int) -> list[float]:
        return [pass_at_k(self.samples, c, k) for c in self.correct.values()]

    @cached_property
    def _cache(self) -> dict[int, list[float]]:
        return {}

    def _majorities(self, k: int) -> list[float] | None:
        if not self.scores or set(self.labels) != set(self.scores):
            return None
        if k not in self._cache:
            self._cache[k] = [
                maj_at_k(self.labels[id], [score >= FULL for score in scores], k) for id, scores in self.scores.items()
            ]
        return self._cache[k]

    def metrics(self) -> dict[str, float]:
        """Keys for metrics.jsonl."""
        largest = max(self.ks)
        return {
            "eval_pass_at_1": self.mean,
            "eval_pass_at_1_stderr": self.stderr,
            "eval_pass_at_k": self.pass_at(largest),
            "eval_k": largest,
            "eval_length": self.length,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready; intervals are 95 % bootstrap intervals over problems."""
        majorities = {k: values for k in self.ks if (values := self._majorities(k)) is not None}
        return {
            "name": self.name,
            "problems": len(self.correct),
            "samples": self.samples,
            f"mean@{self.samples}": self.mean,
            "mean": self.mean,
            "stderr": self.stderr,
            "interval": list(self.interval),
            "pass_at_k": {str(k): self.pass_at(k) for k in self.ks},
            "pass_at_k_interval": {str(k): list(bootstrap_interval(self._passes(k))) for k in self.ks},
            "maj_at_k": {str(k): _mean(values) for k, values in majorities.items()},
            "maj_at_k_interval": {str(k): list(bootstrap_interval(values)) for k, values in majorities.items()},
            "mean_length": self.length,
            "cut_off": self.cut,
            "verifier_failures": self.failures,
            "generated_tokens": self.generated_tokens,
            "seconds": self.seconds,
            "settings": self.settings,
            "correct": self.correct,
        }

    def table(self) -> Table:
        """A table for the terminal; the settings stand beside the score."""
        return make_table([self])


@dataclass
class Suite:
    """Evaluations of one model on several problem sources."""

    results: list[Evaluation]

    def table(self) -> Table:
        """One row per problem source; common settings below, others in the row."""
        return make_table(self.results)

    def to_dict(self) -> dict[str, Any]:
        """The one evaluation, or `evaluations`: a list of them."""
        found = [result.to_dict() for result in self.results]
        return found[0] if len(found) == 1 else {"evaluations": found}


def make_table(results: Sequence[Evaluation]) -> Table:
    """mean@n, pass@k and maj@k with 95 % intervals, one row per evaluation; settings that all share stand below."""
    from rich.table import Table

    shared = shared_settings(results)
    title = results[0].name if len(results) == 1 else str(shared.get("model", ""))
    table = Table(title=title, title_justify="left", caption_justify="left")
    ks = sorted({k for result in results for k in result.ks if k > 1})
    table.add_column("problems", overflow="fold")
    table.add_column("mean@n", justify="right")
    for column in (*(f"pass@{k}" for k in ks), *(f"maj@{k}" for k in ks), "length", "cut off"):
        table.add_column(column, justify="right")
    for result in results:
        own = ", ".join(f"{k}={v}" for k, v in result.settings.items() if k not in shared)
        size = f"{len(result.correct)} x {result.samples}"
        name = size if len(results) == 1 else f"{result.name}, {size}"
        count = max(1, len(result.lengths))
        table.add_row(
            f"{name}\n[dim]{own}[/dim]" if own else name,
            f"mean@{result.samples} {_cell(result.mean, result._shares)}",
            *(_at(result, k, result._passes) for k in ks),
            *(_at(result, k, result._majorities) for k in ks),
            f"{result.length:.0f}",
            f"{result.cut / count:.0%}",
        )
    settings = ", ".join(f"{k}={v}" for k, v in shared.items())
    table.caption = f"{settings}\n[ ]: 95 % bootstrap interval over problems"
    return table


def shared_settings(results: Sequence[Evaluation]) -> dict[str, Any]:
    """Settings that are the same in all evaluations."""
    first = results[0].settings
    return {k: v for k, v in first.items() if all(r.settings.get(k) == v for r in results)}


def _at(result: Evaluation, k: int, values: Callable[[int], list[float] | None]) -> str:
    found = values(k) if k in result.ks else None
    return "-" if found is None else _cell(_mean(found), found)


def _cell(mean: float, values: Sequence[float]) -> str:
    low, high = bootstrap_interval(values)
    return f"{mean:.3f} \\[{low:.3f}, {high:.3f}]"


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
