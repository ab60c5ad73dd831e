"""Workers whose engine is vLLM: plans, weights, adapters, deaths. They run where vLLM is installed (`make test-vllm`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rollout.ray.pools import Told, in_order, killing, runs, tokens

from skpo.errors import ModelError, RunError
from skpo.policy.scoring import ScoringModel, score_rows
from skpo.rollout.ray import cluster as ray_cluster
from skpo.rollout.ray.worker import Worker
from skpo.rollout.types import Group
from skpo.settings import load_config
from skpo.trainer import Trainer
from skpo.trainer.metrics import read_metrics

Make = Callable[..., Told]
VLLM = [
    "rollout.ray.engine=vllm", "rollout.vllm.kv_cache_gib=0.05", "rollout.slots=32", "rollout.ray.start_timeout=600",
    "rollout.vllm.mode=inprocess",
]  # fmt: skip
LORA = "model.lora.r=4"


def nudge(pool: Told, by: float) -> None:
    """Change every trained weight at random, as an optimiser step would."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in pool.policy.trainable:
            p.add_(by * torch.randn(p.shape, generator=generator))


def deviation(pool: Told, groups: Iterable[Group]) -> float:
    """Largest difference between log-probabilities as sampled and as the trainer scores them."""
    samples = [s for g in groups for s in [*g.samples, *g.unused]]
    rows = [(s.context, s.tokens) for s in samples]
    scored = score_rows(ScoringModel(pool.policy.model), rows, device="cpu", budget=4096)[0]
    return max(float(np.abs(s.logp - logp).max()) for s, logp in zip(samples, scored, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], [LORA]], ids=["full", "adapters"])
def test_plans_are_sampled_with_the_weights_of_now(make_pool: Make, more: list[str]) -> None:
    """SKPO's whole plan on a vLLM worker, before and after updates; what vLLM itself scores is what proves the weights."""
    pool = make_pool(*VLLM, *more)
    found = []
    for version in range(3):
        if version:
            nudge(pool, 0.02)
            pool.update_weights(None, version)
        groups = in_order(pool.run(runs(pool, 4)))
        assert {s.version for g in groups for s in [*g.samples, *g.unused]} == {version}
        assert deviation(pool, groups) < 1e-4
        stats = pool.take_stats().more
        assert 0 < stats["probe_deviation"] < 1e-4
        assert stats["weights_bytes"] == 4 * sum(p.numel() for p in pool.policy.trainable)  # under LoRA the adapters
        found.append(tokens(groups))
    assert found[0] != found[1] != found[2]
    pool.close()


class Forgetful(Worker):
    """Never gives vLLM the weights that it was sent after the first ones."""

    def load(self, run: int, weights: Any, rows: Any) -> np.ndarray:
        if weights.version > 0:
            self.engine.update_weights = lambda weights, version: None
        return super().load(run, weights, rows)


class Careless(Worker):
    """Tells vLLM of new adapters without sending them."""

    def load(self, run: int, weights: Any, rows: Any) -> np.ndarray:
        if weights.version > 0:
            self.engine._adapters.send = lambda engine: None
        return super().load(run, weights, rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (Forgetful, RunError, "worker 0 does not sample from the trainer's weights of version 1.*did not arrive"),
        (Careless, ModelError, "weight version 1.*the new weights did not arrive"),
    ],
)
def test_adapters_that_did_not_arrive_are_found(
    make_pool: Make, monkeypatch: pytest.MonkeyPatch, kind: type[Worker], error: type[Exception], words: str
) -> None:
    """On the way from the trainer's process to vLLM's there are two places where they can get lost."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(ray_cluster, "Worker", kind)
    pool = make_pool(*VLLM, LORA)
    in_order(pool.run(runs(pool, 1)))
    nudge(pool, 1e-3)
    pool.update_weights(None, 1)
    with pytest.raises(error, match=words):
        in_order(pool.run(runs(pool, 1)))
    pool.close()


def children(parent: int) -> list[int]:
    """Process ids below a process."""
    below = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            pid = int(status.parent.name)
            below += [pid, *children(pid)]
    return below


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in Linux's /proc")
def test_a_worker_dies_and_its_vllm_with_it(make_pool: Make) -> None:
    """vLLM in a process of its own, whose worker is killed: the new one gives the same samples, of the newest weights, and nothing is
    left of the old."""
    pool = make_pool(*VLLM, LORA, "rollout.vllm.mode=process")
    nudge(pool, 0.02)
    pool.update_weights(None, 1)
    expected = in_order(pool.run(runs(pool, 6)))
    old = children(pool.members[0].pid)
    assert old
    groups = killing(pool, pool.run(runs(pool, 6)), 0)
    assert tokens(groups) == tokens(expected)
    assert deviation(pool, groups) < 1e-4
    more = pool.take_stats().more
    assert (more["worker_deaths"], more["workers"]) == (1, 1)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/exe").exists() for pid in old):
        assert time.monotonic() < deadline, "vLLM's process has outlived its worker"
        time.sleep(0.1)
    new = [pool.members[0].pid, *children(pool.members[0].pid)]
    pool.close()
    while any(Path(f"/proc/{pid}/exe").exists() for pid in new):
        assert time.monotonic() < deadline + 60, "vLLM's process has outlived the pool"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_chain_recipe(tmp_path: Path) -> None:
    """Through `Trainer`, with adapters, on two training processes: before an update the ratio is 1 on every token."""
    settings = [
        *VLLM, LORA, "engine=ray", "steps=2", "problems_per_step=8", "group_size=4", "eval_every=0", "eval.limit=8",
        "eval.samples=1", "eval.at_start=false", "checkpoint.every=0", "processes=2", "process_timeout=240",
    ]  # fmt: skip
    Trainer(load_config("chain", [*settings, f"out={tmp_path / 'run'}"]), quiet=True).train()
    steps = [r for r in read_metrics(tmp_path / "run") if r["step"] > 0]
    assert [r["workers"] for r in steps] == [1, 1]
    assert all(abs(r["ratio_max"] - 1) < 1e-3 and abs(r["ratio_min"] - 1) < 1e-3 for r in steps)
    assert all(0 < r["probe_deviation"] < 1e-4 for r in steps)
    assert all(r["grad_norm"] > 0 and r["slots_busy"] > 1 for r in steps)
