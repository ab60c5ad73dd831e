"""RLOO: REINFORCE with a leave-one-out baseline (arXiv 2402.14740)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.credit import leave_one_out
from skpo.losses import TokenBatch, aggregate, min_clip, min_clipped, per_token, sequence_mean


class RLOO(Algorithm):
    """A_i = R_i - mean of the others in the group = G/(G-1) (R_i - mean R)

    J = mean over sequences of  sum_t A_i log pi(o_t)        (a sequence is one action)

    arXiv 2402.14740, section 2.2. With `clip` the sequence's probability ratio is clipped as in PPO.
    """

    name, arxiv = "rloo", "2402.14740"
    summary = "leave-one-out baseline, sequence-level REINFORCE"

    @dataclass(frozen=True)
    class Options:
        clip: float | None = option(None, "PPO clip of the sequence ratio; None: plain REINFORCE, as in the paper")

    def advantages(self, batch: TokenBatch) -> Tensor:
        return leave_one_out(batch.reward, batch.group)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        clip = self.options.clip
        if clip is None:
            return -aggregate(per_token(advantages) * batch.logp, batch, "seq-sum"), {}
        change = ((batch.logp - batch.old_logp) * batch.mask).sum(-1)
        ratio = change.clamp(-20, 20).exp()
        objective = sequence_mean(min_clip(ratio, advantages, clip, clip), batch)
        clipped = sequence_mean(min_clipped(ratio.detach(), advantages, clip, clip), batch, corrected=False)
        return -objective, {"clip_fraction": float(clipped)}
