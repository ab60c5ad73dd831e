"""ReCo: rare responses and undecided tokens weigh more (arXiv 2607.26862)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.credit import group_relative, group_statistics
from skpo.losses import TokenBatch, aggregate, kl_estimate, masked_mean, per_token, share

TINY = 1e-6  #: probabilities are kept this far from 0 and 1


class ReCo(Algorithm):
    """A_i = (R_i - mean R) / (sd R + 1e-6) within the group
    w_i = min(1 / (G pbar_i), cap), divided by the group's mean;  pbar_i = exp(mean over tokens of log pi_old)
    v_t = p (1 - p) / (p_old (1 - p_old)), clipped to [1 - low, 1 + high]      (the ratio of the Bernoulli variances)

    J = mean over sequences of mean over tokens of  sg[w_i v_t] A_i log pi  [- beta k3(pi || ref)]

    arXiv 2607.26862. v is a weight, never differentiated: its slope changes sign above p = 1/2. Keeps nothing between steps.
    """

    name, arxiv = "reco", "2607.26862"
    summary = "weights rare responses and undecided tokens up, detached"
    keeps = "the frozen reference policy, with beta > 0; else nothing"

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(0.2, "the token factor is clipped from below at 1 - clip_low")
        clip_high: float = option(0.2, "the token factor is clipped from above at 1 + clip_high")
        cap: float = option(5.0, "most that a response's weight may be, before it is divided by the group's mean")
        token_factor: Literal["variance_ratio", "one_minus_p"] = option(
            "variance_ratio", "one_minus_p: p (1 - p) / p_old, which also acts on a batch's first update"
        )
        beta: float = option(0.0, "weight of the k3 penalty to the frozen reference policy (optional in the paper)")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._groups: dict[int, tuple[float, float]] = {}  #: group -> its size and mean weight, of the step at hand

    def advantages(self, batch: TokenBatch) -> Tensor:
        """[N]; also notes each group's mean weight, which a micro-batch can't know."""
        _, _, size, _ = group_statistics(batch.reward, batch.group)
        mean, _, _, _ = group_statistics(self._raw_weight(batch, size), batch.group)
        rows = zip(batch.group.tolist(), size.tolist(), mean.tolist(), strict=True)
        self._groups = {g: (n, m) for g, n, m in rows}
        return group_relative(batch.reward, batch.group)

    def _raw_weight(self, batch: TokenBatch, size: Tensor) -> Tensor:
        likelihood = masked_mean(batch.old_logp.detach().double(), batch.mask).exp()
        return (1 / (size * likelihood)).clamp(max=self.options.cap)

    def _weight(self, batch: TokenBatch) -> Tensor:
        """w_i, [N]."""
        known = torch.tensor([self._groups[g] for g in batch.group.tolist()], dtype=torch.float64)
        size, mean = known.to(batch.logp.device).unbind(-1)
        return (self._raw_weight(batch, size) / mean).to(batch.logp.dtype)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Call `advantages` on the whole step's rows first."""
        o, a = self.options, per_token(advantages)
        p, p_old = (x.detach().exp().clamp(TINY, 1 - TINY) for x in (batch.logp, batch.old_logp))
        v = p * (1 - p) / (p_old if o.token_factor == "one_minus_p" else p_old * (1 - p_old))
        kept = v.clamp(1 - o.clip_low, 1 + o.clip_high)
        objective = aggregate(self._weight(batch)[:, None] * kept * a * batch.logp, batch, "seq-mean")
        if o.beta:
            assert batch.ref_logp is not None
            kl = kl_estimate(batch.logp, batch.ref_logp)
            objective = objective - o.beta * aggregate(kl, batch, "seq-mean", corrected=False)
        return -objective, {"clip_fraction": share((v != kept).to(v.dtype), batch)}
