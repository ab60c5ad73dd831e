"""Rolling out and verifying one step's problems, in one continuous batch; dynamic sampling on top."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skpo.algorithms.base import Algorithm
from skpo.config import TrainConfig
from skpo.curriculum import Sampler
from skpo.evaluation import Evaluation, run_evaluation
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext
from skpo.rollout.types import Group, PlanRun, Sampling, derive_seed
from skpo.trainer.judge import Judge, drop_unscored

if TYPE_CHECKING:
    from skpo.trainer.setup import Parts


@dataclass
class Rollout:
    """A step's groups: those kept for training, and all that were sampled."""

    groups: list[Group]
    all_groups: list[Group]
    metrics: dict[str, Any] = field(default_factory=dict)
    seconds_rollout: float = 0.0
    seconds_verify: float = 0.0


class Collector:
    """Samples and scores problems with the run's engine and verifiers."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm, parts: Parts, sampler: Sampler) -> None:
        self.config, self.algorithm, self.parts, self.sampler = config, algorithm, parts, sampler
        self.judge = Judge(parts.pool, parts.renderer.decode, config.problems.verifier)
        model = parts.policy.model.config
        model = model.get_text_config() if hasattr(model, "get_text_config") else model
        self.positions: int | None = getattr(model, "max_position_embeddings", None)

    def collect(self, step: int) -> Rollout:
        """Roll the step's problems out. Where the algorithm refuses a group (dynamic sampling), further problems are drawn until
        the batch is full or `max_rounds` times the step's problems have been sampled."""
        wanted, most = self.config.problems_per_step, self.algorithm.max_rounds * self.config.problems_per_step
        kept: list[Group] = []
        everything: list[Group] = []
        self.judge.seconds = rollout_seconds = 0.0
        skipped = rounds = 0
        while len(kept) < wanted and len(everything) < most:
            missing = min(wanted - len(kept), most - len(everything))
            problems = self.sampler.draw(missing, step, {g.problem.id for g in everything})
            if not problems:
                break
            begin, waited = time.perf_counter(), self.judge.seconds
            groups = self._roll_out(problems, step)
            rollout_seconds += time.perf_counter() - begin - (self.judge.seconds - waited)
            skipped += sum(drop_unscored(g) for g in groups)
            for group in groups:
                self.algorithm.credit(group)
            everything.extend(groups)
            kept.extend(g for g in groups if g.samples and self.algorithm.keep(g))
            rounds += 1
        metrics: dict[str, Any] = self._statistics() | {"unscored": skipped}
        if self.algorithm.max_rounds > 1:
            metrics |= {"sampling_rounds": rounds, "problems_sampled": len(everything), "problems_kept": len(kept)}
        observe = getattr(self.sampler, "observe", None)
        if observe is not None:
            observe(everything, self.parts.updater.updates)
        return Rollout(kept, everything, metrics, rollout_seconds, self.judge.seconds)

    def _roll_out(self, problems: Sequence[Problem], step: int) -> list[Group]:
        """Groups of the problems, in their order, scored; gathered from all processes, each of which samples its share."""
        accelerator = self.parts.accelerator
        mine = list(range(len(problems)))[accelerator.process_index :: accelerator.num_processes]
        done: dict[int, Group] = {}
        for i, group in self.parts.engine.run([self._plan(problems[j], step) for j in mine]):
            self.judge.submit(group)
            done[mine[i]] = group
        self.judge.finish()
        if accelerator.num_processes > 1:
            from accelerate.utils import gather_object

            done = dict(gather_object(list(done.items())))
        return [done[i] for i in range(len(problems))]

    def _plan(self, problem: Problem, step: int) -> PlanRun:
        c = self.config
        seed = derive_seed(c.seed, step, problem.id)
        context = PlanContext(
            self.parts.renderer, c.group_size, c.rollout.max_completion_tokens, self.parts.sampling, step,
            np.random.default_rng(derive_seed(seed, "plan")),
            judge=partial(self.judge.score_now, problem), positions=self.positions,
        )  # fmt: skip
        return PlanRun(self.algorithm.plan(problem, context), seed)

    def _statistics(self) -> dict[str, float]:
        stats = self.parts.engine.take_stats()
        return {
            "tokens_prefilled": stats.prefill_tokens,
            "engine_steps": stats.steps,
            "slots_busy": stats.rows / max(stats.steps, 1),
            **stats.more,
        }

    def evaluate(self, problems: Sequence[Problem], samples: int, sampling: Sampling, max_tokens: int) -> Evaluation:
        """Held-out evaluation on the same engine; its tokens are not the run's."""
        ks = (1, samples)
        result = run_evaluation(
            self.parts.engine, self.parts.renderer, self.judge, problems,
            samples=samples, sampling=sampling, max_tokens=max_tokens, ks=ks, seed=self.config.seed,
        )  # fmt: skip
        self.parts.engine.take_stats()
        return result
