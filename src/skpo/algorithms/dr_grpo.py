"""Dr.GRPO: GRPO without its length and difficulty biases (arXiv 2503.20783)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.credit import group_relative
from skpo.losses import TokenBatch, aggregate, min_clip, min_clipped, per_token, share, token_ratio


class DrGRPO(Algorithm):
    """A_i = R_i - mean R within the group (no division)

    J = sum over all tokens of  min(r_t A, clip(r_t, 1 - low, 1 + high) A)  / (sequences * length)

    arXiv 2503.20783, section 3.2. `length` is a constant, the generation budget: neither long nor short responses, neither easy
    nor hard problems weigh more.
    """

    name, arxiv = "dr_grpo", "2503.20783"
    summary = "centred advantage, token clip, constant length"

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(0.2, "the ratio is clipped from below at 1 - clip_low (PPO's 0.2)")
        clip_high: float = option(0.2, "the ratio is clipped from above at 1 + clip_high (PPO's 0.2)")
        length: float | None = option(
            None, "the constant length, in tokens; None: the recipe's completion budget, as in the paper"
        )

    def advantages(self, batch: TokenBatch) -> Tensor:
        return group_relative(batch.reward, batch.group, scale=False)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        r = token_ratio(batch.logp, batch.old_logp)
        objective = aggregate(
            min_clip(r, a, o.clip_low, o.clip_high), batch, "constant", length=o.length or self.budget
        )
        return -objective, {"clip_fraction": share(min_clipped(r, a, o.clip_low, o.clip_high), batch)}
