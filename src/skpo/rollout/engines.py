"""The rollout engine that a recipe names; heavy imports wait until it is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skpo.rollout.types import Engine

if TYPE_CHECKING:
    import torch

    from skpo.config import TrainConfig
    from skpo.policy.loading import LoadedPolicy


def build_engine(config: TrainConfig, policy: LoadedPolicy, device: torch.device) -> Engine:
    """The engine of `config.rollout.engine`; it samples from `policy` until weights are handed to it."""
    from skpo.rollout.embedded import EmbeddedEngine

    return EmbeddedEngine(
        policy.model,
        eos_ids=policy.eos_ids,
        slots=config.rollout.slots,
        max_cache_tokens=config.rollout.max_cache_tokens,
        device=device,
    )
