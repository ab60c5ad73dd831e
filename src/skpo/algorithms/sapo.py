"""SAPO: a smooth gate in place of the hard clip (arXiv 2511.20347)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.credit import group_relative
from skpo.losses import TokenBatch, aggregate, per_token, token_ratio


def soft_gate(ratio: Tensor, tau: Tensor | float) -> Tensor:
    """f(r) = (4 / tau) sigmoid(tau (r - 1)); its slope is sech^2(tau (r - 1) / 2), 1 at r = 1."""
    return 4 / tau * torch.sigmoid(tau * (ratio - 1))


class SAPO(Algorithm):
    """A_i = (R_i - mean R) / (sd R + 1e-6) within the group

    J = mean over sequences of mean over tokens of  (4 / tau) sigmoid(tau (r_t - 1)) A_i,   tau by the sign of A_i

    arXiv 2511.20347: the weight of a token fades with sech^2(tau (r - 1) / 2) as its ratio leaves 1, faster for negative advantages.
    """

    name, arxiv = "sapo", "2511.20347"
    summary = "sigmoid gate on the ratio"

    @dataclass(frozen=True)
    class Options:
        tau_positive: float = option(1.0, "temperature of the gate where A > 0 (paper)")
        tau_negative: float = option(1.05, "temperature of the gate where A <= 0 (paper)")

    def advantages(self, batch: TokenBatch) -> Tensor:
        return group_relative(batch.reward, batch.group)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        tau = torch.where(a > 0, torch.full_like(a, o.tau_positive), torch.full_like(a, o.tau_negative))
        gated = soft_gate(token_ratio(batch.logp, batch.old_logp), tau) * a
        return -aggregate(gated, batch, "seq-mean"), {}
