"""An implicit reward model: a language model whose log-ratio to a reference is the reward of each token (PRIME, arXiv 2502.01456)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from skpo.policy.auxiliary import AuxiliaryContext, SideModel
from skpo.policy.budget import Row
from skpo.policy.scoring import ScoringModel

if TYPE_CHECKING:
    from skpo.losses import TokenBatch


class ImplicitReward:
    """c_t = beta (log pi_phi - log pi_ref) of each sampled token; pi_phi learns from outcomes alone.

    It starts as a copy of the starting policy, so every reward starts at 0. Each step it is trained with the cross-entropy of
    sigmoid(sum_t c_t) against `batch.reward`, in [0, 1]. order: `before`, the step's rewards come from the updated model; `after`, from
    the one before. lr: None, twice the policy's.
    """

    def __init__(
        self,
        context: AuxiliaryContext,
        *,
        beta: float = 0.05,
        lr: float | None = None,
        order: Literal["before", "after"] = "before",
    ) -> None:
        c = context.config
        module = ScoringModel(
            context.make_model(), temperature=context.temperature, chunk=c.logit_chunk, share=c.shared_prefix
        )
        self.model = SideModel(module, lr if lr is not None else 2 * c.lr, context)
        self.beta, self.order = beta, order

    def before_credit(self, rows: Sequence[Row], batch: TokenBatch) -> dict[str, float]:
        metrics = self._train(rows, batch) if self.order == "before" else {}
        assert batch.ref_logp is not None
        logp = self.model.predict(rows, batch.mask.shape[1])
        batch.token_reward = self.beta * (logp - batch.ref_logp).double() * batch.mask
        score = batch.token_reward.sum(-1)
        right = (score > 0) == (batch.reward > 0.5)
        return {**metrics, "implicit_reward": float(score.mean()), "implicit_accuracy": float(right.double().mean())}

    def update(self, rows: Sequence[Row], batch: TokenBatch) -> dict[str, float]:
        return self._train(rows, batch) if self.order == "after" else {}

    def _train(self, rows: Sequence[Row], batch: TokenBatch) -> dict[str, float]:
        """Optimiser steps on the cross-entropy, mean over responses."""
        assert batch.ref_logp is not None
        ref, mask, label = batch.ref_logp, batch.mask, batch.reward

        def terms(logp: Tensor, index: Tensor) -> Tensor:
            ref_, mask_ = (x[index, : logp.shape[1]].to(logp) for x in (ref, mask))
            score = self.beta * ((logp - ref_) * mask_).sum(-1)
            return binary_cross_entropy_with_logits(score, label[index].to(score), reduction="sum")

        fitted = self.model.fit(rows, (mask.sum(-1) > 0).float(), terms)
        return {
            "reward_model_loss": fitted["loss"],
            "reward_model_grad_norm": fitted["grad_norm"],
            "reward_model_skipped": float(self.model.skipped),
        }

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state)
