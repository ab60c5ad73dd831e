"""GSPO and GSPO-token: sequence-level ratios (arXiv 2507.18071)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.credit import group_relative
from skpo.losses import (
    TokenBatch,
    aggregate,
    carried_sequence_ratio,
    min_clip,
    min_clipped,
    per_token,
    sequence_mean,
    sequence_ratio,
    share,
)


class GSPO(Algorithm):
    """s_i = exp(mean over tokens of (log pi - log pi_old));  A_i = (R_i - mean R) / (sd R + 1e-6)

    J = mean over sequences of  min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)

    arXiv 2507.18071, equations 5 to 7; clip ranges of 3e-4 and 4e-4 from its section 5.1.
    """

    name, arxiv = "gspo", "2507.18071"
    summary = "one ratio per sequence, clipped at 3e-4 / 4e-4"

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(3e-4, "the sequence ratio is clipped from below at 1 - clip_low (section 5.1)")
        clip_high: float = option(4e-4, "the sequence ratio is clipped from above at 1 + clip_high (section 5.1)")

    def advantages(self, batch: TokenBatch) -> Tensor:
        return group_relative(batch.reward, batch.group)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o = self.options
        s = sequence_ratio(batch.logp, batch.old_logp, batch.mask)
        objective = sequence_mean(min_clip(s, advantages, o.clip_low, o.clip_high), batch)
        clipped = sequence_mean(min_clipped(s.detach(), advantages, o.clip_low, o.clip_high), batch, corrected=False)
        return -objective, {"clip_fraction": float(clipped)}


class GSPOToken(GSPO):
    """s_it = sg[s_i] * pi_t / sg[pi_t]: the sequence's ratio as value, the token's own gradient

    J = mean over sequences of mean over tokens of  min(s_it A_it, clip(s_it, 1 - low, 1 + high) A_it)

    arXiv 2507.18071, section 4.3. Equal to GSPO in value and gradient while all tokens of a response share one advantage; made for
    advantages that differ by token.
    """

    name = "gspo_token"
    summary = "GSPO's ratio with per-token gradients and advantages"

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        s = carried_sequence_ratio(batch.logp, batch.old_logp, batch.mask)
        objective = aggregate(min_clip(s, a, o.clip_low, o.clip_high), batch, "seq-mean")
        return -objective, {"clip_fraction": share(min_clipped(s, a, o.clip_low, o.clip_high), batch)}
