"""The optimiser's half of a step: mini-batches, micro-batches, clipping, and the guard against non-finite numbers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from skpo.algorithms.base import Algorithm
from skpo.config import OptimizerConfig
from skpo.errors import RunError
from skpo.losses import TokenBatch, Totals, kl_estimate
from skpo.policy.budget import process_shares
from skpo.policy.scoring import PackedRows, shares
from skpo.policy.shared_prefix import trees
from skpo.rollout.types import derive_seed
from skpo.trainer.batch import StepBatch, micro_batch, split_minibatches, totals_of
from skpo.trainer.optimizer_state import load_optimizer_state, optimizer_state
from skpo.trainer.processes import whole
from skpo.trainer.token_log import note_tokens, share_notes

if TYPE_CHECKING:
    from accelerate import Accelerator

MOST_SKIPPED = 3  #: optimiser steps in a row with non-finite numbers that end the run


class TokenSums:
    """Sums and extremes over trained tokens, gathered micro-batch by micro-batch and reduced over processes at the end."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {"tokens": 0.0, "entropy": 0.0, "kl_old": 0.0, "kl_ref": 0.0}
        self.extremes: dict[str, float] = {"ratio_max": 1.0, "ratio_min": 1.0, "logp_deviation": 0.0}
        self.algorithm: dict[str, float] = {}

    @torch.no_grad()
    def add(self, batch: TokenBatch, metrics: dict[str, float], *, before_update: bool) -> None:
        """Take a scored micro-batch in. `before_update`: no optimiser step came between sampling and scoring, so that any
        difference from the behaviour log-probabilities is numerical."""
        real = batch.mask > 0
        for key, value in metrics.items():
            self.algorithm[key] = self.algorithm.get(key, 0.0) + value
        if not bool(real.any()):
            return
        difference = (batch.logp - batch.old_logp)[real]
        self.sums["tokens"] += float(real.sum())
        self.sums["kl_old"] += float(kl_estimate(batch.old_logp, batch.logp)[real].double().sum())
        if batch.entropy is not None:
            self.sums["entropy"] += float(batch.entropy[real].double().sum())
        if batch.ref_logp is not None:
            self.sums["kl_ref"] += float(kl_estimate(batch.logp, batch.ref_logp)[real].double().sum())
        ratio = difference.clamp(-20, 20).exp()
        self.extremes["ratio_max"] = max(self.extremes["ratio_max"], float(ratio.max()))
        self.extremes["ratio_min"] = min(self.extremes["ratio_min"], float(ratio.min()))
        if before_update:
            self.extremes["logp_deviation"] = max(self.extremes["logp_deviation"], float(difference.abs().max()))

    def result(self, accelerator: Accelerator, updates: int, has_reference: bool) -> dict[str, float]:
        """Metrics of the step: token means, extremes, and the algorithm's own, averaged over optimiser steps."""
        sums = _reduce(accelerator, {**self.sums, **{f"algorithm/{k}": v for k, v in self.algorithm.items()}}, "sum")
        high = _reduce(accelerator, self.extremes, "max")
        low = _reduce(accelerator, self.extremes, "min")
        tokens = max(sums["tokens"], 1.0)
        out = {"entropy": sums["entropy"] / tokens, "kl_old": sums["kl_old"] / tokens}
        if has_reference:
            out["kl_ref"] = sums["kl_ref"] / tokens
        out |= {"ratio_max": high["ratio_max"], "ratio_min": low["ratio_min"], "logp_deviation": high["logp_deviation"]}
        out |= {
            k.removeprefix("algorithm/"): v / max(updates, 1) for k, v in sums.items() if k.startswith("algorithm/")
        }
        out["tokens_trained"] = int(sums["tokens"])
        return out


def _reduce(accelerator: Accelerator, values: dict[str, float], how: str) -> dict[str, float]:
    """Sum, maximum or minimum of each value over the processes that have it."""
    if accelerator.num_processes == 1:
        return dict(values)
    from accelerate.utils import gather_object

    everyones: list[dict[str, float]] = gather_object([values])
    combine: Any = {"sum": sum, "max": max, "min": min}[how]
    names = dict.fromkeys(name for own in everyones for name in own)
    return {name: combine([own[name] for own in everyones if name in own]) for name in names}


@dataclass(frozen=True)
class Work:
    """What all micro-batches of a mini-batch share: the step's rows, the loss' denominators, whether rows share prefixes, and
    whether no optimiser step came between sampling and scoring."""

    data: StepBatch
    totals: Totals
    share: bool
    before_update: bool


class Updater:
    """Owns the optimiser and applies one step's rollouts to the policy.

    model: the `ScoringModel` as Accelerate prepared it; parameters: those that are trained.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        optimizer: Any,
        scheduler: Any,
        config: OptimizerConfig,
        algorithm: Algorithm,
        seed: int,
    ) -> None:
        self.accelerator, self.model, self.optimizer, self.scheduler = accelerator, model, optimizer, scheduler
        self.config, self.algorithm, self.seed = config, algorithm, seed
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.updates = 0  #: optimiser steps done in the whole run
        self.skipped = 0  #: optimiser steps left out because of non-finite numbers, in the whole run
        self.skipped_in_a_row = 0
        self.idle_rows_are_silent = (
            True  #: no row without an advantage had a gradient so far; scored without one till then
        )
        self.keep_tokens = False  #: keep entropy and log-ratio of every token with its sample, for the rollout log

    def step(self, data: StepBatch, step: int) -> dict[str, float]:
        """All optimiser steps of one rollout step; returns its training metrics."""
        sums, norms, losses = TokenSums(), [], []
        rng = np.random.default_rng(derive_seed(self.seed, "minibatches", step))
        done = 0
        for _ in range(self.config.epochs):
            for part in split_minibatches(len(data.rows_of_group), self.config.mini_batches, rng):
                index = [i for g in part for i in data.rows_of_group[g]]
                loss, norm = self._optimizer_step(data, index, sums, before_update=done == 0)
                done += 1
                norms.append(norm)
                losses.append(loss)
        if self.keep_tokens:
            share_notes(self.accelerator, data)
        out = sums.result(self.accelerator, done, data.batch.ref_logp is not None)
        out |= {"grad_norm": float(np.mean(norms)) if norms else 0.0, "loss": float(np.mean(losses)) if losses else 0.0}
        return out | {"lr": self.optimizer.param_groups[0]["lr"], "skipped_steps": self.skipped}

    def _optimizer_step(
        self, data: StepBatch, index: list[int], sums: TokenSums, *, before_update: bool
    ) -> tuple[float, float]:
        """(loss, gradient norm) of one mini-batch; the step is left out, and counted, where either is not finite."""
        lr = self.optimizer.param_groups[0]["lr"]
        work = Work(data, totals_of(data, index), shares(self.model, [data.row(i) for i in index]), before_update)
        idle, live = self._idle_rows(data, index)
        idle_batches, micro_batches = self._shares(work, idle), self._shares(work, live)
        total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        self.optimizer.zero_grad(set_to_none=True)
        if idle_batches:
            scored = self._without_gradient(work, idle_batches, sums)
            if scored is None:
                micro_batches = idle_batches + micro_batches
            else:
                total += scored
        for i, (rows, real) in enumerate(micro_batches):
            last = i == len(micro_batches) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                logp, entropy, packed = self._score(work, rows)
                batch, loss, metrics = self._loss(work, rows, real, packed, logp, entropy)
                # Accelerate averages gradients over processes; the denominators here are global, so the sum is what is wanted.
                self.accelerator.backward(loss * self.accelerator.num_processes)
            self._note(work, rows, real, batch, metrics, sums)
            total += loss.detach().double()
        norm = self.accelerator.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        norm = float(whole(norm)) if norm is not None else 0.0
        value = float(self.accelerator.reduce(total, "sum")) if self.accelerator.num_processes > 1 else float(total)
        if not (np.isfinite(norm) and np.isfinite(value)):
            self._skip(value, norm, lr)
            return 0.0, 0.0
        self.skipped_in_a_row = 0
        self.optimizer.step()
        self.scheduler.step()
        self.updates += 1
        return value, norm

    def _score(self, work: Work, rows: list[int]) -> tuple[Tensor, Tensor, PackedRows]:
        """(log-probabilities, entropies, layout) of one micro-batch."""
        packed = PackedRows.from_rows([work.data.row(i) for i in rows], self.accelerator.device, share=work.share)
        logp, entropy = self.model(*packed.inputs)
        return logp, entropy, packed

    def _loss(
        self, work: Work, rows: list[int], real: bool, packed: PackedRows, logp: Tensor, entropy: Tensor
    ) -> tuple[TokenBatch, Tensor, dict[str, float]]:
        """(padded batch, its share of the loss, metrics) of one micro-batch."""
        batch, advantages = micro_batch(work.data, rows, packed, logp, entropy, work.totals)
        if not real:
            batch.mask = torch.zeros_like(batch.mask)
        loss, metrics = self.algorithm.full_loss(batch, advantages)
        # one that counts for nothing keeps processes in step
        return (batch, loss, metrics) if real else (batch, loss * 0.0, {})

    def _note(
        self, work: Work, rows: list[int], real: bool, batch: TokenBatch, metrics: dict[str, float], sums: TokenSums
    ) -> None:
        sums.add(batch, metrics, before_update=work.before_update)
        if self.keep_tokens and real:
            note_tokens(work.data, rows, batch)

    def _idle_rows(self, data: StepBatch, index: list[int]) -> tuple[list[int], list[int]]:
        """Trained rows of a mini-batch in two parts: those of contexts whose rows all have advantages of zero, from which no policy term
        has a gradient, and the others. All are of the second kind where a penalty reads every row, or no row would be left there."""
        trained = [i for i in index if float(data.batch.lengths[i]) > 0]
        if self.algorithm.needs_reference:
            return [], trained
        zero = (data.advantages == 0).reshape(len(data.samples), -1).all(-1).tolist()
        idle: set[int] = set()
        for tree in trees([data.samples[i].context for i in trained]):
            if all(zero[trained[j]] for j in tree):
                idle.update(trained[j] for j in tree)
        if len(idle) == len(trained):
            return [], trained
        return [i for i in trained if i in idle], [i for i in trained if i not in idle]

    def _without_gradient(
        self, work: Work, micro_batches: list[tuple[list[int], bool]], sums: TokenSums
    ) -> Tensor | None:
        """Score micro-batches whose gradient should be zero, and their share of the loss. That it is zero is seen from the loss' own
        derivative by each log-probability; None, and nothing noted, where it isn't, in any process: they need a backward pass, too."""
        if not self.idle_rows_are_silent:
            return None
        total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        notes, silent = [], True
        for rows, real in micro_batches:
            with torch.no_grad():
                logp, entropy, packed = self._score(work, rows)
            logp = logp.detach().requires_grad_()
            batch, loss, metrics = self._loss(work, rows, real, packed, logp, entropy)
            if loss.requires_grad:
                (gradient,) = torch.autograd.grad(loss, logp, allow_unused=True)
                silent = silent and (gradient is None or not bool(gradient.any()))
            batch.logp = batch.logp.detach()
            notes.append((rows, real, batch, metrics))
            total += loss.detach().double()
        self.idle_rows_are_silent = _reduce(self.accelerator, {"loud": float(not silent)}, "max")["loud"] == 0
        if not self.idle_rows_are_silent:
            return None
        for note in notes:
            self._note(work, *note, sums)
        return total

    def _shares(self, work: Work, index: list[int]) -> list[tuple[list[int], bool]]:
        """This process's micro-batches of rows: (rows, whether they count). Every process has the same number of them."""
        if not index:
            return []
        rows = [work.data.row(i) for i in index]
        acc, budget = self.accelerator, self.config.micro_batch_tokens
        of_process = process_shares(rows, budget, acc.num_processes, share=work.share)
        own = [([index[i] for i in batch], True) for batch in of_process[acc.process_index]]
        shortest = min(range(len(rows)), key=lambda i: (len(rows[i][0]) + len(rows[i][1]), i))
        return own + [([index[shortest]], False)] * (max(map(len, of_process)) - len(own))

    def _skip(self, loss: float, norm: float, lr: float) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= MOST_SKIPPED:
            raise RunError(
                f"{MOST_SKIPPED} optimiser steps in a row had a non-finite loss or gradient (loss {loss}, gradient norm {norm}, "
                f"learning rate {lr:g}); the last checkpoint is from before them. Lower optimizer.lr, or look at ratio_max and "
                "entropy in metrics.jsonl for where it began."
            )

    def _plain_optimizer(self) -> torch.optim.Optimizer:
        """torch's own optimiser, without Accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: independent of the number of processes, all of which call this; the first one's is complete."""
        return {
            "optimizer": optimizer_state(self.model, self._plain_optimizer(), keep=self.accelerator.is_main_process),
            "scheduler": self.scheduler.state_dict(),
            "counters": {"updates": self.updates, "skipped": self.skipped, "skipped_in_a_row": self.skipped_in_a_row},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_optimizer_state(self.model, self._plain_optimizer(), state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        for key, value in state["counters"].items():
            setattr(self, key, int(value))
