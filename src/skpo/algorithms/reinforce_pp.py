"""REINFORCE++: REINFORCE with PPO's clip and batch-wide whitening (arXiv 2501.03262)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.credit import group_relative, whitened
from skpo.losses import TokenBatch, aggregate, kl_estimate, min_clip, min_clipped, per_token, share, token_ratio


class ReinforcePlusPlus(Algorithm):
    """A_i = R_i - mean R within the group, then (A - mean) / (sd + 1e-6) over all trained tokens of the batch

    J = mean over tokens of  min(r_t A, clip(r_t, 1 - low, 1 + high) A)

    arXiv 2501.03262, section 3 (the baseline variant, for several responses per problem). With `beta` the KL to the reference is part
    of the reward: A_t = A_i - beta * sum over t' >= t of k1_t', before whitening.
    """

    name, arxiv = "reinforce_pp", "2501.03262"
    summary = "group mean as baseline, whitened over the batch's tokens"
    keeps = "the frozen reference policy, with beta > 0; else nothing"

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(0.2, "the ratio is clipped from below at 1 - clip_low (PPO's 0.2)")
        clip_high: float = option(0.2, "the ratio is clipped from above at 1 + clip_high (PPO's 0.2)")
        beta: float = option(0.0, "weight of the k1 KL penalty inside the reward; 0: none")

    def advantages(self, batch: TokenBatch) -> Tensor:
        centred = group_relative(batch.reward, batch.group, scale=False)
        if self.options.beta:
            assert batch.ref_logp is not None
            kl = kl_estimate(batch.old_logp, batch.ref_logp, "k1").double() * batch.mask
            to_go = torch.flip(torch.cumsum(torch.flip(kl, [-1]), -1), [-1])
            centred = centred[:, None] - self.options.beta * to_go
        return whitened(centred, batch.mask)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        r = token_ratio(batch.logp, batch.old_logp)
        objective = aggregate(min_clip(r, a, o.clip_low, o.clip_high), batch, "token-mean")
        return -objective, {"clip_fraction": share(min_clipped(r, a, o.clip_low, o.clip_high), batch)}
