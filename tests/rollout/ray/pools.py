"""What the tests of the pool share: settings, plans, samples in a form that can be compared."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from skpo.config import TrainConfig
from skpo.policy.loading import LoadedPolicy
from skpo.policy.prompts import PromptRenderer
from skpo.problems import load_problems
from skpo.rollout.plans import PlanContext, skip_plan
from skpo.rollout.ray.pool import RolloutPool
from skpo.rollout.types import Group, PlanRun, derive_seed
from skpo.settings import load_config

SMALL = {
    "include_dashboard": False,
    "object_store_memory": 100 * 2**20,
    "logging_level": "ERROR",
    "log_to_driver": False,
}


class Told(RolloutPool):
    """A pool that keeps what it tells."""

    def __init__(self, config: TrainConfig, policy: LoadedPolicy) -> None:
        self.notes: list[str] = []
        super().__init__(config, policy, tell=self.notes.append)


def ray_config(*more: str) -> TrainConfig:
    """The chain recipe with rollouts on Ray."""
    return load_config("chain", ["engine=ray", "group_size=4", "rollout.max_completion_tokens=96", *more])


def runs(pool: RolloutPool, count: int, step: int = 0) -> list[PlanRun]:
    """SKPO's plan for the first problems of the recipe."""
    config = pool.config
    renderer = PromptRenderer(pool.policy.tokenizer, config.model, pool.policy.chat)
    made = []
    for problem in load_problems(config.problems.train)[:count]:
        seed = derive_seed(0, step, problem.id)
        context = PlanContext(renderer, 4, 96, rng=np.random.default_rng(seed))
        made.append(PlanRun(skip_plan(problem, context, length=74), seed))
    return made


def in_order(found: Iterable[tuple[int, Group]]) -> list[Group]:
    groups = dict(found)
    return [groups[i] for i in range(len(groups))]


def tokens(groups: Iterable[Group]) -> list[Any]:
    """Everything that was sampled, by problem."""
    return [(g.problem.id, [(s.seed, s.tokens.tolist()) for s in [*g.samples, *g.unused]]) for g in groups]


def killing(pool: RolloutPool, found: Iterator[tuple[int, Group]], *numbers: int) -> list[Group]:
    """The groups of a run in which, after the first group, the workers `numbers` are killed with plans under way."""
    groups = dict([next(found)])
    for number in numbers:
        assert pool.members[number].flight
        os.kill(pool.members[number].pid, signal.SIGKILL)
    groups.update(found)
    return [groups[i] for i in range(len(groups))]
