"""The rollout engine that a recipe names; heavy imports wait until it is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from skpo.rollout.types import Engine

if TYPE_CHECKING:
    import torch

    from skpo.config import TrainConfig
    from skpo.policy.loading import LoadedPolicy


def build_engine(
    config: TrainConfig,
    policy: LoadedPolicy,
    device: torch.device,
    *,
    dry_run: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Engine:
    """The engine of `config.rollout.engine`; it samples from `policy` until weights are handed to it.

    dry_run: `policy` is a dry run's. tell: takes what the user should know at once (a worker that died).
    """
    if config.rollout.engine == "ray":
        from skpo.rollout.ray.pool import RolloutPool

        return RolloutPool(config, policy, dry_run=dry_run, tell=tell)
    if config.rollout.engine == "vllm":
        from skpo.rollout.vllm import VLLMEngine

        return VLLMEngine(
            policy.model,
            eos_ids=policy.eos_ids,
            slots=config.rollout.slots,
            max_cache_tokens=config.rollout.max_cache_tokens,
            device=device,
            threads=config.threads,
            settings=config.rollout.vllm,
        )
    from skpo.rollout.embedded import EmbeddedEngine

    return EmbeddedEngine(
        policy.model,
        eos_ids=policy.eos_ids,
        slots=config.rollout.slots,
        max_cache_tokens=config.rollout.max_cache_tokens,
        device=device,
    )
