"""`metrics.jsonl` as columns: one array per metric, and the three things it can be drawn against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NOT_FINITE = math.inf  #: stands for a value that was NaN or infinite when it was logged
Z95 = 1.959963984540054  #: 97.5 % point of the normal distribution
_AXES = ("step", "tokens_generated_total")


@dataclass(frozen=True)
class History:
    """Metrics of one run.

    step, tokens, seconds: float64 [R], where each record stands: steps done, tokens generated so far, seconds of training so far
    (evaluation left out). values: metric -> float64 [R]; NaN where a record lacks the metric, +inf where its value was not finite.
    """

    step: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray
    values: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.step)


def history(records: Sequence[Mapping[str, Any]]) -> History:
    """Columns of a run's records; of several records of one step the last wins. Nested metrics get dotted names."""
    latest = {int(r.get("step") or 0): flatten(r) for r in records}
    rows = [latest[step] for step in sorted(latest)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = {name: np.array([_number(row, name) for row in rows], dtype=np.float64) for name in names}
    nothing = np.full(len(rows), np.nan)
    total = values.get("tokens_generated_total", nothing)
    seconds = values.get("seconds", nothing)
    return History(
        step=np.array(sorted(latest), dtype=np.float64),
        tokens=np.maximum.accumulate(np.where(np.isfinite(total), total, 0.0)) if len(rows) else nothing,
        seconds=np.cumsum(np.where(np.isfinite(seconds), seconds, 0.0)),
        values={name: column for name, column in values.items() if name not in _AXES and not np.isnan(column).all()},
    )


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of a record by dotted name. A null is a value that was not finite; text is left out; true counts 1."""
    flat: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif value is None:
            flat[f"{prefix}{key}"] = NOT_FINITE
        elif isinstance(value, bool | int | float):
            flat[f"{prefix}{key}"] = float(value) if math.isfinite(value) else NOT_FINITE
    return flat


def evaluations(run: History) -> list[dict[str, float | None]]:
    """One entry per evaluation: its place, every `eval_` metric, and `low` and `high` of held-out pass@1.

    The interval is 95 %: the record's own (`eval_pass_at_1_low`, `_high`) where it has one, else mean ± 1.96 standard errors over
    problems, cut to [0, 1]; None without either.
    """
    mean = run.values.get("eval_pass_at_1")
    if mean is None:
        return []
    found = []
    for i in np.flatnonzero(np.isfinite(mean)):
        entry: dict[str, float | None] = {
            name.removeprefix("eval_"): float(column[i])
            for name, column in run.values.items()
            if name.startswith("eval_") and np.isfinite(column[i])
        }
        low, high = entry.pop("pass_at_1_low", None), entry.pop("pass_at_1_high", None)
        error = entry.get("pass_at_1_stderr")
        if (low is None or high is None) and error is not None:
            low, high = max(0.0, float(mean[i]) - Z95 * error), min(1.0, float(mean[i]) + Z95 * error)
        place = {"step": run.step[i], "tokens": run.tokens[i], "seconds": run.seconds[i]}
        found.append({**{key: float(value) for key, value in place.items()}, **entry, "low": low, "high": high})
    return found


def _number(row: Mapping[str, float], name: str) -> float:
    return row.get(name, math.nan)
