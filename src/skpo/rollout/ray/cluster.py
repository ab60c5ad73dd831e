"""Ray itself: whether it is there, which cluster to use, and how a worker becomes an actor."""

from __future__ import annotations

import os
from typing import Any

from skpo.config import RayConfig, TrainConfig
from skpo.errors import ConfigError, RunError
from skpo.rollout.ray.worker import Worker


def import_ray() -> Any:
    """The package. Raises ConfigError where it isn't installed."""
    try:
        import ray
    except ImportError:
        raise ConfigError('rollout.engine=ray needs Ray, which is not installed: pip install "skpo[ray]"') from None
    return ray


def connect(config: RayConfig) -> bool:
    """Join the cluster of the settings, or start one on this machine; True where it is ours to shut down.

    A program that has called `ray.init` already keeps its cluster. Raises RunError where no cluster answers.
    """
    ray = import_ray()
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": False}
    try:
        if config.address is None:
            # Ray starts workers with nice 15, which on one machine gives everything else the right of way
            os.environ.setdefault("RAY_worker_niceness", "0")
            cores = max(os.cpu_count() or 1, round(config.workers * config.cpus + 0.5))
            ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
        else:
            ray.init(address=config.address, **quiet)
    except Exception as error:  # Ray raises bare ones, too, where its processes don't come up in time
        where = "a local Ray cluster" if config.address is None else f"the Ray cluster at {config.address}"
        raise RunError(f"{where} can't be reached: {str(error).strip().splitlines()[0]}") from error
    return True


def make_actor(config: TrainConfig, dry_run: bool, number: int) -> Any:
    """A new actor that holds a `Worker`; it starts as soon as a node has room for it."""
    ray, settings = import_ray(), config.rollout.ray
    actor = ray.remote(Worker).options(
        num_cpus=settings.cpus,
        num_gpus=settings.gpus,
        max_restarts=0,  # the pool makes new ones: they need weights and plans
        max_concurrency=8,
        scheduling_strategy="SPREAD",
    )
    return actor.remote(config, dry_run, number)
