"""CISPO: clipped importance weights, no token left out (MiniMax-M1, arXiv 2506.13585)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.credit import group_relative
from skpo.losses import TokenBatch, aggregate, per_token, share, token_ratio, weighted_logp


class CISPO(Algorithm):
    """A_i = (R_i - mean R) / (sd R + 1e-6) within the group

    J = mean over all tokens of the batch of  sg[clip(r_t, 1 - low, 1 + high)] A_i log pi(o_t)

    arXiv 2506.13585, equations 4 and 5: the weight is clipped, the gradient never cut off. The paper leaves the lower bound open
    (low = inf) and tunes the upper one; 0.28 here is SKPO's.
    """

    name, arxiv = "cispo", "2506.13585"
    summary = "detached clipped ratio as weight of log pi"

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(math.inf, "the weight is clipped from below at 1 - clip_low (open in the paper)")
        clip_high: float = option(
            0.28, "the weight is clipped from above at 1 + clip_high (tuned in the paper; SKPO's 0.28)"
        )

    def advantages(self, batch: TokenBatch) -> Tensor:
        return group_relative(batch.reward, batch.group)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        r = token_ratio(batch.logp, batch.old_logp)
        objective = aggregate(weighted_logp(r, a, batch.logp, o.clip_low, o.clip_high), batch, "token-mean")
        clipped = ((r > 1 + o.clip_high) | (r < 1 - o.clip_low)).to(r.dtype)
        return -objective, {"clip_fraction": share(clipped, batch)}
