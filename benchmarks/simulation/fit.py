"""Prices the engine's work: the model counts it, measured runs give the seconds, non-negative least squares the price of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulation.pool import Cluster, roll_out
from benchmarks.simulation.worker import Speed, Task, Work

FREE = Speed((1,), (0.0,))


@dataclass(frozen=True)
class Timed:
    """A run of one engine: its work, its seconds."""

    work: Work
    seconds: float


def counted(tasks: Sequence[Task], slots: int) -> Work:
    """The work of one engine on these tasks."""
    return roll_out(tasks, Cluster(FREE, slots=slots)).work[0]


def features(work: Work, knots: Sequence[int]) -> np.ndarray:
    """Counts [len(knots) + 7] whose product with the prices is seconds: decode steps shared out to the knots beside their
    number of rows, own and context tokens attended to, contexts in use, tokens and rounds of prefill, moments of ending, runs."""
    steps = np.zeros(len(knots))
    for rows, n in work.by_rows.items():
        for i in range(len(knots)):
            unit = tuple(float(j == i) for j in range(len(knots)))
            steps[i] += n * Speed(tuple(knots), unit).bare_step(rows)
    return np.array([*steps, work.own, work.context, work.groups, work.prefill, work.admissions, work.ended, 1.0])


def fit(runs: Sequence[Timed], knots: Sequence[int]) -> tuple[Speed, float]:
    """(speed, root mean square of its relative errors on `runs`). Every run weighs the same, whatever its length."""
    x = np.stack([features(run.work, knots) for run in runs])
    y = np.array([run.seconds for run in runs])
    prices = nonnegative(x / y[:, None], np.ones(len(y)))
    error = float(np.sqrt(np.mean((x @ prices / y - 1) ** 2)))
    k = len(knots)
    rest = (float(p) for p in prices[k:])
    step = tuple(float(p) for p in prices[:k])
    return Speed(tuple(knots), step, *rest), error


def nonnegative(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """argmin |x p - y| over p >= 0, by cyclic coordinate descent; x: [N, K], y: [N]."""
    scale = np.linalg.norm(x, axis=0)
    scale[scale == 0] = 1.0
    gram, target = (x / scale).T @ (x / scale), (x / scale).T @ y
    p = np.zeros(x.shape[1])
    for _ in range(20_000):
        before = p.copy()
        for j in range(len(p)):
            if gram[j, j] > 0:
                p[j] = max(0.0, p[j] + (target[j] - gram[j] @ p) / gram[j, j])
        if np.abs(p - before).max() <= 1e-12 * max(1.0, np.abs(p).max()):
            break
    return p / scale
