"""Where SKPO can gain on an early decision: arithmetic, and a table in place of a network.

    python -m benchmarks.early_decision [--seeds 12] [--json FILE]

A response first takes one of K routes, right with probability p, then works: `steps` results, each right with probability q
and learnable, and a guess among `luck` values, which nobody can learn. It is right if all of it is. The policy is a table: a
logit per mark and route, and per step context and result. Each optimiser step moves all logits along the gradient of the
algorithm's own objective, scaled to a fixed length: as with Adam in a network, what one part of the gradient takes, the
other lacks. The guess has no logit, but its score counts as noise in that length.

Objectives are those of the recipes: GRPO's mean over sequences of token means; SKPO's 0.5 upstream + 0.5 downstream, with
segments of 1/6 to 1/2 of a response, advantages over the batch (no baseline: every problem is new) and its reliability weight.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH, GROUP = 32, 8
STORE = Path(__file__).parent.parent / "docs" / "results" / "early_decision.json"


@dataclass(frozen=True)
class Task:
    """A fork in numbers. length: tokens of a response; plan: those before its first step, which has 7."""

    p: float = 0.367
    q: float = 0.919
    steps: int = 3
    luck: int = 8
    routes: int = 3
    marks: int = 10
    contexts: int = 280
    length: int = 35
    plan: int = 10

    @property
    def walk(self) -> float:
        """Success after the right decision."""
        return self.q**self.steps / self.luck

    def shares(self) -> dict[str, float]:
        """What a response's verdict, and the mean of GROUP behind one segment, say about the decision: squared correlations.
        information: the second against GROUP times the first, since GRPO has GROUP decisions where SKPO has one."""
        decision = self.walk**2 * self.p * (1 - self.p)
        work = self.p * self.walk * (1 - self.walk)
        single, mean = decision / (decision + work), decision / (decision + work / GROUP)
        return {"walk": self.walk, "single": single, "mean": mean, "information": mean / (GROUP * single)}


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def pick(rng: np.random.Generator, p: np.ndarray) -> np.ndarray:
    """Indices drawn from distributions over the last axis."""
    return np.asarray((rng.random(p.shape[:-1])[..., None] > p.cumsum(-1)).sum(-1).clip(0, p.shape[-1] - 1))


def normalised(reward: np.ndarray) -> np.ndarray:
    """Group-normalised over the last axis; 0 where all are equal."""
    spread = reward.std(-1, ddof=1, keepdims=True)
    return np.where(spread > 0, (reward - reward.mean(-1, keepdims=True)) / (spread + 1e-6), 0.0)


class Table:
    """The policy: logits of routes [marks, routes] and of results [contexts, 10]; index 0 is right."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.route = np.zeros((task.marks, task.routes))
        self.route[:, 0] = np.log(task.p / ((1 - task.p) / (task.routes - 1)))
        self.result = np.zeros((task.contexts, 10))
        self.result[:, 0] = np.log(task.q / ((1 - task.q) / 9))
        self.clear()

    def clear(self) -> None:
        self.gradients, self.noise = [np.zeros_like(self.route), np.zeros_like(self.result)], 0.0

    def add(self, part: int, at: np.ndarray, taken: np.ndarray, weight: np.ndarray) -> None:
        """Add weight * grad log pi of what was taken at these rows."""
        p = softmax((self.route, self.result)[part])[at]
        np.add.at(self.gradients[part], at, -weight[..., None] * p)
        np.add.at(self.gradients[part], (at, taken), weight)

    def add_guess(self, weight: np.ndarray) -> None:
        self.noise += float((weight**2).sum()) * (1 - 1 / self.task.luck)

    def step(self, size: float) -> None:
        norm = np.sqrt(sum(float((g**2).sum()) for g in self.gradients) + self.noise) + 1e-12
        self.route += size * self.gradients[0] / norm
        self.result += size * self.gradients[1] / norm
        self.clear()


def learn(task: Task, algorithm: str, seed: int, steps: int, size: float = 1.0) -> np.ndarray:
    """Share of right decisions and of right responses before each of `steps` optimiser steps and at the end: [steps + 1, 2]."""
    rng, table, t = np.random.default_rng(seed), Table(task), task
    curve = []
    for _ in range(steps + 1):
        routes, results = softmax(table.route), softmax(table.result)
        right = routes[:, 0].mean()
        curve.append((right, right * results[:, 0].mean() ** t.steps / t.luck))
        marks = rng.integers(t.marks, size=BATCH)
        contexts = rng.integers(t.contexts, size=(BATCH, GROUP, t.steps))
        made = pick(rng, results[contexts])
        lucky = rng.random((BATCH, GROUP)) < 1 / t.luck
        if algorithm == "grpo":
            each = np.repeat(marks[:, None], GROUP, 1)
            chosen = pick(rng, routes[each])
            weight = normalised(((chosen == 0) & (made == 0).all(-1) & lucky).astype(float)) / (
                t.length * BATCH * GROUP
            )
            table.add(0, each, chosen, weight)
            table.add(1, contexts, made, np.repeat(weight[..., None], t.steps, -1))
            table.add_guess(weight)
        else:
            length = rng.uniform(t.length / 6, t.length / 2, size=BATCH).round()
            before = np.arange(t.steps) < np.floor((length - t.plan) / 7).clip(0, t.steps)[:, None]
            chosen, first = pick(rng, routes[marks]), contexts[:, 0]
            held = pick(rng, results[first])
            fine = (chosen == 0) & ((held == 0) | ~before).all(-1)
            reward = (fine[:, None] & ((made == 0) | before[:, None]).all(-1) & lucky).astype(float)
            weight = 0.5 * normalised(reward) / ((t.length - length).sum() * GROUP)
            table.add(1, contexts, made, weight[..., None] * ~before[:, None])
            table.add_guess(weight)
            value, p = 2 * reward.mean(-1) - 1, reward.mean(-1)
            spread = value.var(ddof=1)
            reliability = 1.0
            if algorithm == "skpo reliability":
                reliability = max(0.0, 1 - (4 * p * (1 - p) / (GROUP - 1)).mean() / spread) if spread > 0 else 0.0
            up = 0.5 * reliability * (value - value.mean()) / (np.sqrt(spread) + 1e-6) / (BATCH * length)
            table.add(0, marks, chosen, up)
            table.add(1, first, held, up[:, None] * before)
        table.step(size)
    return np.array(curve)


TASKS = {
    "fork": Task(),
    "luck 4": Task(luck=4),
    "nothing smudged (luck 1)": Task(luck=1),
    "careless steps, luck 1": Task(q=0.6, luck=1),
}


def study(seeds: int, steps: int = 25) -> list[dict[str, Any]]:
    """Every task and algorithm: the arithmetic, and mean and standard error over seeds of the curve of `learn`."""
    found = []
    for name, task in TASKS.items():
        for algorithm in ("grpo", "skpo", "skpo reliability"):
            curves = np.stack([learn(task, algorithm, seed, steps) for seed in range(seeds)])
            mean, error = curves.mean(0).round(4).tolist(), (curves.std(0, ddof=1) / np.sqrt(seeds)).round(4).tolist()
            found.append(
                {"task": name, **asdict(task), **task.shares(), "algorithm": algorithm, "curve": mean, "stderr": error}
            )
    return found


def table(found: list[dict[str, Any]] | None = None, at: tuple[int, ...] = (10, 25)) -> str:
    """Markdown of a study (default: the one in docs/results), ± one standard error over seeds."""
    found = found or json.loads(STORE.read_text())
    heads = [f"{what}, {n} steps" for what in ("right route", "right response") for n in at]
    lines = [
        f"| task | r | one verdict | mean of 8 | algorithm | {' | '.join(heads)} |",
        "|---" * (5 + len(heads)) + "|",
    ]
    for row in found:
        about = " | ".join(f"{row[key]:.2f}" for key in ("walk", "single", "mean"))
        cells = " | ".join(f"{row['curve'][n][k]:.3f} ± {row['stderr'][n][k]:.3f}" for k in (0, 1) for n in at)
        lines.append(f"| {row['task']} | {about} | {row['algorithm']} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Expected learning of an early decision by GRPO and SKPO.")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = study(options.seeds)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
