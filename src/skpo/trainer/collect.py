"""Rolling out and verifying one step's problems, in one continuous batch; dynamic sampling on top."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skpo.algorithms.base import Algorithm
from skpo.config import TrainConfig
from skpo.curriculum import Sampler
from skpo.evaluation import Evaluation
from skpo.evaluation.run import evaluated, evaluation
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext
from skpo.rollout.types import EngineStats, Group, PlanRun, Sampling, derive_seed
from skpo.trainer.judge import Judge, drop_unscored
from skpo.trainer.processes import fail_together, merged, own_share

if TYPE_CHECKING:
    from skpo.trainer.setup import Parts

T = TypeVar("T")


@dataclass
class Rollout:
    """A step's groups: those kept for training, and all that were sampled."""

    groups: list[Group]
    all_groups: list[Group]
    metrics: dict[str, Any] = field(default_factory=dict)
    seconds_rollout: float = 0.0
    seconds_verify: float = 0.0


@dataclass
class Ahead:
    """The first rollouts of a step: under way, or done.

    count: problems. job: gives number of the problem -> its group, and the engine's counters. sampler: its state before the draw.
    """

    step: int
    count: int
    job: Future[tuple[dict[int, Group], EngineStats]]
    sampler: dict[str, Any] = field(default_factory=dict)


class Collector:
    """Samples and scores problems with the run's engine and verifiers.

    ahead: the rollouts of the next step, begun while this one trains (`rollout.ahead`).
    """

    def __init__(self, config: TrainConfig, algorithm: Algorithm, parts: Parts, sampler: Sampler) -> None:
        self.config, self.algorithm, self.parts, self.sampler = config, algorithm, parts, sampler
        self.judge = Judge(parts.pool, parts.renderer.decode, config.problems.verifier)
        model = parts.policy.model.config
        model = model.get_text_config() if hasattr(model, "get_text_config") else model
        self.positions: int | None = getattr(model, "max_position_embeddings", None)
        self.ahead: Ahead | None = None
        self._taken: list[EngineStats] = []  # counters of this step so far
        self._background = ThreadPoolExecutor(1, thread_name_prefix="rollouts")

    def begin(self, step: int) -> None:
        """Start a step's rollouts with the weights, trackers and problem weights of now; `collect` waits for them.

        Only the first round: what dynamic sampling asks for beyond it is sampled in `collect`, with the weights of then.
        """
        before = self.sampler.state_dict()
        problems = self.sampler.draw(self.config.problems_per_step, step, ())
        if problems:
            self.ahead = Ahead(step, len(problems), self._background.submit(self._sampled(problems, step)), before)

    def settle(self) -> None:
        """Wait until nothing is under way: the engine and the judge are free, and what was begun is at hand."""
        if self.ahead is not None:
            self.ahead.job.result()

    def give_up(self, before: dict[str, Any]) -> None:
        """Forget a step whose rollouts failed; `before`: the sampler's state before it, where it was not begun ahead."""
        self.sampler.load_state_dict(before if self.ahead is None else self.ahead.sampler)
        self.ahead = None

    def state_dict(self) -> dict[str, Any] | None:
        """What was begun ahead, finished: for a checkpoint. None where nothing was."""
        if self.ahead is None:
            return None
        return {"step": self.ahead.step, "groups": self._gathered(self.ahead), "sampler": self.ahead.sampler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        job: Future[tuple[dict[int, Group], EngineStats]] = Future()
        job.set_result((dict(enumerate(state["groups"])), EngineStats()))
        self.ahead = Ahead(state["step"], len(state["groups"]), job, state["sampler"])

    def collect(self, step: int) -> Rollout:
        """Roll the step's problems out. Where the algorithm refuses a group (dynamic sampling), further problems are drawn until
        the batch is full or `max_rounds` times the step's problems have been sampled."""
        wanted, most = self.config.problems_per_step, self.algorithm.max_rounds * self.config.problems_per_step
        kept: list[Group] = []
        everything: list[Group] = []
        self.judge.seconds = rollout_seconds = 0.0
        skipped = rounds = 0
        while len(kept) < wanted and len(everything) < most:
            begin, waited = time.perf_counter(), self.judge.seconds
            if self.ahead is not None and self.ahead.step == step:
                groups = self._gathered(self.ahead)
                self._taken.append(self.ahead.job.result()[1])
                self.ahead, self.judge.seconds = None, waited
            else:
                missing = min(wanted - len(kept), most - len(everything))
                problems = self.sampler.draw(missing, step, {g.problem.id for g in everything})
                if not problems:
                    break
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
        if self.config.rollout.engine == "ray":
            metrics["version_lag"] = version_lag(kept, step)
        observe = getattr(self.sampler, "observe", None)
        if observe is not None:
            observe(everything, self.parts.updater.updates)
        return Rollout(kept, everything, metrics, rollout_seconds, self.judge.seconds)

    def _roll_out(self, problems: Sequence[Problem], step: int) -> list[Group]:
        """Groups of the problems, in their order, scored; gathered from all processes, each of which samples its share."""
        job: Future[tuple[dict[int, Group], EngineStats]] = Future()
        with fail_together(self.parts.accelerator):
            job.set_result(self._sampled(problems, step)())
        self._taken.append(job.result()[1])
        return self._gathered(Ahead(step, len(problems), job))

    def _sampled(self, problems: Sequence[Problem], step: int) -> Callable[[], tuple[dict[int, Group], EngineStats]]:
        """A function that samples and scores this process's share: see `Ahead.job`. The plans are made now."""
        mine = self._share(list(range(len(problems))))
        running = self.parts.engine.run([self._plan(problems[j], step) for j in mine])

        def sample() -> tuple[dict[int, Group], EngineStats]:
            done: dict[int, Group] = {}
            for i, group in running:
                self.judge.submit(group)
                done[mine[i]] = group
            self.judge.finish()
            return done, self.parts.engine.take_stats()

        return sample

    def _share(self, items: list[T]) -> list[T]:
        """What of these this process samples: an even part, or with a pool of workers all in the first process."""
        if self.config.rollout.engine != "ray":
            return own_share(self.parts.accelerator, items)
        return items if self.parts.accelerator.is_main_process else []

    def _gathered(self, rollouts: Ahead) -> list[Group]:
        """The groups of all processes, in the order of their problems."""
        with fail_together(self.parts.accelerator):
            own = rollouts.job.result()[0]
        done = merged(self.parts.accelerator, own)
        return [done[i] for i in range(rollouts.count)]

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
        """Counters of all processes' engines: prompt tokens in all, decode steps of the longest, rows per decode step of each,
        and how many of them were computed."""
        own, self._taken = self._taken, []
        everyones = merged(self.parts.accelerator, {self.parts.accelerator.process_index: own}).values()
        steps = [sum(s.steps for s in each) for each in everyones]
        taken = [s for each in everyones for s in each]
        out: dict[str, float] = {
            "tokens_prefilled": sum(s.prefill_tokens for s in taken),
            "engine_steps": max(steps),
            "slots_busy": sum(s.rows for s in taken) / max(sum(steps), 1),
            "slots_computed": sum(s.computed for s in taken) / max(sum(steps), 1),
        }
        for name in dict.fromkeys(name for s in taken for name in s.more):
            values = [s.more[name] for s in taken if name in s.more]
            out[name] = values[-1] if name == "workers" else max(values) if name == "probe_deviation" else sum(values)
        return out

    def evaluate(self, problems: Sequence[Problem], samples: int, sampling: Sampling, max_tokens: int) -> Evaluation:
        """Held-out evaluation on the same engine, with the weights of now; its tokens are not the run's."""
        ks, accelerator = (1, samples), self.parts.accelerator
        with fail_together(accelerator):
            self.settle()
            mine = evaluated(
                self.parts.engine, self.parts.renderer, self.judge, self._share(list(problems)),
                samples=samples, sampling=sampling, max_tokens=max_tokens, seed=self.config.seed,
            )  # fmt: skip
        result = evaluation("held-out", samples, ks, problems, merged(accelerator, mine))
        self._taken.append(EngineStats(more=self.parts.engine.take_stats().more))
        return result


def version_lag(groups: Sequence[Group], version: int) -> float:
    """Staleness: by how many weight versions the trained samples are older than `version`, mean."""
    lags = [version - s.version for g in groups for s in g.samples]
    return float(np.mean(lags)) if lags else 0.0
