"""Which plans a step runs: groups as they were measured, or made from a long-tailed distribution of lengths."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.simulation.pool import Method
from benchmarks.simulation.worker import Stage, Task


def measured_tasks(folder: Path | str, steps: Sequence[int] | None = None) -> dict[int, list[Task]]:
    """step -> its plans, in order, from a finished run's `rollouts/*.parquet`; the segment that was trained on comes first.

    Raises ValueError for samples that are neither completions nor segments: the model knows plans of one or two stages.
    """
    from skpo.trainer.rollout_log import read_rollouts

    wanted = ["step", "problem_id", "role", "context", "tokens", "info"]
    table = read_rollouts(folder, steps).select(wanted)
    groups: dict[tuple[int, str], dict[str, list[tuple[int, int, list[int]]]]] = {}
    for row in table.to_pylist():
        if row["role"] not in ("segment", "completion"):
            raise ValueError(f"{folder}: a {row['role']}; only completions and segments are modelled")
        sampled = json.loads(row["info"] or "{}").get("sampled", len(row["tokens"]))
        kinds = groups.setdefault((row["step"], row["problem_id"]), {"segment": [], "completion": []})
        kinds[row["role"]].append((len(row["context"]), sampled, row["tokens"]))
    found: dict[int, list[Task]] = {}
    for (step, _), kinds in groups.items():
        stages = [
            Stage(rows[0][0], tuple(n for _, n, _ in rows), distinct([t for _, _, t in rows]))
            for rows in kinds.values()
            if rows
        ]
        found.setdefault(step, []).append(tuple(stages))
    return found


def distinct(samples: Sequence[Sequence[int]]) -> float:
    """Share of the decode steps of these samples of one context that are left when samples share them while they are alike."""
    starts = {tuple(tokens[:n]) for tokens in samples for n in range(1, len(tokens))}
    return len(starts) / max(1, sum(max(0, len(tokens) - 1) for tokens in samples)) or 1.0


def drawn(pool: Sequence[Task], count: int, rng: random.Random) -> list[Task]:
    """`count` plans out of measured ones, whole, with replacement: what belongs together in a group stays together."""
    return [pool[rng.randrange(len(pool))] for _ in range(count)]


@dataclass(frozen=True)
class LongTail:
    """Log-normal lengths. A problem's own median is `median` times a factor of spread `between`; its rows spread by `within` (both
    standard deviations of the logarithm); `most` is the budget.

    low, high: where a segment stops, as shares of the problem's mean length. goes_on: share of the segment's tokens that a completion
    saves because it builds on it: 0 starts over, 1 goes on where the segment stopped. Rows of a long text part early, so every one
    counts as distinct.
    """

    median: float = 600.0
    between: float = 0.5
    within: float = 0.5
    most: int = 3072
    prompt: int = 160
    group: int = 8
    low: float = 1 / 6
    high: float = 1 / 2
    goes_on: float = 0.0

    def tasks(self, method: Method, count: int, rng: random.Random) -> list[Task]:
        """`count` problems' plans. One random state gives the same problems and the same full responses to every method."""
        made: list[Task] = []
        for _ in range(count):
            middle = self.median * math.exp(rng.gauss(0.0, self.between))
            drafts, answers = (tuple(self._length(middle, rng) for _ in range(self.group)) for _ in range(2))
            mean = min(self.most, middle * math.exp(self.within**2 / 2))
            stop = max(1, round(rng.uniform(self.low, self.high) * mean))
            if method == "grpo":
                made.append((Stage(self.prompt, answers),))
                continue
            segments = tuple(min(stop, n) for n in drafts)
            saved = round(self.goes_on * segments[0])
            rest = tuple(max(1, n - saved) for n in answers)
            made.append((Stage(self.prompt, segments), Stage(self.prompt + segments[0], rest)))
        return made

    def _length(self, middle: float, rng: random.Random) -> int:
        return min(self.most, max(1, round(middle * math.exp(rng.gauss(0.0, self.within)))))
