"""Helpers for tests of token-level credit: a renderer of letters, rows of a tiny model, short runs on the chain problems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from scripted import TextlessRenderer
from support import tiny_model

from skpo import Trainer, get_algorithm, load_config
from skpo.config import OptimizerConfig
from skpo.losses import TokenBatch
from skpo.policy.auxiliary import AuxiliaryContext
from skpo.policy.budget import Row
from skpo.policy.scoring import ScoringModel, score_rows
from skpo.problems.base import Problem
from skpo.rollout.types import Group, Sample
from skpo.trainer.batch import StepBatch, step_batch
from skpo.trainer.metrics import read_metrics
from skpo.trainer.update import Updater


class LetterRenderer(TextlessRenderer):
    """Token 100 + i is the i-th letter of this text, end-of-sequence (0) is empty."""

    LETTERS = "abcdefgh;. #\n0123456789WaitSo"

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.token_text(i) for i in ids)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(100 + self.LETTERS.index(c) for c in text)

    def token_text(self, token: int) -> str:
        return self.LETTERS[token - 100] if token >= 100 else ""


def batch_of(rewards: Sequence[float], lengths: Sequence[int], group: Sequence[int], **fields: Any) -> TokenBatch:
    """A float64 batch whose log-probabilities are all -0.5."""
    width = max(lengths)
    mask = (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).double()
    reward, logp = torch.tensor(rewards, dtype=torch.float64), -0.5 * mask
    zeros = torch.zeros(len(lengths), dtype=torch.long)
    return TokenBatch(reward, torch.tensor(group), zeros, torch.zeros_like(reward), logp, logp, mask, **fields)


def rows_of(values: Sequence[Sequence[float]]) -> torch.Tensor:
    """Rows of differing lengths, padded with a number that must never be read."""
    width = max(len(v) for v in values)
    return torch.tensor([[*v, *[99.0] * (width - len(v))] for v in values], dtype=torch.float64)


def model_rows(model: torch.nn.Module, problems: int = 3, n: int = 4) -> StepBatch:
    """Random responses of differing lengths with the model's own log-probabilities, and random values, steps and token rewards."""
    rng = np.random.default_rng(0)
    groups = []
    for p in range(problems):
        samples = []
        for i in range(n):
            context = tuple(int(x) for x in rng.integers(3, 60, size=4 + p))
            tokens = rng.integers(3, 60, size=rng.integers(1, 12))
            sample = Sample(context, tokens, np.zeros(len(tokens), np.float32), True, score=float(i % 2))
            sample.reward = float(i % 2)
            cuts = [len(tokens) // 2] if len(tokens) > 3 else []
            sample.info |= {"cuts": cuts, "values": rng.uniform(size=1 + len(cuts)).tolist()}
            sample.info["step_rewards"] = rng.normal(size=1 + len(cuts)).tolist()
            samples.append(sample)
        groups.append(Group(Problem(f"p{p}", "1"), samples))
    samples = [s for g in groups for s in g.samples]
    logps, _ = score_rows(ScoringModel(model), [(s.context, s.tokens) for s in samples], device="cpu", budget=1000)
    for sample, logp in zip(samples, logps, strict=True):
        sample.logp = logp
    return step_batch(groups)


def gradient(name: str, micro_batch_tokens: int, **options: Any) -> tuple[torch.Tensor, dict[str, float]]:
    """(gradient of a step on `model_rows`, its metrics) with micro-batches of so many tokens."""
    model = tiny_model("llama")
    algorithm, data = get_algorithm(name, **options), model_rows(model)
    data.batch.ref_logp = data.batch.old_logp - 0.1
    data.advantages = algorithm.advantages(data.batch)
    assert data.advantages.shape == data.batch.mask.shape
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    accelerator = Accelerator(cpu=True)
    scoring, optimizer = accelerator.prepare(ScoringModel(model, chunk=5 * 67), optimizer)
    config = OptimizerConfig(max_grad_norm=1e9, micro_batch_tokens=micro_batch_tokens)
    before = torch.cat([p.detach().clone().flatten() for p in model.parameters()])
    metrics = Updater(accelerator, scoring, optimizer, scheduler, config, algorithm, 0).step(data, 0)
    return before - torch.cat([p.detach().flatten() for p in model.parameters()]), metrics


def check_micro_batches(name: str, **options: Any) -> None:
    """Gradient and metrics with token-level advantages are the same for any micro-batches."""
    whole, metrics = gradient(name, 10_000, **options)
    assert whole.norm() > 1e-3
    for budget in (1, 40):
        part, part_metrics = gradient(name, budget, **options)
        torch.testing.assert_close(part, whole, atol=1e-5, rtol=0)
        for key, value in metrics.items():
            assert abs(part_metrics[key] - value) < 2e-5, key


def auxiliary_context(model: torch.nn.Module, **options: Any) -> AuxiliaryContext:
    """A context for auxiliary models whose starting policy is `tiny_model("llama")`."""
    config = OptimizerConfig(**{"lr": 1e-3, "max_grad_norm": 1e9, "weight_decay": 0.0, **options})
    return AuxiliaryContext(Accelerator(cpu=True), lambda: tiny_model("llama"), model, 1.0, config, lambda _: 1.0, 0)


def step_rows(data: StepBatch) -> list[Row]:
    return [data.row(i) for i in range(len(data.samples))]


SETTINGS = [
    "problems.train=builtin:chain?steps=4&size=64&split=train", "problems.heldout=null", "problems_per_step=4", "group_size=4",
    "rollout.max_completion_tokens=48", "eval_every=0", "eval.at_start=false", "steps=2", "checkpoint.every=2",
]  # fmt: skip


def train(out: Path, *more: str, resume: bool = False, steps: int | None = None) -> list[dict[str, Any]]:
    """The metrics of a short run on the chain problems, without those that measure time. `steps` stops it early."""
    config = load_config("chain", [*SETTINGS, f"out={out}", *more])
    config = config if steps is None else config.model_copy(update={"steps": steps})
    Trainer(config, quiet=True, resume=resume).train()
    timed = ("seconds", "tokens_per_second")
    return [{k: v for k, v in r.items() if not any(t in k for t in timed)} for r in read_metrics(out)]


def check_run(out: Path, *more: str) -> list[dict[str, Any]]:
    """Two steps of a run: every number finite, nothing skipped, ratio 1 before each update, a gradient. Returns its metrics."""
    metrics = train(out, *more)
    assert [m["step"] for m in metrics] == [1, 2]
    for m in metrics:
        assert all(np.isfinite(v) for v in m.values() if isinstance(v, int | float))
        assert m["skipped_steps"] == 0
        assert m["logp_deviation"] < 1e-4
        assert m["grad_norm"] > 0
    return metrics


def check_resume(tmp_path: Path, *more: str) -> None:
    """Four steps in one go, and the same stopped after two and resumed, give the same numbers."""
    whole = train(tmp_path / "whole", *more, "steps=4")
    train(tmp_path / "part", *more, "steps=4", steps=2)
    assert (tmp_path / "part" / "checkpoints" / "step-000002" / "auxiliary.pt").is_file()
    assert train(tmp_path / "part", *more, "steps=4", resume=True) == whole
