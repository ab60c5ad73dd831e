"""A short run of the main recipe on vLLM, through `Trainer`."""

from __future__ import annotations

from pathlib import Path

from skpo.settings import load_config
from skpo.trainer import Trainer
from skpo.trainer.metrics import read_metrics

SHORT = [
    "engine=vllm", "rollout.vllm.mode=inprocess", "rollout.vllm.kv_cache_gib=0.05", "rollout.slots=32", "steps=3",
    "problems_per_step=8", "group_size=4", "eval_every=3", "eval.limit=8", "eval.samples=2", "eval.at_start=false",
    "checkpoint.every=0",
]  # fmt: skip


def test_the_chain_recipe(tmp_path: Path) -> None:
    """Rollouts of each step come from that step's weights: before an update, the ratio is 1 on every token."""
    Trainer(load_config("chain", [*SHORT, f"out={tmp_path / 'run'}"]), quiet=True).train()
    steps = [r for r in read_metrics(tmp_path / "run") if r["step"] > 0]
    assert len(steps) == 3
    assert max(r["logp_deviation"] for r in steps) < 1e-3
    assert all(abs(r["ratio_max"] - 1) < 1e-3 and abs(r["ratio_min"] - 1) < 1e-3 for r in steps)
    assert max(r["probe_deviation"] for r in steps) < 1e-3
    assert all(r["grad_norm"] > 0 and r["tokens_prefilled"] > 0 and r["slots_busy"] > 1 for r in steps)
    assert steps[-1]["eval_pass_at_1"] >= 0.0
