"""A short run of the main recipe on vLLM, through `Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skpo.settings import load_config
from skpo.trainer import Trainer
from skpo.trainer.metrics import read_metrics
from skpo.trainer.rollout_log import read_rollouts

SHORT = [
    "engine=vllm", "rollout.vllm.kv_cache_gib=0.05", "rollout.slots=32", "steps=3",
    "problems_per_step=8", "group_size=4", "eval_every=3", "eval.limit=8", "eval.samples=2", "eval.at_start=false",
    "checkpoint.every=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """mode -> run."""
    folder = tmp_path_factory.mktemp("runs")
    runs = {mode: folder / mode for mode in ("inprocess", "process")}
    for mode, out in runs.items():
        Trainer(load_config("chain", [*SHORT, f"rollout.vllm.mode={mode}", f"out={out}"]), quiet=True).train()
    return runs


@pytest.mark.parametrize("mode", ["inprocess", "process"])
def test_the_chain_recipe(finished: dict[str, Path], mode: str) -> None:
    """Rollouts of each step come from that step's weights: before an update, the ratio is 1 on every token."""
    steps = [r for r in read_metrics(finished[mode]) if r["step"] > 0]
    assert len(steps) == 3
    assert max(r["logp_deviation"] for r in steps) < 1e-4
    assert all(abs(r["ratio_max"] - 1) < 1e-4 and abs(r["ratio_min"] - 1) < 1e-4 for r in steps)
    assert max(r["probe_deviation"] for r in steps) < 1e-4
    assert all(r["grad_norm"] > 0 and r["tokens_prefilled"] > 0 and r["slots_busy"] > 1 for r in steps)
    assert steps[-1]["eval_pass_at_1"] >= 0.0


def test_both_modes_are_the_same_run(finished: dict[str, Path]) -> None:
    def samples(run: Path) -> Any:
        table = read_rollouts(run)
        return sorted(zip(*(table[c].to_pylist() for c in ("step", "problem_id", "seed", "tokens")), strict=True))

    assert samples(finished["inprocess"]) == samples(finished["process"])
