"""What PPO and its relatives with token-level advantages share: PPO's clipped loss, mean over tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.losses import TokenBatch, aggregate, min_clip, min_clipped, per_token, share, token_ratio

T = TypeVar("T")


class TokenClip(Algorithm):
    """J = mean over tokens of  min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)      (arXiv 1707.06347, equation 7)"""

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(0.2, "the ratio is clipped from below at 1 - clip_low (PPO's 0.2)")
        clip_high: float = option(0.2, "the ratio is clipped from above at 1 + clip_high (PPO's 0.2)")

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        r = token_ratio(batch.logp, batch.old_logp)
        objective = aggregate(min_clip(r, a, o.clip_low, o.clip_high), batch, "token-mean")
        return -objective, {"clip_fraction": share(min_clipped(r, a, o.clip_low, o.clip_high), batch)}

    def needed(self, value: T | None, name: str) -> T:
        """A field of the batch that the advantages are made from. Raises ValueError where it is missing."""
        if value is None:
            raise ValueError(f"algorithm {self.name}: its advantages need batch.{name}")
        return value
