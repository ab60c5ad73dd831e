"""A local Ray for a module's tests, and pools of workers on it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

if importlib.util.find_spec("vllm") is None:
    collect_ignore = ["test_vllm_workers.py"]
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # as in tests/rollout/vllm


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray on this machine, with room for eight workers."""
    ray = pytest.importorskip("ray")
    from rollout.ray.pools import SMALL

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        ray.init(address="local", num_cpus=8, **SMALL)  # not the cluster of another test that runs now
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def make_pool(cluster: None) -> Iterator[Callable[..., Any]]:
    """Makes pools (of settings `key=value`) with the weights of version 0; they are closed after the module."""
    from rollout.ray.pools import Told, ray_config

    from skpo.policy.loading import load_policy

    pools: list[Told] = []

    def make(*more: str) -> Told:
        config = ray_config(*more)
        pools.append(Told(config, load_policy(config.model)))
        pools[-1].update_weights(None, 0)
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture(scope="module")
def pair(make_pool: Callable[..., Any]) -> Any:
    """A pool of two workers with the weights of version 0 at first; tests may give it newer ones."""
    return make_pool("rollout.ray.workers=2", "rollout.ray.restarts=9")
