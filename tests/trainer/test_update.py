"""Loss and gradient do not depend on micro-batch size, order or accumulation; non-finite numbers never reach the optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from support import tiny_model

from skpo import get_algorithm
from skpo.config import OptimizerConfig
from skpo.errors import RunError
from skpo.policy.scoring import ScoringModel, score_rows
from skpo.problems.base import Problem
from skpo.rollout.types import SEGMENT, Group, Sample
from skpo.trainer.batch import StepBatch, pad, split_minibatches, step_batch
from skpo.trainer.update import Updater

ALGORITHMS = ["skpo", "grpo", "dr_grpo", "rloo", "reinforce_pp", "dapo", "gspo", "gspo_token", "cispo", "sapo", "spo"]


def make_groups(model: torch.nn.Module, problems: int = 3, n: int = 4) -> list[Group]:
    """Random rows of differing lengths, with the model's own log-probabilities, a segment per problem."""
    rng = np.random.default_rng(0)
    groups = []
    for p in range(problems):
        samples = []
        shared = tuple(int(x) for x in rng.integers(3, 60, size=4 + p))
        for i in range(n + 1):
            context = shared if i < n else shared[1:]
            tokens = rng.integers(3, 60, size=rng.integers(1, 12))
            samples.append(
                Sample(context, tokens, np.zeros(len(tokens), np.float32), True, score=float(rng.integers(0, 2)))
            )
            if i == n:
                samples[-1].role = SEGMENT
            samples[-1].reward, samples[-1].baseline = float(rng.normal()), float(rng.normal() / 4)
        groups.append(Group(Problem(f"p{p}", "1"), samples))
    rows = [(s.context, s.tokens) for g in groups for s in g.samples]
    logps, _ = score_rows(ScoringModel(model), rows, device="cpu", budget=1000)
    for s, logp in zip([s for g in groups for s in g.samples], logps, strict=True):
        s.logp = logp
    return groups


def make_data(algorithm: Any, groups: list[Group]) -> StepBatch:
    if algorithm.name != "skpo":
        groups = [Group(g.problem, g.completions) for g in groups]
    data = step_batch(groups)
    data.advantages = algorithm.advantages(data.batch)
    return data


def updater(model: torch.nn.Module, algorithm: Any, **options: Any) -> Updater:
    accelerator = Accelerator(cpu=True)
    scoring = ScoringModel(model, chunk=5 * 67)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # the step is the gradient
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    config = OptimizerConfig(**{"max_grad_norm": 1e9, "micro_batch_tokens": 10_000, **options})
    model_, optimizer_ = accelerator.prepare(scoring, optimizer)
    return Updater(accelerator, model_, optimizer_, scheduler, config, algorithm, seed=0)


def gradient(name: str, **options: Any) -> tuple[torch.Tensor, dict[str, float]]:
    model = tiny_model("llama")
    algorithm = get_algorithm(name, **({"length": 20} if name == "dr_grpo" else {}))
    data = make_data(algorithm, make_groups(model))
    before = torch.cat([p.detach().clone().flatten() for p in model.parameters()])
    metrics = updater(model, algorithm, **options).step(data, 0)
    return before - torch.cat([p.detach().flatten() for p in model.parameters()]), metrics


@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradient_does_not_depend_on_micro_batches(name: str) -> None:
    whole, metrics = gradient(name)
    assert whole.norm() > 1e-3
    for budget in (1, 40):
        part, part_metrics = gradient(name, micro_batch_tokens=budget)
        torch.testing.assert_close(part, whole, atol=1e-5, rtol=0)
        for key, value in metrics.items():
            assert part_metrics[key] == pytest.approx(value, abs=2e-5), key


def test_gradient_equals_a_plain_padded_pass() -> None:
    """The trainer's rows, packed and chunked, against one padded forward pass through the model's own logits."""
    model = tiny_model("llama")
    algorithm = get_algorithm("skpo")
    groups = make_groups(model)
    data = make_data(algorithm, groups)
    width = max(len(s.context) + len(s) for s in data.samples)
    ids = torch.zeros(len(data.samples), width, dtype=torch.long)
    for i, s in enumerate(data.samples):
        ids[i, : len(s.context) + len(s)] = torch.tensor([*s.context, *s.tokens.tolist()])
    log_softmax = torch.log_softmax(model(input_ids=ids).logits, -1)
    rows = []
    for i, s in enumerate(data.samples):
        at = torch.arange(len(s.context) - 1, len(s.context) - 1 + len(s))
        row = log_softmax[i, at, torch.tensor(s.tokens)]
        rows.append(torch.nn.functional.pad(row, (0, data.batch.mask.shape[1] - len(s))))
    data.batch.logp = torch.stack(rows)
    data.batch.reward, data.batch.baseline = data.batch.reward.float(), data.batch.baseline.float()
    loss, _ = algorithm.loss(data.batch, data.advantages.float())
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    actual, metrics = gradient("skpo", micro_batch_tokens=40)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(float(expected.norm()), abs=1e-4)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_ratio_is_one_before_the_first_update(name: str) -> None:
    _, metrics = gradient(name, micro_batch_tokens=40)
    assert metrics["logp_deviation"] < 1e-5
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-5)
    assert metrics["kl_old"] < 1e-9


def idle_gradient(name: str, *, algorithm: Any = None, plain: bool) -> tuple[torch.Tensor, dict[str, float], Updater]:
    """(gradient, metrics, updater) of a batch off policy, in which the second problem's rows have no advantage; `plain`: all rows get a
    backward pass."""
    model = tiny_model("llama")
    algorithm = algorithm or get_algorithm(name, **({"length": 20} if name == "dr_grpo" else {}))
    data = make_data(algorithm, make_groups(model))
    data.advantages[data.rows_of_group[1]] = 0.0
    with torch.no_grad():
        for p in model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    before = torch.cat([p.detach().clone().flatten() for p in model.parameters()])
    up = updater(model, algorithm, micro_batch_tokens=60)
    if plain:
        up._idle_rows = lambda data, index: ([], index)  # type: ignore[method-assign]
    metrics = up.step(data, 0)
    return before - torch.cat([p.detach().flatten() for p in model.parameters()]), metrics, up


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rows_without_advantage_are_scored_without_a_backward_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They change neither the gradient nor any metric."""
    tokens = {True: 0, False: 0}
    forward = ScoringModel.forward

    def counted(self: ScoringModel, *args: Any) -> Any:
        tokens[torch.is_grad_enabled()] += len(args[2])
        return forward(self, *args)

    expected, expected_metrics, _ = idle_gradient(name, plain=True)
    monkeypatch.setattr(ScoringModel, "forward", counted)
    actual, metrics, up = idle_gradient(name, plain=False)
    assert expected.norm() > 1e-3
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert metrics == {k: pytest.approx(v, abs=2e-5) for k, v in expected_metrics.items()}
    assert metrics["ratio_max"] > 1.01
    assert up.idle_rows_are_silent
    assert 0 < tokens[True] < metrics["tokens_trained"]


def test_a_loss_that_reads_rows_without_advantage_is_noticed() -> None:
    class Pull(type(get_algorithm("grpo"))):  # type: ignore[misc]
        """GRPO with a term that no advantage multiplies, and that is not declared."""

        def loss(self, batch: Any, advantages: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
            loss, metrics = super().loss(batch, advantages)
            return loss - (batch.logp * batch.mask).sum() / 50, metrics

    expected, expected_metrics, _ = idle_gradient("pull", algorithm=Pull(), plain=True)
    actual, metrics, up = idle_gradient("pull", algorithm=Pull(), plain=False)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert metrics == {k: pytest.approx(v, abs=2e-5) for k, v in expected_metrics.items()}
    assert not up.idle_rows_are_silent


def test_nothing_but_rows_without_advantage_still_takes_an_optimiser_step() -> None:
    """A gradient of zeros, not none: momentum and weight decay act on it."""
    model = tiny_model("llama")
    algorithm = get_algorithm("grpo")
    data = make_data(algorithm, make_groups(model))
    data.advantages = torch.zeros_like(data.advantages)
    up = updater(model, algorithm)
    assert up.step(data, 0)["grad_norm"] == 0
    assert all(p.grad is not None for p in model.parameters())


def test_mini_batches_move_off_policy() -> None:
    _, metrics = gradient("grpo", mini_batches=3)
    assert metrics["ratio_max"] > 1.0001
    assert metrics["logp_deviation"] < 1e-5  # of the first mini-batch only


def test_split_minibatches_keeps_every_group() -> None:
    parts = split_minibatches(10, 3, np.random.default_rng(0))
    assert sorted(len(p) for p in parts) == [3, 3, 4]
    assert sorted(i for p in parts for i in p) == list(range(10))
    assert split_minibatches(2, 4, np.random.default_rng(0)) in ([[0], [1]], [[1], [0]])
    assert split_minibatches(3, 1, np.random.default_rng(0)) == [[0, 1, 2]]


def test_non_finite_numbers_are_skipped_counted_and_end_the_run() -> None:
    model = tiny_model("llama")
    algorithm = get_algorithm("grpo")
    data = make_data(algorithm, make_groups(model))
    broken = updater(model, algorithm)
    good = data.advantages
    before = [p.detach().clone() for p in model.parameters()]
    data.advantages = good * float("nan")
    assert broken.step(data, 0)["skipped_steps"] == 1
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    data.advantages = good
    assert broken.step(data, 1)["grad_norm"] > 0  # a good one in between starts the count again
    data.advantages = good * float("inf")
    broken.step(data, 2)
    broken.step(data, 3)
    with pytest.raises(RunError, match="3 optimiser steps in a row had a non-finite loss or gradient"):
        broken.step(data, 4)
    assert broken.updates == 1


def test_masks_come_from_lengths_never_from_token_values() -> None:
    """Pad may equal end-of-sequence (id 0 here): rows that contain it, and end with it, are trained on every sampled token."""
    samples = [
        Sample((5, 6), np.array([0, 7, 0]), np.zeros(3, np.float32), True),
        Sample((5, 6), np.array([0]), np.zeros(1, np.float32), True),
    ]
    data = step_batch([Group(Problem("p", "1"), samples)])
    assert data.batch.mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    samples[1].finished = False
    assert step_batch([Group(Problem("p", "1"), samples)], mask_truncated=True).batch.mask.tolist() == [
        [1, 1, 1],
        [0, 0, 0],
    ]


def test_pad() -> None:
    assert pad([np.array([1.0, 2.0]), np.zeros(0)], 3).tolist() == [[1, 2, 0], [0, 0, 0]]
