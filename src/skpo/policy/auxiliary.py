"""Models beside the policy that an algorithm trains itself: a critic, a reward model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from skpo.config import OptimizerConfig
from skpo.policy.budget import Row, micro_batches
from skpo.policy.scoring import PackedRows, shares
from skpo.policy.spread import score_spread

if TYPE_CHECKING:
    from accelerate import Accelerator

    from skpo.losses import TokenBatch


@dataclass
class AuxiliaryContext:
    """What the trainer gives to whoever builds an auxiliary model.

    make_model: a fresh copy of the starting policy (with LoRA settings: its weights frozen, fresh adapters trained). policy: the model
    that is being trained. config, schedule: the policy's optimiser settings, and the factor on the learning rate at each update.
    """

    accelerator: Accelerator
    make_model: Callable[[], nn.Module]
    policy: nn.Module
    temperature: float
    config: OptimizerConfig
    schedule: Callable[[int], float]
    seed: int


class Auxiliary(Protocol):
    """A model that an algorithm keeps beside the policy. Rows are those of the whole step, in every process; `batch` is theirs."""

    def before_credit(self, rows: Sequence[Row], batch: TokenBatch) -> dict[str, float]:
        """Put into the batch what advantages are computed from (`value`, `token_reward`); returns metrics."""

    def update(self, rows: Sequence[Row], batch: TokenBatch) -> dict[str, float]:
        """Train on the step's rows, after credit and before the policy's own update; returns metrics."""

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, position: tensors and plain values, for a checkpoint."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""


#: Sum of the loss terms of a micro-batch: (the module's output [B, T], numbers of its rows [B]) -> scalar.
Terms = Callable[[Tensor, Tensor], Tensor]


class SideModel:
    """A module with an AdamW of its own, with the policy's settings but for the learning rate.

    module: called as a `ScoringModel` is; the first tensor of what it returns counts. With several processes each holds a copy, works
    on its share of the micro-batches, and gradients are summed.
    """

    def __init__(self, module: nn.Module, lr: float, context: AuxiliaryContext) -> None:
        c = context.config
        self.accelerator, self.config, self.seed = context.accelerator, c, context.seed
        self.module = module.to(context.accelerator.device)
        self.trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.trained.values(), lr=lr, betas=c.betas, eps=c.eps, weight_decay=c.weight_decay
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, context.schedule)
        self.updates = 0  #: optimiser steps done
        self.skipped = 0  #: optimiser steps left out because of non-finite numbers

    def predict(self, rows: Sequence[Row], width: int) -> Tensor:
        """The module's output at every sampled token, [N, width] float32 on the CPU, 0 in the padding."""
        with self.accelerator.autocast():
            values, _ = score_spread(self.accelerator, self.module, rows, budget=self.config.micro_batch_tokens)
        out = torch.zeros(len(rows), width)
        for i, row in enumerate(values):
            out[i, : len(row)] = torch.from_numpy(row)
        return out

    def fit(self, rows: Sequence[Row], weight: Tensor, terms: Terms) -> dict[str, float]:
        """As many optimiser steps as the policy takes (mini-batches, epochs), each on sum(terms) / sum(weight of its rows).

        weight [N]: what a row counts for in the denominator; rows of weight 0 are left out. Returns the mean loss and gradient norm.
        """
        counted = [i for i in range(len(rows)) if float(weight[i]) > 0]
        losses, norms = [], []
        for _ in range(self.config.epochs):
            order = counted
            if self.config.mini_batches > 1:
                rng = np.random.default_rng((self.seed, self.updates + self.skipped))
                order = [counted[i] for i in rng.permutation(len(counted))]
            for part in np.array_split(np.asarray(order, dtype=np.int64), self.config.mini_batches):
                if len(part):
                    loss, norm = self._optimizer_step(rows, part.tolist(), float(weight[part].sum()), terms)
                    losses.append(loss)
                    norms.append(norm)
        return {"loss": _mean(losses), "grad_norm": _mean(norms)}

    def _optimizer_step(self, rows: Sequence[Row], index: list[int], total: float, terms: Terms) -> tuple[float, float]:
        """(loss, gradient norm) of one mini-batch; left out, and counted, where either is not finite."""
        acc, given = self.accelerator, [rows[i] for i in index]
        share = shares(self.module, given)
        self.optimizer.zero_grad(set_to_none=True)
        value = torch.zeros((), dtype=torch.float64, device=acc.device)
        batches = micro_batches(given, self.config.micro_batch_tokens, share=share)
        for batch in batches[acc.process_index :: acc.num_processes]:
            picked = [index[j] for j in batch]
            packed = PackedRows.from_rows([rows[i] for i in picked], acc.device, share=share)
            with acc.autocast():
                out = self.module(*packed.inputs)[0]
            loss = terms(packed.padded(out.float()), torch.as_tensor(picked)) / total
            loss.backward()
            value += loss.detach().double()
        norm = self._gather_gradients()
        if acc.num_processes > 1:
            value = acc.reduce(value, "sum")
        if not (np.isfinite(float(value)) and np.isfinite(norm)):
            self.optimizer.zero_grad(set_to_none=True)
            self.skipped += 1
            return 0.0, 0.0
        self.optimizer.step()
        self.scheduler.step()
        self.updates += 1
        return float(value), norm

    def _gather_gradients(self) -> float:
        """Sum gradients over processes and clip them; returns their norm before that."""
        if self.accelerator.num_processes > 1:
            for p in self.trained.values():
                p.grad = self.accelerator.reduce(p.grad if p.grad is not None else torch.zeros_like(p), "sum")
        return float(nn.utils.clip_grad_norm_(self.trained.values(), self.config.max_grad_norm))

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": {name: p.detach() for name, p in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "counters": {"updates": self.updates, "skipped": self.skipped},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, p in self.trained.items():
                p.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        for key, value in state["counters"].items():
            setattr(self, key, int(value))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
