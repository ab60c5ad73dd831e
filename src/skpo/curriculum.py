"""Which problems a step sees: uniform, prioritised by a value tracker, or near half right. Draws depend on (seed, step) and state alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from skpo.credit import AccuracyTable, Tracker
from skpo.errors import ConfigError
from skpo.problems.base import Problem
from skpo.rollout.types import Group, derive_seed


def priority(value: float, floor: float = 0.05) -> float:
    """sqrt(V (1 - V)) + 0.05, V in [0, 1]: problems solved half of the time first (SPO, arXiv 2509.13232)."""
    return math.sqrt(max(value * (1 - value), 0.0)) + floor


def gaussian_weight(accuracy: float, centre: float = 0.5, width: float = 0.35) -> float:
    """exp(-(p - 0.5)^2 / (2 * 0.35^2)), no floor (EXPO, arXiv 2605.09923)."""
    return math.exp(-((accuracy - centre) ** 2) / (2 * width**2))


class Sampler:
    """Draws problems without replacement within a step.

    `weight` gives a problem id's weight now; None draws uniformly: epoch by epoch, so that all problems are seen equally often.
    """

    def __init__(self, problems: Sequence[Problem], seed: int, weight: Callable[[str], float] | None = None) -> None:
        if not problems:
            raise ConfigError("no problems to train on")
        self.problems, self.seed, self.weight = list(problems), seed, weight
        self.drawn = 0  #: problems drawn so far; the position within the epochs of a uniform draw

    def draw(self, n: int, step: int, taken: Collection[str] = ()) -> list[Problem]:
        """Up to `n` problems for this step, none of them in `taken` (ids); fewer only when the pool has no more."""
        n = min(n, len(self.problems) - len(taken))
        if n <= 0:
            return []
        return self._uniform(n, taken) if self.weight is None else self._weighted(n, step, taken)

    def _uniform(self, n: int, taken: Collection[str]) -> list[Problem]:
        chosen: list[Problem] = []
        seen = set(taken)
        size = len(self.problems)
        while len(chosen) < n:
            epoch, place = divmod(self.drawn, size)
            order = np.random.default_rng(derive_seed(self.seed, "epoch", epoch)).permutation(size)
            while place < size and len(chosen) < n:
                problem = self.problems[order[place]]
                place += 1
                self.drawn += 1
                if problem.id not in seen:  # an epoch's end and the next one's start may meet in one step
                    seen.add(problem.id)
                    chosen.append(problem)
        return chosen

    def _weighted(self, n: int, step: int, taken: Collection[str]) -> list[Problem]:
        assert self.weight is not None
        rng = np.random.default_rng(derive_seed(self.seed, "problems", step, self.drawn))
        pool = [p for p in self.problems if p.id not in taken]
        # Gumbel-top-k is sampling without replacement with probabilities proportional to the weights.
        keys = np.log([max(self.weight(p.id), 1e-12) for p in pool]) + rng.gumbel(size=len(pool))
        self.drawn += n
        return [pool[i] for i in np.argsort(-keys, kind="stable")[:n]]

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.drawn = int(state["drawn"])


class TrackedSampler(Sampler):
    """Prioritised sampling for an algorithm that keeps no values itself: its own tracker of each problem's success rate."""

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        self.values = Tracker()
        super().__init__(problems, seed, lambda key: priority(self.values.value(key)))

    def observe(self, groups: Sequence[Group], optimizer_step: int) -> None:
        """Take each problem's share of correct completions in."""
        for group in groups:
            if group.completions:
                self.values.update(
                    group.problem.id, float(np.mean([s.correct for s in group.completions])), step=optimizer_step
                )

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"values": self.values.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.values.load_state_dict(state["values"])


class GaussianSampler(Sampler):
    """Gaussian curriculum (GCS; EXPO, arXiv 2605.09923), for any algorithm: problems that are right half of the time first.

    Weights come from the table as it was before the step; the step's shares of correct completions then go in. Problems that were not
    drawn keep theirs. Groups that dynamic sampling replaced count: they were measured as well.
    """

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        self.table = AccuracyTable()
        super().__init__(problems, seed, lambda key: gaussian_weight(self.table.value(key)))

    def observe(self, groups: Sequence[Group], optimizer_step: int) -> None:
        """Take each problem's share of correct completions in."""
        for group in groups:
            if group.completions:
                self.table.update(group.problem.id, float(np.mean([s.correct for s in group.completions])))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"accuracy": self.table.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.table.load_state_dict(state["accuracy"])
