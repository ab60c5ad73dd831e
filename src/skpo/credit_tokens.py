"""Credit that differs by token: rewards paid along a response, what is still to come, GAE, gains of steps.

Shapes: N rows, T token positions, padded on the right; a row's tokens are the first `mask.sum()` of it. Statistics are computed in
float64 whatever comes in; what stands in the padding is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def paid_at_end(reward: Tensor, mask: Tensor) -> Tensor:
    """Rewards [N] on each row's last token, [N, T] float64; a row without tokens gets none."""
    lengths = mask.sum(-1).long()
    last = (torch.arange(mask.shape[1], device=mask.device)[None] == lengths[:, None] - 1).double()
    return last * reward.double()[:, None]


def to_go(rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """Discounted sum of the rewards from each token on: G_t = r_t + gamma G_(t+1), [N, T]; 0 in the padding."""
    return gae(rewards, torch.zeros_like(rewards, dtype=torch.float64), mask, gamma, 1.0)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 1.0) -> Tensor:
    """Generalised advantage estimation (arXiv 1506.02438, equation 16), [N, T]; 0 in the padding.

        delta_t = r_t + gamma V_(t+1) - V_t        A_t = delta_t + gamma lam A_(t+1)

    rewards, values: [N, T]; values[t] is that of the state before token t. The state after the last token is worth 0.
    """
    real = mask > 0
    rewards = torch.where(real, rewards.double(), torch.zeros((), dtype=torch.float64))
    values = torch.where(real, values.double(), torch.zeros((), dtype=torch.float64))
    advantages = torch.zeros_like(rewards)
    following = next_value = rewards.new_zeros(len(rewards))
    for t in range(rewards.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantages[:, t] = following = delta + gamma * lam * following
        next_value = values[:, t]
    return advantages * real


def step_gains(values: Tensor, step: Tensor, outcome: Tensor, mask: Tensor) -> Tensor:
    """V(start of the next step) - V(start of its own step) for every token, [N, T]; 0 in the padding.

    values [N, T]: of the step that a token is in, estimated at its start; step [N, T] int: its number; outcome [N]: what the end of
    the response is worth.
    """
    values, real = values.double(), mask > 0
    gains = torch.zeros_like(values)
    following = outcome.double()
    for t in range(values.shape[1] - 1, -1, -1):
        if t + 1 < values.shape[1]:
            begins = real[:, t + 1] & (step[:, t + 1] != step[:, t])
            following = torch.where(begins, values[:, t + 1], following)
        gains[:, t] = following - values[:, t]
    return torch.where(real, gains, torch.zeros_like(gains))


def step_rewards(values: Sequence[float], tol: float, window: int, gamma: float) -> list[float]:
    """r_k = a_k - a_(k-1) for each step k; where |r_k| <= tol, the first later gain beyond tol within `window` steps, times
    gamma^distance, else 0 (VSRM's propagating reward, arXiv 2508.10293).

    values: a_0 (before the first step) to a_K (after the last). With window 0 the rewards add up to a_K - a_0, but for gains within tol.
    """
    gains = [after - before for before, after in pairwise(values)]
    rewards = []
    for k, gain in enumerate(gains):
        reward = gain
        if abs(gain) <= tol:
            ahead = ((d, gains[k + d]) for d in range(1, min(window, len(gains) - 1 - k) + 1))
            reward = next((g * gamma**d for d, g in ahead if abs(g) > tol), 0.0)
        rewards.append(reward)
    return rewards
