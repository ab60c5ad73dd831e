"""Two nodes, one of which dies in the middle of a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rollout.ray.pools import SMALL, Told, in_order, ray_config, runs, tokens

from skpo.policy.loading import load_policy
from skpo.rollout.embedded import EmbeddedEngine

ray = pytest.importorskip("ray")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of two nodes of one CPU each; yields (cluster, the second node)."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_worker_niceness", "0")
    node = {"num_cpus": 1, "object_store_memory": SMALL["object_store_memory"]}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    second = cluster.add_node(**node)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


def worker_of(node: Any, pool: Told) -> int:
    """Process id of the pool's worker on this node: the child of the node's raylet."""
    (raylet,) = [info.process.pid for info in node.all_processes["raylet"]]
    parents = {m.pid: int(Path(f"/proc/{m.pid}/stat").read_text().rpartition(")")[2].split()[1]) for m in pool.members}
    (pid,) = [pid for pid, parent in parents.items() if parent == raylet]
    return pid


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="parents are looked up in Linux's /proc")
def test_a_node_dies(nodes: Any) -> None:
    """Its problems run again on the other node, with the same samples; the run goes on with one worker."""
    cluster, second = nodes
    config = ray_config("rollout.ray.workers=2", "rollout.ray.start_timeout=600")
    policy = load_policy(config.model)
    pool = Told(config, policy)
    pool.update_weights(None, 0)
    in_order(pool.run(runs(pool, 2)))
    here = EmbeddedEngine(policy.model, eos_ids=policy.eos_ids)
    running = pool.run(runs(pool, 16, step=1))
    first = next(running)
    assert all(member.flight for member in pool.members)
    victim = worker_of(second, pool)
    os.kill(victim, signal.SIGSTOP)  # it can't get through before its node has died
    cluster.remove_node(second, allow_graceful=False)
    os.kill(victim, signal.SIGKILL)  # with the node goes all that runs on it
    groups = in_order([first, *running])
    assert tokens(groups) == tokens(in_order(here.run(runs(pool, 16, step=1))))
    more = pool.take_stats().more
    assert more["worker_deaths"] == 1
    assert more["plans_repeated"] >= 1
    assert more["workers"] == 1
    assert any("unfinished problems run again" in note for note in pool.notes), pool.notes
    pool.close()
