"""PRIME: process rewards from an implicit reward model that learns online from outcomes (arXiv 2502.01456)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from skpo.algorithms.base import option
from skpo.algorithms.token_clip import TokenClip
from skpo.credit import leave_one_out, whitened
from skpo.credit_tokens import to_go
from skpo.errors import ConfigError
from skpo.losses import TokenBatch, masked_mean
from skpo.policy.auxiliary import Auxiliary, AuxiliaryContext
from skpo.rollout.types import Group


class PRIME(TokenClip):
    """c_t = beta (log pi_phi(o_t) - log pi_ref(o_t));   pi_phi minimises the cross-entropy of sigmoid(sum_t c_t) against correctness

    A_t = sum over s >= t of [c_s - mean over the others of (mean over their tokens of c)]  +  R_i - mean R of the others
    whitened over the batch's tokens;   J = mean over tokens of  min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)

    arXiv 2502.01456, equations 3 and 5 and algorithm 1: beta 0.05, gamma 1, pi_phi and pi_ref both begin as the starting policy;
    problems with accuracy outside [0.2, 0.8] are filtered and others sampled in their place (the authors' settings draw up to 4
    times the batch). The reward model's learning rate is twice the policy's (1e-6 beside 5e-7). `update`: algorithm 1 computes the
    rewards first and updates pi_phi then (`after`, one forward pass); the authors' settings update first (`before`, the default here).
    """

    name, arxiv = "prime", "2502.01456"
    summary = "process rewards of an implicit reward model trained online, plus leave-one-out outcomes"
    keeps = "the reward model and its optimiser; the frozen starting policy"

    @dataclass(frozen=True)
    class Options(TokenClip.Options):
        beta: float = option(0.05, "scale of the implicit reward (paper)")
        update: Literal["before", "after"] = option(
            "before", "train the reward model before or after its rewards are taken"
        )
        reward_lr: float | None = option(None, "the reward model's learning rate; None: twice the policy's (paper)")
        filter_low: float = option(0.2, "problems with a lower accuracy are filtered (paper)")
        filter_high: float = option(0.8, "problems with a higher accuracy are filtered (paper)")
        max_rounds: int = option(
            4, "problems sampled in a step, at most, in batches (the authors' oversampling); 1: no refill"
        )

    def check(self) -> None:
        o = self.options
        if o.beta <= 0 or o.max_rounds < 1 or not o.filter_low <= o.filter_high:
            raise ConfigError("algorithm prime: need beta > 0, max_rounds >= 1 and filter_low <= filter_high")

    @property
    def own_kl(self) -> bool:
        return False  # `beta` is no penalty here

    @property
    def needs_reference(self) -> bool:
        return True

    def auxiliary(self, context: AuxiliaryContext) -> Auxiliary:
        from skpo.policy.implicit_reward import ImplicitReward

        o = self.options
        return ImplicitReward(context, beta=o.beta, lr=o.reward_lr, order=o.update)

    def keep(self, group: Group) -> bool:
        accuracy = float(np.mean([s.correct for s in group.completions]))
        return bool(self.options.filter_low - 1e-9 <= accuracy <= self.options.filter_high + 1e-9)

    @property
    def max_rounds(self) -> int:
        return int(self.options.max_rounds)

    def advantages(self, batch: TokenBatch) -> Tensor:
        mask = batch.mask.double()
        rewards = self.needed(batch.token_reward, "token_reward").double() * mask
        mean = masked_mean(rewards, mask)
        baseline = mean - leave_one_out(mean, batch.group)  # the mean of the others; of a lone response, its own
        process = to_go(rewards - baseline[:, None], mask)
        return whitened(process + leave_one_out(batch.reward, batch.group)[:, None], mask) * mask
