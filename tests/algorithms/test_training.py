"""The plug-ins and plans inside a real run on the chain problems: a few steps of the shipped base model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skpo import Trainer, load_config
from skpo.policy.loading import load_policy
from skpo.policy.prompts import PromptRenderer
from skpo.policy.scoring import ScoringModel, score_rows
from skpo.trainer.checkpoint import read_state
from skpo.trainer.metrics import read_metrics
from skpo.trainer.rollout_log import read_rollouts

SETTINGS = [
    "problems_per_step=4", "group_size=4", "steps=2", "eval_every=0", "eval.at_start=false", "problems.heldout=null",
    "problems.limit=12", "checkpoint.every=1", "optimizer.mini_batches=2",
]  # fmt: skip


def train(out: Path, *overrides: str) -> list[dict[str, Any]]:
    """Metrics of the two steps."""
    Trainer(load_config("chain", [*SETTINGS, f"out={out}", *overrides]), quiet=True).train()
    return read_metrics(out)


def test_refinements_are_scored_under_the_problem_alone(tmp_path: Path) -> None:
    metrics = train(tmp_path / "run", "algorithm=critique_grpo", "steps=1", "group_size=8")
    assert metrics[0]["refinements"] > 0
    assert metrics[0]["logp_deviation"] < 1e-4  # also on the refinements' rows
    config = load_config("chain", [])
    policy = load_policy(config.model)
    prompt = PromptRenderer(policy.tokenizer, config.model, chat=False).front
    rows = [r for r in read_rollouts(tmp_path / "run").to_pylist() if r["role"] == "refinement"]
    assert len(rows) == metrics[0]["refinements"]
    for row in rows:
        assert policy.tokenizer.decode(row["context"][len(prompt) :]) == row["prompt"]
        assert row["score"] is not None
    logps, _ = score_rows(
        ScoringModel(policy.model), [(r["context"], r["tokens"]) for r in rows], device="cpu", budget=4096
    )
    for row, logp in zip(rows, logps, strict=True):
        np.testing.assert_allclose(row["logp"], logp, atol=1e-4)


def test_gaussian_curriculum_and_akl_with_skpo(tmp_path: Path) -> None:
    metrics = train(tmp_path / "run", "curriculum=gaussian", "kl=akl", "kl_beta=0.05")
    assert metrics[1]["kl_ref"] > 0
    assert metrics[1]["loss_akl"] > 0  # the policy has left its start
    state = read_state(tmp_path / "run" / "checkpoints" / "step-000002")
    table = state["sampler"]["accuracy"]["entries"]
    assert 4 <= len(table) <= 8
    assert all(0.4 < p < 0.6 for p in table.values())  # at most two steps of 0.1 from 0.5


@pytest.mark.parametrize("more", [["algorithm.splits=2"], ["algorithm.select=all"], ["algorithm.split_high=1.5"]])
def test_skpo_extensions(tmp_path: Path, more: list[str]) -> None:
    metrics = train(tmp_path / "run", *more)
    assert all(m["skipped_steps"] == 0 and m["logp_deviation"] < 1e-4 for m in metrics)
    rows = [r for r in read_rollouts(tmp_path / "run", [1]).to_pylist() if r["role"] == "segment" and r["chosen"]]
    assert len(rows) == 4 * (1 if "split_high" in more[0] else 2)


def test_correction_changes_nothing_where_sampler_and_trainer_agree(tmp_path: Path) -> None:
    corrected = train(tmp_path / "corrected", "algorithm=grpo", "optimizer.correction=icepop")
    plain = train(tmp_path / "plain", "algorithm=grpo", "optimizer.old_logp=recompute")
    for a, b in zip(corrected, plain, strict=True):
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)
        assert a["tokens_generated"] == b["tokens_generated"]


def test_correction_reaches_the_optimiser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that reports half of the true probability of every token: rho = 2 (on the bound of `tis`), the gradient doubles."""
    from skpo.trainer import loop

    real = loop.step_batch

    def halved(*args: Any, **options: Any) -> Any:
        data = real(*args, **options)
        data.batch.old_logp = data.batch.old_logp - torch.log(torch.tensor(2.0))
        return data

    settings = ["algorithm=grpo", "steps=1", "optimizer.mini_batches=1", "optimizer.micro_batch_tokens=500"]
    plain = train(tmp_path / "plain", *settings, "optimizer.old_logp=recompute")
    monkeypatch.setattr(loop, "step_batch", halved)
    corrected = train(tmp_path / "corrected", *settings, "optimizer.correction=tis")
    assert corrected[0]["grad_norm"] == pytest.approx(2 * plain[0]["grad_norm"], rel=1e-3)
