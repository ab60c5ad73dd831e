"""EXPO: GRPO with an accuracy-conditioned KL and a Gaussian curriculum (arXiv 2605.09923)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.credit import group_relative
from skpo.losses import TokenBatch, accuracy_kl, aggregate, min_clip, min_clipped, per_token, share, token_ratio


class EXPO(Algorithm):
    """A_i = (R_i - mean R) / (sd R + 1e-6) within the group, population deviation

    beta_t = beta (tanh(accuracy of the step's rollouts) + 1) / 2      one detached number a step: loose while learning, tight later
    J = mean over all tokens of the batch of  min(r_t A, clip(r_t, 1 - low, 1 + high) A) - beta_t k3(pi || ref)

    Problems are drawn with weight exp(-(p - 1/2)^2 / (2 0.35^2)); p <- 0.9 p + 0.1 (share correct this step), from 1/2.

    arXiv 2605.09923. The KL and the curriculum are plug-ins there, and here: `kl: akl` and `curriculum: gaussian` give either to any
    other algorithm. Keeps: the accuracy table (in the problem sampler) and the reference policy.
    """

    name, arxiv = "expo", "2605.09923"
    summary = "KL to the reference that tightens with accuracy; problems near half right first"
    curriculum = "gaussian"
    keeps = "each problem's accuracy (in the sampler); the frozen reference policy"

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(0.2, "the ratio is clipped from below at 1 - clip_low (PPO's 0.2)")
        clip_high: float = option(0.2, "the ratio is clipped from above at 1 + clip_high (PPO's 0.2)")
        beta: float = option(0.02, "largest weight of the KL penalty (paper); 0: none")
        ddof: int = option(0, "0: population standard deviation (paper); 1: sample")

    def advantages(self, batch: TokenBatch) -> Tensor:
        return group_relative(batch.reward, batch.group, ddof=self.options.ddof)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        r = token_ratio(batch.logp, batch.old_logp)
        loss = -aggregate(min_clip(r, a, o.clip_low, o.clip_high), batch, "token-mean")
        if o.beta:
            loss = loss + accuracy_kl(batch, o.beta)
        return loss, {"clip_fraction": share(min_clipped(r, a, o.clip_low, o.clip_high), batch)}
