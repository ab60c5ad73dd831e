"""From rewards to advantages, and the trackers that remember a problem between its visits.

Statistics are computed in float64 whatever comes in. "All rewards equal" is decided on max - min, never on a computed
standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-6


def group_statistics(values: Tensor, group: Tensor, ddof: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(mean, standard deviation, size, all-equal flag) of each row's group, each [N], float64 (flag: bool).

    values [N] float, group [N] int. `ddof` 1 is the sample deviation (divisor G - 1), 0 the population one.
    """
    values = values.double()
    _, index = torch.unique(group, return_inverse=True)
    n = int(index.max()) + 1 if len(index) else 0
    size = torch.zeros(n, dtype=torch.float64).index_add_(0, index, torch.ones_like(values))
    mean = torch.zeros(n, dtype=torch.float64).index_add_(0, index, values) / size
    square = torch.zeros(n, dtype=torch.float64).index_add_(0, index, (values - mean[index]).square())
    deviation = (square / (size - ddof).clamp(min=1)).sqrt()
    high = torch.full((n,), -math.inf, dtype=torch.float64).scatter_reduce_(0, index, values, "amax")
    low = torch.full((n,), math.inf, dtype=torch.float64).scatter_reduce_(0, index, values, "amin")
    return mean[index], deviation[index], size[index], (high - low == 0)[index]


def group_relative(reward: Tensor, group: Tensor, *, ddof: int = 1, scale: bool = True) -> Tensor:
    """A = (R - mean) / (sd + 1e-6) within each group, [N]; exactly 0 where all are equal (GRPO, arXiv 2402.03300).

    `scale=False` leaves the division out (Dr.GRPO, arXiv 2503.20783).
    """
    mean, deviation, _, equal = group_statistics(reward, group, ddof)
    centred = reward.double() - mean
    return torch.where(equal, torch.zeros_like(centred), centred / (deviation + EPSILON) if scale else centred)


def leave_one_out(reward: Tensor, group: Tensor) -> Tensor:
    """R_i minus the mean of the others in its group = G/(G-1) (R_i - mean), [N]; 0 for a group of one (RLOO)."""
    mean, _, size, equal = group_statistics(reward, group)
    advantages = size / (size - 1).clamp(min=1) * (reward.double() - mean)
    return torch.where(equal, torch.zeros_like(advantages), advantages)


def batch_normalized(values: Tensor) -> Tensor:
    """(A - mean) / (sd + 1e-6) over the rows, sample deviation; fewer than two rows: unchanged; all equal: 0."""
    values = values.double()
    if len(values) < 2:
        return values
    if float(values.max() - values.min()) == 0:
        return torch.zeros_like(values)
    return (values - values.mean()) / (values.std() + EPSILON)


def whitened(values: Tensor, mask: Tensor) -> Tensor:
    """Zero mean, unit variance over the batch's trained tokens (REINFORCE++, arXiv 2501.03262).

    values [N] (weighted by each row's trained tokens) or [N, T]; mask [N, T]. Divisor tokens - 1, epsilon 1e-6.
    """
    values, mask = values.double(), mask.double()
    weight = mask.sum(-1) if values.dim() == 1 else mask
    count = weight.sum()
    if count < 2:
        return values
    trained = values[weight > 0]
    if float(trained.max() - trained.min()) == 0:
        return torch.zeros_like(values)
    mean = (values * weight).sum() / count
    variance = ((values - mean).square() * weight).sum() / (count - 1)
    return (values - mean) / (variance.sqrt() + EPSILON)


def overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """Soft overlong penalty (DAPO, arXiv 2503.14476): 0 up to limit - buffer tokens, falling to -1 at `limit` and beyond."""
    if buffer <= 0:
        return -1.0 if length > limit else 0.0
    return min(0.0, max(-1.0, (limit - buffer - length) / buffer))


class Tracker:
    """A value per problem that follows a moving target (SPO, arXiv 2509.13232; SKPO section 3.3).

    V <- V + eta (x - V), eta = 1 / (rho N + 1), then N <- rho N + 1; rho = 2^(-D / half_life) clamped to
    [rho_min, rho_max]. D is how far the policy has moved since the problem's last visit: in optimiser steps, or in the
    units of any distance with its own half-life. Before any observation V = start and N = 0: the first one overwrites it.
    """

    def __init__(
        self, *, half_life: float = 8.0, rho_min: float = 0.875, rho_max: float = 0.96, start: float = 0.5
    ) -> None:
        self.half_life, self.rho_min, self.rho_max, self.start = half_life, rho_min, rho_max, start
        self.entries: dict[str, tuple[float, float, int]] = {}  #: problem id -> value, count, step of the last visit

    def value(self, problem_id: str) -> float:
        """Today's value, in the observations' own range."""
        return self.entries[problem_id][0] if problem_id in self.entries else self.start

    def count(self, problem_id: str) -> float:
        """Effective number of observations behind the value."""
        return self.entries[problem_id][1] if problem_id in self.entries else 0.0

    def rho(self, distance: float) -> float:
        """Forgetting factor for a policy that moved by `distance`."""
        return min(self.rho_max, max(self.rho_min, 2.0 ** (-distance / self.half_life)))

    def update(self, problem_id: str, observation: float, *, step: int = 0, distance: float | None = None) -> float:
        """Take an observation in; returns the new value. `distance` None: optimiser steps since the last visit."""
        value, count, last = self.entries.get(problem_id, (self.start, 0.0, step))
        rho = self.rho(step - last if distance is None else distance)
        value += (observation - value) / (rho * count + 1)
        self.entries[problem_id] = (value, rho * count + 1, step)
        return value

    def seed(self, problem_id: str, value: float, count: float, step: int = 0) -> None:
        """Warm start: a value known from `count` observations made elsewhere."""
        self.entries[problem_id] = (value, count, step)

    def state_dict(self) -> dict[str, Any]:
        return {"entries": {key: list(entry) for key, entry in self.entries.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.entries = {key: (float(v), float(n), int(s)) for key, (v, n, s) in state["entries"].items()}


class AccuracyTable:
    """p <- 0.9 p + 0.1 x for each problem, from 0.5; x is the share of its rollouts that are correct (EXPO, arXiv 2605.09923)."""

    def __init__(self, *, rate: float = 0.1, start: float = 0.5) -> None:
        self.rate, self.start = rate, start
        self.entries: dict[str, float] = {}

    def value(self, problem_id: str) -> float:
        """Today's p, in [0, 1]."""
        return self.entries.get(problem_id, self.start)

    def update(self, problem_id: str, observation: float) -> float:
        """Take an observation in; returns the new p."""
        self.entries[problem_id] = (1 - self.rate) * self.value(problem_id) + self.rate * observation
        return self.entries[problem_id]

    def state_dict(self) -> dict[str, Any]:
        return {"entries": dict(self.entries)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.entries = {key: float(p) for key, p in state["entries"].items()}
