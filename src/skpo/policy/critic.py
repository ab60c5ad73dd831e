"""A critic: a value head on a language model's last hidden states (PPO, arXiv 1707.06347)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from skpo.policy.auxiliary import AuxiliaryContext, SideModel
from skpo.policy.budget import Row

if TYPE_CHECKING:
    from skpo.losses import TokenBatch


class ValueModel(nn.Module):
    """V of the state before each sampled token, from the hidden state that predicts that token.

    model: a causal LM (or its PEFT wrapper) whose decoder is used. own: the decoder is trained with the head, in float32 sums; else its
    hidden states are read without gradient and it stays out of this module's parameters. The head starts at 0: so does every value.
    """

    def __init__(self, model: nn.Module, *, own: bool = True) -> None:
        super().__init__()
        base: Any = model
        base = base.get_base_model() if hasattr(base, "get_base_model") else base
        config = base.config.get_text_config() if hasattr(base.config, "get_text_config") else base.config
        decoder = getattr(base, base.base_model_prefix)
        self.own = own
        self.decoder = decoder if own else None
        self._decoder = (decoder,)  # a tuple: not registered as a submodule
        self.head = nn.Linear(config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, place: Tensor, target: Tensor, shared: None = None) -> tuple[Tensor, Tensor]:
        """Values float32 [M], twice (the second without gradient): the form of `ScoringModel`, whose arguments these are. `target` is
        not read; rows come in the padded layout."""
        with torch.set_grad_enabled(self.own and torch.is_grad_enabled()):
            hidden = self._decoder[0](input_ids=input_ids, use_cache=False)[0]
        values = self.head(hidden.reshape(-1, hidden.shape[-1])[place].float()).squeeze(-1).float()
        return values, values.detach()


class Critic:
    """The auxiliary model of PPO: values of the step's rows before credit, then a regression on the returns.

    kind: `separate`, a copy of the starting policy with a head; `shared`, a head that reads the policy's hidden states and leaves the
    policy alone. lr: None, ten times the policy's. returns: [N, T], what the values are to become, from a batch with its values.
    """

    def __init__(
        self,
        context: AuxiliaryContext,
        returns: Callable[[TokenBatch], Tensor],
        *,
        kind: Literal["separate", "shared"] = "separate",
        lr: float | None = None,
        clip: float | None = 0.2,
    ) -> None:
        own = kind == "separate"
        module = ValueModel(context.make_model() if own else context.policy, own=own)
        self.model = SideModel(module, lr if lr is not None else 10 * context.config.lr, context)
        self.returns, self.clip = returns, clip

    def before_credit(self, rows: Sequence[Row], batch: TokenBatch) -> dict[str, float]:
        batch.value = self.model.predict(rows, batch.mask.shape[1])
        return {}

    def update(self, rows: Sequence[Row], batch: TokenBatch) -> dict[str, float]:
        """Optimiser steps on the clipped value loss, mean over tokens. Metrics: its mean, the gradient norm, and the share of the
        returns' variance that the values explained before."""
        assert batch.value is not None
        old, goal, mask = batch.value, self.returns(batch).float(), batch.mask

        def terms(values: Tensor, index: Tensor) -> Tensor:
            old_, goal_, mask_ = (x[index, : values.shape[1]].to(values) for x in (old, goal, mask))
            return (clipped_value_loss(values, old_, goal_, self.clip) * mask_).sum()

        fitted = self.model.fit(rows, mask.sum(-1), terms)
        return {
            "value_loss": fitted["loss"],
            "value_grad_norm": fitted["grad_norm"],
            "value_explained": explained(old, goal, mask),
            "value_skipped": float(self.model.skipped),
        }

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state)


def clipped_value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """max((V - G)^2, (clip(V, V_old - clip, V_old + clip) - G)^2) / 2, elementwise; None: no clip (PPO's reference implementation)."""
    loss = (value - returns).square()
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return loss / 2


def explained(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 - Var(G - V) / Var(G) over the trained tokens; 0 where all returns are equal."""
    real = mask > 0
    goal, error = returns[real].double(), (returns - values)[real].double()
    if len(goal) < 2 or float(goal.max() - goal.min()) == 0:
        return 0.0
    return 1 - float(error.var() / goal.var())
