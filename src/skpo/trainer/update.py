"""The optimiser's half of a step: mini-batches, micro-batches, clipping, and the guard against non-finite numbers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from skpo.algorithms.base import Algorithm
from skpo.config import OptimizerConfig
from skpo.errors import RunError
from skpo.losses import TokenBatch, kl_estimate
from skpo.policy.budget import process_shares
from skpo.policy.scoring import PackedRows, shares
from skpo.rollout.types import derive_seed
from skpo.trainer.batch import StepBatch, micro_batch, split_minibatches, totals_of
from skpo.trainer.token_log import note_tokens

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
    """Sum, maximum or minimum of each value over the processes."""
    if accelerator.num_processes == 1:
        return dict(values)
    stacked = accelerator.gather(torch.tensor([list(values.values())], dtype=torch.float64, device=accelerator.device))
    reduced = {"sum": stacked.sum(0), "max": stacked.amax(0), "min": stacked.amin(0)}[how]
    return dict(zip(values, reduced.tolist(), strict=True))


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
        out = sums.result(self.accelerator, done, data.batch.ref_logp is not None)
        out |= {"grad_norm": float(np.mean(norms)) if norms else 0.0, "loss": float(np.mean(losses)) if losses else 0.0}
        return out | {"lr": self.optimizer.param_groups[0]["lr"], "skipped_steps": self.skipped}

    def _optimizer_step(
        self, data: StepBatch, index: list[int], sums: TokenSums, *, before_update: bool
    ) -> tuple[float, float]:
        """(loss, gradient norm) of one mini-batch; the step is left out, and counted, where either is not finite."""
        lr = self.optimizer.param_groups[0]["lr"]
        totals = totals_of(data, index)
        share = shares(self.model, [data.row(i) for i in index])
        micro_batches = self._shares(data, index, share)
        total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        self.optimizer.zero_grad(set_to_none=True)
        for i, (rows, real) in enumerate(micro_batches):
            last = i == len(micro_batches) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                loss = self._micro_step(data, rows, real, totals, sums, before_update, share)
            total += loss
        norm = self.accelerator.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        norm = float(norm) if norm is not None else 0.0
        value = float(self.accelerator.reduce(total, "sum")) if self.accelerator.num_processes > 1 else float(total)
        if not (np.isfinite(norm) and np.isfinite(value)):
            self._skip(value, norm, lr)
            return 0.0, 0.0
        self.skipped_in_a_row = 0
        self.optimizer.step()
        self.scheduler.step()
        self.updates += 1
        return value, norm

    def _micro_step(
        self,
        data: StepBatch,
        rows: list[int],
        real: bool,
        totals: Any,
        sums: TokenSums,
        before_update: bool,
        share: bool,
    ) -> Tensor:
        """Forward and backward of one micro-batch; its share of the loss, detached."""
        packed = PackedRows.from_rows([data.row(i) for i in rows], self.accelerator.device, share=share)
        logp, entropy = self.model(*packed.inputs)
        batch, advantages = micro_batch(data, rows, packed, logp, entropy, totals)
        if not real:
            batch.mask = torch.zeros_like(batch.mask)
        loss, metrics = self.algorithm.full_loss(batch, advantages)
        if not real:  # keeps processes in step: a pass that counts for nothing
            loss, metrics = loss * 0.0, {}
        # Accelerate averages gradients over processes; the denominators here are global, so the sum is what is wanted.
        self.accelerator.backward(loss * self.accelerator.num_processes)
        sums.add(batch, metrics, before_update=before_update)
        if self.keep_tokens and real:
            note_tokens(data, rows, batch)
        return loss.detach().double()

    def _shares(self, data: StepBatch, index: list[int], share: bool) -> list[tuple[list[int], bool]]:
        """This process's micro-batches: (rows, whether they count). Every process has the same number of them."""
        trained = [i for i in index if float(data.batch.lengths[i]) > 0]
        rows = [data.row(i) for i in trained]
        acc, budget = self.accelerator, self.config.micro_batch_tokens
        of_process = process_shares(rows, budget, acc.num_processes, share=share)
        own = [([trained[i] for i in batch], True) for batch in of_process[acc.process_index]]
        shortest = min(trained, key=lambda i: (len(data.samples[i].context) + len(data.samples[i]), i), default=0)
        return own + [([shortest], False)] * (max(map(len, of_process)) - len(own))

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

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "counters": {"updates": self.updates, "skipped": self.skipped, "skipped_in_a_row": self.skipped_in_a_row},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        for key, value in state["counters"].items():
            setattr(self, key, int(value))
