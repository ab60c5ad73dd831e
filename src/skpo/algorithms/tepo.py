"""TEPO: the sequence's likelihood ratio with token gradients, and a KL on tokens that lose entropy (arXiv 2604.12736)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.credit import group_relative
from skpo.losses import (
    TokenBatch,
    aggregate,
    carried_sequence_ratio,
    kl_estimate,
    min_clip,
    min_clipped,
    per_token,
    share,
)


class TEPO(Algorithm):
    """A_i = (R_i - mean R) / (sd R + 1e-6) within the group
    s_it = sg[s_i] pi_t / sg[pi_t],  s_i = exp(mean over tokens of (log pi - log pi_old))
    M_it = 1[A_i > 0 and H_it < H_old,it - delta]           H: full-vocabulary entropy at that position

    J = mean over all tokens of the batch of  min(s_it A_i, clip(s_it, 1 - low, 1 + high) A_i) - beta M_it k3,
        k3 = exp(d) - d - 1,  d = log pi_old - log pi

    arXiv 2604.12736, *reconstructed* from a description, without the paper's text at hand. Uncertain, hence options: the upper clip
    (0.2 here, which the project's golden values use; 0.28 in the description), beta, delta, and which of the two policies the KL
    estimator takes as reference (`kl`). At a batch's first update pi = pi_old and the KL is 0: it acts from the second update on, so
    with `mini_batches` or `epochs` above 1. Keeps nothing between steps; records the old policy's entropies within one.
    """

    name, arxiv = "tepo", "2604.12736"
    summary = "sequence ratio, token gradient, KL where entropy falls [reconstructed]"
    keeps = "nothing (old entropies within a step)"

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(0.2, "the ratio is clipped from below at 1 - clip_low")
        clip_high: float = option(0.2, "the ratio is clipped from above at 1 + clip_high [reconstructed; or 0.28]")
        beta: float = option(0.01, "weight of the KL on tokens that lose entropy [reconstructed]; 0: none")
        delta: float = option(1e-3, "entropy, in nats, that a token must lose to be held back [reconstructed]")
        kl: Literal["current", "old"] = option(
            "current", "current: estimate of KL(pi || pi_old); old: of KL(pi_old || pi) [reconstructed]"
        )

    @property
    def own_kl(self) -> bool:
        return False  # its beta holds tokens near the old policy, not near a frozen one

    @property
    def needs_old_entropy(self) -> bool:
        return bool(self.options.beta)

    def advantages(self, batch: TokenBatch) -> Tensor:
        return group_relative(batch.reward, batch.group)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        s = carried_sequence_ratio(batch.logp, batch.old_logp, batch.mask)
        objective = aggregate(min_clip(s, a, o.clip_low, o.clip_high), batch, "token-mean")
        metrics = {"clip_fraction": share(min_clipped(s, a, o.clip_low, o.clip_high), batch)}
        if o.beta:
            assert batch.entropy is not None
            assert batch.old_entropy is not None
            held = ((a > 0) & (batch.entropy < batch.old_entropy - o.delta)).to(s.dtype)
            new, old = batch.logp, batch.old_logp
            kl = kl_estimate(new, old) if o.kl == "current" else kl_estimate(old, new)
            kl = torch.where(held > 0, kl, torch.zeros_like(kl))
            objective = objective - o.beta * aggregate(kl, batch, "token-mean", corrected=False)
            metrics["held_fraction"] = share(held, batch)
        return -objective, metrics
