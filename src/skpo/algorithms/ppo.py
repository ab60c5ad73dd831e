"""PPO: proximal policy optimisation with a critic (arXiv 1707.06347)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from skpo.algorithms.base import option
from skpo.algorithms.token_clip import TokenClip
from skpo.credit import whitened
from skpo.credit_tokens import gae, paid_at_end
from skpo.losses import TokenBatch
from skpo.policy.auxiliary import Auxiliary, AuxiliaryContext


class PPO(TokenClip):
    """r_T = R at the last token, else 0;  V(s_t) from the critic, 0 after the last token

    delta_t = r_t + gamma V(s_t+1) - V(s_t),   A_t = sum over l of (gamma lam)^l delta_t+l,   then whitened over the batch's tokens
    J = mean over tokens of  min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)
    critic: mean over tokens of  max((V - G)^2, (clip(V, V_old - c, V_old + c) - G)^2) / 2,   G_t = A_t + V(s_t) before whitening

    arXiv 1707.06347, equations 7, 11 and 12; GAE is arXiv 1506.02438. Defaults: clip 0.2 (paper); gamma = lam = 1, common where a
    verifier pays at the end (lam 0.95 is the usual value elsewhere); whitening and the value clip as in PPO's reference
    implementation. The critic is a value head on a copy of the starting policy, beginning at V = 0. `critic: shared` saves the copy:
    the head then reads the policy's hidden states, without passing a gradient to the policy [ours].
    """

    name, arxiv = "ppo", "1707.06347"
    summary = "critic with a value head, generalised advantage estimation"
    keeps = "the critic and its optimiser"

    @dataclass(frozen=True)
    class Options(TokenClip.Options):
        gamma: float = option(1.0, "discount of a token (1: a verifier's reward comes once, at the end)")
        lam: float = option(1.0, "lambda of GAE: 1 credits with the return itself, 0.95 leans on the critic")
        whiten: bool = option(True, "advantages at zero mean and unit variance over the batch's tokens")
        critic: Literal["separate", "shared"] = option(
            "separate",
            "separate: a copy of the starting policy; shared: the policy's own hidden states, without gradient",
        )
        critic_lr: float | None = option(
            None, "the critic's learning rate; None: ten times the policy's, as verl's examples"
        )
        value_clip: float | None = option(
            0.2, "values move at most so far from the old ones in one step; None: no clip"
        )

    def auxiliary(self, context: AuxiliaryContext) -> Auxiliary | None:
        from skpo.policy.critic import Critic

        o = self.options
        return Critic(context, self.returns, kind=o.critic, lr=o.critic_lr, clip=o.value_clip)

    def rewards(self, batch: TokenBatch) -> Tensor:
        """What is paid at each token, [N, T]."""
        return paid_at_end(batch.reward, batch.mask)

    def estimates(self, batch: TokenBatch) -> Tensor:
        """A_t before whitening, [N, T]."""
        value = self.needed(batch.value, "value")
        return gae(self.rewards(batch), value, batch.mask, self.options.gamma, self.options.lam)

    def returns(self, batch: TokenBatch) -> Tensor:
        """G_t, what the critic is trained on, [N, T]."""
        return self.estimates(batch) + self.needed(batch.value, "value")

    def advantages(self, batch: TokenBatch) -> Tensor:
        estimates = self.estimates(batch)
        return whitened(estimates, batch.mask) * batch.mask if self.options.whiten else estimates
