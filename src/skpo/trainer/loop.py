"""The training loop: sample problems, roll out, verify, credit, update, track, save."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skpo.algorithms import get_algorithm
from skpo.algorithms.base import Algorithm, StepContext
from skpo.config import TrainConfig
from skpo.curriculum import GaussianSampler, Sampler, TrackedSampler
from skpo.errors import ConfigError, WorkersLostError
from skpo.losses import masked_mean
from skpo.policy.budget import Row
from skpo.policy.spread import score_spread
from skpo.problems.base import Problem
from skpo.rollout.types import Group, Sampling
from skpo.trainer.ahead import read_ahead
from skpo.trainer.batch import StepBatch, pad, step_batch
from skpo.trainer.collect import Collector, Rollout
from skpo.trainer.processes import world_size
from skpo.trainer.report import failure_counts, rollout_metrics
from skpo.trainer.run import Run
from skpo.trainer.setup import Parts, build_parts, correction


@dataclass
class TrainResult:
    """How a run ended. Accuracies are held-out pass@1; None where the recipe has no held-out problems."""

    before: float | None
    after: float | None
    best: float | None
    out: Path
    steps: int


class Trainer:
    """Trains one policy with one algorithm, as the recipe says.

    config: the validated settings. resume: go on from the newest checkpoint in `config.out`. dry_run: replace the weights by a tiny
    random model of the same architecture, keep everything else. quiet: plain lines in place of a live display.

    Raises SkpoError subclasses for settings, problems, models and runs that can't be used.
    """

    def __init__(
        self, config: TrainConfig, *, resume: bool = False, dry_run: bool = False, quiet: bool = False
    ) -> None:
        self.config, self.resume, self.dry_run, self.quiet = config, resume, dry_run, quiet
        self.algorithm: Algorithm = make_algorithm(config)
        self.step = 0  #: rollout steps done
        self.totals: dict[str, float] = {"generated": 0, "trained": 0, "eval_generated": 0}

    def train(self) -> TrainResult:
        """Run (or go on) to the last step; returns accuracies before, after and best.

        With `processes` above 1 this launches them and waits; one that was launched itself (torchrun, `accelerate launch`) takes part.
        """
        if self.config.processes > 1 and world_size() == 1:
            from skpo.trainer.launch import launch

            return launch(self.config, resume=self.resume, dry_run=self.dry_run, quiet=self.quiet)
        with Run(self.config, resume=self.resume, quiet=self.quiet) as run:
            parts = build_parts(
                self.config,
                self.algorithm,
                resume_from=run.resume_from,
                dry_run=self.dry_run,
                tell=run.progress.note,
            )
            try:
                return self._train(run, parts)
            finally:
                parts.close()

    def _train(self, run: Run, parts: Parts) -> TrainResult:
        self.parts, self.run = parts, run
        run.begin(parts, self.config)
        self.sampler = make_sampler(self.config, self.algorithm, parts.problems)
        self.collector = Collector(self.config, self.algorithm, parts, self.sampler)
        if run.resume_from is not None:
            self._load(run.resume_from)
        run.open_logs(self.step)
        run.progress.start(self.config.steps, self.step, str(self.config.out))
        for note in parts.notes:
            run.progress.note(note)
        parts.engine.update_weights(None, self.step)
        if self.step == 0 and run.resume_from is None and parts.heldout and self.config.eval.at_start:
            run.record({"step": 0, **self._evaluate()})
        while self.step < self.config.steps and not self._out_of_budget():
            self._one_step()
        if parts.accelerator.is_main_process:
            run.finish()
        return self._result()

    def _expected_steps(self) -> int:
        """Steps of the whole run: the recipe's, or fewer where the token budget ends it sooner, at the average so far."""
        most, used = self.config.max_generated_tokens, self.totals["generated"]
        if most is None or not used:
            return self.config.steps
        return min(self.config.steps, max(self.step, math.ceil(self.step * most / used)))

    def _out_of_budget(self) -> bool:
        most = self.config.max_generated_tokens
        return most is not None and self.totals["generated"] >= most

    # ---- one step --------------------------------------------------------------------------------------------------

    def _one_step(self) -> None:
        begin = time.perf_counter()
        rollout = self._collect()
        rolled = time.perf_counter()
        if self.config.rollout.ahead and self.step + 1 < self.config.steps:
            self.collector.begin(self.step + 1)
        data = self._credit(rollout.groups)
        state_metrics = self.algorithm.observe(
            rollout.groups, StepContext(self.step, self.parts.updater.updates, self._score)
        )
        training = self._update(data)
        self.parts.engine.update_weights(None, self.step + 1)
        trained = time.perf_counter()

        self.step += 1
        generated = sum(g.generated_tokens for g in rollout.all_groups)
        self.totals["generated"] += generated
        self.totals["trained"] += training.get("tokens_trained", 0)
        record: dict[str, Any] = {
            "step": self.step,
            **rollout_metrics(rollout.groups),
            **training,
            **rollout.metrics,
            **state_metrics,
            "tokens_generated": generated,
            "tokens_generated_total": self.totals["generated"],
            "tokens_trained_total": self.totals["trained"],
        }
        if self.parts.recompute:
            record["logp_deviation"] = self.deviation
        if failures := failure_counts(rollout.all_groups):
            record["verify_failures"] = failures
        self._note_skips(record)
        if self.run.rollouts is not None:
            self.run.rollouts.write(self.step, rollout.all_groups)
        lost: WorkersLostError | None = None
        if self._due(self.config.eval_every) and self.parts.heldout:
            try:
                record |= self._evaluate()
            except WorkersLostError as error:
                lost = error
        total = time.perf_counter() - begin - record.get("eval_seconds", 0.0)
        record |= {
            "seconds_rollout": rollout.seconds_rollout,
            "seconds_verify": rollout.seconds_verify,
            "seconds_train": trained - rolled,
            "seconds_other": total - rollout.seconds_rollout - rollout.seconds_verify - (trained - rolled),
            "seconds": total,
            "tokens_per_second": generated / total,
        }
        self.run.progress.total = self._expected_steps()
        self.run.record(record)
        if lost is not None:
            raise self._saved(lost, self.sampler.state_dict())
        if self._due(self.config.checkpoint.every) or "eval_best" in record:
            self._save()

    def _collect(self) -> Rollout:
        """The step's rollouts. Where no worker is left to make them, the run is saved as it was before the step."""
        before = self.sampler.state_dict()
        try:
            return self.collector.collect(self.step)
        except WorkersLostError as error:
            raise self._saved(error, before) from None

    def _saved(self, error: WorkersLostError, sampler: dict[str, Any]) -> WorkersLostError:
        """Save the run without what was under way; the error that says so. Raised in one process, it is raised in all, which save
        together."""
        self.collector.give_up(sampler)
        self._save()
        return WorkersLostError(
            f"{error}. The run is saved after step {self.step}; go on with: skpo train --resume {self.config.out}"
        )

    def _credit(self, groups: Sequence[Group]) -> StepBatch:
        """Rows, behaviour and reference log-probabilities, and advantages of the step."""
        self._rescore(groups)
        data = step_batch(groups, mask_truncated=self.config.overlong == "mask")
        if not data.samples:
            return data
        rows: list[Row] = [data.row(i) for i in range(len(data.samples))]
        width = data.batch.mask.shape[1]
        self.deviation: float | None = None
        if self.parts.recompute or self.algorithm.needs_old_entropy:
            logps, entropies = self._score_all(rows)
            if self.parts.recompute:
                new = pad(logps, width)
                if not self.parts.sampling.truncated:
                    self.deviation = float(((new - data.batch.old_logp) * data.batch.mask).abs().max())
                data.batch.sampler_logp = data.batch.old_logp
                data.batch.logp = data.batch.old_logp = new
                data.batch.correction = correction(self.config)
            data.batch.old_entropy = pad(entropies, width)
        if self.algorithm.needs_reference:
            with self.parts.reference() as reference:
                data.batch.ref_logp = pad(self._score_all(rows, reference)[0], width)
        self.auxiliary_metrics: dict[str, float] = {}
        if self.parts.auxiliary is not None:
            self.auxiliary_metrics = self.parts.auxiliary.before_credit(rows, data.batch)
        data.advantages = self.algorithm.advantages(data.batch)
        per_row = data.advantages if data.advantages.dim() == 1 else masked_mean(data.advantages, data.batch.mask)
        for sample, advantage in zip(data.samples, per_row.tolist(), strict=True):
            sample.info["advantage"] = advantage
        return data

    def _update(self, data: StepBatch) -> dict[str, float]:
        """The optimiser steps of the algorithm's own model, if it has one, and of the policy; their metrics."""
        if not data.samples:
            return {}
        metrics: dict[str, float] = {}
        if self.parts.auxiliary is not None:
            rows: list[Row] = [data.row(i) for i in range(len(data.samples))]
            metrics = {**self.auxiliary_metrics, **self.parts.auxiliary.update(rows, data.batch)}
        metrics |= self.parts.updater.step(data, self.step)
        self.parts.gather_weights()
        return metrics

    def _rescore(self, groups: Sequence[Group]) -> None:
        """Behaviour log-probabilities of rows that are trained in another context than they were sampled in, under the former."""
        moved = [s for g in groups for s in g.samples if s.info.get("rescore")]
        if moved:
            for sample, logp in zip(moved, self._score([(s.context, s.tokens.tolist()) for s in moved]), strict=True):
                sample.logp = logp

    def _score_all(self, rows: Sequence[Row], model: Any = None) -> tuple[list[np.ndarray], list[np.ndarray]]:
        budget = self.config.optimizer.micro_batch_tokens
        return score_spread(self.parts.accelerator, model or self.parts.model, rows, budget=budget)

    def _score(self, pairs: Sequence[Row]) -> list[np.ndarray]:
        return self._score_all(pairs)[0]

    def _note_skips(self, record: dict[str, Any]) -> None:
        if self.parts.updater.skipped_in_a_row:
            self.run.progress.note(f"step {self.step}: a non-finite loss or gradient; its optimiser step was left out")
            record["skipped_in_a_row"] = self.parts.updater.skipped_in_a_row

    def _due(self, every: int) -> bool:
        last = self.step >= self.config.steps or self._out_of_budget()
        return last or (every > 0 and self.step % every == 0)

    # ---- evaluation ------------------------------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, Any]:
        """Held-out accuracy; remembers the best, and marks a record that is one."""
        begin = time.perf_counter()
        c = self.config.eval
        sampling = Sampling(c.temperature, c.top_p, c.top_k)
        result = self.collector.evaluate(
            self.parts.heldout, c.samples, sampling, c.max_tokens or self.config.rollout.max_completion_tokens
        )
        metrics: dict[str, Any] = {**result.metrics(), "eval_seconds": time.perf_counter() - begin}
        self.totals["eval_generated"] += result.generated_tokens
        if self.run.scores.see(self.step, result.mean):
            metrics["eval_best"] = True
        return metrics

    def _result(self) -> TrainResult:
        scores = self.run.scores
        return TrainResult(scores.first, scores.last, scores.best, Path(self.config.out), self.step)

    # ---- saving ----------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        state = {
            "step": self.step,
            "totals": self.totals,
            "algorithm": self.algorithm.state_dict(),
            "sampler": self.sampler.state_dict(),
            "scores": self.run.scores.state_dict(),
        }
        self.run.save(self.step, self.parts, state, self.collector.state_dict())

    def _load(self, path: Path) -> None:
        state = self.run.load(path, self.parts)
        self.step, self.totals = int(state["step"]), dict(state["totals"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.sampler.load_state_dict(state["sampler"])
        self.run.scores.load_state_dict(state["scores"])
        ahead = read_ahead(path)
        if ahead is not None:
            self.collector.load_state_dict(ahead)


def make_algorithm(config: TrainConfig) -> Algorithm:
    """The recipe's algorithm, with its options checked and the completion budget filled in."""
    options = dict(config.algorithm)
    if "name" not in options:
        raise ConfigError('algorithm: no "name"; write algorithm: skpo, or algorithm: {name: skpo, ...options}')
    algorithm = get_algorithm(str(options.pop("name")), **options)
    algorithm.budget = config.rollout.max_completion_tokens
    if config.kl is not None:
        if algorithm.own_kl:
            raise ConfigError(f"kl=akl beside {algorithm.name}'s own KL penalty; set algorithm.beta=0, or leave kl out")
        algorithm.akl_beta = config.kl_beta
    return algorithm


def make_sampler(config: TrainConfig, algorithm: Algorithm, problems: Sequence[Problem]) -> Sampler:
    """The recipe's problem sampling. A prioritised one needs values of problems: the algorithm's own tracker, else one beside it."""
    if config.problems_per_step > len(problems):
        raise ConfigError(
            f"problems_per_step={config.problems_per_step}, but there are only {len(problems)} training problems; lower it, or load more"
        )
    kind = algorithm.curriculum if config.curriculum == "auto" else config.curriculum
    if kind == "uniform":
        return Sampler(problems, config.seed)
    if kind == "gaussian":
        return GaussianSampler(problems, config.seed)
    if algorithm.problem_weight(problems[0].id) is not None:
        return Sampler(problems, config.seed, lambda key: algorithm.problem_weight(key) or 0.0)
    return TrackedSampler(problems, config.seed)
