"""GRPO: group-relative policy optimisation (arXiv 2402.03300)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.credit import group_relative
from skpo.losses import TokenBatch, aggregate, kl_estimate, min_clip, min_clipped, per_token, share, token_ratio


class GRPO(Algorithm):
    """A_i = (R_i - mean R) / (sd R + 1e-6) within the group; r_t = pi / pi_old

    J = mean over sequences of mean over tokens of  min(r_t A, clip(r_t, 1 - low, 1 + high) A) - beta k3(pi || ref)

    arXiv 2402.03300, equations 3 and 4. The clip of 0.2 is PPO's. The paper's own beta is 0.04; the default here is 0, as
    later work on verifiable rewards (and TRL) has it.
    """

    name, arxiv = "grpo", "2402.03300"
    summary = "group-normalised advantage, token clip, sequence mean"
    keeps = "the frozen reference policy, with beta > 0; else nothing"

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(0.2, "the ratio is clipped from below at 1 - clip_low (PPO's 0.2)")
        clip_high: float = option(0.2, "the ratio is clipped from above at 1 + clip_high (PPO's 0.2)")
        beta: float = option(0.0, "weight of the KL penalty to the frozen reference policy (0.04 in the paper)")
        kl: Literal["k1", "k2", "k3"] = option("k3", "estimator of the KL penalty (k3 in the paper)")
        kl_ratio: bool = option(False, "multiply the KL estimate by the ratio, as TRL does by default")
        ddof: int = option(1, "1: sample standard deviation, as TRL and verl; 0: population")

    def advantages(self, batch: TokenBatch) -> Tensor:
        return group_relative(batch.reward, batch.group, ddof=self.options.ddof)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        r = token_ratio(batch.logp, batch.old_logp)
        objective = aggregate(min_clip(r, a, o.clip_low, o.clip_high), batch, "seq-mean")
        metrics = {"clip_fraction": share(min_clipped(r, a, o.clip_low, o.clip_high), batch)}
        if o.beta:
            assert batch.ref_logp is not None
            kl = kl_estimate(batch.logp, batch.ref_logp, o.kl)
            objective = objective - o.beta * aggregate(kl * r if o.kl_ratio else kl, batch, "seq-mean", corrected=False)
        return -objective, metrics
